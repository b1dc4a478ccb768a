//! A change that was proven and kept, and what becomes of it when the job or the machine is no longer what it was.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, act, audited, reasons, run, until};
use stallscope_control::{Controller, Outcome};
use stallscope_model::{Act, AuditEvent};

/// A job that has got the workers it lacked, its controller, and the line that says so.
fn kept() -> (Job, Controller, AuditEvent) {
    let (mut job, mut controller) = (Job::slow(), act());
    let keep = until(&mut job, &mut controller, Act::Keep);
    run(&mut job, &mut controller, 3);
    assert!(job.workers() > 2 && keep.measured.unwrap().low >= 0.02);
    (job, controller, keep)
}

#[test]
fn a_kept_change_that_makes_the_job_slower_later_is_put_back_and_the_audit_says_why() {
    let (mut job, mut controller, keep) = kept();
    // Workers get into each other's way from now on.
    job.crowd = 1.0;
    let undo = until(&mut job, &mut controller, Act::Undo);
    run(&mut job, &mut controller, 3);
    assert_eq!((job.workers(), job.prefetch()), (2, 4), "{undo:?} {keep:?}");
    assert_eq!((undo.decision, undo.from, undo.to), (keep.decision, keep.from, keep.to));
    assert!(undo.saw.contains("when this was kept"), "{undo:?}");
    assert!(undo.why.contains("put back at once: workers 2 to"), "{undo:?}");
    assert!(undo.measured.unwrap().high < -0.02, "{undo:?}");
}

#[test]
fn a_kept_change_is_put_back_at_once_when_memory_gets_short_later() {
    let (mut job, mut controller, keep) = kept();
    run(&mut job, &mut controller, 300);
    assert!(job.workers() > 2, "without a reason it stays");
    job.pressure = 0.3;
    let out = run(&mut job, &mut controller, 2);
    let undo = out.audit.iter().find(|event| event.act == Act::Undo).unwrap();
    assert!(undo.saw.contains("waited for memory") && undo.why.contains("put back at once"), "{undo:?}");
    assert!(undo.decision > keep.decision && (undo.from, undo.to) == (keep.from, keep.to), "{undo:?}");
    assert_eq!((job.workers(), job.prefetch()), (2, 4));
}

#[test]
fn of_a_kept_change_that_was_given_back_in_part_the_rest_is_put_back_when_memory_gets_short() {
    let (mut job, mut controller, keep) = kept();
    let release = until(&mut job, &mut controller, Act::Release);
    assert!(release.knob == "prefetch" || release.to > keep.from, "{release:?}");
    while until(&mut job, &mut controller, Act::Keep).decision != release.decision {}
    run(&mut job, &mut controller, 3);
    assert!((job.workers(), job.prefetch()) > (2, 4));
    job.pressure = 0.3;
    run(&mut job, &mut controller, 2);
    assert_eq!((job.workers(), job.prefetch()), (2, 4));
}

#[test]
fn memory_that_stays_short_takes_back_what_was_raised_and_nothing_else() {
    let (mut job, mut controller, _) = kept();
    job.pressure = 0.3;
    let out = run(&mut job, &mut controller, 300);
    assert_eq!((job.workers(), job.prefetch()), (2, 4));
    assert!(reasons(&out, Act::Hold).contains("nothing of it was raised here"), "{:?}", out.audit);
}

#[test]
fn workers_that_other_work_no_longer_needs_are_given_back() {
    let (mut job, mut controller, _) = kept();
    run(&mut job, &mut controller, 300);
    // Batches are made in no time from now on.
    job.service_ns = 10_000_000;
    let mut out = Outcome::default();
    for _ in 0..120 {
        if job.workers() > 2 {
            out.audit.extend(run(&mut job, &mut controller, 60).audit);
        }
    }
    let at = |act| out.audit.iter().position(|event| event.act == act);
    assert!(at(Act::Drift).unwrap() < at(Act::Release).unwrap(), "{:?}", out.audit);
    assert!(reasons(&out, Act::Keep).contains("as fast without"), "{:?}", out.audit);
    assert_eq!(job.workers(), 2, "{:?}", out.audit);
    assert_eq!(audited(&out, Act::Undo), 0, "{:?}", out.audit);
    // They come back when the work is what it was.
    run(&mut job, &mut controller, 60);
    job.service_ns = 550_000_000;
    while until(&mut job, &mut controller, Act::Keep).why.contains("as fast without") {}
    assert!(job.workers() > 2);
}

#[test]
fn a_release_that_hurts_ends_within_a_few_steps_and_the_audit_counts_what_it_cost() {
    let (mut job, mut controller, _) = kept();
    let held = |job: &Job| (job.workers(), job.prefetch());
    let proven = held(&job);
    let release = until(&mut job, &mut controller, Act::Release);
    assert_eq!(held(&job), (proven.0, release.to.unwrap()), "{release:?}");
    // What no look at the job could have shown: it cannot do with less.
    job.needs = proven.1;
    let before = job.steps();
    let undo = until(&mut job, &mut controller, Act::Undo);
    assert!(job.steps() - before <= 15, "{} steps", job.steps() - before);
    assert!(undo.why.contains(" in a row ") && undo.why.contains("it cost "), "{undo:?}");
    run(&mut job, &mut controller, 2);
    assert_eq!(held(&job), proven);
}
