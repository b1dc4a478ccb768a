//! A recording stays small without losing a nanosecond.

use crate::support::{checkpoint, detail, job, options, second, step, steps, summary};
use stallscope_model::{Causes, Phase};
use stallscope_store::{Options, Recorder, Recording, RollupPeriod};

#[test]
fn old_steps_are_merged_and_everything_is_conserved() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Options { step_rows: 3000, ..options(directory.path()) };
    let mut recorder = Recorder::create(&directory.path().join("run.stall"), &job(), limits);
    let mut expected = Causes::default();
    let mut samples = 0;
    for index in 0..20_000 {
        for rank in 0..3 {
            let mut step = step(rank, index);
            if index % 50 == 0 {
                step.phase = Phase::Evaluation;
            }
            expected += &step.causes;
            samples += u64::from(step.samples);
            recorder.step(step);
        }
        if index % 100 == 99 {
            recorder.flush(&summary());
        }
    }
    let path = recorder.finish(&summary()).path.unwrap();
    let recording = Recording::open(&path).unwrap();
    let rows = steps(&recording);
    assert!(rows.len() <= 3000, "{} rows", rows.len());
    assert_eq!(rows.iter().map(|row| row.merged).sum::<u64>(), 60_000);
    assert_eq!(rows.iter().map(|row| u64::from(row.step.samples)).sum::<u64>(), samples);
    let mut causes = Causes::default();
    rows.iter().for_each(|row| causes += &row.step.causes);
    assert_eq!(causes, expected);
    // The newest are as they were measured, and no row is out of proportion to its age.
    assert!(rows[rows.len() - 1200..].iter().all(|row| row.merged == 1));
    assert!(rows.iter().all(|row| row.merged <= 128), "{:?}", rows.iter().map(|row| row.merged).max());
    for rank in 0..3 {
        let mut next = 0;
        for row in rows.iter().filter(|row| row.step.rank == rank && row.step.phase == Phase::Evaluation) {
            assert_eq!(row.step.index, next);
            next += 50 * row.merged;
        }
        assert_eq!(next, 20_000);
    }
}

#[test]
fn old_rollups_make_way() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Options { step_rows: 200, ..options(directory.path()) };
    let mut recorder = Recorder::create(&directory.path().join("run.stall"), &job(), limits);
    for index in 0..1200 {
        let mut step = step(0, 0);
        step.index = index;
        step.start_ns += index * 10_000_000_000;
        step.end_ns += index * 10_000_000_000;
        recorder.step(step);
        recorder.flush(&summary());
    }
    let path = recorder.finish(&summary()).path.unwrap();
    let recording = Recording::open(&path).unwrap();
    let fine = recording.rollups(RollupPeriod::TenSeconds).unwrap();
    assert!(fine.len() <= 101, "{}", fine.len());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let dropped: i64 = connection
        .query_row("SELECT sum(CAST(value AS INTEGER)) FROM meta WHERE key = 'rollups_dropped'", [], |row| {
            row.get(0)
        })
        .unwrap();
    let minutes = recording.rollups(RollupPeriod::Minute).unwrap().len();
    assert_eq!(dropped as usize, 1200 + 201 - fine.len() - minutes);
}

#[test]
fn what_lies_behind_the_sums_makes_way_too() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Options { step_rows: 200, ..options(directory.path()) };
    let mut recorder = Recorder::create(&directory.path().join("run.stall"), &job(), limits);
    for nth in 0..1000 {
        // One a minute; the longest in the middle.
        recorder.step_detail(detail(0, nth * 600, nth.abs_diff(1000).min(nth) * 1000));
        recorder.checkpoint(checkpoint(0, nth * 10, nth * 10 + 5));
        recorder.worker_period(second(nth, 0));
        recorder.flush(&summary());
    }
    let path = recorder.finish(&summary()).path.unwrap();
    let recording = Recording::open(&path).unwrap();
    let details: Vec<u64> =
        recording.step_details().unwrap().iter().map(|detail| detail.index / 600).collect();
    assert_eq!(details, [500, 501], "the longest stay");
    let checkpoints = recording.checkpoints().unwrap();
    assert_eq!((checkpoints.len(), checkpoints[0].start_ns), (20, 9800));
    let periods = recording.worker_periods().unwrap();
    assert_eq!((periods.len(), periods[99].start_ns / 10_000_000_000), (100, 999));
    let connection = rusqlite::Connection::open(&path).unwrap();
    for (what, dropped) in
        [("step_details_dropped", 998), ("checkpoints_dropped", 980), ("worker_periods_dropped", 900)]
    {
        let counted: i64 = connection
            .query_row("SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?", [what], |row| row.get(0))
            .unwrap();
        assert_eq!(counted, dropped, "{what}");
    }
}
