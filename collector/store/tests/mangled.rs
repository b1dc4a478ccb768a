//! Files that are not, or no longer, recordings: a sentence, never a panic.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{self, checkpoint, detail, job, options, second, step, summary};
use proptest::prelude::*;
use stallscope_store::{Error, Head, Recorder, Recording, RollupPeriod, StepFilter, VERSION};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

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

/// Each of these had a report use gigabytes, minutes or what else a function of SQL can.
#[test]
fn what_a_file_computes_is_not_read() {
    for (statements, named) in [
        (
            "ALTER TABLE host ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(zeroblob(500000000))) VIRTUAL",
            "the column host.more is computed",
        ),
        (
            "ALTER TABLE summary RENAME TO s; CREATE TABLE summary (id INTEGER, x TEXT, json TEXT AS (replace(hex(zeroblob(9)), '00', x)))",
            "the column summary.json is computed",
        ),
        ("CREATE INDEX slow ON step (hex(randomblob(10)))", "non-deterministic"),
        ("CREATE INDEX slow ON step (abs(rank))", "the index slow is computed"),
        ("CREATE INDEX few ON step (rank) WHERE abs(rank) > 1", "the index few is computed"),
        ("CREATE VIEW other AS SELECT 1", "it has the view other"),
        ("CREATE TRIGGER often AFTER INSERT ON step BEGIN SELECT 1; END", "it has the trigger often"),
        ("CREATE VIRTUAL TABLE other USING fts5(x)", "it has the table other"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.stall");
        fs::write(&path, good()).unwrap();
        match rusqlite::Connection::open(&path).unwrap().execute_batch(statements) {
            // SQLite itself does not take it.
            Err(error) => assert!(error.to_string().contains(named), "{statements}: {error}"),
            Ok(()) => {
                let error = read(&path).unwrap_err();
                assert!(matches!(error, Error::Damaged { .. }), "{statements}: {error}");
                assert!(error.to_string().contains(named), "{statements}: {error}");
            }
        }
    }
}

/// Each page of a chain leads many times to the next, so that there are as many rows as pointers to the power of its length.
#[test]
fn more_rows_than_a_file_can_hold_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.stall");
    let mut recorder = Recorder::create(&path, &job(), options(directory.path()));
    (0..9000).for_each(|index| recorder.step(step(0, index)));
    let path = recorder.finish(&summary()).path.unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let number =
        |question: &str| connection.query_row(question, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    let root = number("SELECT rootpage FROM sqlite_schema WHERE name = 'step'");
    let page_bytes = number("PRAGMA page_size");
    drop(connection);
    let mut bytes = fs::read(&path).unwrap();
    let page = |number: usize| (number - 1) * page_bytes..number * page_bytes;
    let interior = bytes[page(root)].to_vec();
    assert_eq!(interior[0], 5, "an interior page of a table");
    let cells = usize::from(u16::from_be_bytes([interior[3], interior[4]]));
    let cell = |nth: usize| usize::from(u16::from_be_bytes([interior[12 + 2 * nth], interior[13 + 2 * nth]]));
    let leaf = |nth: usize| u32::from_be_bytes(interior[cell(nth)..cell(nth) + 4].try_into().unwrap());
    assert!(cells > 30);
    let chain: Vec<u32> = [root as u32].into_iter().chain((0..6).map(leaf)).collect();
    for link in chain.windows(2) {
        let mut from = interior.clone();
        let to = link[1].to_be_bytes();
        (0..cells).for_each(|nth| from[cell(nth)..cell(nth) + 4].copy_from_slice(&to));
        from[8..12].copy_from_slice(&to);
        bytes[page(link[0] as usize)].copy_from_slice(&from);
    }
    fs::write(&path, bytes).unwrap();
    let recording = Recording::open(&path).unwrap();
    let mut read = recording.steps(&StepFilter { rank: Some(7), ..StepFilter::default() }).unwrap();
    let error = read.try_for_each(|row| row.map(drop)).unwrap_err();
    assert!(error.to_string().contains("its pages hold more rows than a file of its size can"), "{error}");
    // A list reads none of it.
    assert_eq!(Head::read(&path).unwrap().job, summary().job);
}

/// Has all pages of `table` lead to one of them, so that it has as many rows as pointers to the third power.
fn lead_in_circles(path: &Path, table: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let root = format!("SELECT rootpage FROM sqlite_schema WHERE name = '{table}'");
    let number =
        |question: &str| connection.query_row(question, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    let (root, page_bytes) = (number(&root), number("PRAGMA page_size"));
    drop(connection);
    let mut bytes = fs::read(path).unwrap();
    let at = |page: usize| (page - 1) * page_bytes;
    let word = |bytes: &[u8], place: usize| usize::from(u16::from_be_bytes([bytes[place], bytes[place + 1]]));
    let is_interior = |bytes: &[u8], page: usize| matches!(bytes[at(page)], 2 | 5);
    let cells = |bytes: &[u8], page: usize| -> Vec<usize> {
        (0..word(bytes, at(page) + 3)).map(|nth| word(bytes, at(page) + 12 + 2 * nth)).collect()
    };
    let child = |bytes: &[u8], page: usize, cell: usize| {
        let place = at(page) + cell;
        u32::from_be_bytes(bytes[place..place + 4].try_into().unwrap()) as usize
    };
    assert!(is_interior(&bytes, root), "{table} is too small");
    let mut lowest = root;
    while is_interior(&bytes, child(&bytes, lowest, cells(&bytes, lowest)[0])) {
        lowest = child(&bytes, lowest, cells(&bytes, lowest)[0]);
    }
    let pointers = cells(&bytes, lowest);
    let page = bytes[at(lowest)..at(lowest) + page_bytes].to_vec();
    let leaves: Vec<usize> = pointers.iter().take(3).map(|cell| child(&bytes, lowest, *cell)).collect();
    for (from, to) in [(root, leaves[0]), (leaves[0], leaves[1]), (leaves[1], leaves[2])] {
        let mut page = page.clone();
        let to = (to as u32).to_be_bytes();
        pointers.iter().chain([&8]).for_each(|cell| page[*cell..cell + 4].copy_from_slice(&to));
        bytes[at(from)..at(from) + page_bytes].copy_from_slice(&page);
    }
    fs::write(path, bytes).unwrap();
}

/// Each of its tables alone is within what is read of any file.
#[test]
fn a_file_full_of_circles_is_not_read_to_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.stall");
    let mut recorder = Recorder::create(&path, &job(), options(directory.path()));
    (0..20_000).for_each(|index| recorder.step(step(0, index)));
    let path = recorder.finish(&summary()).path.unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let tables = ["worker_period", "cache_period", "rollup"];
    for (table, values) in [
        (tables[0], "n.i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0"),
        (tables[1], "n.i, 0, 0, 'training', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0"),
        (tables[2], "60, n.i, 1, 0, 'training', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0"),
    ] {
        let rows = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
            INSERT INTO {table} SELECT {values} FROM n"
        );
        connection.execute_batch(&rows).unwrap();
    }
    drop(connection);
    let sane = fs::read(&path).unwrap();
    let recording = Recording::open(&path).unwrap();
    let minutes = recording.rollups(stallscope_store::RollupPeriod::Minute).unwrap().len();
    let rows = (recording.worker_periods().unwrap().len(), recording.cache_periods().unwrap().len());
    assert!(rows == (20_000, 20_000) && minutes > 20_000 && support::steps(&recording).len() == 20_000);
    drop(recording);
    tables.iter().for_each(|table| lead_in_circles(&path, table));
    // Most of it is read by nobody: what a file claims to be large is no reason to read the rest for longer.
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE pad (x); INSERT INTO pad VALUES (zeroblob(4000000))").unwrap();
    drop(connection);
    let recording = Recording::open(&path).unwrap();
    let errors = [
        recording.worker_periods().err(),
        recording.cache_periods().err(),
        recording.rollups(stallscope_store::RollupPeriod::Minute).err(),
    ];
    let sentences: Vec<String> = errors.into_iter().flatten().map(|error| error.to_string()).collect();
    assert!(
        sentences.len() >= 2,
        "what all of it can hold is not read for each of its tables: {sentences:?}"
    );
    assert!(sentences.iter().all(|one| one.contains("its pages hold more rows")), "{sentences:?}");
    assert!(recording.audit(0).unwrap().is_empty(), "the rest is read still");
    drop(recording);

    fs::write(&path, sane).unwrap();
    lead_in_circles(&path, "step");
    let recording = Recording::open(&path).unwrap();
    let mut read = recording.steps(&StepFilter::default()).unwrap();
    let error = read.try_for_each(|row| row.map(drop)).unwrap_err();
    assert!(error.to_string().contains("not in order"), "{error}");
    drop(read);
    // As the terminal reads them: those after the last that it has, again and again.
    let (mut last, mut error) = (0, None);
    for _ in 0..1000 {
        match recording.steps_after(last, 64) {
            Ok(rows) => last = rows.last().map_or(last, |(id, _)| *id),
            Err(found) => error = error.or(Some(found.to_string())),
        }
    }
    assert!(error.as_ref().is_some_and(|error| error.contains("not in order")), "{error:?}");
}

/// Each question is within what one may take, and of questions there are as many as the file makes them be: hours that a run
/// lasted, pages of steps. A report of 5 MB of this took minutes.
#[test]
fn questions_without_end_are_not_answered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.stall");
    fs::write(&path, good()).unwrap();
    let columns = "start_ns, rank, loader, worker, pid, batches, samples, wall_ns, fetch_ns, cpu_ns, runnable_ns, idle_ns, read_bytes";
    // Without a key that finds them.
    let many = format!(
        "DROP TABLE worker_period; CREATE TABLE worker_period ({columns});
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
        INSERT INTO worker_period SELECT 9000000000000000000 + n.i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM n"
    );
    rusqlite::Connection::open(&path).unwrap().execute_batch(&many).unwrap();
    let recording = Recording::open(&path).unwrap();
    let mut hours = (0..10_000u64).map(|hour| hour * 3_600_000_000_000);
    let ended = hours.find_map(|from_ns| recording.worker_periods_between(from_ns, from_ns + 1).err());
    let error = ended.expect("it is asked ten thousand times");
    assert!(error.to_string().contains("hold more rows"), "{error}");
}

/// Where what a list reads leads in circles, the size that a file claims buys it no time.
#[test]
fn a_list_spends_the_same_on_files_of_any_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.stall");
    fs::write(&path, good()).unwrap();
    let head = Head::read(&path).unwrap();
    assert_eq!((head.job, head.verdict), (summary().job, summary().verdict));
    let connection = rusqlite::Connection::open(&path).unwrap();
    let many = "DELETE FROM meta WHERE key = 'state'; DROP TABLE IF EXISTS m; CREATE TABLE m (key TEXT, value TEXT);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000)
        INSERT INTO m SELECT 'k', '' FROM n; INSERT INTO m SELECT * FROM meta; DROP TABLE meta; ALTER TABLE m RENAME TO meta";
    connection.execute_batch(many).unwrap();
    drop(connection);
    let error = Head::read(&path).unwrap_err();
    assert!(error.to_string().contains("its pages hold more rows"), "{error}");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let error = Head::read(&path).unwrap_err();
    assert!(error.to_string().contains("its pages hold more rows"), "{error}");
    // As the terminal lists it, which asks for more of it.
    let error = Recording::open_listed(&path).and_then(|listed| listed.state()).unwrap_err();
    assert!(error.to_string().contains("its pages hold more rows"), "{error}");
}

/// A report has the job's name in each line of its metrics, and the host's beside each rank.
#[test]
fn names_that_reports_repeat_are_cut() {
    let directory = tempfile::tempdir().unwrap();
    let mut long = summary();
    for name in [&mut long.job.name, &mut long.job.user, &mut long.host.host] {
        *name = "ä".repeat(1 << 20);
    }
    let recorder = Recorder::create(&directory.path().join("x.stall"), &job(), options(directory.path()));
    let path = recorder.finish(&long).path.unwrap();
    let read = Recording::open(&path).unwrap().summary().unwrap();
    for name in [&read.job.name, &read.job.user, &read.host.host] {
        assert_eq!((name.chars().count(), name.capacity()), (255, 510));
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
