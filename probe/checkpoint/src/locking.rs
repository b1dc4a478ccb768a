//! One process at a time saves into a folder.
//!
//! The lock is a record lock (fcntl): the kernel takes it back when its process dies, however that happens, and a forked
//! loader worker does not inherit it. Such a lock does not keep two savers of one process apart: the process keeps a list
//! of its own for that. And it goes when any descriptor of its file is closed in the process, as by a job that copies the
//! folder: so it is taken again before each save, which fails where another process has taken the folder meanwhile. A job may
//! also close all descriptors but its own, as daemons do; by then the number of the lock's may be a file of its own.

use crate::arena::lock;
use crate::error::{Doing, Error, Result};
use crate::files::{self, open_plain, write_all};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::mem::forget;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "lock";
const PATIENCE: Duration = Duration::from_secs(2);
/// Low numbers belong to the job: some programs close or count on them.
const FIRST_FD: RawFd = 700;

/// The folders that this process saves into.
static HELD: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// The right to save into a folder, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    dir: PathBuf,
    /// None on a file system without locks: folders of checkpoints are made exclusively all the same.
    file: Mutex<Option<Held>>,
}

/// The lock's file, which is looked at before each use: the job may have closed it.
#[derive(Debug)]
struct Held {
    file: File,
    identity: (u64, u64),
}

impl Held {
    /// Of the folder that is open, and is called `dir` in messages.
    fn open(folder: &OwnedFd, dir: &Path) -> Result<Held> {
        let path = dir.join(NAME);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let low = rustix::fs::openat(folder, NAME, flags, Mode::from_raw_mode(0o666)).doing("open", &path)?;
        // Before it is locked: to close a descriptor of the file gives the lock back.
        let file: File = rustix::io::fcntl_dupfd_cloexec(&low, FIRST_FD).unwrap_or(low).into();
        let identity = identity(&file).doing("open", &path)?;
        Ok(Held { file, identity })
    }

    fn is_ours(&self) -> bool {
        identity(&self.file).is_ok_and(|found| found == self.identity)
    }

    /// What is not ours any more is not closed.
    fn close(self) {
        if !self.is_ours() {
            forget(self.file);
        }
    }
}

fn identity(file: &File) -> std::io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

impl Lock {
    /// For a job that starts: the one before may be dying still, or somebody be collecting.
    pub(crate) fn take_patiently(dir: &Path) -> Result<Lock> {
        let begun = Instant::now();
        loop {
            match Lock::take(dir) {
                Err(Error::Busy { .. }) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(20))
                }
                other => return other,
            }
        }
    }

    pub(crate) fn take(dir: &Path) -> Result<Lock> {
        // Whatever comes in the folder's place meanwhile, no file of that name elsewhere is made or cut.
        let folder = files::open_dir(dir).doing("open", dir)?;
        let dir = files::itself(&folder).canonicalize().doing("open", dir)?;
        let mut held = lock(&HELD);
        // What a parent holds, a forked child does not.
        let own = std::process::id();
        if held.iter().any(|(pid, other)| *pid == own && *other == dir) {
            return Err(Error::Busy { dir, holder: "this one".into() });
        }
        let opened = Held::open(&folder, &dir)?;
        let file = &opened.file;
        let locked = lock_record(file, &dir)?;
        // Another user who may write into the folder may have given a file of ours this name.
        let is_only_name = file.metadata().is_ok_and(|found| found.is_file() && found.nlink() == 1);
        if locked && is_only_name {
            // For the message to the process that comes second; no more than that depends on it.
            let _ = file.set_len(0).and_then(|()| write_all(file, format!("{own}\n").as_bytes(), 0));
        }
        held.push((own, dir.clone()));
        Ok(Lock { dir, file: Mutex::new(locked.then_some(opened)) })
    }

    /// Takes the lock again where this process lost it unawares.
    pub(crate) fn renew(&self) -> Result<()> {
        let mut held = lock(&self.file);
        let Some(before) = held.as_ref() else { return Ok(()) };
        if !before.is_ours() {
            let folder = files::open_dir(&self.dir).doing("open", &self.dir)?;
            let again = Held::open(&folder, &self.dir)?;
            if let Some(before) = held.replace(again) {
                before.close();
            }
        }
        held.as_ref().map_or(Ok(()), |held| lock_record(&held.file, &self.dir).map(|_| ()))
    }
}

/// Whether the file system has locks, and this process now has this file's.
fn lock_record(file: &File, dir: &Path) -> Result<bool> {
    match rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
            Err(Error::Busy { holder: holder(&dir.join(NAME)), dir: dir.to_owned() })
        }
        Err(_) => Ok(false),
    }
}

fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = open_plain(path, false).and_then(|file| file.take(20).read_to_string(&mut text));
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "elsewhere".into(),
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let own = std::process::id();
        lock(&HELD).retain(|(pid, dir)| *pid != own || *dir != self.dir);
        if let Some(held) = lock(&self.file).take() {
            held.close();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// Whether a process of its own finds the lock taken.
    fn is_taken(dir: &Path) -> bool {
        let file = File::options().read(true).write(true).open(dir.join(NAME)).expect("a lock file");
        let mut other = Command::new("true");
        // SAFETY: between fork and exec there is one system call.
        unsafe {
            other.pre_exec(move || {
                Ok(rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?)
            });
        }
        other.status().is_err()
    }

    #[test]
    fn a_file_that_has_another_name_is_not_written_into() {
        let dir = tempfile::tempdir().unwrap();
        let thesis = dir.path().join("thesis");
        std::fs::write(&thesis, "mine").unwrap();
        std::fs::hard_link(&thesis, dir.path().join(NAME)).unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        assert!(is_taken(dir.path()) && super::lock(&lock.file).is_some());
        assert_eq!(std::fs::read_to_string(&thesis).unwrap(), "mine");
    }

    /// Closes the lock's descriptor, as a job may that closes all of its own, and opens a file in its place.
    fn replaced(lock: &Lock, file: &File) -> File {
        let fd = super::lock(&lock.file).as_ref().expect("a file system with locks").file.as_raw_fd();
        // SAFETY: what is there is closed by that, and from here on it is this file's.
        let mut theirs = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::dup2(file, &mut theirs).expect("a descriptor");
        theirs.into()
    }

    #[test]
    fn a_file_that_the_job_opened_in_the_place_of_the_locks_is_not_closed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempfile().unwrap());
        let lock = Lock::take(dir.path()).unwrap();
        let theirs = replaced(&lock, &other);
        drop(lock);
        theirs.metadata().expect("a file that is still open");
    }

    #[test]
    fn a_lock_whose_descriptor_the_job_has_closed_is_taken_again() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempfile().unwrap());
        let lock = Lock::take(dir.path()).unwrap();
        let theirs = replaced(&lock, &other);
        lock.renew().unwrap();
        assert!(is_taken(dir.path()));
        drop(lock);
        theirs.metadata().expect("a file that is still open");
    }

    #[test]
    fn a_lock_that_reading_its_file_lost_is_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        lock.renew().unwrap();
        std::fs::copy(dir.path().join(NAME), dir.path().join("copy")).unwrap();
        lock.renew().unwrap();
        // Looking closes a descriptor here, and so loses the lock; what it saw was before.
        assert!(is_taken(dir.path()));
        assert!(!is_taken(dir.path()));
        lock.renew().unwrap();
        assert!(is_taken(dir.path()));
    }
}
