//! Iterators that are dropped: the time of it, and workers whose batches nobody took.

use crate::stage::{MS, Stage, TRAINER, WORKER};
use stallscope_abi::lane::{self, StepSource, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::Phase;

const OTHER: u32 = 102;

fn makes(stage: &mut Stage, pid: u32, worker: u32, start: u64, index: u64) {
    // A worker cannot tell which loader it serves and says the first one.
    let batch =
        lane::Batch { loader: 0, worker, start_ns: start * MS, batch: index, collate_ns: 0, cpu_ns: 0 };
    stage.lane(pid, batch.encode((start + 5) * MS));
}

#[test]
fn their_batches_are_no_other_loaders() {
    let mut stage = Stage::new();
    stage.greet(OTHER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.iter_start(0, 0, 0);
    for index in 0..6 {
        makes(&mut stage, WORKER, 0, index * 20, index);
        stage.wait(index * 20 + 2, index * 20 + 6, index);
    }
    stage.iter_start(1, 130, 0);
    (0..4).for_each(|index| makes(&mut stage, OTHER, 0, 130 + index * 10, index));
    stage.iter_end(1, 180);
    stage.exits(OTHER, 185);
    let rows = |stage: &Stage| {
        let workers = stage.ledger.summary().ranks[0].workers.clone();
        workers.into_iter().map(|load| (load.loader, load.batches)).collect::<Vec<_>>()
    };
    assert_eq!(rows(&stage), [(Some(0), Some(6)), (None, Some(4))]);
    stage.exits(TRAINER, 200);
    stage.finish(9000);
    assert_eq!(rows(&stage), [(Some(0), Some(6)), (None, Some(4))]);
}

/// Its lane is read before its trainer's, and its periods are taken in between.
#[test]
fn a_worker_that_is_gone_before_the_wait_for_its_batch_is_reported_is_its_loaders() {
    let mut stage = Stage::new();
    stage.greet(OTHER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.iter_start(0, 0, 0);
    makes(&mut stage, WORKER, 0, 0, 0);
    stage.wait(2, 6, 0);
    makes(&mut stage, OTHER, 1, 10, 1);
    stage.says_goodbye(OTHER, 20);
    stage.advance(30);
    let mut periods = stage.ledger.worker_periods();
    stage.wait_for(TRAINER, 0, OTHER, 12, 16, 1, 0);
    stage.exits(TRAINER, 200);
    stage.finish(9000);
    periods.extend(stage.ledger.worker_periods());
    let made = periods.iter().filter(|period| period.load.batches.is_some_and(|batches| batches > 0));
    let mut made: Vec<_> = made.map(|period| (period.loader, period.worker, period.load.batches)).collect();
    made.sort_unstable();
    assert_eq!(made, [(0, 0, Some(1)), (0, 1, Some(1))]);
}

/// A loop that takes a batch of each of two loaders and leaves both iterators to the end of the script: they are dropped one after the
/// other, and the second as the first one's workers have left.
#[test]
fn the_end_of_the_first_of_two_iterators_is_no_step_of_the_second() {
    let mut stage = Stage::new();
    stage.greet(OTHER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.iter_start(0, 40, 0);
    stage.iter_start(1, 40, 0);
    for step in 0..3 {
        let (at, flags) = (50 + 100 * step, if step == 0 { wait_flags::FIRST } else { 0 });
        stage.wait(at, at + 10, step);
        stage.wait_for(TRAINER, 1, OTHER, at + 10, at + 15, step, flags);
        stage.stepped(at + 90, StepSource::Optimiser);
    }
    stage.iter_end(1, 345);
    stage.iter_end(0, 500);
    stage.says_goodbye(TRAINER, 700);
    stage.finish(2000);
    let training: Vec<_> = stage.steps.iter().filter(|step| step.phase == Phase::Training).collect();
    assert_eq!(training.last().map(|step| (step.loader, step.end_ns)), Some((1, 345 * MS)), "{training:?}");
}
