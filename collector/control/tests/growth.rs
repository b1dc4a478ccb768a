//! Workers that grow: a job that has the memory for those of its script has it for those that were added, too.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{self, Job, act, audited, reasons, run};
use stallscope_model::Act;

const MIB: u64 = 1 << 20;

/// Of 3 GiB, of which two workers of at most 700 MiB each leave half free. Thirteen would keep up.
fn job(grows: fn(u64) -> u64) -> Job {
    let mut job = Job::slow();
    (job.memory_limit, job.grows) = (Some(3072 * MIB), grows);
    job.service_ns = 1_300_000_000;
    job
}

/// From the first batch on.
fn early(age_s: u64) -> u64 {
    (age_s * 4 * MIB).min(600 * MIB)
}

/// After ten minutes, when much was kept.
fn late(age_s: u64) -> u64 {
    early(age_s.saturating_sub(600))
}

/// Every ten seconds.
fn stepwise(age_s: u64) -> u64 {
    (age_s / 10 * 40 * MIB).min(600 * MIB)
}

fn late_stepwise(age_s: u64) -> u64 {
    stepwise(age_s.saturating_sub(600))
}

#[test]
fn what_survives_untouched_survives_tuned() {
    for (name, grows) in [
        ("early", early as fn(u64) -> u64),
        ("late", late),
        ("stepwise", stepwise),
        ("late, stepwise", late_stepwise),
    ] {
        let mut untouched = job(grows);
        (0..1800).for_each(|_| drop(untouched.second()));
        assert!(!untouched.killed, "{name}: the job alone has enough");
        let (mut job, mut controller) = (job(grows), act());
        job.leaves_ns = 3 * support::SECOND_NS;
        let out = run(&mut job, &mut controller, 1800);
        assert!(!job.killed, "{name}: {:#?}", out.audit);
        assert!(job.workers() >= 2, "{name}: what the script set stays");
    }
}

#[test]
fn workers_that_are_small_because_their_epoch_is_young_are_no_reason_to_add_more() {
    let leaps: fn(u64) -> u64 = |age_s| if age_s < 25 { 0 } else { 900 * MIB };
    let (mut job, mut controller) = (job(leaps), act());
    (job.epoch_s, job.leaves_ns) = (Some(60), 3 * support::SECOND_NS);
    let out = run(&mut job, &mut controller, 600);
    assert!(!job.killed && job.workers() == 2, "{:#?}", out.audit);
}

#[test]
fn what_was_added_is_given_back_newest_first_until_it_is_enough() {
    let (mut job, mut controller) = (job(late), act());
    let before = run(&mut job, &mut controller, 590);
    assert!(audited(&before, Act::Keep) >= 1 && job.workers() > 2, "{:?}", before.audit);
    let most = job.workers();
    let after = run(&mut job, &mut controller, 600);
    let why = reasons(&after, Act::Undo);
    assert!(job.workers() < most && why.contains("put back at once"), "{why}");
    let saw: Vec<&str> =
        after.audit.iter().filter(|event| event.act == Act::Undo).map(|event| &*event.saw).collect();
    assert!(saw.iter().any(|saw| saw.contains("used up in")), "{saw:?}");
}

#[test]
fn with_memory_in_plenty_workers_that_grow_are_no_reason_to_give_any_back() {
    let (mut job, mut controller) = (job(early), act());
    job.memory_limit = Some(64 << 30);
    let out = run(&mut job, &mut controller, 1200);
    assert!(job.workers() >= 5, "{:?}", out.audit);
    assert!(!out.audit.iter().any(|event| event.saw.contains("used up")), "{:?}", out.audit);
}
