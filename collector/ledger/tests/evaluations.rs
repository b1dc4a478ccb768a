//! Evaluations with gradients on: nothing but the missing step of the optimiser tells them from training.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER};
use stallscope_abi::lane::{StepSource, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::Phase::{self, Between, Evaluation, Startup, Training};

const OTHER_WORKER: u32 = 102;

fn busy() -> Stage {
    let mut stage = Stage::new();
    stage.greet(OTHER_WORKER, TRAINER, ProcessKind::Worker, 0, 1);
    for pid in [TRAINER, WORKER, OTHER_WORKER] {
        stage.did(pid, 0, 9000, Does::Cpu);
    }
    stage
}

fn spans(stage: &Stage) -> Vec<(Phase, u64, u64)> {
    stage.steps.iter().map(|step| (step.phase, step.start_ns / MS, step.end_ns / MS)).collect()
}

/// (phase, steps, samples, milliseconds)
fn phases(stage: &Stage) -> Vec<(Phase, u64, u64, u64)> {
    let summary = stage.ledger.summary();
    summary.phases.iter().map(|p| (p.phase, p.steps, p.samples, p.wall_ns / MS)).collect()
}

fn trains(stage: &mut Stage, at: u64, index: u64) {
    stage.wait(at, at + 10, index);
    stage.stepped(at + 20, StepSource::Optimiser);
}

/// Batches of a second loader, each waited for for 5 ms in 10.
fn takes(stage: &mut Stage, at: u64, batches: u64) -> u64 {
    stage.iter_start(1, at, 0);
    for index in 0..batches {
        let first = if index == 0 { wait_flags::FIRST } else { 0 };
        let enter = at + 5 + index * 10;
        stage.wait_for(TRAINER, 1, OTHER_WORKER, enter, enter + 5, index, first);
    }
    at + 5 + batches * 10
}

#[test]
fn after_an_epoch_it_is_evaluation_from_its_iterator_to_its_end() {
    let mut stage = busy();
    let mut at = 0;
    for _ in 0..2 {
        stage.iter_start(0, at, 0);
        (0..2).for_each(|index| trains(&mut stage, at + 10 + index * 30, index));
        stage.iter_end_found(0, at + 75, at + 80);
        let end = takes(&mut stage, at + 100, 3);
        stage.iter_end_found(1, end, end + 7);
        at = end + 20;
    }
    stage.exits(TRAINER, 500);
    stage.finish(9000);
    let wanted = [
        (Startup, 0, 20),
        (Training, 20, 50),
        (Training, 50, 75),
        (Between, 75, 100),
        (Evaluation, 100, 110),
        (Evaluation, 110, 120),
        (Evaluation, 120, 130),
        (Evaluation, 130, 142),
        (Between, 142, 175),
        (Training, 175, 205),
        (Training, 205, 230),
        (Between, 230, 255),
    ];
    assert_eq!(spans(&stage)[..12], wanted);
    let of: Vec<_> =
        phases(&stage).into_iter().map(|(phase, steps, samples, _)| (phase, steps, samples)).collect();
    assert!(of.contains(&(Training, 4, 32)) && of.contains(&(Evaluation, 6, 48)), "{of:?}");
}

#[test]
fn within_an_epoch_it_cuts_the_step_in_two() {
    let mut stage = busy();
    stage.iter_start(0, 0, 0);
    trains(&mut stage, 10, 0);
    trains(&mut stage, 40, 1);
    let end = takes(&mut stage, 70, 4);
    stage.iter_end(1, end + 3);
    trains(&mut stage, 130, 2);
    trains(&mut stage, 160, 3);
    stage.iter_end_found(0, 190, 195);
    stage.finish(9000);
    let training: Vec<_> = spans(&stage).into_iter().filter(|span| span.0 == Training).collect();
    assert_eq!(
        training,
        [
            (Training, 20, 50),
            (Training, 50, 70),
            (Training, 118, 140),
            (Training, 140, 170),
            (Training, 170, 190)
        ]
    );
    let of = phases(&stage);
    assert!(of.iter().any(|p| (p.0, p.1, p.2) == (Training, 4, 32)), "{of:?}");
    assert!(of.contains(&(Evaluation, 4, 32, 48)), "{of:?}");
    assert!(of.iter().all(|p| p.0 != Between), "{of:?}");
}

#[test]
fn one_that_is_longer_than_what_somebody_accumulates_over_is_no_training_either() {
    let mut stage = busy();
    stage.iter_start(0, 0, 0);
    (0..3).for_each(|index| trains(&mut stage, 10 + index * 30, index));
    stage.iter_end_found(0, 100, 105);
    let end = takes(&mut stage, 120, 200);
    stage.iter_end_found(1, end, end + 5);
    stage.iter_start(0, end + 10, 0);
    (0..3).for_each(|index| trains(&mut stage, end + 20 + index * 30, index));
    stage.iter_end_found(0, end + 110, end + 115);
    stage.finish(9000);
    let of: Vec<_> =
        phases(&stage).into_iter().map(|(phase, steps, samples, _)| (phase, steps, samples)).collect();
    assert!(of.contains(&(Training, 6, 48)) && of.contains(&(Evaluation, 200, 1600)), "{of:?}");
}

/// Where each step takes a batch of a second loader by an iterator of its own, that is trained with; the first is yet in doubt.
#[test]
fn a_second_loader_that_each_step_takes_from_is_trained_with() {
    let mut stage = busy();
    stage.iter_start(0, 0, 0);
    trains(&mut stage, 10, 0);
    for index in 1..11 {
        let at = index * 100;
        let end = takes(&mut stage, at, 1);
        stage.iter_end(1, end);
        trains(&mut stage, at + 50, index);
    }
    stage.finish(9000);
    let of = phases(&stage);
    let steps = |phase| of.iter().filter(|p| p.0 == phase).map(|p| p.1).sum::<u64>();
    assert_eq!([steps(Training), steps(Evaluation), steps(Between)], [10 + 9, 1, 0], "{of:?}");
}

/// As Accelerate's loaders do: the last batch is trained with when their end is known.
#[test]
fn the_last_step_of_a_loader_that_is_fetched_ahead_begins_no_loop_without_one() {
    let mut stage = busy();
    for epoch in 0..3 {
        let at = epoch * 1000;
        stage.iter_start(0, at, 0);
        stage.wait(at + 10, at + 20, 0);
        for index in 1..4 {
            stage.wait(at + index * 100, at + index * 100 + 5, index);
            stage.stepped(at + index * 100 + 50, StepSource::Optimiser);
        }
        stage.iter_end_found(0, at + 400, at + 410);
        stage.stepped(at + 450, StepSource::Optimiser);
        let end = takes(&mut stage, at + 500, 3);
        stage.iter_end_found(1, end, end + 5);
    }
    stage.exits(TRAINER, 3000);
    stage.finish(9000);
    let training = stage.steps.iter().filter(|step| step.phase == Training);
    assert!(training.clone().all(|step| step.loader == 0), "{:?}", spans(&stage));
    assert_eq!(training.count(), 12);
    let of = phases(&stage);
    assert!(of.iter().any(|p| p.0 == Evaluation && p.1 == 9), "{of:?}");
}

#[test]
fn what_ends_with_an_epoch_after_it_is_training() {
    let mut stage = busy();
    stage.iter_start(0, 0, 0);
    trains(&mut stage, 10, 0);
    trains(&mut stage, 40, 1);
    let end = takes(&mut stage, 70, 4);
    stage.iter_end(1, end + 3);
    stage.iter_end(0, 140);
    stage.exits(TRAINER, 200);
    stage.finish(9000);
    let training: Vec<_> = spans(&stage).into_iter().filter(|span| span.0 == Training).collect();
    assert_eq!(training, [(Training, 20, 50), (Training, 50, 70), (Training, 118, 140)]);
}
