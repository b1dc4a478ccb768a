//! Recordings with as much of one thing as a file may have. Were each looked for among all others, these would take hours.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use serde_json::{Value, json};
use stallscope_model::{Advice, RunSummary};
use stallscope_reports::{Run, advice, perfetto};
use std::path::{Path, PathBuf};
use support::recordings::two_hosts;

/// The two recordings of a job, each with its summary changed.
fn changed(folder: &Path, change: impl Fn(&mut Value)) -> [PathBuf; 2] {
    let mut number = 0;
    two_hosts().map(|job| {
        number += 1;
        let path = job.record(folder, &format!("{number}.stall"));
        let connection = rusqlite::Connection::open(&path).unwrap();
        let json: String = connection.query_row("SELECT json FROM summary", [], |row| row.get(0)).unwrap();
        let mut summary: Value = serde_json::from_str(&json).unwrap();
        change(&mut summary);
        connection.execute("UPDATE summary SET json = ?", [summary.to_string()]).unwrap();
        path
    })
}

#[test]
fn probes_and_findings_of_two_recordings_are_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let paths = changed(folder.path(), |summary| {
        let probe = |number: u32| json!({"name": format!("probe {number}"), "on": true, "reason": ""});
        summary["probes"] = (0..200_000).map(probe).collect();
        let finding = |number: u32| {
            json!({"name": "stolen-cpu", "finding": format!("{number}"), "evidence": "", "advice": "", "cause": null,
                "share": 0.1})
        };
        summary["diagnoses"] = (0..150_000).map(finding).collect();
    });
    let run = Run::open(&paths).unwrap();
    assert_eq!(run.summary.probes.len(), 200_000);
    let stolen = run.summary.diagnoses.iter().filter(|found| found.name == "stolen-cpu");
    assert_eq!(stolen.count(), 300_000);
}

#[test]
fn checkpoints_that_all_overlap_are_on_a_few_tracks() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = changed(folder.path(), |_| {});
    let insert = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)
        INSERT INTO checkpoint SELECT 0, 1, 5000000000000 + i, 9000000000000 + i, 'save', 'persist', 0 FROM n";
    rusqlite::Connection::open(&path).unwrap().execute(insert, []).unwrap();
    let mut trace = Vec::new();
    perfetto::write(&Run::open(&[path]).unwrap(), &mut trace).unwrap();
    let name = b"checkpoints in the background";
    let tracks = trace.windows(name.len()).filter(|bytes| bytes == name).count();
    assert!((2..100).contains(&tracks), "{tracks} tracks");
}

#[test]
fn advice_on_many_knobs_is_listed() {
    let one = |number: u32| Advice { knob: format!("knob {number}"), now: 1, to: 2, ..Advice::default() };
    let summary = RunSummary { advice: (0..300_000).map(one).collect(), ..RunSummary::default() };
    let page = advice::page(&summary, Some("job"), &support::PLAIN);
    assert!(page.contains("knob 299999 1") && page.contains("299999=2"));
}
