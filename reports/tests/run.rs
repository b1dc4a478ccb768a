//! How recordings are read: their clocks turned into wall time, damage reported.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use proptest::prelude::*;
use stallscope_model::{Cause, Phase, RunSummary};
use stallscope_reports::{Error, Run};
use stallscope_store::{RollupPeriod, State};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use support::recordings::{BEGUN_WALL_NS, S, Synthetic, two_hosts};

fn opened(job: &Synthetic) -> Run {
    let folder = tempfile::tempdir().unwrap();
    Run::open(&[job.record(folder.path(), "a.stall")]).unwrap()
}

#[test]
fn everything_of_a_recording_is_there_by_the_wall_clock() {
    let job = Synthetic { ranks: vec![0, 1], world_size: 2, ..Synthetic::default() };
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&[job.record(folder.path(), "a.stall")]).unwrap();
    assert_eq!(run.summary, RunSummary { losses: run.summary.losses.clone(), ..job.summary() });
    assert_eq!((run.sources.len(), run.sources[0].state), (1, State::Finished));
    assert!(run.notes.is_empty(), "{:?}", run.notes);
    let ended_wall_ns = run.summary.job.ended_wall_ns.unwrap();
    let within = |ns: u64| (BEGUN_WALL_NS - 60 * S..=ended_wall_ns).contains(&ns);
    assert!(run.rollups.iter().all(|rollup| within(rollup.start_ns)));
    assert!(!run.details.is_empty() && run.details.iter().all(|step| within(step.start_ns)));
    assert!(run.details.is_sorted_by_key(|step| std::cmp::Reverse(step.end_ns - step.start_ns)));
    let whole = run.details.iter().all(|step| {
        let ends = (step.critical.first().unwrap().start_ns, step.critical.last().unwrap().end_ns);
        ends == (step.start_ns, step.end_ns)
    });
    assert!(whole, "a critical path moves with its step");
    assert_eq!(run.checkpoints.len(), 4);
    assert_eq!(run.checkpoints[0].start_ns, BEGUN_WALL_NS + 5 * S);
    assert_eq!(run.workers.len(), 8);
    let mut steps = Vec::new();
    run.each_step(|row| {
        steps.push(row.step.clone());
        Ok(())
    })
    .unwrap();
    let mut expected = job.all_steps();
    for step in &mut expected {
        step.start_ns = step.start_ns - job.begun_ns + BEGUN_WALL_NS;
        step.end_ns = step.end_ns - job.begun_ns + BEGUN_WALL_NS;
    }
    assert_eq!(steps, expected);
    let walls: u64 = run.step_walls.iter().map(|walls| walls.steps).sum();
    assert_eq!(walls, 400);
}

#[test]
fn long_runs_are_shown_by_the_minute() {
    let long = opened(&Synthetic { steps: 9000, step_ms: 1000, ..Synthetic::default() });
    assert_eq!(long.period, RollupPeriod::Minute);
    let short = opened(&Synthetic::default());
    assert_eq!(short.period, RollupPeriod::TenSeconds);
    for run in [long, short] {
        assert!(run.rollups.iter().all(|rollup| rollup.period == run.period));
        let steps: u64 = run.rollups.iter().map(|rollup| rollup.steps).sum();
        assert_eq!(steps, run.summary.phases.iter().map(|phase| phase.steps).sum::<u64>());
        let wall_ns: u64 = run.workers.iter().map(|period| period.load.wall_ns).sum();
        assert_eq!(wall_ns, 40 * S);
    }
}

#[test]
fn merged_steps_keep_their_sums() {
    let folder = tempfile::tempdir().unwrap();
    let job = Synthetic { steps: 5000, step_ms: 20, step_rows: 1000, ..Synthetic::default() };
    let run = Run::open(&[job.record(folder.path(), "a.stall")]).unwrap();
    let (mut rows, mut steps, mut ns) = (0, 0, 0);
    run.each_step(|row| {
        rows += 1;
        steps += row.merged;
        ns += row.step.causes.total_ns();
        Ok(())
    })
    .unwrap();
    assert!(rows <= 1000, "{rows} rows");
    assert_eq!(steps, run.summary.phases.iter().map(|phase| phase.steps).sum::<u64>());
    assert_eq!(ns, run.summary.phases.iter().map(|phase| phase.wall_ns).sum::<u64>());
    assert_eq!(run.step_walls.iter().map(|walls| walls.steps).sum::<u64>(), 5000);
}

#[test]
fn a_clock_that_was_set_is_reported_and_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let job = Synthetic { clock_set_by_s: -3600, ..Synthetic::default() };
    let run = Run::open(&[job.record(folder.path(), "a.stall")]).unwrap();
    assert!(run.notes.iter().any(|note| note.contains("node1 was set back by 1.0 h")), "{:?}", run.notes);
    assert_eq!(run.summary.job.started_wall_ns, BEGUN_WALL_NS - 3600 * S);
    let mut last = run.summary.job.started_wall_ns;
    run.each_step(|row| {
        assert!(row.step.end_ns >= last);
        last = row.step.end_ns;
        Ok(())
    })
    .unwrap();
    assert_eq!(last, run.summary.job.ended_wall_ns.unwrap());
}

#[test]
fn a_killed_writer_leaves_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let job = Synthetic { finished: false, ..Synthetic::default() };
    let run = Run::open(&[job.record(folder.path(), "a.stall")]).unwrap();
    assert_eq!(run.sources[0].state, State::Killed);
    assert_eq!(run.summary.job.exit_code, None);
    assert!(run.summary.job.ended_wall_ns.is_some());
}

#[test]
fn few_steps_none_and_no_rank_at_all() {
    for (ranks, steps) in [(vec![0], 1), (vec![0], 0), (vec![], 0)] {
        let run = opened(&Synthetic { ranks, steps, ..Synthetic::default() });
        let training = run.summary.phases.iter().find(|phase| phase.phase == Phase::Training);
        assert_eq!(training.map_or(0, |phase| phase.steps), steps);
    }
    assert!(matches!(Run::open(&[]), Err(Error::NoRecording)));
}

#[test]
fn ten_thousand_ranks_are_not_too_many() {
    let ranks: Vec<u32> = (0..10_000).collect();
    let run = opened(&Synthetic { ranks, world_size: 10_000, steps: 3, workers: 0, ..Synthetic::default() });
    assert_eq!(run.summary.ranks.len(), 10_000);
    assert!(run.notes.is_empty());
}

#[test]
fn ranks_that_are_elsewhere_are_missed() {
    let [first, _] = two_hosts();
    let run = opened(&first);
    assert_eq!(run.notes, ["2 of 4 ranks are not here: they were recorded elsewhere, or not at all"]);
}

fn whole() -> &'static (tempfile::TempDir, PathBuf, Vec<u8>) {
    static WHOLE: OnceLock<(tempfile::TempDir, PathBuf, Vec<u8>)> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = Synthetic::default().record(folder.path(), "whole.stall");
        let bytes = fs::read(&path).unwrap();
        (folder, path, bytes)
    })
}

fn tampered(path: &Path, statement: &str) -> Result<Run, Error> {
    fs::write(path, &whole().2).unwrap();
    rusqlite::Connection::open(path).unwrap().execute_batch(statement).unwrap();
    Run::open(&[path.to_path_buf()])
}

#[test]
fn what_is_no_recording_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.stall");
    let reason = |error: Error| {
        let sentence = error.to_string();
        assert!(sentence.contains("x.stall") && !sentence.contains('\n'), "{sentence}");
        sentence
    };
    assert!(reason(Run::open(std::slice::from_ref(&path)).unwrap_err()).contains("cannot be read"));
    fs::write(&path, "hello").unwrap();
    assert!(
        reason(Run::open(std::slice::from_ref(&path)).unwrap_err()).contains("not a stallscope recording")
    );
    fs::write(&path, &whole().2[..whole().2.len() / 3]).unwrap();
    assert!(reason(Run::open(std::slice::from_ref(&path)).unwrap_err()).contains("damaged"));
    let newer = format!("PRAGMA user_version = {}", stallscope_store::VERSION + 1);
    assert!(reason(tampered(&path, &newer).unwrap_err()).contains("newer stallscope"));
    assert!(reason(tampered(&path, "UPDATE summary SET json = '[]'").unwrap_err()).contains("damaged"));
}

#[test]
fn what_is_broken_beside_the_summary_is_missed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (statement, missing) in [
        ("DROP TABLE rollup", "its roll-ups are missing"),
        ("UPDATE step SET phase = 'napping'", "its step times are missing"),
        ("DROP TABLE clock_anchor", "its clocks are missing"),
        ("DELETE FROM clock_anchor", "its times are a guess"),
    ] {
        let run = tampered(&folder.path().join("x.stall"), statement).unwrap();
        assert!(run.notes.iter().any(|note| note.contains(missing)), "{statement}: {:?}", run.notes);
        assert_eq!(run.summary.phases.len(), 3);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(
        cut in proptest::option::of(0.0f64..1.0),
        changes in prop::collection::vec((0.0f64..1.0, any::<u8>()), 0..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.stall");
        let mut bytes = whole().2.clone();
        for (place, value) in changes {
            let place = (place * bytes.len() as f64) as usize;
            // Half of them in the first page, which says what all the others mean.
            let place = if value % 2 == 0 { place % 4096 } else { place };
            bytes[place] = value;
        }
        if let Some(share) = cut {
            bytes.truncate((share * bytes.len() as f64) as usize);
        }
        fs::write(&path, bytes).unwrap();
        match Run::open(&[path, whole().1.clone()]) {
            Ok(_) => prop_assert!(false, "the same rank twice"),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
        if let Ok(run) = Run::open(&[folder.path().join("x.stall")]) {
            let _ = run.each_step(|_| Ok(()));
            prop_assert!(run.summary.phases.iter().all(|phase| phase.causes[Cause::Fetch] < u64::MAX));
        }
    }
}
