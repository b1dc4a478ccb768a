//! A disk that fails, is full, loses what was not synced, or takes a few bytes at a time: older checkpoints stay, the next
//! save works, and nothing is called saved that is not.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../../../tests/support/skipped.rs"]
mod skipped;
mod support;

use stallscope_checkpoint::{Disk, Files, Folder, Out, Saver, State, Store};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use support::{Fault, Faulty, Job, MIB, fast_dir, idle, newest, one};

const SIZES: [usize; 3] = [6 * MIB, 5, 3 * MIB];

fn at_step(step: u64) -> Job {
    let mut job = Job::new(&SIZES);
    job.train(2, step);
    job
}

/// Fails the n-th operation from now on, once.
fn failing_nth(countdown: &Arc<AtomicU64>, kind: io::ErrorKind) -> Arc<dyn Files> {
    let countdown = countdown.clone();
    let fail = move |_: &'static str, _: &Path| {
        let before = countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if before == Ok(1) { Fault::Error(kind) } else { Fault::None }
    };
    Arc::new(Faulty { under: Arc::new(Disk), fail: Arc::new(fail) })
}

#[test]
fn whichever_operation_fails_older_checkpoints_stay_and_the_next_save_works() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::PermissionDenied] {
        let mut failures = 0;
        for nth in 1.. {
            let dir = fast_dir();
            let countdown = Arc::new(AtomicU64::new(0));
            let saver = Saver::open_with(dir.path(), one(2), failing_nth(&countdown, kind)).unwrap();
            let plan = at_step(0).plan_with_still(&[0]);
            at_step(1).save_by(&saver, &plan, 1).unwrap();
            at_step(2).save_by(&saver, &plan, 2).unwrap();
            idle(&saver);
            countdown.store(nth, Ordering::SeqCst);
            let result = at_step(3).save_by(&saver, &plan, 3);
            idle(&saver);
            let reached = countdown.swap(0, Ordering::SeqCst) == 0;
            failures += u64::from(result.is_err());
            let found = newest(dir.path());
            assert!(found.passed.is_empty(), "operation {nth}: {:?}", found.passed);
            let checkpoint = found.checkpoint.unwrap();
            assert_eq!(checkpoint.manifest.step, if result.is_ok() { 3 } else { 2 }, "operation {nth}");
            assert!(at_step(checkpoint.manifest.step).is_in(&checkpoint));
            at_step(4).save_by(&saver, &plan, 4).unwrap();
            idle(&saver);
            assert!(at_step(4).is_in(&newest(dir.path()).checkpoint.unwrap()));
            if !reached {
                break;
            }
        }
        assert!(failures > 8, "only {failures} operations of a save can fail");
    }
}

/// A sync of a folder waits for all removals before it: one after each of 20,000 kept a job from its start, and `ckpt gc`, for
/// minutes.
#[test]
fn remains_of_saves_are_synced_before_any_is_removed() {
    let dir = fast_dir();
    for step in 1..=5 {
        let remains = dir.path().join(format!("step-{step:09}"));
        std::fs::create_dir(&remains).unwrap();
        std::fs::write(remains.join("rank-0.json.tmp"), "").unwrap();
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let note = move |operation: &'static str, path: &Path| {
        if path.to_string_lossy().contains("/step-") {
            noted.lock().unwrap().push(operation);
        }
        Fault::None
    };
    let files = Arc::new(Faulty { under: Arc::new(Disk), fail: Arc::new(note) });
    let saver = Saver::open_with(dir.path(), one(2), files).unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(Store::open(dir.path()).list().unwrap().is_empty());
    let synced = seen.iter().take_while(|operation| **operation == "sync_dir").count();
    assert!(synced == 5 && !seen[synced..].contains(&"sync_dir"), "{seen:?}");
    drop(saver);
}

#[test]
fn writes_that_take_a_few_bytes_at_a_time_are_finished() {
    let dir = tempfile::tempdir().unwrap();
    let fail = |operation: &'static str, _: &Path| match operation {
        "write" => Fault::Short(99_999),
        _ => Fault::None,
    };
    let files = Arc::new(Faulty { under: Arc::new(Disk), fail: Arc::new(fail) });
    let saver = Saver::open_with(dir.path(), one(2), files).unwrap();
    at_step(1).save(&saver, 1).unwrap();
    assert!(at_step(1).is_in(&newest(dir.path()).checkpoint.unwrap()));
}

#[test]
fn space_that_a_full_disk_refuses_is_given_back_and_the_save_goes_on_without() {
    let dir = tempfile::tempdir().unwrap();
    let given_back = Arc::new(AtomicU64::new(0));
    let counted = given_back.clone();
    let fail = move |operation: &'static str, _: &Path| match operation {
        "reserve" => Fault::Error(io::ErrorKind::StorageFull),
        "release" => {
            counted.fetch_add(1, Ordering::SeqCst);
            Fault::None
        }
        _ => Fault::None,
    };
    let files = Arc::new(Faulty { under: Arc::new(Disk), fail: Arc::new(fail) });
    let saver = Saver::open_with(dir.path(), one(2), files).unwrap();
    at_step(1).save(&saver, 1).unwrap();
    assert_eq!(given_back.load(Ordering::SeqCst), 1, "once for the one file, which asks no more");
    assert!(at_step(1).is_in(&newest(dir.path()).checkpoint.unwrap()));
}

#[test]
fn where_files_cannot_be_linked_everything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let fail = |operation: &'static str, _: &Path| match operation {
        "link" => Fault::Error(io::ErrorKind::Unsupported),
        _ => Fault::None,
    };
    let files = Arc::new(Faulty { under: Arc::new(Disk), fail: Arc::new(fail) });
    let saver = Saver::open_with(dir.path(), one(1), files).unwrap();
    for step in 1..=3 {
        let saved = at_step(step).save_by(&saver, &at_step(0).plan_with_still(&[0]), step).unwrap();
        assert_eq!((saved.reused_bytes, saved.written_bytes), (0, saved.image_bytes));
    }
    assert!(at_step(3).is_in(&newest(dir.path()).checkpoint.unwrap()));
}

#[test]
fn bytes_that_turn_bad_on_their_way_to_disk_are_found_when_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::open(dir.path(), one(1)).unwrap();
    at_step(1).save(&saver, 1).unwrap();
    idle(&saver);
    let mut job = at_step(2);
    job.train_all(2);
    job.begin(&saver, &job.plan(), 2);
    let shard = dir.path().join("step-000000002/shard-0.safetensors");
    let manifest = dir.path().join("step-000000002/manifest.json");
    while !manifest.exists() {
        std::thread::yield_now();
    }
    std::fs::write(&shard, b"not what was saved").unwrap();
    idle(&saver);
    let outcomes = saver.outcomes();
    let found = newest(dir.path());
    match outcomes.iter().find_map(|outcome| outcome.result.as_ref().err()) {
        Some(error) => {
            assert!(error.is_damage(), "{error}");
            assert!(found.passed.is_empty(), "it was set aside already");
            assert_eq!(std::fs::read_to_string(dir.path().join("latest")).unwrap(), "step-000000001\n");
        }
        // It was read back before it was spoilt.
        None => assert_eq!(found.passed.len(), 1),
    }
    assert_eq!(found.checkpoint.unwrap().manifest.step, 1);
    assert!(dir.path().join("quarantine/step-000000002/reason.txt").exists());
}

#[test]
fn a_full_disk_fails_the_save_and_leaves_space_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if let Err(error) = rustix::mount::mount("none", dir.path(), "tmpfs", flags, Some(c"size=24m")) {
        skipped::skipped(format_args!("a full disk needs root for a small tmpfs: {error}"));
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let saver = Saver::open(dir.path(), one(1)).unwrap();
        at_step(1).save(&saver, 1).unwrap();
        idle(&saver);
        std::fs::write(dir.path().join("other"), vec![0; 10 * MIB]).unwrap();
        let error = at_step(2).save(&saver, 2).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        idle(&saver);
        assert_eq!(Store::open(dir.path()).list().unwrap().len(), 1);
        assert!(at_step(1).is_in(&newest(dir.path()).checkpoint.unwrap()));
        std::fs::remove_file(dir.path().join("other")).unwrap();
        at_step(3).save(&saver, 3).unwrap();
        idle(&saver);
        assert!(at_step(3).is_in(&newest(dir.path()).checkpoint.unwrap()));
    });
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

#[test]
fn a_state_that_just_fits_is_saved_though_space_was_made_for_chunks_that_went_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if let Err(error) = rustix::mount::mount("none", dir.path(), "tmpfs", flags, Some(c"size=33m")) {
        skipped::skipped(format_args!("a full disk needs root for a small tmpfs: {error}"));
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        // With the header before them, the first tensor is one chunk and the second is three.
        let mut job = Job::new(&[4 * MIB - 4096, 12 * MIB]);
        let (second, space_is_made) = (AtomicBool::new(false), AtomicBool::new(false));
        let fail = move |operation: &'static str, path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match operation {
                "create_dir" => second.store(name.contains("000002"), Ordering::SeqCst),
                // The changed chunk makes space for those after it, which did not change: they wait for that.
                "write" if name.starts_with("shard-") && second.load(Ordering::SeqCst) => {
                    space_is_made.store(true, Ordering::SeqCst);
                }
                "create" if name.starts_with("still-") => {
                    while !space_is_made.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                }
                _ => {}
            }
            Fault::None
        };
        let files = Arc::new(Faulty { under: Arc::new(Disk), fail: Arc::new(fail) });
        let saver = Saver::open_with(dir.path(), one(2), files).unwrap();
        job.save(&saver, 1).unwrap();
        idle(&saver);
        job.train(0, 2);
        let saved = job.save(&saver, 2).unwrap();
        assert_eq!(saved.written_bytes, 16 * MIB as u64, "nothing could be linked, so all of it had to fit");
        idle(&saver);
        assert!(dir.path().join("step-000000002/still-0.chunks").exists());
        assert!(job.is_in(&newest(dir.path()).checkpoint.unwrap()));
    });
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

/// What was done, in order; enough to undo it.
#[derive(Clone, Debug)]
enum Done {
    Write(PathBuf),
    Sync(PathBuf),
    /// A name that was not there before.
    Name(PathBuf),
    Rename {
        from: PathBuf,
        to: PathBuf,
        replaced: Option<PathBuf>,
    },
    Remove {
        path: PathBuf,
        kept: PathBuf,
    },
    SyncDir(PathBuf),
}

/// A disk that loses power at the n-th operation, and with it what was not synced.
#[derive(Debug)]
struct Power {
    left: AtomicU64,
    log: Arc<Mutex<Vec<Done>>>,
    /// Where it keeps what was replaced or removed.
    attic: PathBuf,
}

impl Power {
    fn on(&self) -> io::Result<()> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| io::Error::other("the power is off"))
    }

    fn did(&self, done: Done) {
        self.log.lock().unwrap().push(done);
    }

    fn keep(&self, path: &Path) -> Option<PathBuf> {
        let kept = self.attic.join(self.log.lock().unwrap().len().to_string());
        std::fs::hard_link(path, &kept).ok().map(|()| kept)
    }
}

impl Files for Power {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.on()?;
        self.did(Done::Name(path.into()));
        Disk.create_dir(path)
    }
    fn create(&self, path: &Path, direct: bool) -> io::Result<Box<dyn Out>> {
        self.on()?;
        self.did(Done::Name(path.into()));
        let out = Disk.create(path, direct)?;
        Ok(Box::new(PoweredOut {
            out,
            path: path.into(),
            left: self.left.load(Ordering::SeqCst).into(),
            log: self.log.clone(),
        }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.on()?;
        let replaced = self.keep(to);
        self.did(Done::Rename { from: from.into(), to: to.into(), replaced });
        Disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.on()?;
        self.did(Done::Name(to.into()));
        Disk.link(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.on()?;
        self.did(Done::SyncDir(path.into()));
        Ok(())
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.on()?;
        if let Some(kept) = self.keep(path) {
            self.did(Done::Remove { path: path.into(), kept });
        }
        Disk.remove_file(path)
    }
    fn remove_in(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        self.on()?;
        let path = folder.path().join(name);
        if let Some(kept) = self.keep(&path) {
            self.did(Done::Remove { path, kept });
        }
        Disk.remove_in(folder, name)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.on()?;
        Disk.remove_dir(path)
    }
}

/// Writes and syncs of a file are not counted as operations, their order alone is kept.
#[derive(Debug)]
struct PoweredOut {
    out: Box<dyn Out>,
    path: PathBuf,
    left: AtomicU64,
    log: Arc<Mutex<Vec<Done>>>,
}

impl Out for PoweredOut {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.log.lock().unwrap().push(Done::Write(self.path.clone()));
        self.out.write_at(bytes, offset)
    }
    fn direct(&self) -> bool {
        self.out.direct()
    }
    fn go_buffered(&self) -> io::Result<()> {
        self.out.go_buffered()
    }
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.out.reserve(offset, bytes)
    }
    fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.out.release(offset, bytes)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.out.set_len(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        // Nothing was left when it was made: then this one never reached the disk.
        if self.left.load(Ordering::SeqCst) > 0 {
            self.log.lock().unwrap().push(Done::Sync(self.path.clone()));
        }
        self.out.sync()
    }
}

/// Undoes what was not synced, or as much of it as `loses` says.
fn lose(log: &[Done], mut loses: impl FnMut() -> bool) {
    let mut synced_dirs: HashMap<PathBuf, usize> = HashMap::new();
    let mut synced_files: HashMap<PathBuf, usize> = HashMap::new();
    for (at, done) in log.iter().enumerate() {
        match done {
            Done::SyncDir(dir) => drop(synced_dirs.insert(dir.clone(), at)),
            Done::Sync(path) => drop(synced_files.insert(path.clone(), at)),
            _ => {}
        }
    }
    let durable =
        |at: usize, path: &Path| synced_dirs.get(path.parent().unwrap()).is_some_and(|sync| *sync > at);
    // Bytes first, while files still have their last names; a renamed file is found by either.
    for (at, done) in log.iter().enumerate() {
        let Done::Write(path) = done else { continue };
        let lost = synced_files.get(path).is_none_or(|sync| *sync < at);
        if lost && loses() {
            let renamed = log.iter().find_map(|done| match done {
                Done::Rename { from, to, .. } if from == path => Some(to.clone()),
                _ => None,
            });
            for path in [Some(path.clone()), renamed].into_iter().flatten() {
                let _ = std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
            }
        }
    }
    for (at, done) in log.iter().enumerate().rev() {
        match done {
            Done::Name(path) if !durable(at, path) && loses() => {
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_dir_all(path);
            }
            Done::Rename { from, to, replaced } if !durable(at, to) && loses() => {
                let _ = std::fs::rename(to, from);
                if let Some(replaced) = replaced {
                    let _ = std::fs::hard_link(replaced, to);
                }
            }
            Done::Remove { path, kept } if !durable(at, path) && loses() => {
                let _ = std::fs::hard_link(kept, path);
            }
            _ => {}
        }
    }
}

#[test]
fn a_power_cut_at_any_moment_takes_nothing_that_was_called_saved() {
    let mut cuts = 0;
    for nth in 0.. {
        let mut reached = false;
        for adversary in 0..4_u64 {
            let dir = fast_dir();
            let (root, attic) = (dir.path().join("ckpts"), dir.path().join("attic"));
            std::fs::create_dir(&attic).unwrap();
            let plan = at_step(0).plan_with_still(&[0]);
            {
                let saver = Saver::open(&root, one(1)).unwrap();
                at_step(1).save_by(&saver, &plan, 1).unwrap();
                idle(&saver);
            }
            let log = Arc::new(Mutex::new(Vec::new()));
            let power = Arc::new(Power { left: nth.into(), log: log.clone(), attic });
            let saver = Saver::open_with(&root, one(1), power.clone()).unwrap();
            let result = at_step(2).save_by(&saver, &plan, 2);
            idle(&saver);
            drop(saver);
            reached |= power.left.load(Ordering::SeqCst) == 0;
            let mut state = nth * 4 + adversary + 1;
            lose(&log.lock().unwrap(), || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // The first loses all that can be lost, the others some.
                adversary == 0 || state >> 63 == 0
            });
            let found = newest(&root);
            let checkpoint =
                found.checkpoint.unwrap_or_else(|| panic!("cut {nth}, {adversary}: nothing is left"));
            let step = checkpoint.manifest.step;
            assert!(result.is_err() || step == 2, "cut {nth}, {adversary}: 2 was called saved");
            assert!(at_step(step).is_in(&checkpoint), "cut {nth}, {adversary}: step {step} is torn");
            let list = Store::open(&root).list().unwrap();
            assert!(list.iter().any(|entry| entry.state == State::Verified));
            cuts += 1;
        }
        if !reached {
            break;
        }
    }
    assert!(cuts > 40, "only {cuts} cuts");
}
