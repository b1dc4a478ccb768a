//! What the controller does where memory is full, and worth more in another knob than where it is.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use stallscope_control::{Controller, Outcome};
use stallscope_model::{Act, AuditEvent, Budgets, KnobState, TuneMode};
use support::{Job, run};

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

/// Workers took the memory before there was a cache that could be raised, as each of them reads much: fewer of them would do with
/// more of it.
fn full_of_workers() -> (Job, Controller, u64) {
    let mut job = Job::cached(40 * MS);
    job.memory_limit = Some(64 << 30);
    let cache = job.cache.as_mut().unwrap();
    (cache.samples, cache.sample_bytes) = (2000, 200 << 10);
    job.knobs[2].state = KnobState::Unavailable;
    let budget = 1200 * MIB;
    let budgets = Budgets { memory_bytes: Some(budget), ..Budgets::default() };
    let mut controller = Controller::new(TuneMode::Act, budgets, 1);
    let out = run(&mut job, &mut controller, 400);
    assert!((6..=8).contains(&job.workers()), "{} workers: {:?}", job.workers(), out.audit);
    job.knobs[2].state = KnobState::Applied;
    (job, controller, budget)
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
fn the_last_workers_make_way_for_a_cache_that_is_worth_more() {
    let (mut job, mut controller, budget) = full_of_workers();
    let (workers, cache) = (job.workers(), job.cache_bytes());
    let mut all = Outcome::default();
    for _ in 0..2400 {
        let seen = job.second();
        assert!(seen.ranks[0].memory_bytes <= budget, "over the budget: {:#?}", all.audit);
        let out = controller.observe(&seen);
        job.take(&out.actions);
        all.audit.extend(out.audit);
        let kept = swapped(&all.audit).and_then(|swap| ended(&all.audit, swap));
        if let Some(kept) = kept {
            assert!(kept.act == Act::Keep && kept.measured.unwrap().low >= 0.02, "{kept:?}");
            break;
        }
    }
    run(&mut job, &mut controller, 5);
    assert!(job.workers() < workers && job.cache_bytes() > cache, "{:#?}", all.audit);
}

#[test]
fn what_does_not_hit_as_expected_is_undone_with_the_workers_that_made_way_for_it() {
    let (mut job, mut controller, _) = full_of_workers();
    let workers = job.workers();
    let (mut audit, swap) = until_swapping(&mut job, &mut controller);
    // The cache is raised, and keeps no more.
    let cache = job.cache_bytes();
    job.cache.as_mut().unwrap().most_bytes = cache;
    while ended(&audit, swap).is_none() {
        audit.extend(run(&mut job, &mut controller, 1).audit);
    }
    run(&mut job, &mut controller, 2);
    assert_eq!(ended(&audit, swap).unwrap().act, Act::Undo);
    assert_eq!((job.workers(), job.cache_bytes()), (workers, cache), "{audit:#?}");
}

#[test]
fn a_controller_that_ends_meanwhile_puts_both_back() {
    let (mut job, mut controller, _) = full_of_workers();
    let workers = job.workers();
    let (audit, swap) = until_swapping(&mut job, &mut controller);
    let cache =
        audit.iter().find(|event| event.decision == swap && event.knob == "cache.bytes").unwrap().from;
    run(&mut job, &mut controller, 4);
    assert!(job.workers() < workers && Some(job.cache_bytes()) > cache, "{audit:#?}");
    let out = controller.stop(job.now_ns);
    job.take(&out.actions);
    assert_eq!((job.workers(), Some(job.cache_bytes())), (workers, cache), "{:#?}", out.audit);
}

/// What made way for it would need the memory that has become short.
#[test]
fn where_memory_gets_short_meanwhile_the_cache_goes_and_no_worker_comes() {
    let (mut job, mut controller, _) = full_of_workers();
    let workers = job.workers();
    let (audit, swap) = until_swapping(&mut job, &mut controller);
    let cache =
        audit.iter().find(|event| event.decision == swap && event.knob == "cache.bytes").unwrap().from;
    run(&mut job, &mut controller, 4);
    job.pressure = 0.2;
    let out = run(&mut job, &mut controller, 3);
    assert!(Some(job.cache_bytes()) <= cache && job.workers() < workers, "{:#?}", out.audit);
    assert!(ended(&out.audit, swap).unwrap().act == Act::Undo, "{:#?}", out.audit);
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
