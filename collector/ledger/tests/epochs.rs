//! What each epoch of a loader read from storage that counts none of it: all of what its own workers read, and nothing else.

use crate::stage::{self, Does, MS, Stage, TRAINER};
use stallscope_abi::kernel::{Blocked, Record};
use stallscope_abi::lane::wait_flags;
use stallscope_ledger::{Ledger, ProcessKind};
use stallscope_model::LoaderEpochs;

const KIB: u64 = 1 << 10;
const TRAINING: u16 = 0;
const EVALUATION: u16 = 1;
/// Steps of an epoch, and how long each takes.
const STEPS: u64 = 20;
const STEP: u64 = 100;

/// A read that sleeps from `at` on, and what it returned in the slice after that.
fn reads(ledger: &mut Ledger, pid: u32, at: u64, bytes: u64) {
    let asleep = stage::slice(pid, at, at + 40, Does::In(Blocked::FileRead));
    let mut returned = stage::slice(pid, at + 40, at + 42, Does::Cpu);
    returned.rchar = bytes;
    ledger.kernel(&Record::Slice(asleep));
    ledger.kernel(&Record::Slice(returned));
}

/// The reads of a pass of one worker over its data, `bytes` for each batch, and the hand-overs.
fn pass(stage: &mut Stage, loader: u16, worker: u32, begin: u64, bytes: u64) {
    for index in 0..STEPS {
        let at = begin + STEP * index;
        reads(&mut stage.ledger, worker, at + 10, bytes);
        stage.batch(worker, at + 10, at + 60, index);
        let flags = if index == 0 { wait_flags::FIRST } else { 0 };
        stage.wait_for(TRAINER, loader, worker, at + 5, at + 70, index, flags);
        stage.advance(at + 99);
    }
}

/// The same, with its beginning and end.
fn whole(stage: &mut Stage, loader: u16, worker: u32, begin: u64, bytes: u64) {
    stage.iter_start(loader, begin, 0);
    pass(stage, loader, worker, begin, bytes);
    let end = begin + STEP * STEPS;
    stage.iter_end_found(loader, end + 1, end + 5);
}

/// Of a loader: how many there were, and what the first and the last one read, in KiB.
fn epochs(stage: &Stage, loader: u16) -> (u64, u64, u64) {
    let epochs = stage.ledger.summary().epochs;
    let of = epochs.into_iter().find(|of| of.loader == loader).unwrap_or_default();
    let LoaderEpochs { whole, first_read_bytes, last_read_bytes, .. } = of;
    (whole, first_read_bytes / KIB, last_read_bytes / KIB)
}

fn trainer() -> Stage {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage
}

#[test]
fn what_the_workers_of_an_evaluation_read_is_no_part_of_an_epoch() {
    let mut stage = trainer();
    for epoch in 0..3 {
        let begin = epoch * 10_000;
        // Workers of their own for each pass, which end after it; half of a MiB a batch, and in the evaluation 200 KiB.
        for (loader, at, bytes) in [(TRAINING, begin, 512 * KIB), (EVALUATION, begin + 4_000, 200 * KIB)] {
            let worker = 200 + 2 * epoch as u32 + u32::from(loader);
            stage.greet(worker, TRAINER, ProcessKind::Worker, 0, 1);
            whole(&mut stage, loader, worker, at, bytes);
            // The kernel tells of the end of those of the evaluation when training goes on.
            if loader == TRAINING {
                stage.exits(worker, at + STEP * STEPS + 50);
            }
        }
        stage.advance(begin + 9_990);
    }
    stage.finish(40_000);
    assert_eq!(epochs(&stage, TRAINING), (3, STEPS * 512, STEPS * 512));
    assert_eq!(epochs(&stage, EVALUATION), (3, STEPS * 200, STEPS * 200));
}

#[test]
fn workers_that_stay_read_for_the_epoch_in_which_they_read() {
    let mut stage = trainer();
    stage.greet(200, TRAINER, ProcessKind::Worker, 0, 1);
    // 1.2 MiB and 2.3 MiB in an epoch: what storage has not counted so far is no round number of windows.
    for (epoch, bytes) in [60 * KIB, 115 * KIB, 115 * KIB].into_iter().enumerate() {
        let begin = epoch as u64 * 10_000;
        // The kernel's records of the epoch's first read come before the lane, which tells that it has begun.
        reads(&mut stage.ledger, 200, begin + 2, 40 * KIB);
        stage.iter_start(TRAINING, begin, 0);
        pass(&mut stage, TRAINING, 200, begin + 50, bytes);
        let end = begin + 50 + STEP * STEPS;
        stage.iter_end_found(TRAINING, end + 1, end + 5);
        stage.advance(end + 2_000);
    }
    stage.finish(40_000);
    assert_eq!(epochs(&stage, TRAINING), (3, 40 + STEPS * 60, 40 + STEPS * 115));
}

#[test]
fn what_a_trainer_without_workers_reads_between_its_epochs_is_no_part_of_them() {
    let mut stage = trainer();
    for epoch in 0..2 {
        let begin = epoch * 10_000;
        stage.iter_start(TRAINING, begin, wait_flags::IN_PROCESS);
        for index in 0..STEPS {
            reads(&mut stage.ledger, TRAINER, begin + STEP * index + 10, 512 * KIB);
        }
        let end = begin + STEP * STEPS;
        stage.iter_end_found(TRAINING, end + 1, end + 5);
        reads(&mut stage.ledger, TRAINER, end + 500, 4_000 * KIB);
        stage.advance(end + 2_000);
    }
    stage.finish(20_000);
    assert_eq!(epochs(&stage, TRAINING), (2, STEPS * 512, STEPS * 512));
}

#[test]
fn what_a_trainer_reads_beside_its_workers_is_no_part_of_an_epoch() {
    let mut stage = trainer();
    stage.greet(200, TRAINER, ProcessKind::Worker, 0, 1);
    stage.iter_start(TRAINING, 0, 0);
    let mut weights = stage::slice(TRAINER, 20, 40, Does::In(Blocked::FileRead));
    weights.read_bytes = 1 << 30;
    stage.ledger.kernel(&Record::Slice(weights));
    pass(&mut stage, TRAINING, 200, 0, 512 * KIB);
    stage.iter_end_found(TRAINING, STEP * STEPS + 1, STEP * STEPS + 5);
    stage.ledger.advance(10_000 * MS);
    stage.finish(20_000);
    assert_eq!(epochs(&stage, TRAINING), (1, STEPS * 512, STEPS * 512));
}
