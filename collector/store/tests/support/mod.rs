#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests, of which each file uses its part")]

use stallscope_model::{Cause, Causes, EvidenceKinds, JobFacts, Phase, RunSummary, StepLedger};
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
        start_ns,
        end_ns: start_ns + 100_000_000,
        causes,
        hidden_ns: Some(index % 7),
        producer: Some(100 + (index % 2) as u32),
        samples: 32,
        evidence: EvidenceKinds { kernel: true, shim: index.is_multiple_of(3) },
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
