//! The audit and how batches were made come back; the audit is only ever added to.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{job, options, steps, summary};
use stallscope_model::{Act, AuditEvent, BatchService, Estimate};
use stallscope_store::{Options, Recorder, Recording, State};
use std::fs;
use std::path::Path;

fn line(line: u64, act: Act) -> AuditEvent {
    AuditEvent {
        line,
        time_ns: 100 + line,
        decision: line / 2,
        act,
        by: "ada".into(),
        ..AuditEvent::default()
    }
}

fn service(rank: u32, ready_ns: u64) -> BatchService {
    BatchService {
        rank,
        loader: 1,
        worker: 3,
        start_ns: ready_ns - 50,
        ready_ns,
        samples: 32,
        fetch_ns: 30,
        cpu_ns: 10,
        runnable_ns: 5,
        read_bytes: Some(4096),
        readers: 1.5,
        makers: 2.25,
        cpu_read_ns: 4,
        missed: None,
        reads: 30,
        readers_spread: 0.75,
        readers_effect_ns: -12.5,
        ahead_spread: 0.5,
        ahead_effect_ns: 3.25,
        weight: 4.0,
    }
}

#[test]
fn every_line_of_the_audit_comes_back_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder =
        Recorder::create(&directory.path().join("run.stall"), &job(), options(directory.path()));
    let reader = Recording::open(&directory.path().join("run.stall")).unwrap();
    let full = AuditEvent {
        rank: Some(1),
        loader: Some(0),
        knob: "prefetch".into(),
        from: Some(2),
        to: Some(u64::from(u32::MAX)),
        saw: "40% of the time waits".into(),
        predicted: Some(Estimate { value: 0.25, low: 0.1, high: f64::INFINITY }),
        measured: Some(Estimate { value: -0.5, low: -0.75, high: 0.0 }),
        why: "it's “slow”\n".into(),
        ..line(0, Act::Undo)
    };
    let mut lines = vec![full.clone()];
    // What a line says of its own number does not count.
    assert_eq!(recorder.audit(AuditEvent { line: 77, ..full }), 0);
    recorder.flush(&summary());
    assert_eq!(reader.audit(0).unwrap(), lines);
    for (place, act) in Act::ALL.into_iter().enumerate() {
        let line = line(1 + place as u64, act);
        assert_eq!(recorder.audit(line.clone()), line.line);
        lines.push(line);
    }
    assert_eq!(reader.audit(0).unwrap().len(), 1, "written with the next flush");
    let recording = Recording::open(&recorder.finish(&summary()).path.unwrap()).unwrap();
    assert_eq!(recording.audit(0).unwrap(), lines);
    assert_eq!(recording.audit(5).unwrap(), lines[5..]);
    assert_eq!(recording.audit(u64::MAX).unwrap(), []);
}

#[test]
fn a_sample_of_the_batches_is_kept_of_each_rank() {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder =
        Recorder::create(&directory.path().join("run.stall"), &job(), options(directory.path()));
    let unknown = BatchService { read_bytes: None, samples: 0, ..service(1, 20_000_000_000) };
    recorder.batch_service(unknown.clone());
    recorder.flush(&summary());
    for millisecond in 0..10_000 {
        recorder.batch_service(service(0, 10_000_000_000 + millisecond * 1_000_000));
    }
    let recording = Recording::open(&recorder.finish(&summary()).path.unwrap()).unwrap();
    let services = recording.batch_services().unwrap();
    assert_eq!(services.len(), 201);
    assert_eq!(services[0], service(0, 10_000_000_000));
    assert!(services.iter().any(|kept| kept.ready_ns >= 19_000_000_000 && kept.rank == 0));
    assert_eq!(services.last(), Some(&unknown));
}

#[test]
fn old_lines_make_way_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { step_rows: 100, ..options(directory.path()) };
    let mut recorder = Recorder::create(&directory.path().join("run.stall"), &job(), options);
    (0..25).for_each(|at| assert_eq!(recorder.audit(line(at, Act::Hold)), at));
    let path = recorder.finish(&summary()).path.unwrap();
    let kept: Vec<u64> =
        Recording::open(&path).unwrap().audit(0).unwrap().iter().map(|event| event.line).collect();
    assert_eq!(kept, (15..25).collect::<Vec<u64>>());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let dropped: String = connection
        .query_row("SELECT value FROM meta WHERE key = 'audit_lines_dropped'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(dropped, "15");
}

#[test]
fn what_makes_no_sense_is_damage_not_a_panic() {
    for damage in [
        "UPDATE audit SET act = 'king'",
        "UPDATE audit SET from_value = -1",
        "UPDATE audit SET predicted = 1.0, predicted_low = 'x'",
        "UPDATE audit SET time_ns = 'x'",
        "UPDATE batch_service SET ready_ns = start_ns - 1",
        "UPDATE batch_service SET makers = -1.0",
        "UPDATE batch_service SET readers = 1e999",
        "UPDATE batch_service SET worker = -1",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("run.stall");
        let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
        recorder.audit(line(0, Act::Keep));
        recorder.batch_service(service(0, 1_000));
        let path = recorder.finish(&summary()).path.unwrap();
        rusqlite::Connection::open(&path).unwrap().execute(damage, []).unwrap();
        let recording = Recording::open(&path).unwrap();
        let read = (recording.audit(0), recording.batch_services());
        let error = match &read {
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => error.to_string(),
            other => panic!("{damage}: {other:?}"),
        };
        assert!(error.contains("is damaged"), "{damage}: {error}");
    }
}

#[test]
fn a_recording_of_the_second_format_is_still_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old.stall");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format2.stall"), &path).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.format(), recording.state().unwrap()), (2, State::Finished));
    let summary = recording.summary().unwrap();
    assert_eq!((summary.job.name.as_str(), summary.ranks.len()), ("swarm", 2));
    assert_eq!((summary.knobs, summary.rates, summary.advice, summary.tune), (vec![], vec![], vec![], None));
    assert_eq!((steps(&recording).len(), recording.worker_periods().unwrap().len()), (32, 2));
    assert_eq!((recording.audit(0).unwrap(), recording.batch_services().unwrap()), (vec![], vec![]));
}
