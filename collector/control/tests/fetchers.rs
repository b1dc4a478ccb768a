//! What the controller does with the processes that read ahead.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, act, run};
use stallscope_control::Outcome;
use stallscope_model::{Act, AuditEvent};

const MS: u64 = 1_000_000;

fn of_fetchers(out: &Outcome, act: Act) -> Vec<AuditEvent> {
    let is = |event: &&AuditEvent| event.act == act && event.knob == "cache.fetchers";
    out.audit.iter().filter(is).cloned().collect()
}

/// Reading takes most of the time of a batch, and neither workers nor a larger cache are to be had.
fn bound(fetchers: u64, each: f64) -> Job {
    let mut job = Job::cached(20 * MS);
    job.service_ns = 150 * MS;
    for (name, most) in [("workers", 2), ("prefetch", 4), ("cache.bytes", 100 << 20)] {
        job.most(name, most);
    }
    job.reads_ahead(fetchers, each);
    job
}

#[test]
fn more_read_ahead_where_samples_come_too_late_and_it_is_proven() {
    let mut job = bound(1, 0.2);
    let out = run(&mut job, &mut act(), 900);
    assert!(job.fetchers() >= 4, "{:#?}", out.audit);
    let keep = &of_fetchers(&out, Act::Keep)[0];
    assert!(keep.measured.unwrap().low >= 0.02 && keep.predicted.is_some(), "{keep:?}");
    assert!(keep.from < keep.to, "{keep:?}");
}

#[test]
fn more_that_read_no_more_are_put_back() {
    // As much as storage gives is read ahead by one already.
    let mut job = bound(1, 0.2);
    let mut controller = act();
    let mut all = Outcome::default();
    for _ in 0..900 {
        if let Some(cache) = &mut job.cache {
            cache.read_ahead = 0.2 / job.knobs[3].value.max(1) as f64;
        }
        let out = run(&mut job, &mut controller, 1);
        all.audit.extend(out.audit);
    }
    assert!(!of_fetchers(&all, Act::Request).is_empty() && of_fetchers(&all, Act::Keep).is_empty());
    let out = controller.stop(job.now_ns);
    job.take(&out.actions);
    assert_eq!(job.fetchers(), 1, "{:#?}", all.audit);
}

#[test]
fn what_was_added_is_given_back_where_training_no_longer_waits_and_never_the_scripts() {
    let mut job = bound(2, 0.2);
    let mut controller = act();
    run(&mut job, &mut controller, 900);
    assert!(job.fetchers() > 2);
    // Training's own work takes longer than any batch from now on.
    job.own_ns = 1000 * MS;
    let out = run(&mut job, &mut controller, 5400);
    assert_eq!(job.fetchers(), 2, "{:#?}", out.audit);
    assert!(!of_fetchers(&out, Act::Keep).is_empty());
}

#[test]
fn a_script_that_has_none_gets_none() {
    let mut job = bound(0, 0.2);
    let out = run(&mut job, &mut act(), 600);
    assert!(out.actions.iter().all(|action| action.knob != "cache.fetchers"), "{:?}", out.actions);
}

#[test]
fn none_is_added_where_no_sample_is_read_ahead() {
    let mut job = bound(2, 0.0);
    let out = run(&mut job, &mut act(), 600);
    assert!(out.actions.iter().all(|action| action.knob != "cache.fetchers"), "{:?}", out.actions);
}
