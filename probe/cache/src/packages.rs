//! iCACHE's L-cache, live and corrected: samples of low importance that had to be read, kept together on a disk in the order of
//! their next draws, so that one read brings all that are drawn next to each other.
//!
//! A package has a number, that of its range of places among the draws: who reads a sample knows the place of its next draw,
//! and so which package it belongs to, and who draws there knows which one to read. So nobody keeps a list, packages need
//! not be put in order, and processes share them by names and locks. Nothing that is read from the folder is trusted: what is
//! cut, damaged or another's costs a read of the source.
//!
//! They are a run's: the folder of a run goes with the last process that has it open, and what killed ones left goes as the
//! next run begins. Nothing is synced.

mod record;
mod run;

use crate::pool::Held;
pub use record::Record;
use record::{HEADER_BYTES, header, records};
use run::{Own, count, held, locked, remove_before};
use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use stallscope_folder::{ask_for, open_plain};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For another process that writes to the same package, or reads it.
const PATIENCE: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Of a file system, what stays free where no limit is given: one in so many bytes.
const FREE_PART: u64 = 10;
/// After there was no space for another package, as all are counted for each.
const PAUSE: Duration = Duration::from_secs(1);

/// Which packages: where, of which run, and how large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The user's folder, in which each run has one of its own.
    pub folder: PathBuf,
    /// Tells the runs apart that must not share packages: other data, another version of it, other draws.
    pub run: [u8; 16],
    /// None is larger.
    pub package_bytes: u64,
    /// Of all packages of the run; without, as much as leaves a tenth of the file system free.
    pub limit: Option<u64>,
}

/// The packages of a run, for all threads of a process and those forked from it.
#[derive(Debug)]
pub struct Packages {
    settings: Settings,
    folder: Held,
    /// Of the process that opened the run, which removes it.
    own: Option<Own>,
    begun: Instant,
    /// Milliseconds since `begun`: until then no package is begun.
    full_until: AtomicU64,
}

/// A package that was read.
#[derive(Debug)]
pub struct Package {
    bytes: Vec<u8>,
    run: [u8; 16],
    number: u64,
}

impl Package {
    /// All of it, as it was read.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The samples in it that are whole.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        records(&self.bytes, self.run, self.number)
    }
}

impl Packages {
    /// Opens the run, which is made where it is not there, and removes what killed processes have left in the folder.
    ///
    /// # Errors
    /// The folder cannot be had, or others than this user may write to it; a sentence says why.
    pub fn open(settings: Settings) -> io::Result<Packages> {
        let (folder, own) = run::open(&settings.folder, settings.run)?;
        Packages::of(settings, folder, Some(own))
    }

    /// The run that another process has open, in one that was not forked from it.
    ///
    /// # Errors
    /// It is not there any more.
    pub fn join(settings: Settings) -> io::Result<Packages> {
        let folder = run::join(&settings.folder, settings.run)?;
        Packages::of(settings, folder, None)
    }

    fn of(settings: Settings, folder: OwnedFd, own: Option<Own>) -> io::Result<Packages> {
        let folder = held(folder)?;
        Ok(Packages { settings, folder, own, begun: Instant::now(), full_until: AtomicU64::new(0) })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn folder(&self) -> io::Result<BorrowedFd<'_>> {
        self.folder.checked().ok_or_else(|| Errno::BADF.into())
    }

    /// Adds a sample to the package of this number, and says how many bytes were written: none where there is no space in it, or
    /// for it.
    ///
    /// # Errors
    /// The disk fails or is full, or the folder is gone. The package has what it had before.
    pub fn add(&self, number: u64, id: u32, tag: u64, bytes: &[u8]) -> io::Result<u64> {
        let folder = self.folder()?;
        let head = record::head(id, tag, bytes);
        let size = (head.len() + bytes.len()) as u64;
        if HEADER_BYTES as u64 + size > self.settings.package_bytes {
            return Ok(0);
        }
        let name = file_name(number);
        // It may be taken between its opening and its locking.
        for _ in 0..2 {
            let flags = OFlags::RDWR | OFlags::APPEND;
            let file = match open_plain(folder, &name, flags) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let Some(file) = self.create(folder, &name)? else { return Ok(0) };
                    file
                }
                opened => opened?,
            };
            let Some(mut file) = Locked::wait(file)? else { return Ok(0) };
            let facts = file.0.metadata()?;
            if facts.nlink() == 0 {
                continue;
            }
            let end = facts.len();
            let first = header(self.settings.run, number);
            let first: &[u8] = if end == 0 { &first } else { &[] };
            let size = first.len() as u64 + size;
            if end + size > self.settings.package_bytes {
                return Ok(0);
            }
            if let Err(error) = write_all(&mut file.0, &mut [first, &head, bytes].map(IoSlice::new)) {
                // What is cut would hide what comes behind it.
                let _ = file.0.set_len(end);
                return Err(error);
            }
            return Ok(size);
        }
        Ok(0)
    }

    /// A new package, where it is within the limit.
    fn create(&self, folder: BorrowedFd<'_>, name: &str) -> io::Result<Option<File>> {
        let now = self.begun.elapsed();
        if (now.as_millis() as u64) < self.full_until.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(alone) = locked(folder, PATIENCE)? else { return Ok(None) };
        let each = self.settings.package_bytes;
        let fits = match self.settings.limit {
            Some(limit) => count(&alone)?.saturating_add(1).saturating_mul(each) <= limit,
            None => {
                let facts = rustix::fs::fstatvfs(folder)?;
                let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
                bytes(facts.f_bavail).saturating_sub(each) >= bytes(facts.f_blocks) / FREE_PART
            }
        };
        if !fits {
            self.full_until.store((now + PAUSE).as_millis() as u64, Ordering::Relaxed);
            return Ok(None);
        }
        open_plain(folder, name, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE).map(Some)
    }

    /// Reads a package as a whole and removes it: `None` where there is none, or another process has it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn take(&self, number: u64) -> io::Result<Option<Package>> {
        let (folder, name) = (self.folder()?, file_name(number));
        let file = match open_plain(folder, &name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let Some(file) = Locked::wait(file)? else { return Ok(None) };
        let facts = file.0.metadata()?;
        if facts.nlink() == 0 {
            return Ok(None);
        }
        match rustix::fs::unlinkat(folder, &name, AtFlags::empty()) {
            // Who writes to it next makes another one.
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let length = facts.len();
        if length > self.settings.package_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a package is larger than any of this run",
            ));
        }
        let mut bytes = vec![0; length as usize];
        file.0.read_exact_at(&mut bytes, 0)?;
        Ok(Some(Package { bytes, run: self.settings.run, number }))
    }

    /// Removes the packages of ranges before `number`, which nobody draws from any more.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn sweep(&self, number: u64) -> io::Result<()> {
        match locked(self.folder()?, PATIENCE)? {
            Some(alone) => remove_before(&alone, number),
            None => Ok(()),
        }
    }

    /// How many places each range has: what the process that came first decided, or `width`, if this is the first. `None` where
    /// that is not known now.
    ///
    /// # Errors
    /// The folder cannot be listed, or written to.
    pub fn settle(&self, width: u64) -> io::Result<Option<u64>> {
        let folder = self.folder()?;
        let Some(alone) = locked(folder, PATIENCE)? else { return Ok(None) };
        run::settle(folder, &alone, width).map(Some)
    }

    /// Removes the run, if no other process has it open. Of a process that was forked from the one that opened it, nothing.
    pub fn close(&self) {
        if let (Some(own), Ok(folder)) = (&self.own, self.folder()) {
            own.close(folder);
        }
    }
}

fn file_name(number: u64) -> String {
    format!("{number}{}", run::PACKAGE)
}

/// All of it, in as few writes as it takes.
fn write_all(file: &mut File, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match file.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file that is locked. The lock is given back by a call and not by closing: a process that is forked meanwhile has it open, too.
#[derive(Debug)]
struct Locked(File);

impl Locked {
    /// `None`: another process has it for too long.
    fn wait(file: File) -> io::Result<Option<Locked>> {
        let end = Instant::now() + PATIENCE;
        while !ask_for(&file, FlockOperation::NonBlockingLockExclusive)? {
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Some(Locked(file)))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
