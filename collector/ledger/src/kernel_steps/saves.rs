//! Which files that a main thread writes are checkpoints.

use super::tests::{FEEDER, MS, TRAINER, WORKERS, header, job, wait, wake};
use super::*;
use stallscope_abi::kernel::Kind;
use stallscope_abi::lane::{Caller, Stage};

fn mark(what: u32, tid: u32, time_ns: u64, bytes: u64) -> kernel::Save {
    kernel::Save { header: header(Kind::Save, TRAINER, tid, time_ns), what, pad: 0, bytes }
}

fn begun(time_ns: u64) -> kernel::Save {
    mark(kernel::save::BEGUN, TRAINER, time_ns, 0)
}

fn done(time_ns: u64, bytes: u64) -> kernel::Save {
    mark(kernel::save::DONE, TRAINER, time_ns, bytes)
}

/// A job whose trainer is known: it was handed a batch at 1 ms.
fn trains() -> KernelSteps {
    let mut steps = job();
    steps.record(&wait(TRAINER, 0, MS, (WORKERS[0], 98)));
    assert!(steps.record(&wake(TRAINER, MS, FEEDER)).is_some());
    steps
}

#[test]
fn a_file_created_written_and_closed_between_two_batches_is_a_checkpoint() {
    let mut steps = trains();
    assert_eq!(steps.save(&begun(10 * MS)), None, "nothing is written yet");
    let saved = steps.save(&done(50 * MS, 7 << 20)).unwrap();
    assert_eq!((saved.began_ns, saved.bytes), (10 * MS, 7 << 20));
    assert_eq!((saved.stage, saved.caller), (Stage::Persist, Caller::MainThread));
    // It is synced and renamed: the same one, longer.
    let longer = steps.save(&done(90 * MS, 0)).unwrap();
    assert_eq!((longer.began_ns, longer.bytes), (10 * MS, 7 << 20));
}

#[test]
fn all_files_between_two_batches_are_one_checkpoint_from_the_first_one_on() {
    let mut steps = trains();
    steps.save(&begun(10 * MS));
    steps.save(&done(20 * MS, 1 << 20));
    assert_eq!(steps.save(&begun(30 * MS)), None);
    let saved = steps.save(&done(40 * MS, 3 << 20)).unwrap();
    assert_eq!((saved.began_ns, saved.bytes), (10 * MS, 3 << 20));
}

#[test]
fn a_batch_ends_what_was_begun_before_it() {
    let mut steps = trains();
    steps.save(&begun(10 * MS));
    steps.record(&wait(TRAINER, 11 * MS, 12 * MS, (WORKERS[0], 98)));
    assert!(steps.record(&wake(TRAINER, 12 * MS, FEEDER)).is_some());
    // A log that stays open over steps, and is flushed now and then.
    assert_eq!(steps.save(&done(20 * MS, 1 << 20)), None);
    steps.save(&begun(30 * MS));
    let saved = steps.save(&done(40 * MS, 2 << 20)).unwrap();
    assert_eq!((saved.began_ns, saved.bytes), (30 * MS, 2 << 20), "the next one stands alone");
}

#[test]
fn what_is_no_checkpoint_of_the_training_loop() {
    let mut steps = trains();
    assert_eq!(steps.save(&done(10 * MS, 1 << 20)), None, "a file that was there before");
    let thread = TRAINER + 7;
    assert_eq!(steps.save(&mark(kernel::save::BEGUN, thread, 11 * MS, 0)), None);
    assert_eq!(steps.save(&mark(kernel::save::DONE, thread, 12 * MS, 1 << 20)), None, "of another thread");
    let mut idle = job();
    idle.save(&begun(10 * MS));
    assert_eq!(idle.save(&done(20 * MS, 1 << 20)), None, "of a process that no loader was seen in");
    steps.save(&begun(20 * MS));
    assert_eq!(steps.save(&done(30 * MS, 0)), None, "an empty file");
}
