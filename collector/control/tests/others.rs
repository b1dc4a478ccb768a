//! A job that is tuned beside others: it has the cores that they leave idle, and their part of the storage is theirs.

use crate::support::{Job, Rivals, audited, reasons, run};
use stallscope_control::Controller;
use stallscope_model::{Act, Budgets, TuneMode};

fn considerate() -> Controller {
    Controller::new(TuneMode::Act, Budgets { spare_cores_only: true, ..Budgets::default() }, 1)
}

#[test]
fn no_worker_is_added_while_others_use_all_cores() {
    let mut job = Job::slow();
    job.others_cpus = Some(15.3);
    let out = run(&mut job, &mut considerate(), 300);
    assert_eq!(job.workers(), 2, "{:?}", out.audit);
    assert!(reasons(&out, Act::Hold).contains("others leave it"), "{:?}", out.audit);
    // A user who tunes a job of theirs decides that themselves.
    run(&mut job, &mut Controller::new(TuneMode::Act, Budgets::default(), 1), 300);
    assert!(job.workers() > 2);
}

#[test]
fn workers_are_added_on_cores_that_are_idle() {
    let mut job = Job::slow();
    job.others_cpus = Some(8.0);
    let out = run(&mut job, &mut considerate(), 300);
    assert!(job.workers() >= 5, "{:?}", out.audit);
    assert_eq!(audited(&out, Act::Undo), 0, "{:?}", out.audit);
}

#[test]
fn what_others_leave_of_the_cores_has_to_be_known() {
    let mut job = Job::slow();
    let out = run(&mut job, &mut considerate(), 300);
    assert_eq!(job.workers(), 2);
    assert!(reasons(&out, Act::Hold).contains("not known yet"), "{:?}", out.audit);
}

#[test]
fn added_workers_go_where_others_come_and_no_further_than_what_the_script_has() {
    let mut job = Job::slow();
    job.others_cpus = Some(8.0);
    let mut controller = considerate();
    run(&mut job, &mut controller, 300);
    assert!(job.workers() >= 5);
    job.others_cpus = Some(20.0);
    let out = run(&mut job, &mut controller, 200);
    assert_eq!((job.workers(), job.prefetch()), (2, 4), "{:?}", out.audit);
    assert!(reasons(&out, Act::Undo).contains("put back at once"), "{:?}", out.audit);
    // Nothing went wrong, so that all else is tuned as before.
    assert_eq!(audited(&out, Act::Freeze), 0, "{:?}", out.audit);
    // They are gone again.
    job.others_cpus = Some(8.0);
    run(&mut job, &mut controller, 1800);
    assert!(job.workers() > 2);
}

#[test]
fn a_job_that_alone_uses_all_cores_keeps_its_workers() {
    let mut job = Job::slow();
    job.others_cpus = Some(8.0);
    let mut controller = considerate();
    let out = run(&mut job, &mut controller, 300);
    let before = job.workers();
    assert!(before > 2, "{:?}", out.audit);
    // What it uses by itself is nobody else's need.
    (job.trainer_cpus, job.others_cpus) = (14.5, Some(0.0));
    run(&mut job, &mut controller, 12);
    job.others_cpus = Some(0.9);
    let out = run(&mut job, &mut controller, 120);
    assert!(job.workers() >= before, "{:?}", out.audit);
}

/// Two workers that read beside those of other jobs, and as much wait as with one that has six to go.
fn beside(jobs: u32, readers: u64) -> Job {
    let mut job = Job::slow();
    job.rivals = Some(Rivals::new(jobs, readers, 60_000_000));
    job.own_ns = 50_000_000;
    job
}

#[test]
fn no_reader_is_added_at_the_cost_of_others_that_read_from_the_same_storage() {
    let mut job = beside(1, 2);
    let mut controller = Controller::new(TuneMode::Act, Budgets::default(), 1);
    let out = run(&mut job, &mut controller, 600);
    assert_eq!(job.workers(), 2, "{:?}", out.audit);
    let undone = reasons(&out, Act::Undo);
    assert!(undone.contains("tried once more") && undone.contains("other jobs lose it"), "{:?}", out.audit);
    // It would, where nobody says what the others read.
    let mut job = beside(1, 2);
    job.knows_rivals = false;
    run(&mut job, &mut Controller::new(TuneMode::Act, Budgets::default(), 1), 600);
    assert!(job.workers() > 2);
}

#[test]
fn a_job_with_fewer_readers_than_others_may_have_as_many() {
    let mut job = beside(1, 8);
    let out = run(&mut job, &mut Controller::new(TuneMode::Act, Budgets::default(), 1), 1800);
    assert!((4..=8).contains(&job.workers()), "{} {:?}", job.workers(), out.audit);
}
