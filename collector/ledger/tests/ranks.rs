//! The job's own ledger over several ranks, and its verdict.

use crate::stage::{Does, MS, Stage};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::{self, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::Cause::{self, *};
use stallscope_model::Phase::{After, Training};
use stallscope_model::PhaseSummary;

const RANKS: [(u32, u32); 2] = [(100, 101), (200, 201)];

fn two_ranks() -> Stage {
    let mut stage = Stage::empty();
    for (rank, (trainer, worker)) in RANKS.into_iter().enumerate() {
        stage.greet(trainer, 1, ProcessKind::Trainer, rank as u32, 2);
        stage.greet(worker, trainer, ProcessKind::Worker, rank as u32, 2);
    }
    stage
}

/// One synchronous step from `at`: both work for 10 ms after the batch came; the slow one waited `fetch` ms
/// for it, the other 2 ms, and then for the slow one.
fn step(stage: &mut Stage, at: u64, index: u64, slow: usize, fetch: u64) -> u64 {
    let flags = if index == 0 { wait_flags::FIRST } else { 0 };
    for (rank, (trainer, worker)) in RANKS.into_iter().enumerate() {
        let fetch_here = if rank == slow { fetch } else { 2 };
        stage.did(worker, at, at + fetch_here, Does::In(Blocked::FileRead));
        stage.did(worker, at + fetch_here, at + fetch + 10, Does::In(Blocked::Pipe));
        stage.batch(worker, at, at + fetch_here, index);
        stage.did(trainer, at, at + fetch_here, Does::In(Blocked::Pipe));
        stage.wait_for(trainer, 0, worker, at, at + fetch_here, index, flags);
        if rank != slow {
            stage.did(trainer, at + fetch_here, at + fetch, Does::In(Blocked::FutexNet));
        }
        stage.did(trainer, at + fetch, at + fetch + 10, Does::Cpu);
    }
    at + fetch + 10
}

fn training(phases: &[PhaseSummary]) -> &PhaseSummary {
    phases.iter().find(|phase| phase.phase == Training).expect("no training")
}

fn share(phases: &[PhaseSummary], cause: Cause) -> f64 {
    training(phases).causes.share(cause)
}

#[test]
fn the_slow_ranks_causes_are_the_jobs_and_the_others_wait_is_peer() {
    let mut stage = two_ranks();
    let mut at = 1000;
    for index in 0..50 {
        at = step(&mut stage, at, index, 1, 32);
        stage.advance(at);
    }
    stage.finish(at + 2000);
    let summary = stage.ledger.summary();
    // A step is 42 ms: 32 of fetch and 10 of compute on rank 1.
    assert!((share(&summary.phases, Fetch) - 32.0 / 42.0).abs() < 0.02, "{:?}", summary.phases);
    assert_eq!(share(&summary.phases, Peer), 0.0);
    assert!((share(&summary.ranks[0].phases, Peer) - 30.0 / 42.0).abs() < 0.02);
    assert!((share(&summary.ranks[1].phases, Fetch) - 32.0 / 42.0).abs() < 0.02);
    assert_eq!(summary.verdict.finding, "fetch-bound");
    assert!(summary.verdict.sentence.contains("on rank 1"), "{}", summary.verdict.sentence);
    let straggler = summary.diagnoses.iter().find(|d| d.name == "straggler-rank").unwrap();
    assert!(straggler.finding.contains("rank 1, which spends it on fetch"), "{}", straggler.finding);
    assert_eq!(straggler.cause, Some(Fetch));
}

#[test]
fn ranks_that_are_slow_in_turn_make_the_job_slow_all_the_time() {
    let mut stage = two_ranks();
    let mut at = 1000;
    for index in 0..60 {
        at = step(&mut stage, at, index, index as usize % 2, 32);
        stage.advance(at);
    }
    stage.finish(at + 2000);
    let summary = stage.ledger.summary();
    assert!((share(&summary.phases, Fetch) - 32.0 / 42.0).abs() < 0.02, "{:?}", summary.phases);
    assert!((share(&summary.ranks[0].phases, Peer) - 15.0 / 42.0).abs() < 0.02);
    // No more and no less time than went by.
    let wall = training(&summary.phases).wall_ns / MS;
    assert!((2400..=2520).contains(&wall), "{wall}");
    assert!(summary.diagnoses.iter().all(|d| d.name != "straggler-rank"), "{:?}", summary.diagnoses);
}

#[test]
fn a_rank_that_ends_early_is_not_waited_for() {
    let mut stage = two_ranks();
    let mut at = 1000;
    for index in 0..20 {
        at = step(&mut stage, at, index, 0, 32);
    }
    stage.says_goodbye(200, at);
    stage.ledger.gone(200, (at + 1) * MS);
    for index in 20..40 {
        stage.batch(101, at, at + 5, index);
        stage.wait_for(100, 0, 101, at, at + 5, index, 0);
        at += 10;
    }
    stage.advance(at + 2000);
    let summary = stage.ledger.summary();
    assert_eq!(training(&summary.ranks[0].phases).steps, 39);
    assert_eq!(training(&summary.ranks[1].phases).steps, 19);
    assert_eq!(training(&summary.phases).steps, 39);
    assert_eq!(training(&summary.phases).samples, (39 + 19) * 8);
}

fn lost(stage: &Stage) -> Vec<(String, u64)> {
    let losses = stage.ledger.summary().losses;
    losses.into_iter().filter(|loss| loss.count > 0).map(|loss| (loss.reason, loss.count)).collect()
}

/// A look at its lane comes between its goodbye and the end of its process, which is long after all the others'.
#[test]
fn what_the_last_rank_does_after_its_goodbye_is_no_loss() {
    let mut stage = two_ranks();
    let mut at = 1000;
    for index in 0..20 {
        at = step(&mut stage, at, index, 0, 32);
    }
    for (trainer, _) in RANKS {
        stage.lane(trainer, lane::IterEnd { loader: 0, batches: 0, enter_ns: 0 }.encode(at * MS));
    }
    stage.says_goodbye(100, at + 50);
    stage.ledger.gone(100, (at + 60) * MS);
    stage.says_goodbye(200, at + 55);
    for second in 1..5 {
        stage.advance(at + second * 1000);
    }
    stage.ledger.gone(200, (at + 5000) * MS);
    // The kernel's account of the same end.
    stage.exits(200, at + 5001);
    stage.finish(at + 7000);
    assert_eq!(lost(&stage), []);
    let after =
        stage.ledger.summary().phases.iter().find(|phase| phase.phase == After).map(|phase| phase.wall_ns);
    assert_eq!(after, Some(5000 * MS));
}

/// On a busy machine the last of many ranks may be launched when the first one has its first batch.
#[test]
fn a_rank_that_greets_after_the_others_began_loses_no_step() {
    let mut stage = Stage::empty();
    for (rank, (trainer, worker)) in RANKS.into_iter().enumerate() {
        stage.greet(trainer, 1, ProcessKind::Trainer, rank as u32, 2);
        stage.greet(worker, trainer, ProcessKind::Worker, rank as u32, 2);
        let from = 1000 + rank as u64 * 3000;
        for index in 0..100 {
            let at = from + index * 50;
            stage.batch(worker, at, at + 5, index);
            stage.wait_for(
                trainer,
                0,
                worker,
                at,
                at + 5,
                index,
                if index == 0 { wait_flags::FIRST } else { 0 },
            );
            if rank == 0 {
                stage.advance(at + 5);
            }
        }
    }
    stage.finish(20_000);
    assert_eq!(lost(&stage), []);
    assert_eq!(training(&stage.ledger.summary().phases).steps, 99);
}

/// One on another node never greets here.
#[test]
fn ranks_of_other_nodes_are_not_waited_for() {
    let mut stage = Stage::empty();
    stage.greet(100, 1, ProcessKind::Trainer, 0, 64);
    stage.greet(101, 100, ProcessKind::Worker, 0, 64);
    for index in 0..400 {
        let at = 1000 + index * 50;
        stage.batch(101, at, at + 5, index);
        stage.wait_for(100, 0, 101, at, at + 5, index, if index == 0 { wait_flags::FIRST } else { 0 });
        stage.advance(at + 5);
    }
    assert!(training(&stage.ledger.summary().phases).steps > 350);
}

#[test]
fn a_collective_is_peer_as_far_as_it_had_a_cpu_if_it_wanted_one() {
    let mut stage = two_ranks();
    let (trainer, worker) = RANKS[0];
    stage.batch(worker, 0, 40, 0);
    stage.wait_for(trainer, 0, worker, 10, 50, 0, wait_flags::FIRST);
    // gloo's own threads carry the data meanwhile: that is no compute.
    stage.did(trainer, 50, 60, Does::Cpu);
    stage.does(trainer, 60, &[(20, Does::Helped(Blocked::Futex, 30)), (6, Does::Cpu), (4, Does::Runnable)]);
    stage.lane(trainer, lane::Collective { began_ns: 60 * MS }.encode(90 * MS));
    stage.batch(worker, 50, 60, 1);
    stage.wait_for(trainer, 0, worker, 90, 90, 1, 0);
    stage.finish(2000);
    stage.expect(Training, 0, &[(Compute, 10), (Peer, 26), (Preempted, 4)]);
}

#[test]
fn a_phase_of_one_rank_alone_is_the_jobs_after_a_while() {
    let mut stage = two_ranks();
    let mut at = 1000;
    for index in 0..5 {
        at = step(&mut stage, at, index, 0, 32);
    }
    stage.wait_for(100, 3, 0, at, at + 100, 0, wait_flags::NO_GRAD | wait_flags::FIRST);
    stage.advance(at + 5000);
    let evaluated = |stage: &Stage| {
        stage.ledger.summary().phases.iter().any(|phase| phase.phase == stallscope_model::Phase::Evaluation)
    };
    assert!(!evaluated(&stage));
    stage.advance(at + 20_000);
    assert!(evaluated(&stage));
}

#[test]
fn a_rank_that_computes_for_longer_is_named_as_the_straggler() {
    let mut stage = two_ranks();
    let mut at = 1000;
    for index in 0..20 {
        for (rank, (trainer, worker)) in RANKS.into_iter().enumerate() {
            stage.batch(worker, at - 5, at, index);
            stage.did(worker, at - 5, at + 35, Does::In(Blocked::Pipe));
            stage.wait_for(trainer, 0, worker, at, at, index, if index == 0 { wait_flags::FIRST } else { 0 });
            let own = if rank == 0 { 40 } else { 10 };
            stage.did(trainer, at, at + own, Does::Cpu);
            stage.did(trainer, at + own, at + 40, Does::In(Blocked::FutexNet));
        }
        at += 40;
        stage.advance(at);
    }
    stage.finish(at + 2000);
    let sentence = stage.ledger.summary().verdict.sentence;
    assert_eq!(
        sentence,
        "straggler: the other ranks wait 75% of their time for rank 0, which spends it on compute"
    );
}

#[test]
fn trainers_beside_each_other_do_not_wait_for_one_another() {
    let mut stage = Stage::empty();
    for (rank, (trainer, worker)) in RANKS.into_iter().enumerate() {
        stage.greet(trainer, 1, ProcessKind::Trainer, rank as u32, 1);
        stage.greet(worker, trainer, ProcessKind::Worker, rank as u32, 1);
    }
    let at = step(&mut stage, 1000, 0, 1, 32);
    step(&mut stage, at, 1, 1, 32);
    stage.finish(5000);
    stage.expect(Training, 0, &[(Unknown, 30), (Compute, 10), (Fetch, 2)]);
}
