//! Who trains now, and up to when all of it is reported.

use crate::stage::{MS, Stage, TRAINER, WORKER};
use stallscope_ledger::{Member, ProcessKind};

#[test]
fn a_trainer_has_its_workers_until_they_are_gone() {
    let mut stage = Stage::new();
    stage.greet(200, 1, ProcessKind::Trainer, 1, 2);
    stage.greet(201, 200, ProcessKind::Worker, 1, 2);
    // Reported by the kernel alone: a helper of the worker's, and somebody else's child.
    stage.new_task(202, 201, 5, "decoder");
    stage.new_task(300, 299, 5, "stranger");
    stage.advance(10);
    let member = |rank, pid, pids: &[u32]| Member {
        rank,
        pid,
        pids: pids.to_vec(),
        seen_until_ns: 10 * MS,
        checkpoints: None,
    };
    assert_eq!(
        stage.ledger.members(10 * MS),
        [member(0, TRAINER, &[TRAINER, WORKER]), member(1, 200, &[200, 201, 202])]
    );
    stage.exits(WORKER, 12);
    stage.exits(200, 12);
    stage.advance(13);
    let left: Vec<Vec<u32>> = stage.ledger.members(13 * MS).into_iter().map(|member| member.pids).collect();
    assert_eq!(left, [[TRAINER]]);
}

#[test]
fn a_step_whose_evidence_is_awaited_is_not_closed_yet() {
    let mut stage = Stage::new();
    stage.wait(100, 150, 0);
    stage.wait(200, 260, 1);
    stage.advance(300);
    assert_eq!(stage.ledger.members(300 * MS)[0].seen_until_ns, 150 * MS);
    // Nobody tells more: closed with what is known.
    stage.advance(5000);
    assert_eq!(stage.ledger.members(5000 * MS)[0].seen_until_ns, 5000 * MS);
}
