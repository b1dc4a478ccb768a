//! A full disk costs steps, which are counted, and nothing else.

#[path = "../../../tests/support/skipped.rs"]
mod skipped;

use crate::support::{checkpoint, detail, integrity, job, options, second, step, steps, summary};
use stallscope_store::{Options, Recorder, Recording, State};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A file system of one megabyte, unmounted when dropped.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path) -> Option<Small<'a>> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "stallscope-test"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            skipped::skipped("a small file system could not be mounted; run as root to test a full disk");
        }
        mounted.then_some(Small(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn losses_are_counted_and_writing_goes_on_when_there_is_space_again() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(mounted) = Small::mount(&disk) else { return };
    let limits = Options { waiting_steps: 500, ..options(directory.path()) };
    let mut recorder = Recorder::create(&disk.join("run.stall"), &job(), limits);
    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![0; 500 << 10]).unwrap();

    let mut index = 0;
    let mut write = |recorder: &mut Recorder, steps: u64| {
        for _ in 0..steps {
            recorder.step(step(0, index));
            index += 1;
            if index % 100 == 0 {
                recorder.flush(&summary());
            }
        }
    };
    write(&mut recorder, 20_000);
    let notices = recorder.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("full"), "{notices:?}");
    let lost = recorder.losses();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].reason, "recording: disk full");

    // It is readable while it is full.
    let reader = Recording::open(&disk.join("run.stall")).unwrap();
    assert_eq!(reader.state().unwrap(), State::Running);
    assert!(!steps(&reader).is_empty());
    drop(reader);

    (0..50).for_each(|nth| recorder.checkpoint(checkpoint(0, nth * 10, nth * 10 + 5)));
    recorder.step_detail(detail(0, 7, 0));
    (0..3).for_each(|_| recorder.worker_period(second(1, 0)));
    fs::remove_file(&ballast).unwrap();
    write(&mut recorder, 1000);
    let notices = recorder.take_notices();
    assert!(notices.len() == 1 && notices[0].contains("written again"), "{notices:?}");
    let finished = recorder.finish(&summary());
    let path = finished.path.unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.state().unwrap(), State::Finished);
    let written = steps(&recording).len() as u64;
    assert_eq!(written + finished.losses[0].count, 21_000, "seen = delivered + lost");
    assert_eq!(recording.losses().unwrap(), finished.losses);
    assert_eq!(recording.checkpoints().unwrap().len(), 50);
    assert_eq!(recording.step_details().unwrap(), [detail(0, 7, 0)]);
    assert_eq!(recording.worker_periods().unwrap()[0].load.batches, Some(6));
    drop(recording);
    assert_eq!(integrity(&path), "ok");
    drop(mounted);
}

#[test]
fn a_disk_that_is_full_from_the_start_is_replaced_by_the_spool() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(mounted) = Small::mount(&disk) else { return };
    let ballast = disk.join("ballast");
    let _ = fs::write(&ballast, vec![0; 2 << 20]);
    let target = disk.join("run.stall");
    let mut recorder = Recorder::create(&target, &job(), options(directory.path()));
    assert_eq!(recorder.take_notices().len(), 1);
    recorder.step(step(0, 0));
    fs::remove_file(&ballast).unwrap();
    let finished = recorder.finish(&summary());
    assert_eq!((finished.losses, finished.notices), (vec![], vec![]));
    assert_eq!(finished.path.unwrap(), target.canonicalize().unwrap());
    assert_eq!(steps(&Recording::open(&target).unwrap()).len(), 1);
    drop(mounted);
}

#[test]
fn a_disk_that_stays_full_still_gets_the_summary() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(mounted) = Small::mount(&disk) else { return };
    let mut recorder = Recorder::create(&disk.join("run.stall"), &job(), options(directory.path()));
    for rank in 0..5000 {
        recorder.step(step(rank, 0));
        recorder.step_detail(detail(rank, 0, 0));
        recorder.checkpoint(checkpoint(rank, 0, 9));
        recorder.worker_period(second(1, rank));
    }
    let finished = recorder.finish(&summary());
    let lost: Vec<_> = finished.losses.iter().map(|loss| (loss.reason.as_str(), loss.count)).collect();
    assert_eq!(lost, [("recording: disk full", 5000), ("recording: details not writable", 15_000)]);
    let recording = Recording::open(&finished.path.unwrap()).unwrap();
    assert_eq!(recording.state().unwrap(), State::Finished);
    assert_eq!(recording.losses().unwrap().len(), 2);
    drop(recording);
    drop(mounted);
}
