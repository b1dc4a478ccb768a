//! What the controller does with a cache that has less than the data.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, act, run, until};
use stallscope_control::{CacheWants, Controller, Outcome};
use stallscope_model::{Act, AuditEvent, Budgets, TuneMode};

const MIB: u64 = 1 << 20;

fn of_cache(out: &Outcome, act: Act) -> Vec<AuditEvent> {
    let is = |event: &&AuditEvent| event.act == act && event.knob == "cache.bytes";
    out.audit.iter().filter(is).cloned().collect()
}

/// Reading takes most of the time of a batch, and there are no workers to be had beyond the two.
fn bound(read_ns: u64) -> Job {
    let mut job = Job::cached(read_ns);
    job.service_ns = 200_000_000;
    job.most("workers", 2);
    job.most("prefetch", 4);
    job
}

#[test]
fn a_cache_whose_hits_help_grows_until_it_has_the_data_and_is_kept() {
    let mut job = bound(10_000_000);
    let out = run(&mut job, &mut act(), 1200);
    assert!((380 * MIB..480 * MIB).contains(&job.cache_bytes()), "{} MiB", job.cache_bytes() / MIB);
    let keep = &of_cache(&out, Act::Keep)[0];
    assert!(keep.measured.unwrap().low >= 0.02 && keep.predicted.is_some(), "{keep:?}");
    assert!(of_cache(&out, Act::Undo).is_empty(), "{:?}", out.audit);
}

#[test]
fn what_hits_are_worth_is_seen_by_the_reads_of_each_batch_and_memory_is_bounded() {
    let mut job = bound(10_000_000);
    let used = (2 << 30) + 2 * (100 << 20);
    let budgets = Budgets { memory_bytes: Some(used + 250 * MIB), ..Budgets::default() };
    let mut controller = Controller::new(TuneMode::Act, budgets, 1);
    let mut kept = Vec::new();
    for _ in 0..1200 {
        let out = run(&mut job, &mut controller, 1);
        assert!(job.cache_bytes() <= 250 * MIB, "{} MiB", job.cache_bytes() / MIB);
        kept.extend(of_cache(&out, Act::Keep));
    }
    assert!(job.cache_bytes() > 180 * MIB, "{} MiB", job.cache_bytes() / MIB);
    assert!(kept[0].saw.contains("samples of a batch were read in place of"), "{:?}", kept[0]);
}

#[test]
fn a_budget_of_caches_bounds_them_and_leaves_the_rest_of_the_job_alone() {
    let grown_within = |mib: u64| {
        let mut job = bound(10_000_000);
        let budgets = Budgets { cache_bytes: Some(mib * MIB), ..Budgets::default() };
        let mut controller = Controller::new(TuneMode::Act, budgets, 1);
        for _ in 0..1200 {
            run(&mut job, &mut controller, 1);
            assert!(job.cache_bytes() <= mib.max(100) * MIB, "{} MiB", job.cache_bytes() / MIB);
        }
        job.cache_bytes() / MIB
    };
    assert!(grown_within(250) > 180);
    // The script's own is more than that already: it stays, and is not raised.
    assert_eq!([grown_within(0), grown_within(50)], [100, 100]);
}

#[test]
fn hits_that_save_no_time_are_given_no_memory() {
    let mut job = bound(0);
    let out = run(&mut job, &mut act(), 1200);
    assert_eq!(job.cache_bytes(), 100 * MIB, "{:?}", of_cache(&out, Act::Request));
    assert!(of_cache(&out, Act::Keep).is_empty());
}

#[test]
fn a_cache_that_does_not_hit_as_its_curve_says_is_put_back() {
    let mut job = bound(10_000_000);
    job.cache.as_mut().unwrap().most_bytes = 100 * MIB;
    let undo = until(&mut job, &mut act(), Act::Undo);
    assert!(undo.why.contains("saves the reads of"), "{undo:?}");
    run(&mut job, &mut act(), 1);
    assert_eq!(job.cache_bytes(), 100 * MIB);
}

#[test]
fn memory_that_gets_short_while_a_cache_grows_is_given_back_at_once() {
    let mut job = bound(10_000_000);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    assert!(job.cache_bytes() > 300 * MIB);
    job.pressure = 0.2;
    let out = run(&mut job, &mut controller, 3);
    assert_eq!(job.cache_bytes(), 100 * MIB, "{:?}", out.audit);
    assert_eq!(of_cache(&out, Act::Undo).len(), 1);
}

#[test]
fn what_a_cache_has_yet_to_fill_is_no_memory_that_gets_short() {
    let mut job = bound(10_000_000);
    job.memory_limit = Some(1100 << 20);
    let out = run(&mut job, &mut act(), 600);
    assert!(of_cache(&out, Act::Undo).is_empty(), "{:?}", out.audit);
    assert!(job.cache_bytes() > 300 * MIB && !job.killed, "{} MiB", job.cache_bytes() / MIB);
}

#[test]
fn a_size_that_somebody_sets_while_it_grows_is_theirs() {
    let mut job = bound(10_000_000);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 5);
    job.user_sets("cache.bytes", 150 * MIB);
    let out = run(&mut job, &mut controller, 600);
    assert_eq!(job.cache_bytes(), 150 * MIB, "{:?}", out.audit);
    assert!(
        of_cache(&out, Act::Undo).is_empty() && of_cache(&out, Act::Request).is_empty(),
        "{:?}",
        out.audit
    );
}

#[test]
fn a_controller_that_ends_puts_back_what_has_not_proven_itself() {
    let mut job = bound(10_000_000);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 5);
    let out = controller.stop(job.now_ns);
    job.take(&out.actions);
    assert_eq!((job.cache_bytes(), of_cache(&out, Act::Undo).len()), (100 * MIB, 1));
}

/// One more worker helps by little, and it takes many windows to see that.
#[test]
fn a_cache_fills_while_workers_are_tried() {
    let mut job = bound(10_000_000);
    job.most("workers", 4);
    job.most("prefetch", 8);
    job.crowd = 0.48;
    job.cache.as_mut().unwrap().samples = 4000;
    let (mut controller, mut asked) = (act(), Vec::new());
    for _ in 0..600 {
        asked.extend(run(&mut job, &mut controller, 1).audit.into_iter().filter(|line| line.decision > 0));
    }
    let begun = asked.iter().position(|line| line.act == Act::Request && line.knob == "cache.bytes").unwrap();
    let others = asked[..begun].iter().rev().find(|line| line.knob == "workers").unwrap();
    assert!(![Act::Keep, Act::Undo].contains(&others.act), "a trial of workers is under way: {others:?}");
    assert!(job.cache_bytes() > 190 * MIB);
    assert!(asked.iter().any(|line| line.act == Act::Keep && line.knob == "cache.bytes"), "{asked:?}");
}

#[test]
fn workers_and_a_cache_are_raised_where_neither_is_enough() {
    let mut job = Job::cached(20_000_000);
    job.most("workers", 6);
    let out = run(&mut job, &mut act(), 2400);
    assert_eq!(job.workers(), 6, "{:?}", out.audit);
    assert!(job.cache_bytes() > 380 * MIB && !of_cache(&out, Act::Keep).is_empty(), "{:?}", out.audit);
}

/// All memory that is not the cache's could be in the two workers: half of it for one more fits, half of all does not.
#[test]
fn what_a_cache_keeps_is_no_memory_of_its_workers() {
    let mut job = Job::cached(1_000_000);
    job.start_with_hits(1.0);
    let used = (2 << 30) + 200 * MIB + job.cache_bytes();
    let budgets = Budgets { memory_bytes: Some(used + 1200 * MIB), ..Budgets::default() };
    let out = run(&mut job, &mut Controller::new(TuneMode::Act, budgets, 1), 120);
    assert!(job.workers() > 2, "{:?}", out.audit);
}

#[test]
fn a_pool_that_gives_no_more_is_asked_once() {
    let mut job = bound(10_000_000);
    job.refuses = Some("the pool has no memory left");
    let out = run(&mut job, &mut act(), 600);
    let refused = of_cache(&out, Act::Refused);
    assert!(refused.len() == 1 && refused[0].why.contains("no memory left"), "{:?}", out.audit);
    assert_eq!((of_cache(&out, Act::Request).len(), job.cache_bytes()), (1, 100 * MIB));
}

/// The model has nothing to go by, and the law neither.
#[test]
fn a_job_of_which_no_batch_is_seen_gets_no_larger_cache() {
    let mut job = bound(10_000_000);
    job.hides_services = true;
    let out = run(&mut job, &mut act(), 300);
    assert!(of_cache(&out, Act::Request).is_empty(), "{:?}", out.audit);
}

#[test]
fn a_job_that_does_not_wait_gets_no_larger_cache() {
    let mut job = bound(100_000);
    job.service_ns = 20_000_000;
    let out = run(&mut job, &mut act(), 600);
    assert!(out.actions.is_empty(), "{:?}", out.actions);
}

#[test]
fn what_would_be_done_is_advised() {
    let mut job = bound(10_000_000);
    let mut controller = Controller::new(TuneMode::Advise, Budgets::default(), 1);
    let out = run(&mut job, &mut controller, 300);
    assert_eq!(of_cache(&out, Act::Advise).len(), 1, "{:?}", out.audit);
    assert_eq!(job.cache_bytes(), 100 * MIB);
}

/// Workers that are to leave make their batches first, and a cache gives its memory back within a second.
#[test]
fn memory_that_gets_short_while_workers_are_tried_takes_the_cache_back_with_them() {
    let mut job = bound(10_000_000);
    job.most("workers", 4);
    job.most("prefetch", 8);
    job.crowd = 0.48;
    job.cache.as_mut().unwrap().samples = 4000;
    let (mut controller, mut asked) = (act(), Vec::new());
    let tried = |asked: &[AuditEvent]| {
        let begun = asked.iter().any(|line| line.act == Act::Request && line.knob == "cache.bytes");
        let last = asked.iter().rev().find(|line| line.knob == "workers");
        begun && last.is_some_and(|line| line.act == Act::Request || line.act == Act::Applied)
    };
    while !tried(&asked) {
        asked.extend(run(&mut job, &mut controller, 1).audit.into_iter().filter(|line| line.decision > 0));
    }
    assert!(job.cache_bytes() > 100 * MIB);
    job.pressure = 0.2;
    let out = run(&mut job, &mut controller, 3);
    assert_eq!(job.cache_bytes(), 100 * MIB, "{:?}", out.audit);
    assert_eq!(of_cache(&out, Act::Undo).len(), 1, "{:?}", out.audit);
}

#[test]
fn what_is_no_longer_granted_is_given_back_and_never_what_the_script_had_set() {
    let mut job = bound(10_000_000);
    let mut controller = act();
    run(&mut job, &mut controller, 1200);
    assert!(job.cache_bytes() > 380 * MIB, "{} MiB", job.cache_bytes() / MIB);
    controller.grant_caches(250 * MIB);
    let out = run(&mut job, &mut controller, 10);
    assert!((249 * MIB..=250 * MIB).contains(&job.cache_bytes()), "{} MiB", job.cache_bytes() / MIB);
    let undone = &of_cache(&out, Act::Undo)[0];
    assert!(undone.saw.contains("grants the caches 250 MiB"), "{undone:?}");
    controller.grant_caches(0);
    run(&mut job, &mut controller, 10);
    assert_eq!(job.cache_bytes(), 100 * MIB);
    controller.grant_caches(1 << 30);
    run(&mut job, &mut controller, 2400);
    assert!(job.cache_bytes() > 300 * MIB, "{} MiB", job.cache_bytes() / MIB);
}

#[test]
fn what_a_user_had_set_before_the_controller_began_is_not_given_back() {
    let mut job = bound(10_000_000);
    job.user_sets("cache.bytes", 200 * MIB);
    let mut controller = act();
    controller.grant_caches(64 * MIB);
    let out = run(&mut job, &mut controller, 60);
    assert_eq!(job.cache_bytes(), 200 * MIB, "{:?}", out.audit);
}

#[test]
fn a_larger_cache_that_is_being_tried_is_put_back_where_it_is_no_longer_granted() {
    let mut job = bound(10_000_000);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 3);
    assert!(job.cache_bytes() > 120 * MIB, "{} MiB", job.cache_bytes() / MIB);
    controller.grant_caches(120 * MIB);
    let out = run(&mut job, &mut controller, 20);
    assert!(job.cache_bytes() <= 120 * MIB, "{:?}", out.audit);
    assert_eq!(of_cache(&out, Act::Undo).len(), 1, "{:?}", out.audit);
}

#[test]
fn what_memory_is_worth_is_seen_by_misses_and_remembered_when_there_are_none() {
    let mut job = bound(10_000_000);
    let mut controller = act();
    assert_eq!(controller.cache_wants(), Some(CacheWants::default()));
    controller.grant_caches(100 * MIB);
    run(&mut job, &mut controller, 300);
    let wants = controller.cache_wants().unwrap();
    let [(bytes, saved)] = wants.benefit[..] else { panic!("{wants:?}") };
    assert_eq!(wants.held_bytes, 100 * MIB);
    assert!((300 * MIB..600 * MIB).contains(&bytes) && saved > 0.1 && saved < 1.0, "{wants:?}");
    // With all of its data in the cache it still knows what it would lose.
    controller.grant_caches(1 << 30);
    run(&mut job, &mut controller, 2400);
    let wants = controller.cache_wants().unwrap();
    assert!(wants.held_bytes > 380 * MIB && wants.benefit[0].1 > 0.1, "{wants:?}");
    // One whose hits save no time asks for none.
    let mut idle = bound(0);
    let mut controller = act();
    run(&mut idle, &mut controller, 300);
    let wants = controller.cache_wants().unwrap();
    assert!(wants.benefit.iter().all(|(_, saved)| *saved < 0.05), "{wants:?}");
    assert_eq!(Controller::new(TuneMode::Advise, Budgets::default(), 1).cache_wants(), None);
}
