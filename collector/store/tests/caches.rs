//! What caches gave comes back, while it grows and when it is over.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{job, options, summary};
use stallscope_model::{CachePeriod, CacheState, CacheUses, Phase, WorkerPeriod};
use stallscope_store::{Options, Recorder, Recording};

fn period(nth: u64, phase: Phase, hits: u64, state: Option<CacheState>) -> CachePeriod {
    CachePeriod {
        start_ns: nth * WorkerPeriod::LENGTH_NS,
        rank: 1,
        loader: 2,
        phase,
        uses: CacheUses {
            hits,
            substitutions: 1,
            misses: 2,
            prefetched: 3,
            late: 4,
            pool_bytes: 5,
            source_bytes: 6,
        },
        state,
    }
}

fn state(kept_bytes: u64) -> Option<CacheState> {
    Some(CacheState { kept_bytes, capacity_bytes: 100, evictions: 7, kept_samples: 9 })
}

#[test]
fn a_period_grows_and_keeps_the_last_state_of_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.stall");
    let mut recorder = Recorder::create(&path, &job(), options(directory.path()));
    let reader = Recording::open(&path).unwrap();
    recorder.cache_period(period(6, Phase::Training, 10, state(40)));
    recorder.cache_period(period(7, Phase::Training, 10, state(50)));
    recorder.flush(&summary());
    let mut expected = period(7, Phase::Training, 10, state(50));
    for state_of_period in [state(60), None] {
        // Before a flush, and over one.
        recorder.cache_period(period(7, Phase::Training, 20, state_of_period));
        recorder.cache_period(period(7, Phase::Training, 0, None));
        recorder.flush(&summary());
        expected.uses += &period(7, Phase::Training, 20, None).uses;
        expected.uses += &period(7, Phase::Training, 0, None).uses;
    }
    expected.state = state(60);
    recorder.cache_period(period(7, Phase::Evaluation, 1, None));
    recorder.flush(&summary());
    let evaluated = period(7, Phase::Evaluation, 1, None);
    assert_eq!(reader.cache_periods_from(expected.start_ns).unwrap(), [evaluated, expected]);
    let recording = Recording::open(&recorder.finish(&summary()).path.unwrap()).unwrap();
    let before = period(6, Phase::Training, 10, state(40));
    assert_eq!(recording.cache_periods().unwrap(), [before, evaluated, expected]);
}

#[test]
fn a_recording_of_the_format_before_has_no_caches() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.stall");
    let path = Recorder::create(&path, &job(), options(directory.path())).finish(&summary()).path.unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("DROP TABLE cache_period; PRAGMA user_version = 3").unwrap();
    drop(connection);
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.format(), recording.cache_periods().unwrap()), (3, vec![]));
    assert_eq!(recording.summary().unwrap().caches, []);
}

#[test]
fn old_periods_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Options { step_rows: 200, ..options(directory.path()) };
    let mut recorder = Recorder::create(&directory.path().join("run.stall"), &job(), limits);
    for nth in 0..1000 {
        recorder.cache_period(period(nth, Phase::Training, 1, None));
        recorder.flush(&summary());
    }
    let path = recorder.finish(&summary()).path.unwrap();
    let kept = Recording::open(&path).unwrap().cache_periods().unwrap();
    assert_eq!((kept.len(), kept[99].start_ns), (100, 999 * WorkerPeriod::LENGTH_NS));
    let connection = rusqlite::Connection::open(&path).unwrap();
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'cache_periods_dropped'";
    let dropped: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(dropped, 900);
}
