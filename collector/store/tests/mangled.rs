//! Files that are not, or no longer, recordings: a sentence, never a panic.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use proptest::prelude::*;
use stallscope_store::{Error, Recorder, Recording, RollupPeriod, StepFilter, VERSION};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use support::{checkpoint, detail, job, options, second, step, summary};

/// Reads all there is and gives the first error.
fn read(path: &Path) -> Result<(), Error> {
    let recording = Recording::open(path)?;
    recording.state()?;
    recording.summary()?;
    recording.anchors()?;
    recording.data_version()?;
    recording.rollups(RollupPeriod::Minute)?;
    recording.rollups_from(RollupPeriod::TenSeconds, 1_010_000_000_000)?;
    recording.steps_after(recording.last_step_id()? / 2, 1000)?;
    recording.checkpoints()?;
    recording.worker_periods()?;
    for detail in recording.step_details()? {
        let ns: u64 = detail.critical.iter().map(|piece| piece.end_ns - piece.start_ns).sum();
        assert_eq!(ns, detail.end_ns - detail.start_ns);
        assert!(detail.critical.iter().all(|piece| piece.lane < detail.lanes.len()));
        let lanes = detail.lanes.iter().flat_map(|lane| &lane.segments);
        assert!(lanes.into_iter().all(|segment| segment.start_ns <= segment.end_ns));
    }
    recording.steps(&StepFilter::default())?.try_for_each(|row| row.map(drop))
}

fn good() -> &'static [u8] {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    GOOD.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut recorder =
            Recorder::create(&directory.path().join("run.stall"), &job(), options(directory.path()));
        (0..300).for_each(|index| recorder.step(step(0, index)));
        (0..9).for_each(|rank| recorder.step_detail(detail(rank, 7, 0)));
        (0..9).for_each(|nth| recorder.checkpoint(checkpoint(0, nth * 10, nth * 10 + 5)));
        (0..90).for_each(|worker| recorder.worker_period(second(1, worker)));
        fs::read(recorder.finish(&summary()).path.unwrap()).unwrap()
    })
}

#[test]
fn each_kind_gets_its_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.stall");
    assert!(matches!(read(&path), Err(Error::Unreadable { .. })));
    assert!(matches!(read(directory.path()), Err(Error::NotARecording { .. })));
    for junk in [&b""[..], b"hello", b"SQLite format 3\0", &[7; 9000], &[0; 4096]] {
        fs::write(&path, junk).unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(error, Error::NotARecording { .. } | Error::Damaged { .. }), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    fs::remove_file(&path).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE step (x)").unwrap();
    assert!(matches!(read(&path), Err(Error::NotARecording { .. })));

    fs::write(&path, good()).unwrap();
    read(&path).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", VERSION + 1).unwrap();
    drop(connection);
    let error = read(&path).unwrap_err();
    assert!(matches!(error, Error::Newer { found, .. } if found == VERSION + 1), "{error}");
    assert!(error.to_string().contains("update stallscope"));
}

#[test]
fn values_that_no_recorder_writes_are_damage() {
    for statement in [
        "UPDATE step SET phase = 'napping' WHERE id = 7",
        "UPDATE step SET fetch_ns = -1 WHERE id = 7",
        "UPDATE step SET rank = 'x' WHERE id = 7",
        "UPDATE summary SET json = '{}'",
        "DROP TABLE rollup",
        "DROP TABLE step; CREATE VIEW step AS SELECT * FROM rollup",
        "DELETE FROM meta",
        "UPDATE checkpoint SET cause = 'boredom'",
        "UPDATE checkpoint SET bytes = -1",
        "UPDATE worker_period SET wall_ns = 0.5",
        "DROP TABLE worker_period",
        "UPDATE step_detail SET end_ns = end_ns + 1",
        "UPDATE step_detail SET start_ns = -1",
        "UPDATE step_detail SET lanes = '[]'",
        "UPDATE step_detail SET lanes = '[[1,\"trainer\",[[5,4,\"reading\"]]],[2,\"worker\",[]]]'",
        "UPDATE step_detail SET critical = '[[9223372036854775807,\"fetch\",0],[9223372036854775807,\"fetch\",0]]'",
        "UPDATE step_detail SET critical = x'00'",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.stall");
        fs::write(&path, good()).unwrap();
        rusqlite::Connection::open(&path).unwrap().execute_batch(statement).unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{statement}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(
        cut in proptest::option::of(0.0f64..1.0),
        changes in prop::collection::vec((0.0f64..1.0, any::<u8>()), 0..40),
        log in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.stall");
        let mut bytes = good().to_vec();
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
        if !log.is_empty() {
            fs::write(directory.path().join("x.stall-wal"), log).unwrap();
        }
        if let Err(error) = read(&path) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
