//! Recordings of several hosts become one report of the job.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use stallscope_model::{Cause, Causes, EvidenceState, Phase};
use stallscope_reports::{Error, Run};
use std::path::PathBuf;
use support::recordings::{BEGUN_WALL_NS, S, Synthetic, two_hosts};

fn record(jobs: &[Synthetic]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths = jobs
        .iter()
        .enumerate()
        .map(|(nth, job)| job.record(folder.path(), &format!("{nth}.stall")))
        .collect();
    (folder, paths)
}

fn merged(jobs: &[Synthetic]) -> Result<Run, Error> {
    let (_folder, paths) = record(jobs);
    Run::open(&paths)
}

#[test]
fn the_job_is_as_slow_as_its_slowest_rank_wherever_that_is() {
    let jobs = two_hosts();
    let (_folder, paths) = record(&jobs);
    let run = Run::open(&paths).unwrap();
    let numbers: Vec<u32> = run.summary.ranks.iter().map(|rank| rank.facts.rank).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert_eq!(run.hosts.iter().map(|host| host.host.as_str()).collect::<Vec<_>>(), ["node1", "node2"]);
    assert_eq!((run.summary.host.host.as_str(), run.summary.host.cpus), ("node1, node2", 32));
    let slow = run.summary.ranks[3].phases.iter().find(|phase| phase.phase == Phase::Training).unwrap();
    let job = run.summary.phases.iter().find(|phase| phase.phase == Phase::Training).unwrap();
    // A wait counts with the work that follows it; the last one, which none follows, is no step.
    assert_eq!((job.steps, job.wall_ns, job.causes), (slow.steps, slow.wall_ns, slow.causes));
    assert_eq!(job.samples, 4 * slow.samples);
    assert_eq!(run.summary.verdict.finding, "fetch-bound");
    assert!(run.summary.verdict.sentence.contains("on rank 3"), "{}", run.summary.verdict.sentence);
    let names: Vec<&str> = run.summary.diagnoses.iter().map(|found| found.name.as_str()).collect();
    assert!(names.contains(&"straggler-rank") && names.contains(&"fetch-bound"), "{names:?}");
    // What a host knows of itself is the same alone.
    let alone = Run::open(&paths[1..]).unwrap();
    assert_eq!(alone.summary.ranks[1], run.summary.ranks[3]);
}

#[test]
fn sums_are_sums_and_clocks_agree() {
    let (_folder, paths) = record(&two_hosts());
    let run = Run::open(&paths).unwrap();
    assert_eq!(run.summary.losses.len(), 1);
    assert_eq!(run.summary.losses[0].count, 6);
    assert_eq!(run.summary.overhead.records, 2 * 48_211);
    assert_eq!(run.summary.files[0].waits, 80);
    assert_eq!(run.summary.mounts[0].wait_ns, 18 * S);
    assert_eq!(run.summary.kernel, EvidenceState::On);
    // The same step of all ranks is at the same time, though the hosts booted at different ones.
    let mut first = Vec::new();
    let mut causes = Causes::default();
    run.each_step(|row| {
        if (row.step.phase, row.step.index) == (Phase::Training, 0) {
            first.push((row.step.rank, row.step.start_ns));
        }
        causes += &row.step.causes;
        Ok(())
    })
    .unwrap();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2, 3].map(|rank| (rank, BEGUN_WALL_NS + 2 * S)));
    let mut of_ranks = Causes::default();
    run.summary.ranks.iter().flat_map(|rank| &rank.phases).for_each(|phase| of_ranks += &phase.causes);
    assert_eq!(causes, of_ranks);
    // Periods begin together, and hold every step.
    let period_ns = run.period.ns();
    assert!(run.rollups.iter().all(|rollup| rollup.start_ns.is_multiple_of(period_ns)));
    assert!(run.rollups.is_sorted_by_key(|rollup| rollup.start_ns));
    let of_rank = |rank: u32| -> u64 {
        run.rollups.iter().filter(|rollup| rollup.rank == rank).map(|rollup| rollup.steps).sum()
    };
    assert_eq!([0, 1, 2, 3].map(of_rank), [221; 4]);
}

#[test]
fn a_clock_of_one_host_that_was_set_is_reported() {
    let [first, second] = two_hosts();
    let run = merged(&[first, Synthetic { clock_set_by_s: 2, ..second }]).unwrap();
    assert!(run.notes.iter().any(|note| note.contains("clock of node2 was set forward by 2.0 s")));
    assert!(!run.notes.iter().any(|note| note.contains("clock of node1 was set")));
}

#[test]
fn hosts_whose_clocks_disagree_are_reported() {
    let [first, second] = two_hosts();
    let late = Synthetic { begun_wall_ns: BEGUN_WALL_NS + 5 * S, ..second };
    let run = merged(&[first, late]).unwrap();
    let note = "the clock of node2 is 5.0 s ahead of that of node1";
    assert!(run.notes.iter().any(|known| known.contains(note)), "{:?}", run.notes);
    let run = merged(&two_hosts()).unwrap();
    assert_eq!(run.notes.len(), 1, "{:?}", run.notes);
}

#[test]
fn recordings_that_were_thinned_differently_still_align() {
    let [first, second] = two_hosts().map(|job| Synthetic { steps: 4000, step_ms: 20, ..job });
    let run = merged(&[first, Synthetic { step_rows: 800, ..second }]).unwrap();
    let slow = run.summary.ranks[3].phases.iter().find(|phase| phase.phase == Phase::Training).unwrap();
    let job = run.summary.phases.iter().find(|phase| phase.phase == Phase::Training).unwrap();
    assert_eq!(job.steps, slow.steps);
    let fetch = job.causes.share(Cause::Fetch);
    assert!((fetch - slow.causes.share(Cause::Fetch)).abs() < 0.01, "{fetch}");
}

#[test]
fn runs_of_different_length_are_shown_by_the_same_period() {
    let [first, second] = two_hosts();
    let long = Synthetic { steps: 8000, step_ms: 1000, ..first };
    let run = merged(&[long, Synthetic { steps: 6000, step_ms: 1000, ..second }]).unwrap();
    assert!(run.rollups.iter().all(|rollup| rollup.period == run.period));
    // The rank that went on alone is the job's slowest from there on.
    let job = run.summary.phases.iter().find(|phase| phase.phase == Phase::Training).unwrap();
    assert_eq!(job.steps, 8000);
}

#[test]
fn what_one_collector_found_keeps_its_host() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = two_hosts();
    let paths = [first.record(folder.path(), "a.stall"), second.record(folder.path(), "b.stall")];
    let connection = rusqlite::Connection::open(&paths[1]).unwrap();
    let json: String = connection.query_row("SELECT json FROM summary", [], |row| row.get(0)).unwrap();
    let mut summary: serde_json::Value = serde_json::from_str(&json).unwrap();
    summary["kernel"] = serde_json::json!({"missing": "no collector runs"});
    summary["diagnoses"][0]["name"] = "evidence-missing".into();
    summary["diagnoses"][0]["finding"] = "no kernel evidence".into();
    connection.execute("UPDATE summary SET json = ?", [summary.to_string()]).unwrap();
    drop(connection);
    let run = Run::open(&paths).unwrap();
    assert_eq!(run.summary.kernel, EvidenceState::Partial("node2: no collector runs".into()));
    let found = run.summary.diagnoses.iter().find(|found| found.name == "evidence-missing").unwrap();
    assert_eq!(found.finding, "node2: no kernel evidence");
}

#[test]
fn what_does_not_belong_together_is_refused_in_a_sentence() {
    let [first, second] = two_hosts();
    let refused = |jobs: &[Synthetic], reason: &str| {
        let sentence = merged(jobs).unwrap_err().to_string();
        assert!(sentence.contains(reason) && sentence.contains("0.stall"), "{sentence}");
    };
    refused(&[first.clone(), first.clone()], "rank 0 is in both");
    let other = Synthetic { name: "eval".into(), command: vec!["eval".into()], ..second.clone() };
    refused(&[first.clone(), other], "different jobs (resnet and eval)");
    // Another name but the same command line at the same time is plainly the same job.
    merged(&[first.clone(), Synthetic { name: "resnet-node2".into(), ..second.clone() }]).unwrap();
    refused(&[first.clone(), Synthetic { world_size: 8, ..second.clone() }], "of 4 and of 8 ranks");
    // An hour later.
    refused(&[first, Synthetic { begun_wall_ns: BEGUN_WALL_NS + 3600 * S, ..second }], "at the same time");
}
