//! A trainer in the midst of an epoch that has got no batch for far longer than ever before.

use crate::stage::{MS, Stage, TRAINER, WORKER};
use stallscope_ledger::Silence;

const LEAST: u64 = 1000;

/// Twenty batches, 20 ms from one to the next, after a start of two seconds.
fn trains() -> Stage {
    let mut stage = Stage::new();
    stage.iter_start(0, 0, 0);
    (0..20).for_each(|index| stage.wait(1990 + index * 20, 2000 + index * 20, index));
    stage
}

const LAST: u64 = 2380;

fn silences(stage: &Stage, at: u64) -> Vec<Silence> {
    stage.ledger.silences(at * MS, LEAST * MS)
}

#[test]
fn no_batch_for_long_is_a_silence() {
    let stage = trains();
    assert_eq!(silences(&stage, LAST + LEAST - 1), []);
    let silence = Silence {
        rank: 0,
        pid: TRAINER,
        since_ns: LAST * MS,
        longest_ns: 20 * MS,
        workers: vec![(None, WORKER)],
    };
    assert_eq!(silences(&stage, LAST + LEAST), [silence]);
}

#[test]
fn what_a_job_has_waited_before_is_no_silence() {
    let mut stage = trains();
    // As for an evaluation without a loader, or a save.
    stage.wait(LAST + 10, LAST + 300, 20);
    assert_eq!(silences(&stage, LAST + 300 + 2999), []);
    assert_eq!(silences(&stage, LAST + 300 + 3000).len(), 1);
}

#[test]
fn after_the_epoch_and_after_the_job_nobody_waits_for_a_batch() {
    let mut stage = trains();
    stage.iter_end_found(0, LAST + 5, LAST + 10);
    assert_eq!(silences(&stage, 100_000), []);
    let mut stage = trains();
    stage.exits(TRAINER, LAST + 10);
    assert_eq!(silences(&stage, 100_000), []);
}

#[test]
fn a_job_that_has_only_begun_has_no_history() {
    let mut stage = Stage::new();
    stage.iter_start(0, 0, 0);
    (0..10).for_each(|index| stage.wait(1990 + index * 20, 2000 + index * 20, index));
    assert_eq!(silences(&stage, 100_000), []);
}

#[test]
fn a_worker_that_has_ended_is_not_named() {
    let mut stage = trains();
    stage.exits(WORKER, LAST + 10);
    assert_eq!(silences(&stage, 100_000)[0].workers, []);
}
