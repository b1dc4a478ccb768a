//! The files of a pack's chunks in a folder, which stay open once they were needed.

use super::{Readers, is_replaced_at, too_short};
use crate::error::{Doing, Error, Result};
use crate::folder::open_plain_in;
use crate::snapshot::{ChunkFacts, Snapshot};
use stallscope_folder::find;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Of the descriptors that a process may have, which part stays open for chunks; and how many at most.
const OPEN_PART: u64 = 4;
const MOST_OPEN: u64 = 4096;
const CLOSED: i32 = -1;
/// It was opened and has its length, and there are too many others to keep it open.
const SEEN: i32 = -2;

#[derive(Debug)]
pub(super) struct Files {
    /// What was opened there, whatever comes in its place.
    folder: OwnedFd,
    /// A descriptor for each chunk that was opened. No lock is taken for them: a process that is forked while another thread
    /// held it would wait for it for good.
    opened: Box<[AtomicI32]>,
    /// How many bytes each had when it was opened.
    counts: Box<[AtomicU64]>,
    left: AtomicUsize,
    /// To whom what is read is shown.
    pub(super) shown_to: Option<Readers>,
}

impl Files {
    pub(super) fn new(folder: OwnedFd, chunks: usize) -> Files {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let left = (limit.unwrap_or(u64::MAX) / OPEN_PART).min(MOST_OPEN) as usize;
        let opened = (0..chunks).map(|_| AtomicI32::new(CLOSED)).collect();
        let counts = (0..chunks).map(|_| AtomicU64::new(0)).collect();
        Files { folder, opened, counts, left: AtomicUsize::new(left), shown_to: None }
    }

    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Owner and mode of one of its files; none where it can't be found.
    pub(super) fn facts(&self, name: &str) -> Option<Metadata> {
        let found = find(Some(self.folder.as_fd()), name.as_ref()).ok()?;
        File::from(found).metadata().ok()
    }

    /// How many bytes the chunk had when it was opened; none where it was not.
    pub(super) fn count(&self, number: usize) -> Option<u64> {
        let is_known = self.opened.get(number)?.load(Ordering::Acquire) != CLOSED;
        is_known.then(|| self.counts.get(number).map(|count| count.load(Ordering::Relaxed)))?
    }

    /// Does `act` with the chunk's file, which has to have as many bytes as it had.
    pub(super) fn with_chunk<T>(
        &self,
        number: usize,
        facts: &ChunkFacts,
        dir: &Path,
        snapshot: &Snapshot,
        act: impl FnOnce(BorrowedFd<'_>) -> T,
    ) -> Result<T> {
        let name = facts.id.file_name();
        let path = dir.join(&name);
        let Some(place) = self.opened.get(number) else {
            return Err(Error::damaged(&path, "no such chunk"));
        };
        let known = place.load(Ordering::Acquire);
        if known >= 0 {
            // SAFETY: a descriptor that was put into this place stays open until `self` is dropped.
            return Ok(act(unsafe { BorrowedFd::borrow_raw(known) }));
        }
        let file = match open_plain_in(&self.folder, name.as_ref()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_replaced(dir, snapshot) => {
                return Err(is_replaced_at(dir, &path));
            }
            other => other.doing("open", &path)?,
        };
        let facts_now = file.metadata().doing("open", &path)?;
        let count = facts_now.len();
        if self.shown_to.is_some_and(|readers| !readers.may_read(&facts_now)) {
            return Err(Error::Refused(format!(
                "{} may be read by fewer users than the pack is shown to; mount the pack again",
                path.display()
            )));
        }
        if count < facts.bytes {
            return Err(too_short(&path, facts.bytes, count));
        }
        // Before who finds it open asks for it.
        self.counts[number].store(count, Ordering::Relaxed);
        self.keep(place, file, act)
    }

    fn keep<T>(&self, place: &AtomicI32, file: File, act: impl FnOnce(BorrowedFd<'_>) -> T) -> Result<T> {
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            // One that another thread has kept meanwhile stays.
            let _ = place.compare_exchange(CLOSED, SEEN, Ordering::Release, Ordering::Relaxed);
            return Ok(act(file.as_fd()));
        }
        match place.compare_exchange(CLOSED, file.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as in `with_chunk`; from now on it belongs to this place.
            Ok(_) => Ok(act(unsafe { BorrowedFd::borrow_raw(file.into_raw_fd()) })),
            Err(_) => {
                // Another thread was first, or found too many open.
                self.left.fetch_add(1, Ordering::Relaxed);
                Ok(act(file.as_fd()))
            }
        }
    }
}

/// Whether the folder has the snapshot of another state by now.
fn is_replaced(dir: &Path, snapshot: &Snapshot) -> bool {
    let now = crate::folder::to_read(dir).and_then(|folder| Snapshot::open_in(&folder, dir));
    now.is_ok_and(|now| now.version() != snapshot.version())
}

impl Drop for Files {
    fn drop(&mut self) {
        for place in &mut self.opened {
            let known = std::mem::replace(place.get_mut(), CLOSED);
            if known >= 0 {
                // SAFETY: it was opened by `keep`, and nobody else closes it.
                drop(unsafe { OwnedFd::from_raw_fd(known) });
            }
        }
    }
}
