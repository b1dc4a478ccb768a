//! A recorder that is killed leaves everything up to its last flush.

use crate::support::{integrity, job, options, step, steps, summary};
use stallscope_store::{Recorder, Recording, State};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Run again by the test below: writes until it is killed, telling after each flush how many steps are in.
#[test]
fn writer() {
    let Some(directory) = std::env::var_os("STALLSCOPE_TEST_WRITER").map(PathBuf::from) else { return };
    let mut recorder = Recorder::create(&directory.join("run.stall"), &job(), options(&directory));
    for index in 0.. {
        recorder.step(step(0, index));
        if index % 20 == 19 {
            recorder.flush(&summary());
            eprintln!("{}", index + 1);
        }
    }
}

#[test]
fn every_flush_survives_a_kill() {
    for round in 0u64..12 {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::writer", "--nocapture", "--test-threads=1"])
            .env("STALLSCOPE_TEST_WRITER", directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stderr.take().unwrap()).lines();
        let flushed = |line: String| line.parse::<usize>().ok();
        let mut flushed_rows = lines.by_ref().map_while(Result::ok).find_map(flushed).unwrap();
        std::thread::sleep(Duration::from_millis(round * 13));
        let path = directory.path().join("run.stall");
        assert_eq!(Recording::open(&path).unwrap().state().unwrap(), State::Running);
        writer.kill().unwrap();
        writer.wait().unwrap();
        flushed_rows = lines.map_while(Result::ok).filter_map(flushed).last().unwrap_or(flushed_rows);

        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.state().unwrap(), State::Killed);
        let mut expected = summary();
        expected.job.ended_wall_ns = Some(recording.written_wall_ns().unwrap());
        assert_eq!(recording.summary().unwrap(), expected);
        let rows = steps(&recording);
        assert!(
            rows.len() >= flushed_rows && rows.len().is_multiple_of(20),
            "{} of {flushed_rows}",
            rows.len()
        );
        assert!(rows.iter().enumerate().all(|(index, row)| row.step == step(0, index as u64)));
        // Opening it made one plain file of it.
        assert!(!directory.path().join("run.stall-wal").exists());
        drop(recording);
        assert_eq!(integrity(&path), "ok");
    }
}
