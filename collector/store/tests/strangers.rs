//! Recordings in folders that another user can write to, with files there that no recorder leaves.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{job, options, step, steps, summary};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use stallscope_model::{Causes, Loss, Phase, PhaseSummary, RankSummary, RunSummary, WorkerLoad};
use stallscope_store::{Error, Head, Options, Recorder, Recording, State};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A finished recording in `folder`.
fn finished(folder: &Path) -> PathBuf {
    let mut recorder = Recorder::create(&folder.join("x.stall"), &job(), options(folder));
    (0..30).for_each(|index| recorder.step(step(0, index)));
    recorder.finish(&summary()).path.unwrap()
}

/// What a killed writer leaves: steps that are in the log alone.
fn killed(folder: &Path) -> PathBuf {
    let live = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(&live.path().join("x.stall"), &job(), options(live.path()));
    (0..30).for_each(|index| recorder.step(step(0, index)));
    recorder.flush(&summary());
    for name in ["x.stall", "x.stall-wal"] {
        fs::copy(live.path().join(name), folder.join(name)).unwrap();
    }
    folder.join("x.stall")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// What both ways of opening say, in one sentence.
fn refused(path: &Path) -> String {
    let error = Recording::open(path).unwrap_err();
    let listed = Head::read(path).unwrap_err();
    assert!(matches!((&error, &listed), (Error::Beside { .. }, Error::Beside { .. })), "{error}; {listed}");
    assert_eq!(error.to_string(), listed.to_string());
    error.to_string()
}

#[test]
fn what_is_no_file_beside_a_recording_is_not_opened() {
    for suffix in ["-wal", "-shm", "-journal"] {
        let folder = tempfile::tempdir().unwrap();
        let path = finished(folder.path());
        let beside = folder.path().join(format!("x.stall{suffix}"));
        mknodat(CWD, &beside, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = refused(&path);
        assert!(error.contains(beside.to_str().unwrap()) && error.contains("move that away"), "{error}");
        // SQLite looks beside the file to which a link leads.
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("y.stall");
        symlink(&path, &link).unwrap();
        assert!(refused(&link).contains("y.stall is not read"));
        fs::remove_file(&beside).unwrap();
        assert_eq!(steps(&Recording::open(&link).unwrap()).len(), 30);
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        for target in [Path::new("/dev/null"), &other, Path::new("/missing")] {
            symlink(target, &beside).unwrap();
            refused(&path);
            fs::remove_file(&beside).unwrap();
        }
    }
}

/// SQLite would play the journal back into the recording with the reader's rights.
#[test]
fn a_journal_beside_a_recording_stays_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path());
    let before = fs::read(&path).unwrap();
    // Hot: it says that the file had one page, and holds none to put back.
    let mut journal = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7].to_vec();
    for word in [0u32, 1, 1, 512, 4096] {
        journal.extend(word.to_be_bytes());
    }
    journal.resize(512, 0);
    fs::write(folder.path().join("x.stall-journal"), &journal).unwrap();
    assert!(refused(&path).contains("is a rollback journal"));
    assert!(fs::read(&path).unwrap() == before && names(folder.path()).len() == 3);
    fs::remove_file(folder.path().join("x.stall-journal")).unwrap();
    assert_eq!(steps(&Recording::open(&path).unwrap()).len(), 30);
}

/// A recorder that were killed at that moment would leave it, and a reader that came then would be refused.
#[test]
fn a_recorder_never_makes_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, folder.path(), WatchFlags::CREATE).unwrap();
    let path = finished(folder.path());
    let mut buffer = [MaybeUninit::uninit(); 16384];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut made = Vec::new();
    while let Ok(event) = events.next() {
        assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
        made.push(event.file_name().unwrap().to_string_lossy().into_owned());
    }
    assert!(made.contains(&"x.stall-wal".to_owned()), "{made:?}");
    assert!(!made.iter().any(|name| name.ends_with("-journal")), "{made:?}");
    assert_eq!(Recording::open(&path).unwrap().state().unwrap(), State::Finished);
}

/// Its other name may be anybody's file, and be in a folder that its owner does not look into.
#[test]
fn a_recording_of_two_names_is_read_and_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path());
    fs::hard_link(&path, folder.path().join("second")).unwrap();
    let before = fs::read(&path).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(steps(&recording).len(), 30);
    drop(recording);
    assert!(fs::read(&path).unwrap() == before && folder.path().join("x.stall-wal").exists());
    fs::remove_file(folder.path().join("second")).unwrap();
    assert_eq!(steps(&Recording::open(&path).unwrap()).len(), 30);
    assert_eq!(names(folder.path()), ["x.stall"], "its owner's look makes one file of it");
}

#[test]
fn a_recorder_takes_no_name_beside_which_something_lies() {
    let folder = tempfile::tempdir().unwrap();
    symlink("/missing", folder.path().join("x.stall-wal")).unwrap();
    fs::write(folder.path().join("x.2.stall-shm"), "").unwrap();
    fs::write(folder.path().join("x.3.stall-journal"), "").unwrap();
    assert_eq!(finished(folder.path()), folder.path().canonicalize().unwrap().join("x.4.stall"));
}

/// A word of two bytes in the file takes a score in memory.
#[test]
fn lists_without_end_are_not_read() {
    let recorded = || {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(&folder.path().join("x.stall"), &job(), options(folder.path()));
        recorder.flush(&summary());
        let path = recorder.finish(&summary()).path.unwrap();
        (folder, path)
    };
    let with = |list: &str, item: &str, times: usize| {
        let (folder, path) = recorded();
        let connection = rusqlite::Connection::open(&path).unwrap();
        let text: String = connection.query_row("SELECT json FROM summary", [], |row| row.get(0)).unwrap();
        let (before, after) = text.split_once(&format!("\"{list}\":[")).unwrap();
        let comma = if after.starts_with(']') { "" } else { "," };
        let items = vec![item; times].join(",");
        let text = format!("{before}\"{list}\":[{items}{comma}{after}");
        connection.execute("UPDATE summary SET json = ?", [text]).unwrap();
        (folder, path)
    };
    let commands = with("command", "\"\"", 3_200_000);
    let probes = with("probes", r#"{"name":"","on":true,"reason":""}"#, 800_000);
    for (_folder, path) in [&commands, &probes] {
        let whole = Recording::open(path).unwrap().summary().map(drop);
        // Not shown where it is read after all.
        for error in [whole.unwrap_err(), Head::read(path).map(drop).unwrap_err()] {
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("more than 3145728 values"), "{error}");
        }
    }
    let (_folder, path) = recorded();
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1100000)
        INSERT INTO loss SELECT printf('lane %040d full', i), 1 FROM n";
    rusqlite::Connection::open(&path).unwrap().execute_batch(rows).unwrap();
    let error = Recording::open(&path).unwrap().losses().unwrap_err();
    assert!(error.to_string().contains("more than 1048576 rows"), "{error}");
}

#[test]
fn a_thousand_ranks_are_read() {
    let phase = |phase| PhaseSummary {
        phase,
        loader: Some(0),
        steps: u64::MAX,
        samples: u64::MAX,
        wall_ns: u64::MAX,
        causes: Causes::default(),
        hidden_ns: None,
        step_p50_ns: 1,
        step_p95_ns: 1,
        step_max_ns: 1,
    };
    let rank = RankSummary {
        facts: Default::default(),
        phases: Phase::ALL.map(phase).to_vec(),
        workers: vec![WorkerLoad { wall_ns: u64::MAX, ..WorkerLoad::default() }; 32],
        checkpoints: Default::default(),
    };
    let losses = vec![Loss { reason: "lane full, with a \\ and a \" and a , in it".into(), count: 1 }; 1];
    let large = RunSummary { ranks: vec![rank; 1000], losses, ..summary() };
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(&folder.path().join("x.stall"), &job(), options(folder.path()));
    let path = recorder.finish(&large).path.unwrap();
    let read = Recording::open(&path).unwrap().summary().unwrap();
    assert!(read.ranks == large.ranks && read.losses == large.losses);
}

/// Seen: root's report of a folder of another user's, whose file named root's own recording, which that user may not read.
#[test]
fn another_users_pointer_or_link_leads_to_no_recording_that_is_not_theirs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "SKIPPED: another_users_pointer_or_link_leads_to_no_recording_that_is_not_theirs needs root"
        );
        return;
    }
    let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let live = finished(own.path());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let made = theirs.path().join("made.stall");
    // As a recorder leaves it where the recording is written elsewhere.
    let target = theirs.path().join("target.stall");
    let recorder =
        Recorder::create(&target, &job(), Options { spool_always: true, ..options(theirs.path()) });
    let mut lines: Vec<String> = fs::read_to_string(&target).unwrap().lines().map(str::to_owned).collect();
    drop(recorder);
    let path = lines.iter().position(|line| line.starts_with("path=")).unwrap();
    lines[path] = format!("path={}", live.display());
    fs::write(&made, lines.join("\n") + "\n").unwrap();
    let link = theirs.path().join("link.stall");
    symlink(&live, &link).unwrap();
    assert!(host == lines[path - 1].strip_prefix("host=").unwrap());
    for path in [&made, &link] {
        assert_eq!(steps(&Recording::open(path).unwrap()).len(), 30, "of one's own");
        let somebody = Some(rustix::fs::Uid::from_raw(4242));
        rustix::fs::chownat(CWD, path, somebody, None, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let (error, listed) = (Recording::open(path).unwrap_err(), Head::read(path).unwrap_err());
        assert!(matches!(&error, Error::Elsewhere { .. } | Error::Unreadable { .. }), "{error}");
        assert_eq!(error.to_string(), listed.to_string());
    }
}

/// A folder, and a link in its place to `elsewhere`, where another user's recording of the same name lies.
fn exchange(folder: &Path, elsewhere: &Path) {
    fs::create_dir(elsewhere).unwrap();
    for suffix in ["", "-wal", "-shm", ".copy"] {
        fs::write(elsewhere.join(format!("x.stall{suffix}")), "theirs").unwrap();
    }
    fs::rename(folder, folder.with_extension("was")).unwrap();
    symlink(elsewhere, folder).unwrap();
}

/// Seen: root recorded into a folder of another user's, who had it replace and remove a third user's recording.
#[test]
fn a_recorder_stays_in_the_folder_that_it_has_opened() {
    for spool_always in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (directory.path().join("folder"), directory.path().join("elsewhere"));
        fs::create_dir(&folder).unwrap();
        let options = Options { spool_always, ..options(directory.path()) };
        let mut recorder = Recorder::create(&folder.join("x.stall"), &job(), options);
        exchange(&folder, &elsewhere);
        (0..30).for_each(|index| recorder.step(step(0, index)));
        recorder.flush(&summary());
        let finished = recorder.finish(&summary());
        assert_eq!(names(&elsewhere), ["x.stall", "x.stall-shm", "x.stall-wal", "x.stall.copy"]);
        for name in names(&elsewhere) {
            assert_eq!(fs::read_to_string(elsewhere.join(&name)).unwrap(), "theirs", "{name}");
        }
        // It goes on where the folder is by now.
        let was = folder.with_extension("was").canonicalize().unwrap();
        assert_eq!(finished.path.unwrap(), was.join("x.stall"));
        assert_eq!((finished.losses, finished.notices), (vec![], vec![]));
        assert_eq!(names(&was), ["x.stall"]);
        assert_eq!(steps(&Recording::open(&was.join("x.stall")).unwrap()).len(), 30);
    }
}

#[test]
fn a_recorder_replaces_only_what_it_has_made() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("x.stall");
    let spooled = || Options { spool_always: true, ..options(directory.path()) };
    let mut recorder = Recorder::create(&target, &job(), spooled());
    recorder.step(step(0, 0));
    fs::remove_file(&target).unwrap();
    fs::write(&target, "theirs").unwrap();
    let finished = recorder.finish(&summary());
    assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
    assert!(finished.notices[0].contains("another file has come"), "{:?}", finished.notices);
    assert_eq!(steps(&Recording::open(&finished.path.unwrap()).unwrap()).len(), 1);

    // Where somebody has only removed what pointed to it, the recording comes there all the same.
    fs::remove_file(&target).unwrap();
    let recorder = Recorder::create(&target, &job(), spooled());
    fs::remove_file(&target).unwrap();
    assert_eq!(recorder.finish(&summary()).path.unwrap(), target.canonicalize().unwrap());
}

/// It leads to any folder of this user's.
#[test]
fn a_recorder_goes_by_no_link_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a_recorder_goes_by_no_link_of_another_user needs root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (own, link) = (directory.path().join("own"), directory.path().join("link"));
    fs::create_dir(&own).unwrap();
    symlink(&own, &link).unwrap();
    let record = || {
        let recorder = Recorder::create(&link.join("x.stall"), &job(), options(directory.path()));
        recorder.finish(&summary())
    };
    assert_eq!(record().path.unwrap(), own.canonicalize().unwrap().join("x.stall"), "one's own leads on");
    fs::remove_file(own.join("x.stall")).unwrap();
    std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
    let finished = record();
    assert!(finished.notices[0].contains("another user's link leads there"), "{:?}", finished.notices);
    assert_eq!(names(&own), [""; 0]);
    assert!(finished.path.unwrap().is_file());
}
