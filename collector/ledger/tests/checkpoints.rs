//! One account of checkpoints: the line of a report, its findings and the rows of the ledger tell the same.

use crate::stage::{Does, MS, Stage, TRAINER};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::{Saver, wait_flags};
use stallscope_model::Cause::{Compute, Persist, Snapshot};
use stallscope_model::Phase::{self, After, Between, Startup, Training};
use stallscope_model::{Checkpoints, RankSummary};

fn rank(stage: &Stage) -> RankSummary {
    stage.ledger.summary().ranks[0].clone()
}

/// The checkpoints, after a look at whether the ledger's rows say the same.
fn account(stage: &Stage) -> Checkpoints {
    let rank = rank(stage);
    let saved = rank.checkpoints.clone();
    for phase in &rank.phases {
        let ledger_ns = phase.causes[Snapshot] + phase.causes[Persist];
        assert_eq!(saved.blocked_in_ns.get(&phase.phase).copied().unwrap_or(0), ledger_ns, "{phase:?}");
    }
    assert_eq!(saved.blocked_in_ns.values().sum::<u64>(), saved.blocked_ns);
    saved
}

fn in_phases(saved: &Checkpoints) -> Vec<(Phase, u64)> {
    saved.blocked_in_ns.iter().map(|(phase, ns)| (*phase, ns / MS)).collect()
}

#[test]
fn what_a_script_syncs_by_itself_is_a_part_of_its_checkpoint() {
    let mut stage = Stage::new();
    stage.wait(50, 100, 0);
    stage.checkpoint(110, 130, Saver::TorchSave, true, false);
    let parts = [
        (110, Does::Cpu),
        (20, Does::In(Blocked::FileWrite)),
        (30, Does::In(Blocked::Sync)),
        (5, Does::In(Blocked::Rename)),
        (35, Does::Cpu),
    ];
    stage.does(TRAINER, 0, &parts);
    stage.wait(200, 200, 1);
    stage.finish(2000);
    stage.expect(Training, 0, &[(Persist, 55), (Compute, 45)]);
    let saved = account(&stage);
    assert_eq!((saved.count, saved.files, saved.blocked_ns), (1, 1, 55 * MS));
}

#[test]
fn files_saved_without_a_step_between_are_one_checkpoint() {
    let mut stage = Stage::new();
    stage.did(TRAINER, 0, 2000, Does::Cpu);
    stage.wait(50, 100, 0);
    for step in 1..4u64 {
        let at = step * 100;
        for (nth, saver) in [Saver::Safetensors, Saver::TorchSave, Saver::TorchSave].into_iter().enumerate() {
            let from = at + 10 + 20 * nth as u64;
            stage.checkpoint(from, from + 10, saver, true, false);
        }
        stage.wait(at + 90, at + 100, step);
    }
    stage.finish(2000);
    let saved = account(&stage);
    assert_eq!((saved.count, saved.files, saved.bytes), (3, 9, 9000));
    assert_eq!(in_phases(&saved), [(Training, 90)]);
}

#[test]
fn saves_outside_steps_are_in_the_phase_in_which_they_happen() {
    let mut stage = Stage::new();
    stage.did(TRAINER, 0, 2000, Does::Cpu);
    stage.checkpoint(10, 15, Saver::TorchSave, true, false);
    stage.wait(50, 100, 0);
    stage.iter_end_found(0, 200, 201);
    stage.checkpoint(210, 230, Saver::TorchSave, true, false);
    stage.wait_for(TRAINER, 0, 101, 250, 300, 0, wait_flags::FIRST);
    stage.iter_end(0, 400);
    stage.checkpoint(410, 440, Saver::TorchSave, true, false);
    stage.exits(TRAINER, 500);
    stage.finish(2000);
    let saved = account(&stage);
    assert_eq!((saved.count, saved.bytes), (3, 3000));
    assert_eq!(in_phases(&saved), [(Startup, 5), (Between, 20), (After, 30)]);
    stage.expect(After, 0, &[(Persist, 30), (Compute, 70)]);
    let phases = rank(&stage).phases;
    assert!(phases.iter().all(|phase| phase.phase != Training || phase.causes[Persist] == 0));
}

#[test]
fn other_writes_outside_training_are_no_checkpoints() {
    let mut stage = Stage::new();
    // A data set is unpacked, then a first checkpoint is saved.
    stage.did(TRAINER, 0, 40, Does::In(Blocked::FileWrite));
    stage.did(TRAINER, 40, 2000, Does::Cpu);
    stage.checkpoint(60, 65, Saver::TorchSave, true, false);
    stage.wait(80, 100, 0);
    stage.wait(200, 200, 1);
    stage.finish(2000);
    stage.expect(Startup, 0, &[(Persist, 45), (Compute, 35), (stallscope_model::Cause::Unknown, 20)]);
    let saved = rank(&stage).checkpoints;
    assert_eq!((saved.count, in_phases(&saved)), (1, vec![(Startup, 5)]));
}

/// A loop with an optimiser of its own, of which no step shows: two checkpoints of two files each.
#[test]
fn checkpoints_of_a_loop_without_steps_are_distinguished_by_the_time_between_them() {
    let mut stage = Stage::new();
    stage.did(TRAINER, 0, 9000, Does::Cpu);
    for at in [2000, 2010, 8000, 8010] {
        stage.checkpoint(at, at + 8, Saver::TorchSave, true, false);
    }
    stage.says_goodbye(TRAINER, 8900);
    stage.finish(9000);
    let saved = rank(&stage).checkpoints;
    assert_eq!((saved.count, saved.files), (2, 4));
}

#[test]
fn a_job_that_is_attached_to_and_left_has_no_end_of_training() {
    let mut stage = Stage::new();
    stage.did(TRAINER, 0, 2000, Does::Cpu);
    stage.wait(50, 100, 0);
    stage.wait(150, 160, 1);
    stage.finish(400);
    assert!(stage.steps.iter().all(|step| step.phase != After), "{:?}", stage.steps);
}

#[test]
fn a_checkpoint_of_another_thread_blocks_nobody() {
    let mut stage = Stage::new();
    stage.did(TRAINER, 0, 2000, Does::Cpu);
    stage.wait(50, 100, 0);
    stage.checkpoint(110, 130, Saver::TorchSave, true, false);
    stage.checkpoint(140, 180, Saver::TorchSave, true, true);
    stage.wait(200, 200, 1);
    stage.finish(2000);
    let saved = account(&stage);
    assert_eq!((saved.count, saved.in_background, saved.background_ns), (2, 1, 40 * MS));
    assert_eq!(saved.blocked_each_ns(), 20 * MS);
}
