//! Waits cut by handovers that the kernel saw.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, training};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::wait_flags;
use stallscope_ledger::{BatchTimes, Handover, ProcessKind, Producer, Source};
use stallscope_model::Cause::*;
use stallscope_model::Phase::Training;

#[test]
fn handovers_that_a_detector_found_in_kernel_records_are_cut_the_same_way() {
    let mut stage = Stage::empty();
    stage.does(
        TRAINER,
        0,
        &[(20, Does::Cpu), (80, Does::In(Blocked::Pipe)), (10, Does::Cpu), (40, Does::In(Blocked::Pipe))],
    );
    stage.does(WORKER, 0, &[(140, Does::In(Blocked::FileRead))]);
    for (enter, exit, start, ready) in [(20, 100, 0, 90), (110, 150, 90, 140)] {
        stage.ledger.handover(Handover {
            pid: TRAINER,
            loader: 0,
            enter_ns: enter * MS,
            exit_ns: exit * MS,
            producer: Producer::Pid(WORKER),
            batch: Some(BatchTimes { start_ns: start * MS, ready_ns: ready * MS }),
            index: 0,
            samples: 0,
            flags: 0,
            source: Source::Kernel,
        });
    }
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Fetch, 30), (Transfer, 10)]);
    assert!(!stage.step(Training, 0).evidence.shim);
}

/// A dropped iterator's workers are waited for in a pipe that closes as they end.
#[test]
fn a_pipe_outside_the_waits_that_the_kernel_sees_is_no_transfer() {
    let mut stage = Stage::empty();
    let own = [(10, Does::Cpu), (40, Does::In(Blocked::Pipe)), (5, Does::In(Blocked::Unix)), (5, Does::Cpu)];
    stage.does(TRAINER, 0, &[(20, Does::Cpu), (80, Does::In(Blocked::Pipe))]);
    stage.does(TRAINER, 100, &own);
    stage.does(TRAINER, 160, &[(40, Does::In(Blocked::Pipe))]);
    stage.does(WORKER, 0, &[(200, Does::In(Blocked::FileRead))]);
    for (enter, exit, start) in [(20, 100, 0), (160, 200, 100)] {
        stage.ledger.handover(Handover {
            pid: TRAINER,
            loader: 0,
            enter_ns: enter * MS,
            exit_ns: exit * MS,
            producer: Producer::Pid(WORKER),
            batch: Some(BatchTimes { start_ns: start * MS, ready_ns: exit * MS }),
            index: 0,
            samples: 0,
            flags: 0,
            source: Source::Kernel,
        });
    }
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 15), (Unknown, 40), (Transfer, 5), (Fetch, 40)]);
}

#[test]
fn a_detector_sees_the_batch_taken_when_the_main_thread_runs_again() {
    let mut stage = Stage::empty();
    let wait = |stage: &mut Stage, enter: u64, exit_ns: u64| {
        stage.ledger.handover(Handover {
            pid: TRAINER,
            loader: 0,
            enter_ns: enter * MS,
            exit_ns,
            producer: Producer::Unknown,
            batch: None,
            index: 0,
            samples: 0,
            flags: 0,
            source: Source::Kernel,
        });
    };
    // It puts the next index at 50 ms and loses its CPU at once, for 8 ms.
    let parts = [
        (20, Does::Cpu),
        (30, Does::In(Blocked::Pipe)),
        (8, Does::Runnable),
        (22, Does::Cpu),
        (20, Does::In(Blocked::Pipe)),
    ];
    stage.does(TRAINER, 0, &parts);
    wait(&mut stage, 5, 10 * MS);
    wait(&mut stage, 10, 50 * MS + 60_000);
    wait(&mut stage, 80, 100 * MS);
    stage.finish(300);
    let ends: Vec<u64> = stage.steps.iter().map(|step| step.end_ns).collect();
    assert_eq!(ends, [10 * MS, 58 * MS + 60_000, 100 * MS]);
    let step = stage.step(Training, 0);
    assert_eq!((step.causes[Starved], step.causes[Preempted]), (8 * MS, 0));
    assert_eq!(stage.ledger.summary().disagreement_share, None, "no shim disagrees");
}

#[test]
fn workers_are_found_across_pid_namespaces() {
    let mut stage = Stage::empty();
    let facts = |pid, ns_pid, ppid, kind| stallscope_ledger::ProcessFacts {
        pid,
        ns_pid,
        ppid,
        kind,
        ..Default::default()
    };
    stage.ledger.process(facts(4100, 7, 1, ProcessKind::Trainer));
    stage.ledger.process(facts(4200, 9, 7, ProcessKind::Worker));
    // Another container of the job has a process of the same number.
    stage.ledger.process(facts(4300, 9, 1, ProcessKind::Worker));
    stage.new_task(4200, 4100, 1, "python");
    stage.new_task(4300, 4000, 1, "python");
    stage.did(4100, 0, 200, Does::Cpu);
    stage.did(4200, 0, 200, Does::In(Blocked::FileRead));
    stage.did(4300, 0, 200, Does::Runnable);
    stage.wait_for(4100, 0, 9, 50, 100, 0, wait_flags::FIRST);
    stage.batch(4200, 110, 140, 1);
    stage.wait_for(4100, 0, 9, 110, 150, 1, 0);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Fetch, 30), (Transfer, 10)]);
    assert_eq!(stage.step(Training, 0).producer, Some(4200));
}

#[test]
fn a_worker_that_is_gone_before_the_kernel_tells_of_its_begin_keeps_its_batches() {
    let mut stage = training();
    stage.batch(WORKER, 110, 190, 1);
    stage.ledger.gone(WORKER, 250 * MS);
    stage.new_task(WORKER, TRAINER, 10, "python");
    stage.did(WORKER, 100, 200, Does::In(Blocked::FileRead));
    stage.exits(WORKER, 240);
    stage.did(TRAINER, 100, 120, Does::Cpu);
    stage.wait(120, 200, 1);
    stage.finish(400);
    stage.expect(Training, 0, &[(Compute, 20), (Fetch, 70), (Transfer, 10)]);
}
