//! What lies behind the sums: slow steps in full, checkpoints one by one, workers over time.

use crate::stage::{Does, MS, Stage, TRAINER, WORKER, slot};
use stallscope_abi::kernel::Blocked;
use stallscope_abi::lane::{ClockAt, Saver};
use stallscope_model::{Cause, CheckpointEvent, Doing, StepDetail, WorkerPeriod};

/// First batch at 100 ms, so that training begins there.
fn training() -> Stage {
    let mut stage = Stage::new();
    stage.batch(WORKER, 20, 90, 0);
    stage.wait(50, 100, 0);
    stage
}

/// Start, end (ms), cause and lane of each piece.
fn critical(detail: &StepDetail) -> Vec<(u64, u64, Cause, usize)> {
    let of = |piece: &stallscope_model::CriticalPiece| {
        (piece.start_ns / MS, piece.end_ns / MS, piece.cause, piece.lane)
    };
    detail.critical.iter().map(of).collect()
}

fn lane(detail: &StepDetail, nth: usize) -> Vec<(u64, u64, Doing)> {
    let of =
        |segment: &stallscope_model::Segment| (segment.start_ns / MS, segment.end_ns / MS, segment.doing);
    detail.lanes[nth].segments.iter().map(of).collect()
}

#[test]
fn a_slow_step_shows_its_lanes_and_its_causes_in_order() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(130, Does::Cpu), (20, Does::Runnable), (150, Does::In(Blocked::Pipe))]);
    stage.does(
        WORKER,
        0,
        &[
            (95, Does::Cpu),
            (75, Does::In(Blocked::FileRead)),
            (50, Does::Cpu),
            (20, Does::Runnable),
            (30, Does::In(Blocked::Net)),
            (50, Does::In(Blocked::Pipe)),
        ],
    );
    stage.batch(WORKER, 95, 270, 1);
    stage.wait(150, 300, 1);
    stage.finish(400);
    let details = stage.ledger.details();
    let [detail] = details.as_slice() else { panic!("{details:#?}") };
    assert_eq!((detail.index, detail.start_ns, detail.end_ns), (0, 100 * MS, 300 * MS));
    assert_eq!((detail.lanes[0].pid, detail.lanes[0].role.as_str()), (TRAINER, "trainer"));
    assert_eq!(
        lane(detail, 0),
        [(100, 130, Doing::Computing), (130, 150, Doing::Runnable), (150, 300, Doing::Waiting)]
    );
    assert_eq!((detail.lanes[1].pid, detail.lanes[1].role.as_str()), (WORKER, "worker"));
    assert_eq!(
        lane(detail, 1),
        [
            // The batch was begun before the step.
            (95, 170, Doing::Reading),
            (170, 220, Doing::Computing),
            (220, 240, Doing::Runnable),
            (240, 270, Doing::Network),
            (270, 300, Doing::Waiting),
        ]
    );
    assert_eq!(
        critical(detail),
        [
            (100, 130, Cause::Compute, 0),
            (130, 150, Cause::Preempted, 0),
            (150, 170, Cause::Fetch, 1),
            (170, 220, Cause::Prep, 1),
            (220, 240, Cause::Starved, 1),
            (240, 270, Cause::Fetch, 1),
            (270, 300, Cause::Transfer, 0),
        ]
    );
    assert_eq!(stage.ledger.details(), [], "they are given once");
}

#[test]
fn a_mixture_goes_on_with_the_cause_under_way_and_a_rule_counts_for_all_its_cells() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(100, Does::Cpu), (100, Does::In(Blocked::Pipe))]);
    stage.does(
        WORKER,
        0,
        &[
            (100, Does::Cpu),
            (10, Does::In(Blocked::FileRead)),
            // Half of it reads served from memory.
            (20, Does::CpuReading(10)),
            // A helper process, known as such by the sum of the two alone.
            (1, Does::In(Blocked::Pipe)),
            (9, Does::Cpu),
            (2, Does::In(Blocked::Pipe)),
            (58, Does::Cpu),
        ],
    );
    stage.batch(WORKER, 100, 200, 1);
    stage.wait(100, 200, 1);
    stage.finish(400);
    let details = stage.ledger.details();
    assert_eq!(critical(&details[0]), [(100, 120, Cause::Fetch, 1), (120, 200, Cause::Prep, 1)]);
}

#[test]
fn calls_and_unknown_producers_are_the_trainers_own() {
    let mut stage = training();
    stage.does(TRAINER, 0, &[(200, Does::Cpu), (100, Does::In(Blocked::Pipe))]);
    stage.checkpoint(120, 150, Saver::TorchSave, true, false);
    stage.wait_for(TRAINER, 0, 0, 200, 300, 1, 0);
    stage.finish(400);
    let details = stage.ledger.details();
    assert_eq!(details[0].lanes.len(), 1);
    assert_eq!(
        critical(&details[0]),
        [
            (100, 120, Cause::Compute, 0),
            (120, 150, Cause::Persist, 0),
            (150, 200, Cause::Compute, 0),
            (200, 300, Cause::Unknown, 0)
        ]
    );
}

#[test]
fn only_the_slowest_of_a_minute_are_shown() {
    let mut stage = training();
    let (mut at, mut shown) = (100, Vec::new());
    for (index, length) in [50, 60, 55, 40, 45, 70, 52, 54].into_iter().enumerate() {
        stage.wait(at + length, at + length, index as u64 + 1);
        at += length;
        stage.advance(at + 1000);
        shown.extend(stage.ledger.details().iter().map(|detail| (detail.end_ns - detail.start_ns) / MS));
    }
    // The first three, then what is slower than the fastest of them.
    assert_eq!(shown, [50, 60, 55, 70]);
    // A new minute.
    stage.wait(60_010, 60_010, 9);
    stage.wait(60_020, 60_020, 10);
    stage.finish(61_000);
    assert_eq!(stage.ledger.details().len(), 2);
}

#[test]
fn checkpoints_are_reported_one_by_one() {
    let mut stage = training();
    stage.checkpoint(110, 130, Saver::TorchSave, true, false);
    let event = CheckpointEvent {
        rank: 0,
        start_ns: 110 * MS,
        end_ns: 130 * MS,
        saver: "torch.save".into(),
        cause: Cause::Persist,
        background: false,
        bytes: 1000,
    };
    assert_eq!(stage.ledger.checkpoints(), std::slice::from_ref(&event));
    stage.checkpoint(105, 140, Saver::DcpSave, true, false);
    stage.checkpoint(150, 160, Saver::DcpAsyncSave, false, false);
    stage.checkpoint(160, 400, Saver::DcpSave, true, true);
    let (start_ns, end_ns) = (105 * MS, 140 * MS);
    let outer = CheckpointEvent { start_ns, end_ns, saver: "dcp.save".into(), ..event };
    let (start_ns, end_ns) = (150 * MS, 160 * MS);
    let snapshot = CheckpointEvent {
        start_ns,
        end_ns,
        saver: "dcp.async_save".into(),
        cause: Cause::Snapshot,
        ..outer.clone()
    };
    let (start_ns, end_ns) = (160 * MS, 400 * MS);
    let background = CheckpointEvent { start_ns, end_ns, background: true, ..outer.clone() };
    assert_eq!(stage.ledger.checkpoints(), [outer, snapshot, background]);
    assert_eq!(stage.ledger.checkpoints(), []);
}

/// Period's start (s), worker, and milliseconds of fetch, CPU, waiting for a CPU, and idle.
fn periods(stage: &mut Stage) -> Vec<(u64, u32, [u64; 4])> {
    let of = |period: &WorkerPeriod| {
        let load = &period.load;
        assert_eq!(load.wall_ns, load.fetch_ns + load.cpu_ns + load.runnable_ns + load.idle_ns);
        let times = [load.fetch_ns, load.cpu_ns, load.runnable_ns, load.idle_ns].map(|ns| ns / MS);
        (period.start_ns / 1000 / MS, period.worker, times)
    };
    stage.ledger.worker_periods().iter().map(of).collect()
}

#[test]
fn a_worker_is_reported_by_period_and_every_time_counts_once() {
    let mut stage = training();
    assert_eq!(periods(&mut stage), [], "nobody knows yet whose worker it is");
    stage.advance(2000);
    stage.does(WORKER, 0, &[(4000, Does::In(Blocked::FileRead)), (1000, Does::Runnable)]);
    assert_eq!(periods(&mut stage), [(0, 0, [4000, 0, 1000, 0])]);
    // Under way since, over the end of the period.
    let mut under_way = slot(WORKER, 5000, Does::Cpu);
    under_way.ppid = TRAINER;
    stage.ledger.open_slot(&under_way, 12_000 * MS);
    assert_eq!(periods(&mut stage), [(0, 0, [0, 5000, 0, 0]), (10, 0, [0, 2000, 0, 0])]);
    stage.did(WORKER, 5000, 13_000, Does::Cpu);
    stage.did(WORKER, 13_000, 14_000, Does::In(Blocked::Pipe));
    assert_eq!(periods(&mut stage), [(10, 0, [0, 1000, 0, 1000])]);
    assert_eq!(periods(&mut stage), []);
}

#[test]
fn batches_of_a_period_that_is_taken_late_count_there() {
    let mut stage = training();
    for second in 1..=10 {
        stage.batch(WORKER, second * 1000 - 500, second * 1000 - 100, second);
        stage.wait(second * 1000 - 200, second * 1000, second);
    }
    // Its last word came when the next period had begun.
    stage.clock(WORKER, ClockAt::BatchStart, 10_400, (0, 0, 0));
    stage.advance(12_000);
    let reported = stage.ledger.worker_periods();
    let batches: Vec<(u64, Option<u64>)> = reported
        .iter()
        .map(|period| (period.start_ns / 1000 / MS, period.load.batches))
        .filter(|(_, batches)| *batches > Some(0))
        .collect();
    assert_eq!(batches, [(0, stage.ledger.summary().ranks[0].workers[0].batches)]);
}

#[test]
fn a_worker_that_is_gone_is_reported_whole() {
    let mut stage = training();
    stage.advance(2000);
    stage.clock(WORKER, ClockAt::BatchStart, 1000, (0, 0, 0));
    stage.clock(WORKER, ClockAt::BatchReady, 3000, (500, 500, 500));
    stage.batch(WORKER, 1000, 3000, 1);
    stage.sample(WORKER, 1000, 3000, 0);
    stage.ledger.gone(WORKER, 3500 * MS);
    stage.wait(3500, 3600, 1);
    stage.finish(20_000);
    let reported = stage.ledger.worker_periods();
    let [period] = reported.as_slice() else { panic!("{reported:#?}") };
    let load = &period.load;
    assert_eq!((period.start_ns, period.rank, period.loader, load.pid), (0, 0, 0, WORKER));
    assert_eq!((load.batches, load.samples, load.wall_ns), (Some(2), Some(1), 2070 * MS));
    assert_eq!(load, &stage.ledger.summary().ranks[0].workers[0]);
}
