//! What the node's service knows of each job, and what it decides. Pure: it is given the time, and gives what the launcher is to do.

#[cfg(test)]
mod tests;

use crate::launching::{SessionEnd, Start, ToLauncher, acts};
use crate::options::first_cache_of;
use crate::policy::{Allowed, JobKnown, Mode, Policy};
use stallscope_wire::{JobHello, NodeJob};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A session that failed is started again so often, first after so long, and then after twice that.
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Characters of a name that are kept.
const NAME_CHARS: usize = 200;

/// A job that introduces itself.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Its owner, by the kernel's word.
    pub(super) uid: u32,
    pub(super) user: String,
    pub(super) cgroups: Vec<String>,
    pub(super) job: JobHello,
}

#[derive(Debug)]
pub(super) struct Desk {
    policy: Policy,
    node_bytes: u64,
    /// In the order in which they came.
    jobs: BTreeMap<u64, Job>,
    last_job: u64,
    last_session: u64,
}

#[derive(Debug)]
struct Job {
    uid: u32,
    name: String,
    known: JobKnown,
    /// Its owner chose a mode when it was started: then it is no concern of the policy's.
    is_own: bool,
    process: Option<(u32, u64)>,
    /// It has started, as a process that is not found here.
    is_unseen: bool,
    allowed: Allowed,
    /// Of what its caches may have by the policy: what others left.
    granted_bytes: u64,
    tries: u32,
    session: Session,
}

#[derive(Debug, PartialEq)]
enum Session {
    None,
    Runs(u64),
    /// It was asked to end.
    Ends(u64),
    StartsAgain(Instant),
    /// For the reason given.
    GivenUp(String),
}

impl Job {
    fn wants_session(&self) -> Option<bool> {
        // A session without capabilities may not look into processes of root, and none is to have any.
        acts(self.allowed.mode).filter(|_| !self.is_own && !self.is_unseen && self.uid != 0)
    }

    /// What its caches take of the node's memory.
    fn reserved_bytes(&self) -> u64 {
        if self.wants_session() == Some(true) { self.granted_bytes } else { 0 }
    }
}

impl Desk {
    pub(super) fn new(policy: Policy, node_bytes: u64) -> Desk {
        Desk { policy, node_bytes, jobs: BTreeMap::new(), last_job: 0, last_session: 0 }
    }

    /// The job's number, and what a cache that it begins with may take.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> (u64, u64) {
        let Arrival { uid, user, cgroups, job } = arrival;
        let known = JobKnown { user, cgroups, label: job.label };
        let allowed = self.policy.allows(&known, self.node_bytes);
        self.last_job += 1;
        let id = self.last_job;
        let job = Job {
            uid,
            name: job.name.chars().take(NAME_CHARS).collect(),
            known,
            is_own: job.own_mode.is_some(),
            process: None,
            is_unseen: false,
            granted_bytes: allowed.cache_bytes.min(self.left_bytes()),
            allowed,
            tries: 0,
            session: Session::None,
        };
        let granted = job.reserved_bytes();
        // One that holds next to nothing costs the job its look-ups and saves nothing.
        let first_bytes = Some(first_cache_of(granted)).filter(|bytes| *bytes <= granted).unwrap_or(0);
        self.jobs.insert(id, job);
        (id, first_bytes)
    }

    /// Memory that no cache was granted yet.
    fn left_bytes(&self) -> u64 {
        let granted = self.jobs.values().map(Job::reserved_bytes).fold(0, u64::saturating_add);
        self.policy.grantable_bytes(self.node_bytes).saturating_sub(granted)
    }

    pub(super) fn started(&mut self, id: u64, pid: u32, start_ticks: u64) -> Vec<ToLauncher> {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.process = Some((pid, start_ticks));
        }
        self.begin(id)
    }

    /// It has started, and its process is not found here.
    pub(super) fn unseen(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_unseen = true;
        }
    }

    /// Starts its session, where it is to have one and has none.
    fn begin(&mut self, id: u64) -> Vec<ToLauncher> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        let (Some(acts), Some((pid, start_ticks))) = (job.wants_session(), job.process) else {
            return Vec::new();
        };
        if matches!(job.session, Session::Runs(_) | Session::Ends(_)) {
            return Vec::new();
        }
        self.last_session += 1;
        job.session = Session::Runs(self.last_session);
        vec![ToLauncher::Start(Start {
            id: self.last_session,
            uid: job.uid,
            pid,
            start_ticks,
            acts,
            rule: job.allowed.rule.unwrap_or(0),
            cache_bytes: job.granted_bytes,
        })]
    }

    /// The job, or its collector, has hung up.
    pub(super) fn gone(&mut self, id: u64) -> Vec<ToLauncher> {
        match self.jobs.remove(&id).map(|job| job.session) {
            Some(Session::Runs(id)) => vec![ToLauncher::Stop { id }],
            _ => Vec::new(),
        }
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: u64, code: i32, now: Instant) -> Vec<ToLauncher> {
        let is_its =
            |job: &Job| job.session == Session::Runs(session) || job.session == Session::Ends(session);
        let Some((&id, job)) = self.jobs.iter_mut().find(|(_, job)| is_its(job)) else { return Vec::new() };
        if job.session == Session::Ends(session) {
            job.session = Session::None;
            return self.begin(id);
        }
        let pid = job.process.map_or(0, |(pid, _)| pid);
        job.session = match SessionEnd::of_code(code) {
            SessionEnd::Stopped => Session::GivenUp("not tuned any more: its user ended the session".into()),
            SessionEnd::JobEnded | SessionEnd::Failed if job.tries < TRIES => {
                job.tries += 1;
                Session::StartsAgain(now + FIRST_PAUSE * (1 << (job.tries - 1)))
            }
            SessionEnd::JobEnded | SessionEnd::Failed => Session::GivenUp(format!(
                "not tuned: its session ended {} times; `stallscope tune {pid} --act` of its user says why",
                TRIES + 1
            )),
        };
        Vec::new()
    }

    /// Once a second.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<ToLauncher> {
        let is_due = |job: &Job| matches!(job.session, Session::StartsAgain(due) if due <= now);
        let due: Vec<u64> = self.jobs.iter().filter(|(_, job)| is_due(job)).map(|(id, _)| *id).collect();
        due.into_iter().flat_map(|id| self.begin(id)).collect()
    }

    /// Another policy is in force: sessions that it would have started otherwise end, and their successors begin.
    pub(super) fn reload(&mut self, policy: Policy) -> Vec<ToLauncher> {
        self.policy = policy;
        let mut left = self.policy.grantable_bytes(self.node_bytes);
        let mut orders = Vec::new();
        for job in self.jobs.values_mut() {
            let before = (job.allowed, job.granted_bytes);
            job.allowed = self.policy.allows(&job.known, self.node_bytes);
            job.granted_bytes = job.allowed.cache_bytes.min(left);
            left -= job.reserved_bytes();
            if before == (job.allowed, job.granted_bytes) {
                continue;
            }
            job.tries = 0;
            match job.session {
                Session::Runs(id) => {
                    job.session = Session::Ends(id);
                    orders.push(ToLauncher::Stop { id });
                }
                Session::Ends(_) => {}
                Session::None | Session::StartsAgain(_) | Session::GivenUp(_) => job.session = Session::None,
            }
        }
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        let idle = ids.into_iter().filter(|id| self.jobs[id].session == Session::None).collect::<Vec<_>>();
        orders.extend(idle.into_iter().flat_map(|id| self.begin(id)));
        orders
    }

    /// The jobs that user `uid` may know of.
    pub(super) fn list(&self, uid: u32) -> Vec<NodeJob> {
        let shown = self.jobs.values().filter(|job| uid == 0 || job.uid == uid);
        let shown = shown.filter(|job| job.allowed.mode != Mode::Off);
        shown
            .map(|job| NodeJob {
                name: job.name.clone(),
                pid: job.process.map_or(0, |(pid, _)| pid),
                user: job.known.user.clone(),
                mode: job.allowed.mode.name().into(),
                rule: job.allowed.rule,
                cache_bytes: job.granted_bytes,
                state: state(job),
            })
            .collect()
    }
}

fn state(job: &Job) -> String {
    match &job.session {
        _ if job.is_own => "its owner chose a mode with --tune; the policy leaves it alone".into(),
        _ if job.uid == 0 && job.allowed.mode >= Mode::Advise => {
            "left alone: jobs of root are not tuned by policy".into()
        }
        _ if job.is_unseen && job.allowed.mode >= Mode::Advise => {
            "not tuned: its process is not seen from here, as in a container or where /proc is mounted with hidepid".into()
        }
        _ if job.is_unseen => "left alone".into(),
        _ if job.process.is_none() => "starting".into(),
        Session::Runs(_) if job.allowed.mode == Mode::Act => "tuned".into(),
        Session::Runs(_) => "advised".into(),
        Session::Ends(_) => "its session ends".into(),
        Session::StartsAgain(_) => "its session failed and starts again".into(),
        Session::GivenUp(why) => why.clone(),
        Session::None => "left alone".into(),
    }
}
