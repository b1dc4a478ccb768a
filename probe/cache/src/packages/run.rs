//! The folder of a run in the user's, and who has it: each process that opened the run holds its lock, shared, and so do those that are
//! forked from it. Who gets the lock alone knows that nobody has the run any more.

use crate::pool::Held;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use stallscope_folder::{Folder, NotOwn, ask_for, open_plain};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Of a run's folder, behind which its name comes in hexadecimal digits.
const RUN: &str = "stallscope-packages-";
const LOCK: &str = "lock";
pub(super) const PACKAGE: &str = ".package";
/// Of an empty file, whose name has the width of a package's range.
const WIDTH: &str = "width-";

/// How often a run is begun that another process removes all the while, or one removed that another still writes to.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A run as the process that opened it has it.
#[derive(Debug)]
pub(super) struct Own {
    /// The user's.
    folder: Held,
    name: String,
    lock: Held,
    pid: u32,
}

impl Own {
    /// Removes the run where nobody else has it.
    pub(super) fn close(&self, run: BorrowedFd<'_>) {
        let (Some(folder), Some(lock)) = (self.folder.checked(), self.lock.checked()) else { return };
        let is_own = self.pid == std::process::id();
        if is_own && ask_for(lock, FlockOperation::NonBlockingLockExclusive).is_ok_and(|alone| alone) {
            remove(folder, &self.name, run);
        }
    }
}

/// A descriptor in a process that may close it, as all that are not its own.
pub(super) fn held(fd: OwnedFd) -> io::Result<Held> {
    Held::new(fd).ok_or_else(|| Errno::BADF.into())
}

fn run_name(run: [u8; 16]) -> String {
    let digits: String = run.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{RUN}{digits}")
}

fn own_folder(path: &Path) -> io::Result<Folder> {
    Folder::own(path).map_err(|why| match why {
        NotOwn::Blocked(blocked) => blocked.into(),
        NotOwn::AnothersFolder => io::Error::other("it belongs to another user; name a folder of your own"),
        NotOwn::WritableByOthers => io::Error::other(
            "other users may write to it; take that from them (chmod go-w), or name a folder in it that is made then",
        ),
    })
}

/// The run's folder, opened to be listed.
pub(super) fn join(path: &Path, run: [u8; 16]) -> io::Result<OwnedFd> {
    Ok(folder_in(&own_folder(path)?, &run_name(run))?)
}

fn folder_in(folder: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Opens a run, and removes those that nobody has.
pub(super) fn open(path: &Path, run: [u8; 16]) -> io::Result<(OwnedFd, Own)> {
    let (folder, name) = (own_folder(path)?, run_name(run));
    for other in names(folder_in(&folder, ".")?)?.iter().filter(|other| other.starts_with(RUN)) {
        remove_abandoned(&folder, other);
    }
    for _ in 0..TRIES {
        match rustix::fs::mkdirat(&folder, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        match begun(&folder, &name) {
            Ok(Some((opened, lock))) => {
                let (folder, lock) = (held(folder.into())?, held(lock.into())?);
                return Ok((opened, Own { folder, name, lock, pid: std::process::id() }));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // Another process removes it.
            _ => std::thread::sleep(PAUSE),
        }
    }
    Err(io::Error::other("another process removes it all the while"))
}

/// `None` where another process is about to remove it.
fn begun(folder: &Folder, name: &str) -> io::Result<Option<(OwnedFd, File)>> {
    let run = folder_in(folder, name)?;
    let lock = open_plain(&run, LOCK, OFlags::RDONLY | OFlags::CREATE)?;
    let is_given = ask_for(&lock, FlockOperation::NonBlockingLockShared)?;
    Ok((is_given && lock.metadata()?.nlink() > 0).then_some((run, lock)))
}

/// Removes a run that no process has. One without a lock is being made, or all but gone.
fn remove_abandoned(folder: &Folder, name: &str) {
    let Ok(run) = folder_in(folder, name) else { return };
    match open_plain(&run, LOCK, OFlags::RDONLY) {
        Ok(lock) => {
            if ask_for(&lock, FlockOperation::NonBlockingLockExclusive).is_ok_and(|alone| alone) {
                remove(folder.as_fd(), name, run.as_fd());
                let _ = rustix::fs::flock(&lock, FlockOperation::Unlock);
            }
        }
        Err(_) => _ = rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR),
    }
}

/// Removes what is ours in a run's folder, its lock last, and then the folder. Who still writes finds no folder then.
fn remove(folder: BorrowedFd<'_>, name: &str, run: BorrowedFd<'_>) {
    for _ in 0..TRIES {
        let Ok(mut files) = again(run).and_then(names) else { return };
        files.retain(|file| file.starts_with(WIDTH) || file.ends_with(PACKAGE));
        for file in files.iter().map(String::as_str).chain([LOCK]) {
            let _ = rustix::fs::unlinkat(run, file, AtFlags::empty());
        }
        if rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) != Err(Errno::NOTEMPTY) {
            return;
        }
    }
}

/// The run's folder, locked for what only one process may do at a time.
#[derive(Debug)]
pub(super) struct Alone(OwnedFd);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// `None` where another process has it for longer than `patience`.
pub(super) fn locked(run: BorrowedFd<'_>, patience: Duration) -> io::Result<Option<Alone>> {
    // Opened anew each time, so that the lock keeps processes apart that were forked from each other.
    let (opened, end) = (again(run)?, Instant::now() + patience);
    while !ask_for(&opened, FlockOperation::NonBlockingLockExclusive)? {
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Some(Alone(opened)))
}

fn again(run: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(run, ".", flags, Mode::empty())?)
}

fn names(folder: OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::new(folder)? {
        names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(PACKAGE)?.parse().ok()
}

/// How many packages there are.
pub(super) fn count(alone: &Alone) -> io::Result<u64> {
    let names = names(again(alone.0.as_fd())?)?;
    Ok(names.iter().filter(|name| number_of(name).is_some()).count() as u64)
}

/// Removes the packages before `number`.
pub(super) fn remove_before(alone: &Alone, number: u64) -> io::Result<()> {
    for name in names(again(alone.0.as_fd())?)? {
        if number_of(&name).is_some_and(|one| one < number) {
            let _ = rustix::fs::unlinkat(&alone.0, name, AtFlags::empty());
        }
    }
    Ok(())
}

/// The width that the first process decided on, which is in a file's name: so it is there as a whole or not at all.
pub(super) fn settle(run: BorrowedFd<'_>, alone: &Alone, width: u64) -> io::Result<u64> {
    let names = names(again(alone.0.as_fd())?)?;
    let known =
        names.iter().find_map(|name| name.strip_prefix(WIDTH)?.parse().ok()).filter(|width| *width > 0);
    match known {
        Some(width) => Ok(width),
        None => open_plain(run, &format!("{WIDTH}{width}"), OFlags::WRONLY | OFlags::CREATE).map(|_| width),
    }
}
