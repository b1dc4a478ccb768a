#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests, of which each file uses its part")]

use stallscope_model::{
    Cause, Causes, CheckpointEvent, CriticalPiece, Doing, EvidenceKinds, JobFacts, Phase, RunSummary,
    Segment, StepDetail, StepLane, StepLedger, WorkerLoad, WorkerPeriod,
};
use stallscope_store::{Options, Recording, StepFilter, StepRow};
use std::path::Path;

pub(crate) fn job() -> JobFacts {
    JobFacts {
        name: "demo".into(),
        command: vec!["python".into(), "train.py".into()],
        pid: 42,
        ..JobFacts::default()
    }
}

pub(crate) fn summary() -> RunSummary {
    RunSummary { job: job(), ..RunSummary::default() }
}

/// Step `index` of `rank`, 100 ms each, whose causes depend on the index and add up.
pub(crate) fn step(rank: u32, index: u64) -> StepLedger {
    let start_ns = 1_000_000_000_000 + index * 100_000_000;
    let mut causes = Causes::default();
    causes[Cause::Fetch] = (index % 90) * 1_000_000;
    causes[Cause::Compute] = 100_000_000 - causes[Cause::Fetch];
    StepLedger {
        rank,
        loader: 0,
        phase: Phase::Training,
        index,
        part: false,
        start_ns,
        end_ns: start_ns + 100_000_000,
        causes,
        hidden_ns: Some(index % 7),
        producer: Some(100 + (index % 2) as u32),
        samples: 32,
        evidence: EvidenceKinds { kernel: true, shim: index.is_multiple_of(3) },
    }
}

/// [`step`] in full, `longer_ns` longer; its batch was begun before it.
pub(crate) fn detail(rank: u32, index: u64, longer_ns: u64) -> StepDetail {
    let step = step(rank, index);
    let (start_ns, end_ns) = (step.start_ns, step.end_ns + longer_ns);
    let at = start_ns + 40_000_000;
    let lane = |pid, role: &str, segments: &[(u64, u64, Doing)]| StepLane {
        pid,
        role: role.into(),
        segments: segments
            .iter()
            .map(|&(start_ns, end_ns, doing)| Segment { start_ns, end_ns, doing })
            .collect(),
    };
    StepDetail {
        rank,
        loader: 0,
        phase: Phase::Training,
        index,
        start_ns,
        end_ns,
        lanes: vec![
            lane(7, "trainer", &[(start_ns, at, Doing::Computing), (at, end_ns, Doing::Waiting)]),
            lane(8, "worker", &[(start_ns - 5, at, Doing::Computing), (at + 9, end_ns, Doing::Reading)]),
        ],
        critical: vec![
            CriticalPiece { start_ns, end_ns: at, cause: Cause::Compute, lane: 0 },
            CriticalPiece { start_ns: at, end_ns, cause: Cause::Fetch, lane: 1 },
        ],
    }
}

/// A `torch.save` of the trainer.
pub(crate) fn checkpoint(rank: u32, start_ns: u64, end_ns: u64) -> CheckpointEvent {
    CheckpointEvent {
        rank,
        start_ns,
        end_ns,
        saver: "torch.save".into(),
        cause: Cause::Persist,
        background: false,
        bytes: 1 << 20,
    }
}

/// A second of a worker's, within the period `nth`.
pub(crate) fn second(nth: u64, worker: u32) -> WorkerPeriod {
    WorkerPeriod {
        start_ns: nth * WorkerPeriod::LENGTH_NS,
        rank: 0,
        loader: 1,
        worker,
        load: WorkerLoad {
            pid: 30 + worker,
            loader: Some(1),
            batches: Some(2),
            samples: Some(64),
            wall_ns: 1_000_000_000,
            fetch_ns: 400_000_000,
            cpu_ns: 300_000_000,
            runnable_ns: 100_000_000,
            idle_ns: 200_000_000,
            read_bytes: 9,
        },
    }
}

/// Spools beside the recording, so that tests leave nothing behind.
pub(crate) fn options(directory: &Path) -> Options {
    Options { spool: Some(directory.join("spool")), ..Options::default() }
}

pub(crate) fn steps(recording: &Recording) -> Vec<StepRow> {
    recording.steps(&StepFilter::default()).unwrap().map(Result::unwrap).collect()
}

pub(crate) fn integrity(path: &Path) -> String {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
}
