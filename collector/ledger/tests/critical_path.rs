//! One wait, cut where the producer of the awaited batch changed what it was doing.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, batch_of, slot, training};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::{ClockAt, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::Cause::*;
use stallscope_model::Phase::{Startup, Training};

#[test]
fn a_wait_is_cut_into_fetch_prep_starved_and_transfer() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(120, Does::Cpu), (80, Does::In(Blocked::Pipe))]);
    stage.does(
        WORKER,
        100,
        &[
            (30, Does::In(Blocked::FileRead)),
            (20, Does::Cpu),
            (10, Does::Runnable),
            (5, Does::In(Blocked::Fault)),
            (35, Does::In(Blocked::Pipe)),
        ],
    );
    stage.batch(WORKER, 100, 165, 1);
    stage.wait(120, 200, 1);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 20), (Fetch, 15), (Prep, 20), (Starved, 10), (Transfer, 35)]);
    let step = stage.step(Training, 0);
    assert_eq!(step.producer, Some(WORKER));
    assert!(step.evidence.kernel && step.evidence.shim);
}

#[test]
fn what_the_worker_did_for_an_earlier_batch_stood_in_the_way_too() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(110, Does::Cpu), (70, Does::In(Blocked::Pipe))]);
    stage.does(
        WORKER,
        90,
        &[
            (50, Does::Cpu),
            (5, Does::In(Blocked::Pipe)),
            (25, Does::In(Blocked::Net)),
            (20, Does::In(Blocked::Pipe)),
        ],
    );
    stage.batch(WORKER, 90, 140, 7);
    stage.batch(WORKER, 145, 170, 1);
    stage.wait(110, 180, 1);
    stage.finish(300);
    // 5 ms without an index, then 10 ms on the way.
    stage.expect(Training, 0, &[(Compute, 10), (Prep, 30), (Fetch, 25), (Transfer, 15)]);
}

#[test]
fn a_batch_that_was_ready_before_the_wait_is_all_transfer() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(130, Does::Cpu), (20, Does::In(Blocked::Unix))]);
    stage.does(WORKER, 0, &[(150, Does::In(Blocked::FileRead))]);
    stage.batch(WORKER, 100, 125, 1);
    stage.wait(130, 150, 1);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 30), (Transfer, 20)]);
}

#[test]
fn reads_served_from_memory_are_fetch_where_anybody_saw_them() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(110, Does::Cpu), (100, Does::In(Blocked::Pipe))]);
    // The kernel with syscall hooks.
    stage.does(WORKER, 110, &[(50, Does::CpuReading(20)), (50, Does::Cpu)]);
    stage.batch(WORKER, 110, 160, 1);
    stage.wait(110, 160, 1);
    // Wrapped opens and reads: half of the time of a sample that took all of the batch.
    stage.sample(WORKER, 160, 210, 25);
    stage.batch(WORKER, 160, 210, 2);
    stage.wait(160, 210, 2);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Fetch, 20), (Prep, 30)]);
    stage.expect(Training, 1, &[(Fetch, 25), (Prep, 25)]);
}

#[test]
fn a_wrapped_read_that_blocked_is_counted_once() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(100, Does::Cpu), (100, Does::In(Blocked::Pipe))]);
    stage.does(WORKER, 100, &[(40, Does::In(Blocked::FileRead)), (30, Does::Cpu), (30, Does::Runnable)]);
    stage.sample(WORKER, 100, 200, 60);
    stage.batch(WORKER, 100, 200, 1);
    stage.wait(100, 200, 1);
    stage.finish(300);
    // 20 ms of the reads were not blocked: half on the CPU, half waiting for one.
    stage.expect(Training, 0, &[(Fetch, 50), (Prep, 20), (Starved, 30)]);
}

#[test]
fn without_workers_the_trainer_is_the_producer() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.does(
        TRAINER,
        0,
        &[(100, Does::Cpu), (10, Does::Cpu), (20, Does::In(Blocked::FileRead)), (7, Does::Runnable)],
    );
    stage.does(TRAINER, 137, &[(13, Does::Cpu), (10, Does::Helped(Blocked::Futex, 8))]);
    stage.wait_for(TRAINER, 0, 0, 50, 100, 0, wait_flags::FIRST | wait_flags::IN_PROCESS);
    stage.batch(TRAINER, 110, 160, 1);
    stage.wait_for(TRAINER, 0, 0, 110, 160, 1, wait_flags::IN_PROCESS);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Fetch, 22), (Starved, 7), (Prep, 21)]);
    assert_eq!(stage.step(Training, 0).producer, None);
}

#[test]
fn the_own_part_is_distinguished_by_positive_evidence() {
    let mut stage = training();
    stage.does(
        TRAINER,
        0,
        &[
            (100, Does::Cpu),
            (30, Does::Cpu),
            (10, Does::Runnable),
            (20, Does::Helped(Blocked::Futex, 15)),
            (9, Does::In(Blocked::Sleep)),
            (6, Does::In(Blocked::Sync)),
            (5, Does::In(Blocked::FutexNet)),
        ],
    );
    stage.batch(WORKER, 100, 110, 1);
    stage.wait(180, 180, 1);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 45), (Preempted, 10), (Unknown, 19), (Persist, 6)]);
}

/// A trainer of several threads sleeps at the end of a parallel region until its last helper is done.
#[test]
fn a_sleep_for_a_helper_without_a_cpu_is_no_compute() {
    let mut stage = training();
    let own = [(100, Does::Cpu), (30, Does::Cpu), (40, Does::Behind(60, 25)), (10, Does::In(Blocked::Futex))];
    stage.does(TRAINER, 0, &own);
    stage.batch(WORKER, 100, 110, 1);
    stage.wait(180, 180, 1);
    stage.finish(300);
    // Siblings' CPU time counts for all of its sleeps: where it is reported is a matter of when they leave their CPU.
    stage.expect(Training, 0, &[(Compute, 30 + 25), (Preempted, 25)]);
}

/// The same of a worker that decodes with several threads.
#[test]
fn a_producer_whose_helper_has_no_cpu_is_starved() {
    let mut stage = training();
    stage.does(TRAINER, 100, &[(80, Does::In(Blocked::Pipe))]);
    stage.does(WORKER, 100, &[(30, Does::Cpu), (50, Does::Behind(50, 40))]);
    stage.batch(WORKER, 100, 180, 1);
    stage.wait(100, 180, 1);
    stage.finish(300);
    stage.expect(Training, 0, &[(Prep, 40), (Starved, 40)]);
}

#[test]
fn an_unnamed_producer_leaves_the_wait_unknown() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(110, Does::Cpu), (40, Does::In(Blocked::Pipe))]);
    stage.wait_for(TRAINER, 0, 0, 110, 150, 1, 0);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Unknown, 40)]);
    let losses = stage.ledger.summary().losses;
    assert!(losses.iter().any(|loss| loss.reason.starts_with("wait whose batch")), "{losses:?}");
}

#[test]
fn a_worker_that_died_is_known_until_then() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(110, Does::Cpu), (90, Does::In(Blocked::Pipe))]);
    stage.does(WORKER, 100, &[(40, Does::In(Blocked::FileRead))]);
    stage.exits(WORKER, 140);
    stage.wait_for(TRAINER, 0, WORKER, 110, 200, 1, wait_flags::FAILED);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Fetch, 30), (Unknown, 60)]);
}

#[test]
fn an_open_slot_closes_a_step_before_its_slice_comes() {
    let mut stage = Stage::new();
    stage.does(TRAINER, 0, &[(60, Does::Cpu), (40, Does::In(Blocked::Pipe))]);
    stage.does(WORKER, 0, &[(90, Does::Cpu)]);
    stage.batch(WORKER, 20, 90, 0);
    stage.wait(60, 100, 0);
    stage.advance(150);
    assert_eq!(stage.steps.len(), 1, "all evidence of the first wait is there");
    stage.batch(WORKER, 90, 190, 1);
    stage.wait(120, 200, 1);
    stage.advance(200);
    assert_eq!(stage.steps.len(), 1, "nothing tells what the worker did after 90 ms");
    stage.ledger.open_slot(&slot(TRAINER, 100, Does::Cpu), 205 * MS);
    stage.ledger.open_slot(&slot(WORKER, 90, Does::In(Blocked::FileRead)), 205 * MS);
    stage.advance(205);
    stage.expect(Training, 0, &[(Compute, 20), (Fetch, 70), (Transfer, 10)]);
    // The slice replaces the provisional end.
    stage.did(WORKER, 90, 250, Does::In(Blocked::FileRead));
    stage.batch(WORKER, 200, 250, 2);
    stage.did(TRAINER, 100, 260, Does::Cpu);
    stage.wait(210, 260, 2);
    stage.advance(260);
    stage.expect(Training, 1, &[(Compute, 10), (Fetch, 40), (Transfer, 10)]);
}

#[test]
fn a_step_is_closed_with_what_is_known_after_a_second() {
    let mut stage = training();
    stage.did(TRAINER, 0, 110, Does::Cpu);
    stage.wait(110, 200, 1);
    stage.advance(300);
    assert!(stage.steps.iter().all(|step| step.phase == Startup));
    stage.advance(1200);
    stage.expect(Training, 0, &[(Compute, 10), (Unknown, 90)]);
}

#[test]
fn a_workers_lane_may_be_read_after_the_trainers() {
    let mut stage = training();
    stage.did(TRAINER, 0, 150, Does::Cpu);
    stage.did(WORKER, 0, 150, Does::Cpu);
    stage.wait(110, 150, 1);
    stage.advance(160);
    assert_eq!(stage.steps.len(), 1);
    stage.batch(WORKER, 100, 130, 1);
    stage.advance(170);
    stage.expect(Training, 0, &[(Compute, 10), (Prep, 20), (Transfer, 20)]);
}

#[test]
fn a_late_slice_is_put_where_it_belongs() {
    let mut stage = training();
    stage.did(TRAINER, 0, 150, Does::Cpu);
    stage.did(WORKER, 140, 200, Does::Cpu);
    stage.did(WORKER, 0, 140, Does::In(Blocked::FileRead));
    stage.batch(WORKER, 100, 150, 1);
    stage.wait(110, 150, 1);
    stage.finish(300);
    stage.expect(Training, 0, &[(Compute, 10), (Fetch, 30), (Prep, 10)]);
}

#[test]
fn an_index_that_comes_again_is_paired_with_its_own_batch() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(1000, Does::Cpu)]);
    stage.does(WORKER, 0, &[(1000, Does::Cpu)]);
    stage.batch(WORKER, 100, 140, 1);
    stage.wait(110, 150, 1);
    stage.iter_end(0, 200);
    // The next epoch with the same worker.
    stage.batch(WORKER, 300, 340, 0);
    stage.wait(310, 350, 0);
    stage.batch(WORKER, 350, 390, 1);
    stage.wait(370, 400, 1);
    stage.finish(1000);
    stage.expect(Training, 0, &[(Compute, 10), (Prep, 30), (Transfer, 10)]);
    stage.expect(Training, 2, &[(Compute, 20), (Prep, 20), (Transfer, 10)]);
}

#[test]
fn clocks_alone_give_the_same_answer() {
    let mut stage = Stage::new();
    stage.clock(WORKER, ClockAt::BatchStart, 20, (0, 0, 0));
    stage.clock(WORKER, ClockAt::BatchReady, 90, (70, 0, 70));
    stage.batch(WORKER, 20, 90, 0);
    stage.clock(TRAINER, ClockAt::WaitEnter, 50, (50, 0, 50));
    stage.wait(50, 100, 0);
    stage.clock(TRAINER, ClockAt::WaitExit, 100, (50, 0, 50));
    // Own part: 30 ms of CPU, 5 without one, 15 blocked while other threads used 10, for whatever.
    stage.clock(TRAINER, ClockAt::WaitEnter, 150, (80, 5, 90));
    stage.clock(WORKER, ClockAt::BatchStart, 150, (70, 0, 70));
    // 60 ms: 20 of CPU, 10 without one, so 30 reading.
    stage.batch(WORKER, 150, 210, 1);
    stage.clock(WORKER, ClockAt::BatchReady, 210, (90, 10, 90));
    stage.wait(150, 230, 1);
    stage.clock(TRAINER, ClockAt::WaitExit, 230, (80, 5, 90));
    stage.advance(231);
    stage.expect(
        Training,
        0,
        &[
            (Compute, 30),
            (Preempted, 5),
            (Unknown, 15),
            (Fetch, 30),
            (Prep, 20),
            (Starved, 10),
            (Transfer, 20),
        ],
    );
    assert!(!stage.step(Training, 0).evidence.kernel);
    assert_eq!(stage.ledger.summary().disagreement_share, None);
}

#[test]
fn beside_a_device_other_threads_compute_for_a_trainer_that_is_blocked() {
    let mut stage = training();
    stage.clock(TRAINER, ClockAt::WaitExit, 100, (0, 0, 0));
    stage.device_idle(100, 100, 0);
    stage.clock(TRAINER, ClockAt::WaitEnter, 150, (20, 0, 40));
    stage.batch(WORKER, 100, 110, 1);
    stage.wait(150, 150, 1);
    stage.finish(300);
    // Blocked for 30 ms, of which the backward pass took 20.
    stage.expect(Training, 0, &[(Compute, 40), (Unknown, 10)]);
}

#[test]
fn a_slow_sample_before_the_wait_is_not_charged_to_it() {
    let mut stage = Stage::new();
    stage.clock(WORKER, ClockAt::BatchStart, 0, (0, 0, 0));
    stage.clock(TRAINER, ClockAt::WaitEnter, 0, (0, 0, 0));
    stage.sample(WORKER, 0, 50, 50);
    stage.sample(WORKER, 50, 100, 0);
    stage.clock(WORKER, ClockAt::BatchReady, 100, (50, 0, 50));
    stage.batch(WORKER, 0, 100, 0);
    stage.wait(50, 100, 0);
    stage.finish(200);
    let startup = stage.step(Startup, 0);
    assert_eq!((startup.causes[Fetch], startup.causes[Prep]), (0, 50 * MS));
}

#[test]
fn a_batch_without_clocks_is_fetch_as_far_as_it_was_off_the_cpu() {
    let mut stage = training();
    stage.lane(WORKER, batch_of(100, 200, 1, 60));
    stage.wait(100, 200, 1);
    stage.finish(300);
    stage.expect(Training, 0, &[(Prep, 60), (Fetch, 40)]);
}

#[test]
fn kernel_and_shim_are_compared_where_both_saw_a_step() {
    let mut stage = training();
    stage.clock(TRAINER, ClockAt::WaitExit, 100, (0, 0, 0));
    stage.clock(TRAINER, ClockAt::WaitEnter, 110, (10, 0, 10));
    stage.clock(WORKER, ClockAt::BatchStart, 100, (0, 0, 0));
    stage.clock(WORKER, ClockAt::BatchReady, 200, (50, 0, 50));
    stage.did(TRAINER, 0, 200, Does::Cpu);
    stage.did(WORKER, 0, 100, Does::Cpu);
    stage.does(WORKER, 100, &[(40, Does::Cpu), (60, Does::In(Blocked::FileRead))]);
    stage.batch(WORKER, 100, 200, 1);
    stage.wait(110, 200, 1);
    stage.finish(300);
    // By the kernel 60 ms of the 90 are fetch, by the clocks half of them.
    stage.expect(Training, 0, &[(Compute, 10), (Prep, 30), (Fetch, 60)]);
    let share = stage.ledger.summary().disagreement_share.unwrap();
    assert!((share - 0.15).abs() < 1e-9, "{share}");
}

/// The shim alone sees the sleep and, as clocks of the process, what siblings used.
#[test]
fn what_the_kernel_alone_knows_of_helpers_is_no_disagreement() {
    let disagreement = |device: bool, own: Does, making: Does| {
        let mut stage = training();
        if device {
            stage.device_idle(100, 100, 0);
        }
        stage.clock(TRAINER, ClockAt::WaitExit, 100, (0, 0, 0));
        stage.clock(TRAINER, ClockAt::WaitEnter, 200, (40, 0, 90));
        stage.clock(WORKER, ClockAt::BatchStart, 200, (0, 0, 0));
        stage.clock(WORKER, ClockAt::BatchReady, 300, (50, 0, 80));
        stage.does(TRAINER, 100, &[(40, Does::Cpu), (60, own), (100, Does::In(Blocked::Pipe))]);
        stage.does(WORKER, 200, &[(50, Does::Cpu), (50, making)]);
        stage.batch(WORKER, 200, 300, 1);
        stage.wait(200, 300, 1);
        stage.finish(400);
        stage.ledger.summary().disagreement_share.unwrap()
    };
    for device in [false, true] {
        assert_eq!(disagreement(device, Does::Behind(50, 30), Does::Behind(30, 20)), 0.0, "{device}");
        assert_eq!(disagreement(device, Does::Helped(Blocked::Futex, 50), Does::In(Blocked::FileRead)), 0.0);
    }
    // 30 ms of the worker's own work, by the kernel: the shim's clocks have it blocked.
    let differs = disagreement(false, Does::In(Blocked::Futex), Does::Cpu);
    assert!((differs - 0.25).abs() < 1e-9, "{differs}");
}
