//! What the controller does for simulated jobs of two ranks that have cores for the workers they began with.

use crate::job::{Job, SECOND_NS};
use crate::policy::{Ours, Policy};
use crate::scenario;
use stallscope_model::{Act, AuditEvent};

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
    let scenario = scenario::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario");
    let mut job = Job::new(&scenario, scenario.setting, 1);
    let mut ours = Ours::new(scenario.budgets, 1);
    let (mut most_workers, mut ended) = (0, None);
    while job.now_ns < 3600 * SECOND_NS && ended.is_none_or(|at| job.now_ns < at + 5 * SECOND_NS) {
        let told = job.second();
        let actions = ours.observe(&told);
        job.ask(&actions);
        most_workers = most_workers.max(job.settings().iter().map(|(workers, _)| workers).sum());
        let is_end = ours.said().iter().any(|event| event.act == ends);
        ended = ended.or(is_end.then_some(job.now_ns));
    }
    let workers = job.settings().iter().map(|(workers, _)| *workers).collect();
    Seen { audit: ours.said().to_vec(), most_workers, workers, seconds_over: job.tally.violations }
}

impl Seen {
    fn first(&self, act: Act) -> &AuditEvent {
        self.audit.iter().find(|event| event.act == act).expect("it was said")
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
    assert!(undo.measured.is_some_and(|gain| gain.high < 0.0), "{undo:?}");
    assert_eq!((seen.workers.as_slice(), seen.most_workers), ([2, 2].as_slice(), 4));
    assert_eq!(seen.seconds_over, 0, "the budget of cores is kept all the while");
}
