//! What the controller does where memory is full, and worth more in another knob than where it is.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, run};
use stallscope_control::Controller;
use stallscope_model::{Act, AuditEvent, Budgets, TuneMode};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// What was asked in one decision that turns two knobs against each other.
fn swapped(audit: &[AuditEvent]) -> Option<u64> {
    let asks = |event: &&AuditEvent| event.act == Act::Request && event.to < event.from;
    audit.iter().filter(asks).find_map(|less| {
        let other = |event: &&AuditEvent| {
            event.act == Act::Request && event.decision == less.decision && event.knob != less.knob
        };
        let more = audit.iter().filter(other).any(|event| event.to > event.from);
        (more && less.why.contains("memory is full")).then_some(less.decision)
    })
}

fn ended(audit: &[AuditEvent], decision: u64) -> Option<&AuditEvent> {
    let ends = [Act::Keep, Act::Undo, Act::Refused];
    audit.iter().find(|event| event.decision == decision && ends.contains(&event.act))
}

/// Until a swap is under way; all that was audited.
fn until_swapping(job: &mut Job, controller: &mut Controller) -> (Vec<AuditEvent>, u64) {
    let mut audit = Vec::new();
    for _ in 0..2400 {
        audit.extend(run(job, controller, 1).audit);
        if let Some(decision) = swapped(&audit) {
            return (audit, decision);
        }
    }
    panic!("nothing was moved: {audit:#?}");
}

#[test]
fn a_part_of_the_cache_makes_way_for_a_worker_that_is_worth_more() {
    let mut job = Job::cached(10 * MS);
    (job.memory_limit, job.service_ns, job.cpu_share) = (Some(64 << 30), 200 * MS, 1.0);
    let cache = job.cache.as_mut().unwrap();
    (cache.samples, cache.sample_bytes) = (2000, 200 << 10);
    job.most("workers", 2);
    job.most("prefetch", 4);
    let budget = 1000 * MIB;
    let budgets = Budgets { memory_bytes: Some(budget), ..Budgets::default() };
    let mut controller = Controller::new(TuneMode::Act, budgets, 1);
    run(&mut job, &mut controller, 600);
    let cache = job.cache_bytes();
    assert!(cache > 350 * MIB, "{} MiB", cache / MIB);
    // Its samples take three times as much CPU from now on, and nobody bounds its workers any more.
    job.service_ns = 600 * MS;
    job.most("workers", 64);
    job.most("prefetch", 256);
    let (mut audit, swap) = until_swapping(&mut job, &mut controller);
    while ended(&audit, swap).is_none() {
        let out = run(&mut job, &mut controller, 1);
        assert!(job.workers() * 100 * MIB + job.cache.as_ref().unwrap().kept_bytes() + 300 * MIB <= budget);
        audit.extend(out.audit);
    }
    run(&mut job, &mut controller, 2);
    let keep = ended(&audit, swap).unwrap();
    assert!(keep.act == Act::Keep && keep.measured.unwrap().low >= 0.02, "{audit:#?}");
    assert!(job.workers() > 2 && job.cache_bytes() < cache, "{audit:#?}");
}
