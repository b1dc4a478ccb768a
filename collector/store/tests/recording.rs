//! What is written can be read: afterwards, meanwhile, from elsewhere.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{integrity, job, options, step, steps, summary};
use stallscope_model::{
    Cause, Diagnosis, HostFacts, LoaderFacts, Loss, Phase, RankFacts, RankSummary, RunSummary,
};
use stallscope_store::{ClockAnchor, Error, Options, Recorder, Recording, RollupPeriod, State, StepFilter};
use std::fs;
use std::path::Path;

fn full_summary() -> RunSummary {
    RunSummary {
        host: HostFacts { host: "node1".into(), gpus: vec!["H200".into()], ..HostFacts::default() },
        ranks: vec![RankSummary {
            facts: RankFacts { rank: 1, loaders: vec![LoaderFacts::default()], ..RankFacts::default() },
            phases: Vec::new(),
            workers: Vec::new(),
            checkpoints: Default::default(),
        }],
        losses: vec![Loss { reason: "kernel ring full".into(), count: 3 }],
        diagnoses: vec![Diagnosis {
            name: "small-files".into(),
            finding: "f".into(),
            evidence: "e".into(),
            advice: "a".into(),
            cause: Some(Cause::Fetch),
            share: 0.25,
            ..Diagnosis::default()
        }],
        ..summary()
    }
}

#[test]
fn everything_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
    for index in 0..10_000 {
        recorder.step(step(0, index));
        recorder.step(step(1, index));
        if index % 1000 == 0 {
            recorder.flush(&summary());
        }
    }
    for second in 0..100 {
        let ns = second * 1_000_000_000;
        recorder.anchor(ClockAnchor { monotonic_ns: ns, boottime_ns: ns + 1, wall_ns: ns + 2 });
    }
    let finished = recorder.finish(&full_summary());
    assert_eq!(finished.path.as_deref(), Some(target.canonicalize().unwrap().as_path()));
    assert_eq!((finished.notices, finished.losses), (vec![], vec![]));
    assert_eq!(names(directory.path()), ["run.stall", "spool"]);
    assert_eq!(names(&directory.path().join("spool")), [""; 0]);

    let recording = Recording::open(&target).unwrap();
    assert_eq!(recording.state().unwrap(), State::Finished);
    assert_eq!(recording.summary().unwrap(), full_summary());
    let rows = steps(&recording);
    assert_eq!(rows.len(), 20_000);
    assert!(rows.iter().all(|row| row.merged == 1 && row.step == step(row.step.rank, row.step.index)));
    assert_eq!(recording.anchors().unwrap().len(), 10);

    let filter = StepFilter {
        rank: Some(1),
        loader: Some(0),
        phase: Some(Phase::Training),
        after_ns: Some(step(1, 100).start_ns),
        before_ns: Some(step(1, 102).end_ns),
    };
    let chosen: Vec<u64> = recording.steps(&filter).unwrap().map(|row| row.unwrap().step.index).collect();
    assert_eq!(chosen, [100, 101, 102]);
    drop(recording);
    assert_eq!(integrity(&target), "ok");
}

#[test]
fn rollups_add_up_to_the_steps() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
    for index in 0..5000 {
        recorder.step(step(0, index));
        if index % 7 == 0 {
            recorder.flush(&summary());
        }
    }
    let path = recorder.finish(&summary()).path.unwrap();
    let recording = Recording::open(&path).unwrap();
    let wall_ns: u64 = steps(&recording).iter().map(|row| row.step.causes.total_ns()).sum();
    for (period, rows) in [(RollupPeriod::TenSeconds, 51), (RollupPeriod::Minute, 10)] {
        let rollups = recording.rollups(period).unwrap();
        assert_eq!(rollups.len(), rows, "{period:?}");
        assert_eq!(rollups.iter().map(|rollup| rollup.steps).sum::<u64>(), 5000);
        assert_eq!(rollups.iter().map(|rollup| rollup.samples).sum::<u64>(), 5000 * 32);
        assert_eq!(rollups.iter().map(|rollup| rollup.causes.total_ns()).sum::<u64>(), wall_ns);
        assert!(rollups.iter().all(|rollup| rollup.start_ns % period.ns() == 0));
        assert!(rollups.iter().all(|rollup| rollup.step_p50_ns == 100_000_000));
    }
}

#[test]
fn a_recording_is_readable_while_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
    let live = recorder.path().unwrap().to_path_buf();
    assert_eq!(live, target.canonicalize().unwrap());
    let reader = Recording::open(&target).unwrap();
    assert_eq!(reader.state().unwrap(), State::Running);
    assert_eq!(reader.summary().unwrap(), summary());
    for index in 0..3 {
        recorder.step(step(0, index));
        recorder.flush(&summary());
        assert_eq!(steps(&reader).len() as u64, index + 1);
    }
    // One that is in the middle of reading keeps its state, and the writer goes on.
    let mut iterator = reader.steps(&StepFilter::default()).unwrap();
    assert_eq!(iterator.next().unwrap().unwrap().step.index, 0);
    recorder.step(step(0, 3));
    recorder.flush(&summary());
    assert_eq!(iterator.count(), 2);
    assert_eq!(steps(&reader).len(), 4);
    // With the reader still there the log cannot go; the next one to open it folds it in.
    let finished = recorder.finish(&summary());
    assert_eq!(finished.notices, [""; 0]);
    assert_eq!(reader.state().unwrap(), State::Finished);
    drop(reader);
    assert_eq!(steps(&Recording::open(&target).unwrap()).len(), 4);
    assert_eq!(names(directory.path()), ["run.stall", "spool"]);
}

#[test]
fn no_recording_is_ever_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    fs::write(&target, "mine").unwrap();
    let recorders: Vec<Recorder> = std::thread::scope(|scope| {
        let begun: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Recorder::create(&target, &job(), options(directory.path()))))
            .collect();
        begun.into_iter().map(|recorder| recorder.join().unwrap()).collect()
    });
    let mut paths: Vec<_> = recorders
        .into_iter()
        .enumerate()
        .map(|(rank, mut recorder)| {
            recorder.step(step(rank as u32, 0));
            let path = recorder.finish(&summary()).path.unwrap();
            assert_eq!(steps(&Recording::open(&path).unwrap())[0].step.rank, rank as u32);
            path
        })
        .collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 8);
    assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
    assert!(directory.path().join("run.9.stall").exists());
}

#[test]
fn a_target_on_a_network_file_system_gets_one_plain_file() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    let options = Options { spool_always: true, ..options(directory.path()) };
    let mut recorder = Recorder::create(&target, &job(), options.clone());
    let other = Recorder::create(&target, &job(), options);
    recorder.step(step(0, 0));
    recorder.flush(&summary());
    assert!(recorder.path().unwrap().starts_with(directory.path().canonicalize().unwrap().join("spool")));

    // The name at the target leads to where it is written.
    let live = Recording::open(&target).unwrap();
    assert_eq!((live.state().unwrap(), steps(&live).len()), (State::Running, 1));
    assert_eq!(Some(live.path()), recorder.path());

    // A reader that stays does not keep it from its place.
    let finished = recorder.finish(&summary());
    assert_eq!(finished.notices, [""; 0]);
    assert_eq!(steps(&Recording::open(&target).unwrap()).len(), 1);
    drop(live);
    let second = other.finish(&summary()).path.unwrap();
    assert_eq!(second.file_name().unwrap(), "run.2.stall");
    assert_eq!(names(directory.path()), ["run.2.stall", "run.stall", "spool"]);
    assert_eq!(names(&directory.path().join("spool")), [""; 0]);
    assert_eq!((integrity(&target).as_str(), integrity(&second).as_str()), ("ok", "ok"));
}

#[test]
fn a_pointer_to_another_host_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    let options = Options { spool_always: true, ..options(directory.path()) };
    let recorder = Recorder::create(&target, &job(), options);
    let pointer = fs::read_to_string(&target).unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    fs::write(&target, pointer.replace(&format!("host={host}"), "host=elsewhere.example")).unwrap();
    let error = Recording::open(&target).unwrap_err();
    assert!(matches!(&error, Error::Elsewhere { host, .. } if host == "elsewhere.example"), "{error}");
    drop(recorder);
}

#[test]
fn a_target_that_cannot_be_written_is_replaced_by_the_spool() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("absent").join("run.stall");
    let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
    let notices = recorder.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("absent/run.stall cannot be written"), "{notices:?}");
    recorder.step(step(0, 0));
    let finished = recorder.finish(&summary());
    assert_eq!(finished.losses, []);
    assert!(finished.notices[0].contains("it is at"), "{:?}", finished.notices);
    assert_eq!(steps(&Recording::open(&finished.path.unwrap()).unwrap()).len(), 1);
}

#[test]
fn without_any_place_steps_are_counted_as_lost() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let nowhere = Options { spool: Some(file.join("spool")), waiting_steps: 10, ..Options::default() };
    let mut recorder = Recorder::create(&file.join("run.stall"), &job(), nowhere);
    for index in 0..100 {
        recorder.step(step(0, index));
        recorder.flush(&summary());
    }
    assert_eq!(recorder.path(), None);
    assert_eq!(recorder.take_notices().len(), 1);
    let finished = recorder.finish(&summary());
    assert_eq!(finished.path, None);
    assert_eq!(finished.losses, [Loss { reason: "recording: not writable".into(), count: 100 }]);
}

#[test]
fn live_recordings_are_found_from_anywhere() {
    // The only test that uses the real spool, since that is where they are announced.
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("found.stall");
    let recorder = Recorder::create(&target, &job(), Options::default());
    let path = recorder.path().unwrap().to_path_buf();
    assert!(stallscope_store::live_recordings().contains(&path));
    recorder.finish(&summary());
    assert!(!stallscope_store::live_recordings().contains(&path));
    let folder = directory.path().canonicalize().unwrap();
    assert_eq!(stallscope_store::recordings_in(&folder).unwrap(), std::slice::from_ref(&path));
    // Where a link leads is found when it is read: there may be nothing, or what does not answer.
    std::os::unix::fs::symlink("/missing", folder.join("link.stall")).unwrap();
    fs::create_dir(folder.join("folder.stall")).unwrap();
    assert_eq!(stallscope_store::recordings_in(&folder).unwrap(), [path, folder.join("link.stall")]);
}

#[test]
fn of_more_recordings_than_are_asked_for_the_users_own_come_first_and_the_rest_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["a.stall", "b.stall", "c.stall", "d.stall", "other"] {
        fs::write(path(name), "").unwrap();
    }
    let some = |most| {
        let found = stallscope_store::some_recordings_in(directory.path(), most).unwrap();
        let names = found.paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        (names.collect::<Vec<_>>().join(" "), found.more)
    };
    assert_eq!(some(4), ("a.stall b.stall c.stall d.stall".to_owned(), 0));
    assert_eq!(some(2), ("a.stall b.stall".to_owned(), 2));
    assert_eq!(some(0), (String::new(), 4));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path("a.stall"), Some(65_534), None).unwrap();
        assert_eq!(some(2), ("b.stall c.stall".to_owned(), 2));
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_recording_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("run.stall");
    let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
    recorder.step(step(0, 1));
    recorder.flush(&summary());
    let modes = || -> Vec<u32> {
        let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap());
        let plain = files.filter(|entry| entry.file_type().unwrap().is_file());
        plain.map(|entry| entry.metadata().unwrap().permissions().mode() & 0o777).collect()
    };
    let meanwhile = modes();
    assert!(meanwhile.len() > 1 && meanwhile.iter().all(|mode| *mode == 0o600), "{meanwhile:?}");
    recorder.finish(&summary());
    assert_eq!(modes(), [0o600]);
}
