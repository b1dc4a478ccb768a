//! Memory into which chunks are read ahead of their use, shared by the process that reads them and its workers.
//!
//! One file in memory (memfd): words, which all processes reach as atomics, and behind them a ring of bytes. The ring is
//! written by the reading process alone; others copy out of it by `pread`. Nothing here has to be trusted: who takes a record
//! compares its copy with the record's checksum, and reads it from its chunk if it is another one. So there are no locks that
//! a killed process could hold, and what is stale or torn costs a read.

mod readers;
mod words;

use crate::error::{Doing, Error, Result};
use crate::pack::Pack;
use crate::shuffle::Plan;
use readers::Readers;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use words::{FAILED, GONE, READY, Words};

/// How long who waits for a read looks again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// If for so long nothing was read as there is no memory for it, what is asked for now is not what was planned.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// And if nothing was read for any reason.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// The memory, in any of the processes.
#[derive(Debug)]
pub struct Shelf {
    words: Arc<Words>,
    /// Of the process that made it.
    readers: Mutex<Option<Readers>>,
    owner: u32,
}

/// Where a record lies in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    read: usize,
    at: u64,
}

impl Shelf {
    /// For a pack, with a ring of so many bytes. Memory is taken as it is used.
    pub fn new(pack: &Pack, ring: u64) -> Result<Shelf> {
        let words = Words::new(pack.snapshot().chunks(), ring)?;
        Ok(Shelf { words: Arc::new(words), readers: Mutex::new(None), owner: std::process::id() })
    }

    /// That of another process, as `address` has it.
    pub fn of_other(process: u32, fd: i32, token: u64) -> Result<Shelf> {
        let path = format!("/proc/{process}/fd/{fd}");
        let path = Path::new(&path);
        let file = std::fs::File::options().read(true).write(true).open(path).doing("open", path)?;
        let words = Words::open(file.into(), path)?;
        match words.token() == token {
            true => Ok(Shelf { words: Arc::new(words), readers: Mutex::new(None), owner: process }),
            false => Err(Error::damaged(path, "it is something else by now")),
        }
    }

    /// By which a process of this user finds it for as long as this one has it.
    pub fn address(&self) -> (u32, i32, u64) {
        (std::process::id(), self.words.fd().as_raw_fd(), self.words.token())
    }

    /// How many bytes its ring has.
    pub fn bytes(&self) -> u64 {
        self.words.ring()
    }

    /// Reads what is planned from now on, in threads of this process; what was planned before is given up.
    pub fn begin(&self, pack: Arc<Pack>, plan: Plan) -> Result<()> {
        if std::process::id() != self.owner {
            // Of a child that was forked: its parent's threads aren't there.
            return Ok(());
        }
        self.stop();
        self.words.plan(&plan.reads);
        let readers = Readers::start(self.words.clone(), pack, plan.reads)?;
        *self.held() = Some(readers);
        Ok(())
    }

    /// All samples of the share before this one are used, whether or not they were taken from here.
    pub fn reached(&self, sample: u64) {
        self.words.reached.store(sample, Release);
        self.words.wake(&self.words.freed);
    }

    /// Ends reading.
    pub fn stop(&self) {
        if std::process::id() == self.owner
            && let Some(readers) = self.held().take()
        {
            readers.stop(&self.words);
        }
    }

    /// Waits until these bytes of a chunk are there; none if they are not read, or won't be soon.
    pub fn wait_for(&self, chunk: usize, offset: u64, bytes: u64) -> Option<Place> {
        self.wait(chunk, offset, bytes, GONE_AFTER)
    }

    fn wait(&self, chunk: usize, offset: u64, bytes: u64, gone_after: Duration) -> Option<Place> {
        let end = offset.checked_add(bytes)?;
        let (read, slot) = self.words.find(chunk, offset, end)?;
        // Another plan may be put down meanwhile.
        let within = offset.checked_sub(slot.from.load(Relaxed))?;
        let place = Place { read, at: slot.at.load(Relaxed).checked_add(within)? };
        let mut since = Instant::now();
        let mut seen = self.words.progress.load(Acquire);
        loop {
            match slot.state.load(Acquire) {
                READY => return Some(place),
                FAILED | GONE => break,
                _ if self.words.running.load(Acquire) == 0 || self.words.stuck.load(Acquire) != 0 => break,
                _ => {}
            }
            self.words.sleep(&self.words.progress, seen, LOOK_EVERY);
            let now = self.words.progress.load(Acquire);
            if now != seen {
                (since, seen) = (Instant::now(), now);
                continue;
            }
            let most = if self.words.full.load(Acquire) != 0 { STUCK_AFTER } else { gone_after };
            if since.elapsed() > most {
                // For all samples, until something is read again: where the reading process was killed, its workers would wait so long
                // for each of a batch.
                self.words.stuck.store(1, Release);
            }
        }
        // Who reads it from its chunk has used it as well.
        self.words.used(slot);
        None
    }

    /// Counts a record as used that nobody takes from here.
    pub fn pass_by(&self, chunk: usize, offset: u64, bytes: u64) {
        let end = offset.checked_add(bytes).filter(|_| bytes > 0);
        if let Some((_, slot)) = end.and_then(|end| self.words.find(chunk, offset, end)) {
            self.words.used(slot);
        }
    }

    /// Copies a record out, and counts it as used. It is the caller's to compare it with its checksum.
    pub fn copy(&self, place: Place, to: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < to.len() {
            match rustix::io::pread(
                self.words.fd(),
                &mut to[filled..],
                self.words.ring_at() + place.at + filled as u64,
            ) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        if let Some(slot) = self.words.slot(place.read) {
            self.words.used(slot);
        }
        filled == to.len()
    }

    /// How many of the planned parts of chunks were read so far.
    pub fn read(&self) -> u64 {
        self.words.read.load(Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, Option<Readers>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let readers = self.readers.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match readers {
            Some(readers) if std::process::id() == self.owner => readers.let_go(&self.words),
            // Of a child that was forked: its parent's threads aren't there, and to detach one writes to its stack, which is gone.
            readers => std::mem::forget(readers),
        }
    }
}

fn memfd(bytes: u64) -> Result<OwnedFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let path = Path::new("memory for chunks");
    let fd = match rustix::fs::memfd_create("stallscope-chunks", flags | rustix::fs::MemfdFlags::NOEXEC_SEAL)
    {
        // Kernels before 6.3 know no NOEXEC_SEAL; some later ones demand it.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("stallscope-chunks", flags),
        made => made,
    }
    .doing("make", path)?;
    rustix::fs::ftruncate(&fd, bytes).doing("make", path)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
