//! What the controller does for simulated jobs that have memory for the workers they began with, and for no more.

use crate::job::{Job, SECOND_NS};
use crate::policy::{Ours, Policy};
use crate::run;
use crate::scenario::{self, Scenario};
use stallscope_model::{Act, AuditEvent, TuneMode};

fn named(name: &str) -> Scenario {
    scenario::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario")
}

/// What was seen while a scenario ran.
struct Seen {
    audit: Vec<AuditEvent>,
    /// Workers of both ranks together, at most.
    most_workers: u64,
    /// Workers of each rank when it ended.
    workers: Vec<u64>,
    seconds_over: u32,
}

/// Until a decision of moving a worker has ended so, and a little longer; at most for an hour.
fn until_shifted(name: &str, ends: Act) -> Seen {
    let scenario = named(name);
    let mut job = Job::new(&scenario, scenario.script(), 1);
    let mut ours = Ours::new(scenario.budgets, 1);
    let (mut most_workers, mut ended) = (0, None);
    while job.now_ns < 3600 * SECOND_NS && ended.is_none_or(|at| job.now_ns < at + 5 * SECOND_NS) {
        let observation = job.second();
        let actions = ours.observe(&observation);
        job.ask(&actions);
        most_workers =
            most_workers.max(job.settings().iter().map(|setting| u64::from(setting.workers)).sum());
        let is_end = ours.audit().iter().any(|event| event.act == ends);
        ended = ended.or(is_end.then_some(job.now_ns));
    }
    let workers = job.settings().iter().map(|setting| u64::from(setting.workers)).collect();
    Seen { audit: ours.audit().to_vec(), most_workers, workers, seconds_over: job.tally.violations }
}

impl Seen {
    fn first(&self, act: Act) -> &AuditEvent {
        self.audit.iter().find(|event| event.act == act).expect("it is in the audit")
    }

    /// What a decision asked the ranks' workers to be, first.
    fn asked(&self, decision: u64) -> Vec<(Option<u32>, Option<u64>, Option<u64>)> {
        let of = |event: &&AuditEvent| {
            event.act == Act::Request && event.decision == decision && event.knob == "workers"
        };
        self.audit.iter().filter(of).take(2).map(|event| (event.rank, event.from, event.to)).collect()
    }
}

#[test]
fn where_no_core_is_left_a_worker_goes_to_the_rank_that_waits_most() {
    let seen = until_shifted("2 ranks, a worker to spare", Act::Keep);
    let keep = seen.first(Act::Keep);
    assert_eq!(seen.asked(keep.decision), [(Some(1), Some(2), Some(1)), (Some(0), Some(2), Some(3))]);
    assert!(keep.measured.is_some_and(|gain| gain.low >= 0.02), "{keep:?}");
    assert_eq!((seen.workers.as_slice(), seen.most_workers), ([3, 1].as_slice(), 4));
    assert_eq!(seen.seconds_over, 0, "the budget of cores is kept all the while");
}

#[test]
fn a_worker_that_its_rank_cannot_do_without_comes_back() {
    let seen = until_shifted("2 ranks, none to spare", Act::Undo);
    let undo = seen.first(Act::Undo);
    assert_eq!(seen.asked(undo.decision), [(Some(1), Some(2), Some(1)), (Some(0), Some(2), Some(3))]);
    assert!(undo.why.contains("the job got slower with it"), "{undo:?}");
    assert!(undo.measured.is_some_and(|gain| gain.value < -0.1), "{undo:?}");
    assert_eq!((seen.workers.as_slice(), seen.most_workers), ([2, 2].as_slice(), 4));
    assert_eq!(seen.seconds_over, 0, "the budget of cores is kept all the while");
}

/// The time that a sentence gives after these words; 0 where it has them not.
fn seconds_after(sentence: &str, words: &str) -> f64 {
    let Some((_, rest)) = sentence.split_once(words) else { return 0.0 };
    let mut rest = rest.split(' ');
    let value: f64 = rest.next().and_then(|value| value.parse().ok()).expect("a number");
    if rest.next() == Some("ms") { value / 1000.0 } else { value }
}

#[test]
fn a_compute_bound_job_on_busy_cores_is_left_alone() {
    for seed in 0..3 {
        let ran = run::ours(&named("compute-bound on two cores, 100 s"), seed);
        assert_eq!((ran.acts(Act::Request), ran.acts(Act::Release)), (0, 0), "{:?}", ran.audit);
    }
}

#[test]
fn a_job_of_100_seconds_whose_storage_is_far_gets_its_workers_within_its_first_steps() {
    let scenario = named("storage that is far, 100 s");
    for seed in 0..3 {
        let (ran, untouched) = (run::ours(&scenario, seed), run::untouched(&scenario, seed));
        let first = ran.audit.iter().find(|event| event.act == Act::Request).expect("a raise");
        assert!(first.to > first.from && first.knob == "workers", "{first:?}");
        let steps: f64 =
            ran.tally.samples[..first.time_ns as usize / 1_000_000_000].iter().sum::<f64>() / 16.0;
        assert!(steps <= 20.0, "{steps} steps before {first:?}");
        assert_eq!(ran.acts(Act::Keep), 1, "{:?}", ran.audit);
        assert!(ran.samples() > 3.5 * untouched.samples(), "{} of {}", ran.samples(), untouched.samples());
    }
}

/// The audit's sentence on the one time that a worker is taken away, in a run of 40 minutes.
fn finding(name: &str) -> AuditEvent {
    let scenario = named(name);
    let mut job = Job::new(&scenario, scenario.script(), 1);
    let mut ours = Ours::new(scenario.budgets, 1);
    let (mut seconds_fewer, mut others) = (0, Vec::new());
    while !job.is_over() {
        let observation = job.second();
        let actions = ours.observe(&observation);
        job.ask(&actions);
        seconds_fewer += u64::from(job.settings()[0].workers == 1);
        others.extend(actions.into_iter().filter(|action| action.knob != "workers" || action.value > 2));
    }
    let of = |act| ours.audit().iter().filter(move |event| event.act == act).collect::<Vec<_>>();
    let (asked, ended) = (of(Act::Request), of(Act::Undo));
    assert!(matches!(asked.len(), 1..=2), "at most once in half an hour: {asked:?}");
    assert!(asked.iter().all(|event| (event.from, event.to) == (Some(2), Some(1))), "{asked:?}");
    assert!(asked.iter().all(|event| event.predicted.is_some() && !event.saw.is_empty()), "{asked:?}");
    assert_eq!(asked.len(), ended.len(), "{ended:?}");
    let setting = job.settings()[0];
    assert_eq!((setting.workers, setting.prefetch), (2, 4), "it comes back");
    assert!((1..=120).contains(&seconds_fewer), "{seconds_fewer} s");
    for (asked, ended) in asked.iter().zip(&ended) {
        let most_s = seconds_after(&asked.why, "as soon as it has cost ");
        // A step that was under way may be counted to its end.
        let cost_s = seconds_after(&ended.why, "; it cost ");
        assert!(most_s > 0.0 && cost_s <= most_s + 3.0, "{asked:?} {ended:?}");
        assert!(most_s <= 0.01 * asked.time_ns as f64 / 1e9, "a hundredth of what was trained: {asked:?}");
    }
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(job.tally.violations, 0);
    let (tuned, untouched) = (job.tally.samples.iter().sum::<f64>(), run::untouched(&scenario, 1).samples());
    assert!(tuned > 0.99 * untouched, "it costs next to nothing: {tuned} of {untouched}");
    ended[0].clone()
}

#[test]
fn where_no_worker_can_be_added_one_fewer_tells_that_storage_has_a_limit() {
    let found = finding("no memory for workers, storage is narrow");
    // 8 MB a batch of 64 samples at 12 MB/s are 96 samples/s.
    let most =
        found.why.split("at most ").nth(1).and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    assert!(most.is_some_and(|most| (75.0..=115.0).contains(&most)), "{found:?}");
}

#[test]
fn where_no_worker_can_be_added_one_fewer_tells_that_storage_has_only_a_delay() {
    let found = finding("no memory for workers, storage is far");
    assert!(found.why.contains("hardly hold each other up"), "{found:?}");
}

#[test]
fn no_worker_is_taken_away_where_nothing_may_be_turned() {
    for mode in [TuneMode::Observe, TuneMode::Advise] {
        let scenario = named("no memory for workers, storage is narrow");
        let mut job = Job::new(&scenario, scenario.script(), 1);
        let mut ours = Ours::of(mode, scenario.budgets, 1);
        while job.now_ns < 900 * SECOND_NS {
            let observation = job.second();
            assert!(ours.observe(&observation).is_empty());
        }
    }
}
