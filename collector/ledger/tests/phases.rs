//! Which phase a trainer's time belongs to.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER};
use stallscope_abi::lane::{CheckpointCost, Saver, StepSource, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::Cause::*;
use stallscope_model::Phase::{self, Between, Evaluation, Startup, Training};

const EVAL_WORKER: u32 = 102;

/// A trainer and workers that are always on a CPU, so that only phases matter.
fn busy() -> Stage {
    let mut stage = Stage::new();
    stage.greet(EVAL_WORKER, TRAINER, ProcessKind::Worker, 0, 1);
    for pid in [TRAINER, WORKER, EVAL_WORKER] {
        stage.did(pid, 0, 2000, Does::Cpu);
    }
    stage
}

fn spans(stage: &Stage) -> Vec<(Phase, u64, u64)> {
    stage.steps.iter().map(|step| (step.phase, step.start_ns / MS, step.end_ns / MS)).collect()
}

fn evaluates(stage: &mut Stage, enter: u64, exit: u64, index: u64) {
    let first = if index == 0 { wait_flags::FIRST } else { 0 };
    stage.wait_for(TRAINER, 1, EVAL_WORKER, enter, exit, index, wait_flags::NO_GRAD | first);
}

#[test]
fn an_epoch_end_separates_training_from_the_next_epochs_start() {
    let mut stage = busy();
    stage.iter_start(0, 40, 0);
    stage.wait(50, 100, 0);
    stage.wait(120, 150, 1);
    stage.iter_end(0, 180);
    stage.iter_start(0, 200, 0);
    stage.wait(210, 260, 0);
    stage.wait(300, 310, 1);
    stage.finish(2000);
    let wanted = [
        (Startup, 0, 100),
        (Training, 100, 150),
        (Training, 150, 180),
        (Between, 180, 260),
        (Training, 260, 310),
    ];
    assert_eq!(spans(&stage), wanted);
    // The batch in hand counts where the trainer worked on it: the last of an epoch too.
    let summary = stage.ledger.summary();
    let samples: Vec<(Phase, u64, u64)> =
        summary.phases.iter().map(|p| (p.phase, p.steps, p.samples)).collect();
    assert_eq!(samples, [(Startup, 1, 0), (Training, 3, 24), (Between, 1, 0)]);
}

fn steps(stage: &mut Stage, at: u64) {
    stage.stepped(at, StepSource::Optimiser);
}

/// Two batches, each with a step of the optimiser, in 100 ms from `at` on.
fn trains_an_epoch(stage: &mut Stage, at: u64) {
    stage.iter_start(0, at, 0);
    for index in 0..2 {
        stage.wait(at + 10 + index * 40, at + 20 + index * 40, index);
        steps(stage, at + 40 + index * 40);
    }
    stage.iter_end_found(0, at + 90, at + 95);
}

/// As in `next(iter(loader))`, whose iterator is dropped at once.
fn looks_at_a_batch(stage: &mut Stage, at: u64) {
    stage.iter_start(0, at, 0);
    stage.wait(at, at + 30, 0);
    stage.iter_end(0, at + 31);
}

#[test]
fn a_batch_that_a_script_only_looks_at_is_no_step_of_training() {
    let mut stage = busy();
    for epoch in 0..3 {
        looks_at_a_batch(&mut stage, 100 + epoch * 200);
        trains_an_epoch(&mut stage, 150 + epoch * 200);
    }
    // After training, too.
    looks_at_a_batch(&mut stage, 700);
    stage.exits(TRAINER, 800);
    stage.finish(2000);
    let summary = stage.ledger.summary();
    let of: Vec<(Phase, u64, u64, u64)> =
        summary.phases.iter().map(|p| (p.phase, p.steps, p.samples, p.wall_ns / MS)).collect();
    assert!(of.contains(&(Training, 6, 48, 3 * 70)), "{of:?}");
    // What comes before the first batch that is trained with is the start.
    assert!(of.iter().any(|p| (p.0, p.3) == (Startup, 170)), "{of:?}");
    assert!(stage.steps.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns), "{:?}", spans(&stage));
}

#[test]
fn an_iterator_that_is_never_dropped_counts_as_one_that_is() {
    let mut stage = busy();
    stage.iter_start(0, 100, 0);
    stage.wait(100, 130, 0);
    trains_an_epoch(&mut stage, 150);
    stage.finish(2000);
    assert_eq!(
        spans(&stage),
        [(Startup, 0, 130), (Startup, 130, 170), (Training, 170, 210), (Training, 210, 240)]
    );
}

#[test]
fn batches_of_one_pass_count_each_however_many_a_step_of_the_optimiser_takes() {
    let mut stage = busy();
    for epoch in 0..2 {
        let at = epoch * 500;
        stage.iter_start(0, at, 0);
        for index in 0..8 {
            stage.wait(at + 10 + index * 40, at + 20 + index * 40, index);
            if index % 4 == 3 {
                steps(&mut stage, at + 40 + index * 40);
            }
        }
        stage.iter_end_found(0, at + 340, at + 350);
    }
    stage.finish(2000);
    assert_eq!(stage.steps.iter().filter(|step| step.phase == Training).count(), 16);
}

/// A new iterator for each batch, as some scripts have it.
#[test]
fn a_batch_that_a_step_follows_is_trained_with_though_its_iterator_is_gone() {
    let mut stage = busy();
    for turn in 0..10 {
        looks_at_a_batch(&mut stage, turn * 100);
        steps(&mut stage, turn * 100 + 80);
    }
    stage.finish(2000);
    assert_eq!(stage.steps.iter().filter(|step| step.phase == Training).count(), 10);
}

/// An optimiser of the script's own, or one that is compiled.
#[test]
fn where_no_optimiser_shows_batches_are_steps() {
    let mut stage = busy();
    for epoch in 0..3 {
        let at = epoch * 200;
        stage.iter_start(0, at, 0);
        (0..3).for_each(|index| stage.wait(at + 10 + index * 40, at + 20 + index * 40, index));
        stage.iter_end(0, at + 120);
    }
    stage.finish(2000);
    assert_eq!(stage.steps.iter().filter(|step| step.phase == Training).count(), 9);
}

#[test]
fn a_batch_that_is_looked_at_before_an_evaluation_is_no_step_either() {
    let mut stage = busy();
    trains_an_epoch(&mut stage, 100);
    looks_at_a_batch(&mut stage, 200);
    stage.iter_start(1, 240, wait_flags::NO_GRAD);
    evaluates(&mut stage, 245, 260, 0);
    stage.iter_end(1, 270);
    stage.finish(2000);
    assert_eq!(stage.steps.iter().filter(|step| step.phase == Training).count(), 2, "{:?}", spans(&stage));
    assert_eq!(stage.steps.iter().filter(|step| step.phase == Evaluation).count(), 2);
}

/// It is known to be a trainer only when its shim says so, which is as soon as torch is there.
#[test]
fn a_start_that_takes_long_is_remembered_whole() {
    let mut stage = Stage::empty();
    for second in 0..30 {
        stage.did(TRAINER, second * 1000, (second + 1) * 1000, Does::Cpu);
        stage.advance((second + 1) * 1000);
    }
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.wait_for(TRAINER, 0, 0, 30_000, 30_000, 0, wait_flags::FIRST | wait_flags::IN_PROCESS);
    stage.finish(32_000);
    stage.expect(Startup, 0, &[(Compute, 30_000)]);
}

#[test]
fn an_evaluation_inside_a_training_step_is_cut_out_of_it() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.wait(120, 150, 1);
    stage.iter_start(1, 160, wait_flags::NO_GRAD);
    evaluates(&mut stage, 165, 200, 0);
    evaluates(&mut stage, 220, 240, 1);
    stage.iter_end(1, 250);
    stage.wait(260, 270, 2);
    stage.finish(2000);
    let wanted = [
        (Startup, 0, 100),
        (Training, 100, 150),
        (Training, 150, 160),
        (Evaluation, 160, 200),
        (Evaluation, 200, 240),
        (Evaluation, 240, 250),
        (Training, 250, 270),
    ];
    assert_eq!(spans(&stage), wanted);
    let summary = stage.ledger.summary();
    let training: u64 = summary.phases.iter().filter(|p| p.phase == Training).map(|p| p.wall_ns).sum();
    assert_eq!(training, 80 * MS);
    let steps = summary.phases.iter().find(|p| p.phase == Training).expect("training");
    assert!(steps.step_p50_ns >= 30 * MS, "the step is as long as both of its parts: {steps:?}");
}

#[test]
fn shutting_workers_down_is_no_training() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.iter_start(1, 110, wait_flags::NO_GRAD);
    evaluates(&mut stage, 115, 120, 0);
    stage.iter_end_found(1, 125, 140);
    stage.iter_end_found(0, 150, 190);
    stage.wait(200, 250, 0);
    stage.finish(2000);
    let wanted = [
        (Startup, 0, 100),
        (Training, 100, 110),
        (Evaluation, 110, 120),
        (Evaluation, 120, 140),
        (Training, 140, 150),
        (Between, 150, 250),
    ];
    assert_eq!(spans(&stage), wanted);
}

#[test]
fn an_evaluation_has_as_many_steps_as_batches_and_the_step_it_cuts_counts_once() {
    for broken_off in [false, true] {
        let mut stage = busy();
        stage.wait(50, 100, 0);
        stage.iter_start(1, 110, wait_flags::NO_GRAD);
        evaluates(&mut stage, 111, 120, 0);
        evaluates(&mut stage, 130, 140, 1);
        if !broken_off {
            stage.iter_end(1, 150);
        }
        stage.wait(160, 170, 1);
        stage.iter_end(0, 200);
        stage.finish(2000);
        let summary = stage.ledger.summary();
        let steps: Vec<(Phase, u64)> = summary.phases.iter().map(|p| (p.phase, p.steps)).collect();
        assert_eq!(steps, [(Startup, 1), (Training, 2), (Evaluation, 2)]);
        let evaluated = &summary.phases[2];
        assert_eq!(evaluated.wall_ns, if broken_off { 50 } else { 40 } * MS, "its start belongs to it");
    }
}

#[test]
fn an_evaluation_by_waits_alone_is_distinguished_too() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    evaluates(&mut stage, 110, 120, 5);
    evaluates(&mut stage, 130, 140, 6);
    stage.wait(150, 160, 1);
    stage.finish(2000);
    let wanted = [
        (Startup, 0, 100),
        (Training, 100, 110),
        (Evaluation, 110, 120),
        (Evaluation, 120, 140),
        (Evaluation, 140, 150),
        (Training, 150, 160),
    ];
    assert_eq!(spans(&stage), wanted);
}

#[test]
fn a_check_before_training_leaves_start_up_what_is_its_own() {
    let mut stage = busy();
    stage.iter_start(1, 30, wait_flags::NO_GRAD);
    evaluates(&mut stage, 35, 60, 0);
    stage.iter_end(1, 70);
    stage.wait(80, 100, 0);
    stage.finish(2000);
    assert_eq!(
        spans(&stage),
        [(Startup, 0, 30), (Evaluation, 30, 60), (Evaluation, 60, 70), (Startup, 70, 100)]
    );
}

#[test]
fn an_evaluation_between_epochs_is_not_between_epochs() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.iter_end(0, 120);
    stage.iter_start(1, 130, wait_flags::NO_GRAD);
    evaluates(&mut stage, 135, 160, 0);
    stage.iter_end(1, 170);
    stage.wait(180, 200, 0);
    stage.finish(2000);
    let wanted = [
        (Startup, 0, 100),
        (Training, 100, 120),
        (Between, 120, 130),
        (Evaluation, 130, 160),
        (Evaluation, 160, 170),
        (Between, 170, 200),
    ];
    assert_eq!(spans(&stage), wanted);
}

#[test]
fn two_loaders_that_take_turns_share_the_time_without_overlap() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.wait_for(TRAINER, 2, EVAL_WORKER, 100, 110, 0, wait_flags::FIRST);
    for step in 1..4u64 {
        let at = 100 + 50 * step;
        stage.wait(at, at + 10, step);
        stage.wait_for(TRAINER, 2, EVAL_WORKER, at + 10, at + 15, step, 0);
    }
    stage.finish(2000);
    let summary = stage.ledger.summary();
    let of =
        |loader| summary.phases.iter().find(|p| p.phase == Training && p.loader == Some(loader)).unwrap();
    assert_eq!((of(0).steps, of(0).wall_ns), (3, (50 + 45 + 45) * MS));
    assert_eq!((of(2).steps, of(2).wall_ns), (3, 15 * MS));
}

#[test]
fn an_iterator_that_is_replaced_before_it_is_dropped_ends_nothing() {
    let mut stage = busy();
    stage.iter_start(0, 40, 0);
    stage.wait(50, 100, 0);
    stage.iter_start(0, 110, 0);
    stage.iter_end(0, 111);
    stage.wait(120, 130, 0);
    stage.wait(140, 150, 1);
    stage.finish(2000);
    assert_eq!(spans(&stage), [(Startup, 0, 100), (Startup, 100, 130), (Training, 130, 150)]);
}

/// As Lightning does, which knows how many batches there are: no `next()` finds the end, and an iterator is dropped as another one
/// has taken its place.
#[test]
fn the_last_step_of_an_epoch_whose_iterator_is_kept_counts() {
    let epochs = |by_optimiser: bool, evaluates: &dyn Fn(&mut Stage, u64)| {
        let mut stage = busy();
        for epoch in 0..3 {
            let at = epoch * 500;
            stage.iter_start(0, at, 0);
            if epoch > 0 {
                stage.iter_end(0, at + 1);
            }
            for index in 0..4 {
                stage.wait(at + 10 + index * 40, at + 20 + index * 40, index);
                if by_optimiser {
                    steps(&mut stage, at + 40 + index * 40);
                }
            }
            evaluates(&mut stage, at + 200);
        }
        stage
    };
    let training = |stage: &Stage| -> Vec<(u64, u64)> {
        let of = stage.steps.iter().filter(|step| step.phase == Training && !step.part);
        of.map(|step| (step.start_ns / MS, step.end_ns / MS)).collect()
    };
    for by_optimiser in [true, false] {
        let mut stage = epochs(by_optimiser, &|_, _| {});
        stage.exits(TRAINER, 1900);
        stage.finish(2000);
        let found = training(&stage);
        // What follows the last one nobody knows the end of without an optimiser.
        assert_eq!(found.len(), if by_optimiser { 12 } else { 11 }, "{found:?}");
        assert_eq!(found[3], (140, if by_optimiser { 160 } else { 500 }));
        let summary = stage.ledger.summary();
        let of = summary.phases.iter().find(|phase| phase.phase == Training).unwrap();
        assert_eq!((of.steps, of.samples), (found.len() as u64, 8 * found.len() as u64));
        // With an evaluation after each epoch, that one's iterator kept as well or not.
        for ends in [true, false] {
            let evaluation = |stage: &mut Stage, at: u64| {
                stage.iter_start(1, at, wait_flags::NO_GRAD);
                (0..3).for_each(|index| evaluates(stage, at + index * 40, at + 20 + index * 40, index));
                if ends {
                    stage.iter_end_found(1, at + 130, at + 140);
                }
            };
            let mut stage = epochs(by_optimiser, &evaluation);
            stage.finish(2000);
            assert_eq!(training(&stage).len(), 11, "{:?}", spans(&stage));
            assert!(stage.steps.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
        }
    }
}

/// A loop that stops before its loader does keeps the iterator until the interpreter drops it, long after the goodbye.
#[test]
fn an_iterator_that_is_dropped_as_the_process_leaves_is_no_step() {
    let mut stage = busy();
    stage.iter_start(0, 40, 0);
    stage.wait(50, 100, 0);
    stage.wait(120, 150, 1);
    stage.says_goodbye(TRAINER, 200);
    stage.iter_end(0, 1900);
    stage.finish(2000);
    assert_eq!(spans(&stage)[..2], [(Startup, 0, 100), (Training, 100, 150)]);
    assert!(spans(&stage)[2..].iter().all(|(phase, ..)| *phase == Phase::After), "{:?}", spans(&stage));
}

#[test]
fn a_failed_next_ends_no_start_up() {
    let mut stage = busy();
    stage.wait_for(TRAINER, 0, WORKER, 50, 60, 0, wait_flags::FIRST | wait_flags::FAILED);
    stage.wait(70, 100, 0);
    stage.finish(2000);
    assert_eq!(spans(&stage), [(Startup, 0, 60), (Startup, 60, 100)]);
}

#[test]
fn a_wait_reported_twice_is_counted_as_lost() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.wait(50, 100, 0);
    stage.wait(20, 90, 1);
    stage.finish(2000);
    assert_eq!(spans(&stage), [(Startup, 0, 100)]);
    let losses = stage.ledger.summary().losses;
    assert!(
        losses.iter().any(|loss| loss.reason == "wait reported twice or too late" && loss.count == 2),
        "{losses:?}"
    );
}

#[test]
fn a_checkpoint_in_the_loop_is_snapshot_or_persist_whatever_it_uses() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    // torch.save within DCP's save: reported first, one call all the same.
    stage.checkpoint(110, 130, Saver::TorchSave, true, false);
    stage.checkpoint(105, 140, Saver::DcpSave, true, false);
    stage.checkpoint(150, 160, Saver::DcpAsyncSave, false, false);
    stage.checkpoint(160, 400, Saver::DcpAsyncSave, true, true);
    stage.wait(200, 200, 1);
    stage.finish(2000);
    stage.expect(Training, 0, &[(Persist, 35), (Snapshot, 10), (Compute, 55)]);
    let checkpoints = stage.ledger.summary().ranks[0].checkpoints.clone();
    assert_eq!((checkpoints.count, checkpoints.files, checkpoints.bytes), (1, 2, 2000));
    assert_eq!((checkpoints.blocked_ns, checkpoints.background_ns), (45 * MS, 240 * MS));
}

#[test]
fn what_checkpoints_cost_is_shown_beside_what_they_may() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    assert_eq!(stage.ledger.summary().ranks[0].checkpoints.account, None);
    for (spent_ns, budget_ppm, failed) in [(5 * MS, 20_000, 0), (8 * MS, 0, 3)] {
        let cost = CheckpointCost { spent_ns, trained_ns: 900 * MS, budget_ppm, failed };
        stage.lane(TRAINER, cost.encode(150 * MS));
        assert_eq!(stage.ledger.summary().ranks[0].checkpoints.failed, failed);
        let account = stage.ledger.summary().ranks[0].checkpoints.account.unwrap();
        assert_eq!((account.spent_ns, account.trained_ns), (spent_ns, 900 * MS), "the last one holds");
        assert_eq!(account.budget_ppm, Some(budget_ppm).filter(|budget| *budget > 0));
    }
}

#[test]
fn a_checkpoint_of_ours_counts_once_though_it_is_copied_and_written_apart() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.checkpoint(150, 160, Saver::Stallscope, false, false);
    stage.checkpoint(160, 400, Saver::Stallscope, true, true);
    stage.wait(200, 200, 1);
    stage.finish(2000);
    stage.expect(Training, 0, &[(Snapshot, 10), (Compute, 90)]);
    let checkpoints = stage.ledger.summary().ranks[0].checkpoints.clone();
    assert_eq!((checkpoints.count, checkpoints.bytes), (1, 1000));
    assert_eq!((checkpoints.blocked_ns, checkpoints.background_ns), (10 * MS, 240 * MS));
}

#[test]
fn a_device_that_had_work_hides_its_part_of_a_wait() {
    let mut stage = busy();
    stage.wait(50, 100, 0);
    stage.batch(WORKER, 100, 200, 1);
    stage.wait(120, 200, 1);
    stage.batch(WORKER, 200, 250, 2);
    stage.wait(210, 250, 2);
    stage.device_idle(500, 100, 50);
    stage.device_idle(500, 200, 30);
    stage.advance(1900);
    assert_eq!(stage.steps.len(), 2, "the third wait's idle time may still come");
    stage.device_idle(500, 250, 99);
    stage.advance(1901);
    assert_eq!(stage.step(Training, 0).hidden_ns, Some(50 * MS));
    assert_eq!(stage.step(Training, 1).hidden_ns, Some(0));
    stage.expect(Training, 0, &[(Compute, 20), (Prep, 80)]);
    assert_eq!(stage.ledger.summary().phases[1].hidden_ns, Some(50 * MS));
}
