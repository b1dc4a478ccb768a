//! Jobs that nobody launched with `run`: their shim asks whether it may come, and introduces the job once it trains; or there is no
//! shim, and their processes are found. Then a collector of the job's evidence is started, as the job's user, which introduces the
//! job as that of a `run` would.

use super::{Desk, Process};
use crate::launching::{Collect, CollectEnd, ToLauncher};
use crate::policy::JobKnown;
use stallscope_wire::NodeEvent;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Collectors that one user's jobs may have started at once, and the time in which one more may: each is a process that the launcher
/// has to start, whatever becomes of it. As much counts a first cache that is kept for a job; sessions have as much of their own.
const AT_ONCE: u32 = 100;
const ONE_MORE: Duration = Duration::from_secs(1);
/// A job that was found, and whose collector failed, as where there is no kernel evidence, is thought of again after so long.
const AGAIN: Duration = Duration::from_secs(600);
/// A collector that did not last so long is not started again for as long, however often its job's shim asks.
const REST: Duration = Duration::from_secs(60);

/// Those that run, or are about to.
#[derive(Debug, Default)]
pub(super) struct Collectors {
    /// By the service's number of them.
    running: BTreeMap<u64, Collected>,
    starts: HashMap<(Begins, u32), Starts>,
    /// Processes that were found, and are to have no collector: until then, or as long as they are there.
    passed_over: BTreeMap<Process, Option<Instant>>,
    /// Processes whose shim asks, and whose collector failed: until then.
    resting: BTreeMap<Process, Instant>,
}

#[derive(Debug)]
struct Collected {
    uid: u32,
    process: Process,
    known: JobKnown,
    has_shim: bool,
    began: Instant,
    /// The job as which it has introduced itself.
    job: Option<u64>,
    /// It was asked to end.
    ends: bool,
}

/// What the launcher starts for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Begins {
    Collector,
    Session,
}

/// What is left to one user, as of a moment.
#[derive(Debug)]
struct Starts {
    left: u32,
    at: Instant,
}

impl Starts {
    fn left(&self, now: Instant) -> u32 {
        let more = now.saturating_duration_since(self.at).as_secs() / ONE_MORE.as_secs();
        self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(AT_ONCE)
    }
}

impl Collectors {
    /// Has those end that are so.
    fn end(&mut self, is_so: impl Fn(&Collected) -> bool) -> Vec<ToLauncher> {
        let ending = self.running.iter_mut().filter(|(_, one)| !one.ends && is_so(one));
        let end = |(id, one): (&u64, &mut Collected)| {
            one.ends = true;
            ToLauncher::Stop { id: *id }
        };
        ending.map(end).collect()
    }

    /// Whether user `payer` may have one more started.
    pub(super) fn pays(&mut self, begins: Begins, payer: u32, now: Instant) -> bool {
        let payer = (begins, payer);
        if !self.starts.contains_key(&payer) {
            // A user with the whole allowance again is as one who never came.
            self.starts.retain(|_, user| user.left(now) < AT_ONCE);
        }
        let user = self.starts.entry(payer).or_insert(Starts { left: AT_ONCE, at: now });
        let left = user.left(now);
        if left > user.left {
            *user = Starts { left, at: now };
        }
        let pays = user.left > 0;
        user.left = user.left.saturating_sub(1);
        pays
    }
}

impl Desk {
    /// Whether any rule is for jobs that nobody launched with `run`.
    pub(in crate::node_service) fn looks_for_jobs(&self) -> bool {
        self.policy.rules.iter().any(|rule| rule.without_run)
    }

    /// Whether the shim may come by itself into jobs of user `uid` that are `known` so.
    pub(in crate::node_service) fn is_for_policy(&self, uid: u32, known: &JobKnown) -> bool {
        // No collector is ever root's.
        uid != 0 && self.policy.allows(known, self.node_bytes).without_run
    }

    /// The shim of a job that trains says so: starts its collector, if the job is to have one and has none. `payer`: whose share
    /// that takes of.
    pub(in crate::node_service) fn introduced(
        &mut self,
        uid: u32,
        payer: u32,
        process: Process,
        known: JobKnown,
        now: Instant,
    ) -> Vec<ToLauncher> {
        let has_one = self.collectors.running.values().any(|one| one.process == process && one.has_shim);
        let rests = self.collectors.resting.get(&process).is_some_and(|until| now < *until);
        if has_one
            || rests
            || !self.is_for_policy(uid, &known)
            || !self.collectors.pays(Begins::Collector, payer, now)
        {
            return Vec::new();
        }
        // One that was found before has a collector that knows of no shim.
        let mut orders = self.collectors.end(|one| one.process == process);
        orders.push(self.collect(uid, process, known, true, now));
        orders
    }

    /// A job was found that has introduced itself by nothing: as above, with the kernel's evidence alone.
    pub(in crate::node_service) fn found(
        &mut self,
        uid: u32,
        payer: u32,
        process: Process,
        known: JobKnown,
        now: Instant,
    ) -> Vec<ToLauncher> {
        let has_one = self.collectors.running.values().any(|one| one.process == process);
        let passed_over = self.collectors.passed_over.get(&process);
        let is_passed_over = passed_over.is_some_and(|until| until.is_none_or(|until| now < until));
        if has_one
            || is_passed_over
            || !self.is_for_policy(uid, &known)
            || !self.collectors.pays(Begins::Collector, payer, now)
        {
            return Vec::new();
        }
        vec![self.collect(uid, process, known, false, now)]
    }

    fn collect(
        &mut self,
        uid: u32,
        process: Process,
        known: JobKnown,
        has_shim: bool,
        began: Instant,
    ) -> ToLauncher {
        self.last_session += 1;
        let (id, (pid, start_ticks)) = (self.last_session, process);
        let collected = Collected { uid, process, known, has_shim, began, job: None, ends: false };
        self.collectors.running.insert(id, collected);
        let retention = self.policy.recordings.as_ref().map(|recordings| recordings.retention);
        ToLauncher::Collect(Collect { id, uid, pid, start_ticks, has_shim, retention })
    }

    /// Processes that are a job's, or have a collector: what is below them is no job of its own.
    pub(in crate::node_service) fn processes(&self) -> BTreeSet<Process> {
        let known = self.jobs.values().filter_map(|job| job.process);
        let collected = self.collectors.running.values().filter(|one| one.has_shim).map(|one| one.process);
        known.chain(collected).collect()
    }

    /// What is passed over is what is there: `found` is all of it.
    pub(in crate::node_service) fn forget_all_but(&mut self, found: &[Process]) {
        self.collectors.passed_over.retain(|process, _| found.contains(process));
    }

    /// Whether such a collector was started for this process of user `uid`'s, and whether with a shim.
    pub(in crate::node_service) fn collector_of(&self, uid: u32, process: Process) -> Option<bool> {
        let mut all = self.collectors.running.values().filter(|one| !one.ends);
        all.find(|one| (one.uid, one.process) == (uid, process)).map(|one| one.has_shim)
    }

    /// Job number `id` is that of the collector for `process`.
    pub(in crate::node_service) fn collected(&mut self, id: u64, uid: u32, process: Process) {
        let all = self.collectors.running.values_mut();
        let mut has_shim = true;
        for one in all.filter(|one| !one.ends && (one.uid, one.process) == (uid, process)) {
            (one.job, has_shim) = (Some(id), one.has_shim);
        }
        self.drop_promises(Some(process), self.now);
        let Some(job) = self.jobs.get(&id) else { return };
        let rule = job.allowed.rule.unwrap_or(0);
        let how =
            if has_shim { "its shim came by itself" } else { "it was found, and is observed by the kernel" };
        let why = format!("nobody started it with `stallscope run`: {how}, by rule {rule}");
        self.events.push(NodeEvent { act: "session".into(), pid: process.0, why, ..job.event() });
    }

    /// Whether job number `id` introduced itself as this process, which its collector has not started.
    pub(in crate::node_service) fn is_collected(&self, id: u64, process: Process) -> bool {
        self.collectors.running.values().any(|one| one.job == Some(id) && one.process == process)
    }

    /// Whether number `id` was a collector's, which has ended. Its job's shim asks for another one as long as the job trains.
    pub(super) fn collector_ended(&mut self, id: u64, code: i32, now: Instant) -> bool {
        let Some(one) = self.collectors.running.remove(&id) else { return false };
        let Collected { uid, process, known, has_shim, began, ends, .. } = one;
        let failed = code != 0 && code != i32::from(CollectEnd::NoJob.code());
        match has_shim {
            _ if ends => {}
            true if failed && now.saturating_duration_since(began) < REST => {
                self.collectors.resting.retain(|_, until| now < *until);
                self.collectors.resting.insert(process, now + REST);
            }
            true => {}
            // Where it has not failed its user ended it, or its job did.
            false => {
                self.collectors.passed_over.insert(process, Some(now + AGAIN).filter(|_| failed));
            }
        }
        if failed && !ends {
            let pid = process.0;
            let why = format!(
                "the collector of process {pid}, which nobody started with `stallscope run`, could not go on"
            );
            let (act, by) = ("session".into(), "the service".into());
            self.events.push(NodeEvent { act, by, why, pid, uid, user: known.user, ..NodeEvent::default() });
        }
        true
    }

    /// Another policy is in force: collectors of jobs into which it lets no shim come end, and nothing else of their jobs.
    pub(super) fn end_collectors(&mut self) -> Vec<ToLauncher> {
        let (policy, node_bytes) = (&self.policy, self.node_bytes);
        self.collectors.end(|one| !policy.allows(&one.known, node_bytes).without_run)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::Arrival;
    use super::super::tests::{MIRA, OTTO, desk, of, started};
    use super::*;
    use crate::policy::Policy;

    const SHIM: &str = "[[jobs.rule]]\nmatch = { user = \"mira\" }\nmode = \"act\"\nwithout_run = true\n";
    const PROCESS: Process = (70, 9);

    fn known(user: &str, label: &str) -> JobKnown {
        JobKnown { user: user.into(), cgroups: Vec::new(), label: label.into() }
    }

    fn collector(orders: &[ToLauncher]) -> u64 {
        match orders {
            [ToLauncher::Collect(collect)] => collect.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_shim_comes_where_a_rule_says_so_and_never_into_jobs_of_root() {
        let desk =
            desk("[[jobs.rule]]\nmatch = { user = \"mira\" }\nmode = \"observe\"\nwithout_run = true\n");
        assert!(desk.is_for_policy(MIRA, &known("mira", "")));
        assert!(!desk.is_for_policy(MIRA, &known("mira", "off")));
        assert!(!desk.is_for_policy(OTTO, &known("otto", "")));
        assert!(!desk.is_for_policy(0, &known("mira", "")));
    }

    #[test]
    fn a_job_that_introduces_itself_has_one_collector_and_then_a_session() {
        let mut desk = desk(SHIM);
        let now = Instant::now();
        assert_eq!(desk.introduced(OTTO, OTTO, PROCESS, known("otto", ""), now), []);
        let orders = desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now);
        let id = collector(&orders);
        let collect = Collect { id, uid: MIRA, pid: 70, start_ticks: 9, has_shim: true, retention: None };
        assert_eq!(orders, [ToLauncher::Collect(collect)]);
        assert_eq!(desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now), [], "it has one");
        assert_eq!([MIRA, OTTO].map(|uid| desk.collector_of(uid, PROCESS)), [Some(true), None]);
        assert_eq!(desk.collector_of(MIRA, (70, 10)), None, "another process with its number");

        let (job, _) = desk.arrive(of(MIRA, ""));
        desk.collected(job, MIRA, PROCESS);
        assert!(desk.is_collected(job, PROCESS) && !desk.is_collected(job + 1, PROCESS));
        let session = started(&desk.started(job, 70, 9));
        let why = desk.take_events().into_iter().map(|event| event.why).collect::<Vec<_>>();
        assert!(why[0].contains("came by itself, by rule 1"), "{why:?}");

        // Its collector dies: the shim asks again, and gets another; not at once where that did not last either.
        assert_eq!(desk.gone(job), [ToLauncher::Stop { id: session }]);
        let later = now + REST;
        assert_eq!(desk.ended(id, -1, later), []);
        let why = desk.take_events().pop().unwrap();
        assert!(why.why.contains("could not go on") && why.user == "mira" && why.pid == 70, "{why:?}");
        let mut asks = |now| desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now);
        let second = collector(&asks(later));
        desk.ended(second, 1, later);
        let mut asks = |now| desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now);
        assert_eq!(asks(later + REST / 2), []);
        assert_ne!(collector(&asks(later + REST)), second);
    }

    #[test]
    fn a_policy_that_lets_no_shim_come_ends_the_collectors() {
        let mut desk = desk(SHIM);
        let now = Instant::now();
        let id = collector(&desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now));
        assert_eq!(desk.reload(Policy::parse(SHIM).unwrap()), []);
        assert_eq!(desk.reload(Policy::default()), [ToLauncher::Stop { id }]);
        assert_eq!(desk.reload(Policy::default()), [], "once");
        desk.take_events();
        assert_eq!(desk.ended(id, 1, now), []);
        assert_eq!(desk.take_events(), [], "as it was asked to");
        assert_eq!(desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now), []);
    }

    #[test]
    fn a_job_that_was_found_is_observed_alone_until_its_shim_introduces_it() {
        let mut desk = desk(SHIM);
        let now = Instant::now();
        assert_eq!(desk.found(OTTO, OTTO, PROCESS, known("otto", ""), now), []);
        let orders = desk.found(MIRA, MIRA, PROCESS, known("mira", ""), now);
        let id = collector(&orders);
        assert!(matches!(orders[..], [ToLauncher::Collect(Collect { has_shim: false, .. })]));
        assert_eq!(desk.found(MIRA, MIRA, PROCESS, known("mira", ""), now), [], "it has one");
        let (job, first_bytes) = desk.arrive(Arrival { is_watched: true, ..of(MIRA, "") });
        desk.collected(job, MIRA, PROCESS);
        assert_eq!((desk.started(job, 70, 9), first_bytes), (vec![], 0), "no session");
        assert!(desk.take_events()[0].why.contains("observed by the kernel, by rule 1"));
        let shown = desk.shown_to(MIRA, now).jobs.remove(0);
        assert!(shown.state.contains("by the kernel alone") && shown.cache_bytes == 0, "{shown:?}");
        assert_eq!(desk.processes(), [(70, 9)].into());

        let orders = desk.introduced(MIRA, MIRA, PROCESS, known("mira", ""), now);
        let [stop, ToLauncher::Collect(Collect { has_shim: true, .. })] = orders[..] else {
            panic!("{orders:?}")
        };
        assert_eq!((stop, desk.collector_of(MIRA, PROCESS)), (ToLauncher::Stop { id }, Some(true)));
        assert_eq!(desk.found(MIRA, MIRA, PROCESS, known("mira", ""), now), []);
    }

    #[test]
    fn what_was_found_and_is_no_job_is_passed_over_and_what_failed_for_a_while() {
        let mut desk = desk(SHIM);
        let now = Instant::now();
        let finds = |desk: &mut Desk, pid, now| desk.found(MIRA, MIRA, (pid, 9), known("mira", ""), now);
        let (other, failing) = (collector(&finds(&mut desk, 70, now)), collector(&finds(&mut desk, 71, now)));
        assert_eq!(desk.ended(other, i32::from(CollectEnd::NoJob.code()), now), []);
        assert_eq!(desk.take_events(), []);
        desk.ended(failing, 1, now);
        assert_eq!(desk.take_events().len(), 1);
        assert_eq!([finds(&mut desk, 70, now), finds(&mut desk, 71, now)], [vec![], vec![]]);
        assert_eq!(finds(&mut desk, 70, now + AGAIN), []);
        collector(&finds(&mut desk, 71, now + AGAIN));
        desk.forget_all_but(&[(71, 9)]);
        collector(&finds(&mut desk, 70, now + AGAIN));
    }

    #[test]
    fn one_user_has_no_more_collectors_started_than_their_share() {
        let mut desk = desk(SHIM);
        let now = Instant::now();
        let mut asks =
            |payer, pid, now| !desk.introduced(MIRA, payer, (pid, 9), known("mira", ""), now).is_empty();
        assert_eq!((1..=1000).filter(|pid| asks(7, *pid, now)).count(), AT_ONCE as usize);
        assert!(asks(8, 2000, now), "another's share is another");
        assert!(asks(7, 2001, now + ONE_MORE) && !asks(7, 2002, now + ONE_MORE));
        assert!(asks(7, 2003, now + 2 * ONE_MORE));
        // Jobs of `run` that begin and are gone: each session is a process, too.
        let mut began = 0;
        for pid in 1..=1000 {
            let (id, _) = desk.arrive(Arrival { payer: 7, ..of(MIRA, "") });
            began += desk.started(id, pid, 9).len();
            desk.gone(id);
        }
        assert_eq!(began, AT_ONCE as usize);
        let (late, _) = desk.arrive(Arrival { payer: 7, ..of(MIRA, "") });
        assert_eq!(desk.started(late, 3000, 9), []);
        assert!(desk.shown_to(0, now).jobs.iter().any(|job| job.state.contains("after others")));
        let later = now + 2 * ONE_MORE + Duration::from_secs(60);
        assert!(matches!(desk.tick(later)[..], [ToLauncher::Start(_)]));
    }
}
