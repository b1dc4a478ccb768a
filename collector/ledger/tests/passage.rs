//! A batch on its way, cut by what the threads did that had to hand it over.

use crate::stage::{self, Does, MS, Stage, TRAINER, WORKER};
use stallscope_abi::kernel::{self, Blocked, Header, Kind, Slice, Wait};
use stallscope_abi::lane::ClockAt;
use stallscope_model::Cause::*;
use stallscope_model::Phase::Training;

const FEEDER: u32 = 110;
const SHARER: u32 = 111;
const PIN: u32 = 105;

/// The trainer waits from 120 to 200 ms for a batch that is ready at 140.
fn job(trainer: &[(u64, Does)], worker: &[(u64, Does)]) -> Stage {
    let mut stage = Stage::new();
    stage.new_task(TRAINER, 1, 0, "python");
    stage.new_task(WORKER, TRAINER, 0, "pt_data_worker");
    stage.batch(WORKER, 20, 90, 0);
    stage.wait(50, 100, 0);
    stage.does(TRAINER, 0, &[(120, Does::Cpu)]);
    stage.does(WORKER, 0, &[(140, Does::Cpu)]);
    stage.does(TRAINER, 120, trainer);
    stage.does(WORKER, 140, worker);
    stage.batch(WORKER, 100, 140, 1);
    stage
}

fn finish(mut stage: Stage) -> Stage {
    stage.wait(120, 200, 1);
    stage.finish(300);
    stage
}

/// `tid` of the worker ends at `end` a sleep of the trainer's thread `sleeper` in `kind`, on its feet since `start`:
/// on a CPU, without one, and reading for so long.
fn errand(
    sleeper: u32,
    kind: Blocked,
    tid: u32,
    (start, end): (u64, u64),
    [cpu, runnable, read]: [u64; 3],
) -> kernel::Record {
    let header = Header {
        kind: Kind::Wait as u16,
        tgid: TRAINER,
        tid: sleeper,
        time_ns: end * MS,
        ..Default::default()
    };
    kernel::Record::Wait(Wait {
        header,
        start_ns: (end - 1) * MS,
        waker_tid: tid,
        waker_tgid: WORKER,
        blocked_in: kind as u32,
        pad: 0,
        errand_start_ns: start * MS,
        errand_cpu_ns: cpu * MS,
        errand_runnable_ns: runnable * MS,
        errand_read_ns: read * MS,
    })
}

const ASLEEP: &[(u64, Does)] = &[(80, Does::In(Blocked::Pipe))];
const IDLE: &[(u64, Does)] = &[(60, Does::In(Blocked::Pipe))];

#[test]
fn a_feeder_without_a_cpu_starves_the_trainer() {
    let trainer = [(70, Does::In(Blocked::Pipe)), (6, Does::Runnable), (4, Does::Cpu)];
    let mut stage = job(&trainer, IDLE);
    stage.ledger.kernel(&errand(TRAINER, Blocked::Pipe, FEEDER, (140, 190), [3, 40, 5]));
    finish(stage).expect(Training, 0, &[(Compute, 20), (Prep, 20), (Starved, 46), (Fetch, 5), (Transfer, 9)]);
}

#[test]
fn who_waits_for_the_lock_of_a_thread_without_a_cpu_is_starved_too() {
    let mut stage = job(ASLEEP, &[(30, Does::Runnable), (30, Does::Cpu)]);
    stage.ledger.kernel(&errand(TRAINER, Blocked::Pipe, FEEDER, (140, 200), [2, 18, 0]));
    // 40 ms in the lock, whose holder had no CPU half of the time.
    finish(stage).expect(Training, 0, &[(Compute, 20), (Prep, 20), (Starved, 38), (Transfer, 22)]);
}

#[test]
fn a_sharer_without_a_cpu_starves_the_trainer() {
    let trainer = [(30, Does::In(Blocked::Pipe)), (10, Does::Cpu), (40, Does::In(Blocked::Unix))];
    let mut stage = job(&trainer, IDLE);
    stage.ledger.kernel(&errand(TRAINER, Blocked::Unix, SHARER, (160, 180), [1, 15, 0]));
    // An errand of the other thread, for a batch that comes later, is another matter.
    stage.ledger.kernel(&errand(TRAINER, Blocked::Pipe, FEEDER, (150, 210), [0, 60, 0]));
    stage.ledger.kernel(&errand(TRAINER, Blocked::Unix, SHARER, (180, 200), [5, 10, 0]));
    let stage = finish(stage);
    stage.expect(Training, 0, &[(Compute, 20), (Prep, 20), (Starved, 25), (Transfer, 35)]);
}

#[test]
fn a_pin_memory_thread_without_a_cpu_starves_the_trainer() {
    let mut stage = job(&[(80, Does::In(Blocked::Futex))], IDLE);
    let mut at = 120;
    for (length, does) in [(30, Does::In(Blocked::Pipe)), (20, Does::Runnable), (30, Does::Cpu)] {
        let of_leader = stage::slice(TRAINER, at, at + length, does);
        let header = Header { tid: PIN, ..of_leader.header };
        stage.ledger.kernel(&kernel::Record::Slice(Slice { header, ..of_leader }));
        at += length;
    }
    stage.ledger.kernel(&errand(PIN, Blocked::Pipe, FEEDER, (140, 150), [2, 8, 0]));
    finish(stage).expect(Training, 0, &[(Compute, 20), (Prep, 20), (Starved, 28), (Transfer, 32)]);
}

#[test]
fn until_its_feeder_is_woken_the_worker_itself_must_act() {
    let mut stage = job(ASLEEP, &[(30, Does::Runnable), (30, Does::In(Blocked::Pipe))]);
    stage.ledger.kernel(&errand(TRAINER, Blocked::Pipe, FEEDER, (170, 200), [10, 0, 0]));
    // Without a CPU for half of the 30 ms: nothing tells in which part of the window they lay.
    finish(stage).expect(Training, 0, &[(Compute, 20), (Prep, 20), (Starved, 15), (Transfer, 45)]);
}

#[test]
fn figures_that_make_no_sense_are_counted() {
    let mut stage = job(ASLEEP, IDLE);
    stage.ledger.kernel(&errand(TRAINER, Blocked::Pipe, FEEDER, (140, 190), [30, 40, 5]));
    let stage = finish(stage);
    stage.expect(Training, 0, &[(Compute, 20), (Prep, 20), (Transfer, 60)]);
    let losses = stage.ledger.summary().losses;
    assert!(losses.iter().any(|loss| loss.reason.contains("no sense")), "{losses:?}");
}

#[test]
fn without_the_kernel_the_clocks_of_trainer_and_worker_tell() {
    let mut stage = Stage::new();
    stage.batch(WORKER, 20, 90, 0);
    stage.wait(50, 100, 0);
    stage.clock(TRAINER, ClockAt::WaitExit, 100, (0, 0, 0));
    stage.clock(TRAINER, ClockAt::WaitEnter, 120, (20, 0, 20));
    stage.clock(TRAINER, ClockAt::WaitExit, 200, (24, 6, 24));
    for (at, time, cpu, delay) in [
        (ClockAt::BatchStart, 100, 0, 0),
        (ClockAt::BatchReady, 140, 40, 0),
        (ClockAt::BatchStart, 140, 40, 0),
        (ClockAt::BatchReady, 240, 60, 80),
    ] {
        stage.clock(WORKER, at, time, (cpu, delay, cpu));
    }
    stage.batch(WORKER, 100, 140, 1);
    stage.wait(120, 200, 1);
    stage.finish(300);
    // The trainer slept for 50 ms of the way, while the worker got a CPU a fifth of the time, and got none for 6 itself.
    stage.expect(Training, 0, &[(Compute, 20), (Prep, 20), (Starved, 46), (Transfer, 14)]);
}
