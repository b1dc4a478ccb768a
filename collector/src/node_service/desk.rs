//! What the node's service knows of each job, and what it decides. Pure: it is given the time, and gives what the launcher is to do.

mod first_cache;
mod introduced;
mod pausing;
mod place;
mod readers;
mod shown;
#[cfg(test)]
mod tests;

use first_cache::Promise;
use introduced::{Begins, Collectors};
pub(super) use pausing::{Asking, Turned};
use readers::Readers;

use super::pauses::{Pauses, Process};
use super::reported::{self, Reported};
use super::shares::{Bounds, Curve, Shares};
use crate::foreign_text;
use crate::launching::{SessionEnd, Start, ToLauncher, acts};
use crate::options::first_cache_of;
use crate::policy::{Allowed, JobKnown, Policy};
use stallscope_units::memory;
use stallscope_wire::{JobHello, JobReport, NodeEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A session that failed is started again so often, first after so long, and then after twice that.
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Where a user's jobs begin faster than sessions are started for them.
const PUT_OFF: Duration = Duration::from_secs(1);
/// One that ran for longer did not fail at what it began with: what fails later is tried anew.
const RAN_WELL: Duration = Duration::from_secs(600);
/// A job that has not begun by then is granted nothing before it does.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// After its start a service waits so long for the jobs that know an earlier one.
const RETURN_WITHIN: Duration = Duration::from_secs(4);
/// Part of what its rule allows by which a grant has to change.
const WORTH_A_LINE: u64 = 10;
/// Characters of a name that are kept.
const NAME_CHARS: usize = 200;

/// A job that introduces itself.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Its owner, by the kernel's word.
    pub(super) uid: u32,
    /// Whose share of what all users have together it takes of.
    pub(super) payer: u32,
    pub(super) user: String,
    pub(super) cgroups: Vec<String>,
    pub(super) job: JobHello,
    /// Without a shim: there is nothing in it that could be tuned.
    pub(super) is_watched: bool,
}

#[derive(Debug)]
pub(super) struct Desk {
    policy: Policy,
    node_bytes: u64,
    began: Instant,
    /// At the last tick.
    now: Instant,
    pauses: Pauses,
    /// Of jobs that nobody launched with `run`.
    collectors: Collectors,
    /// To such jobs, before they introduce themselves.
    promises: Vec<Promise>,
    /// Of the jobs whose caches the policy raises.
    shares: Shares,
    readers: Readers,
    /// Jobs whose grant is another since they were last taken.
    regranted: BTreeSet<u64>,
    /// For the node's audit, since they were last taken.
    events: Vec<NodeEvent>,
    /// In the order in which they came.
    jobs: BTreeMap<u64, Job>,
    last_job: u64,
    last_session: u64,
}

#[derive(Debug)]
struct Job {
    uid: u32,
    payer: u32,
    name: String,
    known: JobKnown,
    /// Its owner chose a mode when it was started: then it is no concern of the policy's.
    is_own: bool,
    process: Option<Process>,
    /// It has started, as a process that is not found here.
    is_unseen: bool,
    /// It has no shim.
    is_watched: bool,
    allowed: Allowed,
    /// What an earlier service had granted its caches.
    had_bytes: Option<u64>,
    /// Its grant as the node's audit has it.
    noted_bytes: Option<u64>,
    arrived: Instant,
    tries: u32,
    /// When the last session began.
    began: Instant,
    session: Session,
    reported: Reported,
}

#[derive(Debug, PartialEq)]
enum Session {
    None,
    Runs(u64),
    /// It was asked to end.
    Ends(u64),
    StartsAgain(Instant),
    /// So many of its user's began a moment ago that this one is put off.
    Waits(Instant),
    /// For the reason given.
    GivenUp(String),
}

impl Job {
    /// Whether its session changes anything; `None`: it is to have none, whether there is a pause or not.
    fn wants_session(&self) -> Option<bool> {
        // A session without capabilities may not look into processes of root, and none is to have any.
        let is_left_alone = self.is_own || self.is_unseen || self.is_watched || self.uid == 0;
        acts(self.allowed.mode).filter(|_| !is_left_alone)
    }

    /// 0: it has not begun.
    fn pid(&self) -> u32 {
        self.process.map_or(0, |(pid, _)| pid)
    }

    /// Of the node's audit, about this job.
    fn event(&self) -> NodeEvent {
        NodeEvent {
            job: self.name.clone(),
            pid: self.pid(),
            user: self.known.user.clone(),
            uid: self.uid,
            by: "the service".into(),
            ..NodeEvent::default()
        }
    }

    /// Of its caches in the ledger; `None`: the policy raises none of them.
    fn bounds(&self) -> Option<Bounds> {
        let Allowed { cache_bytes: most, cache_floor_bytes: floor, .. } = self.allowed;
        (self.wants_session() == Some(true) && most > 0).then_some(Bounds { floor, most })
    }
}

impl Desk {
    pub(super) fn new(policy: Policy, node_bytes: u64, pauses: Pauses) -> Desk {
        Desk {
            shares: Shares::closed(policy.grantable_bytes(node_bytes)),
            policy,
            node_bytes,
            began: Instant::now(),
            now: Instant::now(),
            pauses,
            collectors: Collectors::default(),
            promises: Vec::new(),
            readers: Readers::default(),
            regranted: BTreeSet::new(),
            events: Vec::new(),
            jobs: BTreeMap::new(),
            last_job: 0,
            last_session: 0,
        }
    }

    /// What jobs may have from now on, of those that may have more or less than before.
    pub(super) fn take_grants(&mut self) -> Vec<(u64, u64)> {
        let ids = std::mem::take(&mut self.regranted);
        ids.into_iter().filter(|id| self.jobs.contains_key(id)).map(|id| (id, self.granted(id))).collect()
    }

    /// What the job's caches may be raised to now.
    fn granted(&self, id: u64) -> u64 {
        let advised = || self.jobs.get(&id).filter(|job| job.wants_session() == Some(false));
        self.shares.granted(id).or_else(|| Some(advised()?.allowed.cache_bytes)).unwrap_or(0)
    }

    /// Into the ledger, where it is not yet.
    fn admit(&mut self, id: u64) {
        let bounds = self.jobs.get(&id).and_then(Job::bounds);
        if let Some(bounds) = bounds.filter(|_| self.shares.granted(id).is_none()) {
            let had = self.jobs.get(&id).and_then(|job| job.had_bytes);
            self.shares.enter(id, bounds, had);
        }
    }

    /// A grant that is much more or less than the one that the node's audit has is a line of it.
    fn note_grant(&mut self, id: u64) {
        let (Some(job), Some(to)) = (self.jobs.get_mut(&id), self.shares.granted(id)) else { return };
        let Some(from) = job.noted_bytes else { return };
        if from.abs_diff(to) < job.allowed.cache_bytes / WORTH_A_LINE {
            return;
        }
        job.noted_bytes = Some(to);
        self.events.push(NodeEvent {
            act: "grant".into(),
            knob: "cache.bytes".into(),
            from: Some(from),
            to: Some(to),
            why: "memory for caches goes where it saves most time".into(),
            ..job.event()
        });
    }

    /// What is new for the node's audit.
    pub(super) fn take_events(&mut self) -> Vec<NodeEvent> {
        std::mem::take(&mut self.events)
    }

    /// The job's number, and what a cache that it begins with may take.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> (u64, u64) {
        let Arrival { uid, payer, user, cgroups, job, is_watched } = arrival;
        let known = JobKnown { user, cgroups, label: job.label };
        let allowed = self.policy.allows(&known, self.node_bytes);
        self.last_job += 1;
        let id = self.last_job;
        let job = Job {
            uid,
            payer,
            name: foreign_text::short(&job.name, NAME_CHARS),
            known,
            is_own: job.own_mode.is_some(),
            process: None,
            is_unseen: false,
            is_watched,
            allowed,
            had_bytes: job.granted_bytes,
            noted_bytes: None,
            arrived: self.now,
            tries: 0,
            began: self.now,
            session: Session::None,
            reported: Reported::default(),
        };
        self.jobs.insert(id, job);
        // In a pause nothing is begun; what an earlier service had granted is in force all the same.
        let is_paused = self.pauses.of_node().is_some();
        if !is_paused || self.jobs[&id].had_bytes.is_some() {
            self.admit(id);
        }
        // One that holds next to nothing costs the job its look-ups and saves nothing.
        let granted = self.shares.granted(id).filter(|_| !is_paused).unwrap_or(0);
        let first_bytes = Some(first_cache_of(granted)).filter(|bytes| *bytes <= granted).unwrap_or(0);
        (id, first_bytes)
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
            self.shares.leave(id);
        }
    }

    /// Starts its session, where it is to have one and has none.
    fn begin(&mut self, id: u64) -> Vec<ToLauncher> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        let (Some(acts), Some((pid, start_ticks))) = (job.wants_session(), job.process) else {
            return Vec::new();
        };
        let is_paused = self.pauses.is_paused(job.process);
        if is_paused || matches!(job.session, Session::Runs(_) | Session::Ends(_)) {
            return Vec::new();
        }
        if !self.collectors.pays(Begins::Session, job.payer, self.now) {
            job.session = Session::Waits(self.now + PUT_OFF);
            return Vec::new();
        }
        self.last_session += 1;
        job.session = Session::Runs(self.last_session);
        job.began = self.now;
        let (uid, rule) = (job.uid, job.allowed.rule.unwrap_or(0));
        let Allowed { checkpoint_ppm, all_cores, .. } = job.allowed;
        self.admit(id);
        let cache_bytes = self.granted(id);
        if self.shares.granted(id).is_none() {
            // The ledger will not say so, and the job may know of an earlier grant.
            self.regranted.insert(id);
        }
        self.events.push(begun(&self.jobs[&id], cache_bytes));
        self.jobs.entry(id).and_modify(|job| job.noted_bytes = Some(cache_bytes));
        vec![ToLauncher::Start(Start {
            id: self.last_session,
            uid,
            pid,
            start_ticks,
            acts,
            all_cores,
            rule,
            cache_bytes,
            checkpoint_ppm,
        })]
    }

    /// What the job's collector says of it; `age`: of the job.
    pub(super) fn reported(&mut self, id: u64, report: &JobReport, age: Duration, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.reported.take(report, age, now);
        self.readers.reads(id, report.reading, now);
        if let Some(ask) = &report.cache {
            self.shares.asks(id, ask.granted_bytes, ask.held_bytes, Curve::of(&ask.benefit));
        }
        if let Some(sentence) = &report.of_recordings {
            self.events.push(reported::of_recordings(sentence, job.event()));
        }
        if let Some(line) = &report.line {
            self.events.push(reported::line(line, job.event()));
        }
    }

    /// When the job's process began, in ticks since the machine did.
    pub(super) fn start_ticks(&self, id: u64) -> Option<u64> {
        self.jobs.get(&id)?.process.map(|(_, start_ticks)| start_ticks)
    }

    /// The job, or its collector, has hung up: what its caches had is others' from now on.
    pub(super) fn gone(&mut self, id: u64) -> Vec<ToLauncher> {
        self.shares.leave(id);
        self.readers.leave(id);
        let Some(job) = self.jobs.remove(&id) else { return Vec::new() };
        if let Some(why) = job.reported.in_words() {
            self.events.push(NodeEvent { act: "ended".into(), why, ..job.event() });
        }
        match job.session {
            Session::Runs(id) => vec![ToLauncher::Stop { id }],
            _ => Vec::new(),
        }
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: u64, code: i32, now: Instant) -> Vec<ToLauncher> {
        if self.collector_ended(session, code, now) {
            return Vec::new();
        }
        let is_its =
            |job: &Job| job.session == Session::Runs(session) || job.session == Session::Ends(session);
        let Some((&id, job)) = self.jobs.iter_mut().find(|(_, job)| is_its(job)) else { return Vec::new() };
        if job.session == Session::Ends(session) {
            job.session = Session::None;
            return self.begin(id);
        }
        let pid = job.pid();
        if now.saturating_duration_since(job.began) >= RAN_WELL {
            job.tries = 0;
        }
        job.session = match SessionEnd::of_code(code) {
            SessionEnd::Stopped => Session::GivenUp("not tuned any more: its user ended the session".into()),
            SessionEnd::JobEnded | SessionEnd::Failed if job.tries < TRIES => {
                job.tries += 1;
                Session::StartsAgain(now + pause(job.tries))
            }
            SessionEnd::JobEnded | SessionEnd::Failed => Session::GivenUp(format!(
                "not tuned: its session ended {} times; `stallscope tune {pid} --act` of its user says why",
                TRIES + 1
            )),
        };
        let why = match &job.session {
            Session::GivenUp(why) => why.clone(),
            _ => format!("its session ended and starts again in {} s", pause(job.tries).as_secs()),
        };
        self.events.push(NodeEvent { act: "session".into(), why, ..job.event() });
        Vec::new()
    }

    /// Once a second.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<ToLauncher> {
        self.now = now;
        if now.saturating_duration_since(self.began) >= RETURN_WITHIN {
            self.shares.open();
        }
        self.drop_promises(None, now);
        let waits =
            |job: &Job| job.process.is_none() && now.saturating_duration_since(job.arrived) >= BEGINS_WITHIN;
        for (id, _) in self.jobs.iter().filter(|(_, job)| waits(job)) {
            self.shares.leave(*id);
        }
        let changed = self.shares.settle(now);
        changed.iter().for_each(|id| self.note_grant(*id));
        self.regranted.extend(changed);
        let is_due =
            |job: &Job| matches!(job.session, Session::StartsAgain(due) | Session::Waits(due) if due <= now);
        let due: Vec<u64> = self.jobs.iter().filter(|(_, job)| is_due(job)).map(|(id, _)| *id).collect();
        due.into_iter().flat_map(|id| self.begin(id)).collect()
    }

    /// Another policy is in force: sessions that it would have started otherwise end, and their successors begin.
    pub(super) fn reload(&mut self, policy: Policy) -> Vec<ToLauncher> {
        self.policy = policy;
        let why = "the configuration was read again and is in force".into();
        self.events.push(NodeEvent {
            act: "policy".into(),
            by: "SIGHUP".into(),
            why,
            ..NodeEvent::default()
        });
        self.shares.set_budget(self.policy.grantable_bytes(self.node_bytes));
        let mut orders = self.end_collectors();
        for (id, job) in &mut self.jobs {
            let before = job.allowed;
            job.allowed = self.policy.allows(&job.known, self.node_bytes);
            match job.bounds() {
                Some(bounds) if self.shares.granted(*id).is_some() => self.shares.rebound(*id, bounds),
                Some(bounds) if self.pauses.of_node().is_none() => self.shares.enter(*id, bounds, None),
                Some(_) => {}
                // Its session goes on, and gives back.
                None if job.wants_session() == Some(true) => self.shares.rebound(*id, Bounds::default()),
                None if job.process.is_some() => self.shares.keep(*id),
                None => self.shares.leave(*id),
            }
            // What a session may use changes while it runs.
            let given =
                |allowed: &Allowed| (allowed.mode, allowed.rule, allowed.checkpoint_ppm, allowed.all_cores);
            if given(&before) == given(&job.allowed) {
                continue;
            }
            job.tries = 0;
            match job.session {
                Session::Runs(id) => {
                    job.session = Session::Ends(id);
                    orders.push(ToLauncher::Stop { id });
                }
                Session::Ends(_) => {}
                Session::None | Session::StartsAgain(_) | Session::Waits(_) | Session::GivenUp(_) => {
                    job.session = Session::None;
                }
            }
        }
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        let idle = ids.into_iter().filter(|id| self.jobs[id].session == Session::None).collect::<Vec<_>>();
        orders.extend(idle.into_iter().flat_map(|id| self.begin(id)));
        orders
    }
}

/// After so many tries.
fn pause(tries: u32) -> Duration {
    FIRST_PAUSE * (1 << tries.saturating_sub(1))
}

/// A session of it begins.
fn begun(job: &Job, cache_bytes: u64) -> NodeEvent {
    let rule = job.allowed.rule.unwrap_or(0);
    let why = match (job.wants_session(), cache_bytes) {
        (Some(true), 0) => format!("a session begins by rule {rule}: act, caches stay as they are"),
        (Some(true), bytes) => {
            format!("a session begins by rule {rule}: act, caches up to {}", memory(bytes))
        }
        _ => format!("a session begins by rule {rule}: advise"),
    };
    NodeEvent { act: "session".into(), why, ..job.event() }
}
