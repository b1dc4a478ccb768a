//! A pack that is read: its snapshot, and the files of its chunks as they are needed.

use crate::chunk::{OTHER_BYTES, OTHER_CODEC};
use crate::deleted::Deleted;
use crate::error::{Doing, Error, Result};
use crate::folder::{is_folder, list, open_plain_in, to_read, to_show};
use crate::frame::expand;
use crate::id::Id;
use crate::names::shown;
use crate::record::is_readable;
use crate::shelf::{Place, Shelf};
use crate::snapshot::{ChunkFacts, Entry, Snapshot, version};
use stallscope_folder::Folder;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Of the descriptors that a process may have, which part stays open for chunks; and how many at most.
const OPEN_PART: u64 = 4;
const MOST_OPEN: u64 = 4096;
const PIECE_BYTES: usize = 1 << 20;
const CLOSED: i32 = -1;
/// It was opened and has its length, and there are too many others to keep it open.
const SEEN: i32 = -2;

/// A pack, opened for reading by any number of threads, before and after a fork.
#[derive(Debug)]
pub struct Pack {
    dir: PathBuf,
    /// What was opened there, whatever comes in its place.
    folder: OwnedFd,
    snapshot: Snapshot,
    /// A descriptor for each chunk that was opened. No lock is taken for them: a process that is forked while another thread
    /// held it would wait for it for good.
    opened: Box<[AtomicI32]>,
    left: AtomicUsize,
    missing: Vec<Id>,
    newer: Vec<Id>,
    other_deletions: Option<String>,
}

impl Pack {
    /// Opens what the snapshot has, and compares it with what is there.
    pub fn open(dir: &Path) -> Result<Pack> {
        let dir = std::path::absolute(dir).doing("find", dir)?;
        is_folder(&dir)?;
        Pack::of(to_read(&dir)?, dir)
    }

    /// The same, to be shown to others: another user's link leads to no pack that its maker may not look into.
    pub fn open_to_show(dir: &Path) -> Result<Pack> {
        let dir = std::path::absolute(dir).doing("find", dir)?;
        is_folder(&dir)?;
        Pack::of(to_show(&dir)?, dir)
    }

    /// The pack in a folder that is about to be changed.
    pub(crate) fn open_in(folder: &Folder) -> Result<Pack> {
        let dir = folder.path();
        let again = folder.as_fd().try_clone_to_owned().doing("open", dir)?;
        Pack::of(again, std::path::absolute(dir).doing("find", dir)?)
    }

    fn of(folder: OwnedFd, dir: PathBuf) -> Result<Pack> {
        let listing = list(&folder, &dir)?;
        if !listing.has_snapshot {
            let what = match listing.chunks.is_empty() {
                true => "is no pack: it has neither a snapshot nor chunks".into(),
                false => format!(
                    "has no snapshot: packing has not ended (run it again), or it was lost (`stallscope pack rebuild {}`)",
                    dir.display()
                ),
            };
            return Err(Error::Refused(format!("{} {what}", dir.display())));
        }
        // A change replaces it before the snapshot.
        let deleted = Deleted::read(&folder, &dir);
        let snapshot = Snapshot::open_in(&folder, &dir)?;
        let named =
            (0..snapshot.chunks()).map(|number| snapshot.chunk(number)).collect::<Result<Vec<_>>>()?;
        let is_there = |id: &Id| listing.chunks.binary_search(id).is_ok();
        let missing = named.iter().map(|chunk| chunk.id).filter(|id| !is_there(id)).collect();
        let is_named = |id: &Id| named.binary_search_by_key(id, |chunk| chunk.id).is_ok();
        let newer = listing.chunks.iter().copied().filter(|id| !is_named(id)).collect();
        let other_deletions = other_deletions(&dir, &snapshot, &named, deleted);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let left = (limit.unwrap_or(u64::MAX) / OPEN_PART).min(MOST_OPEN) as usize;
        let opened = named.iter().map(|_| AtomicI32::new(CLOSED)).collect();
        Ok(Pack {
            dir,
            folder,
            snapshot,
            opened,
            left: AtomicUsize::new(left),
            missing,
            newer,
            other_deletions,
        })
    }

    /// Its folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Chunks that the snapshot has and that are gone.
    pub fn missing(&self) -> &[Id] {
        &self.missing
    }

    /// Chunks that are there and that the snapshot has not: packing goes on, or was interrupted, or they are of another pack.
    pub fn newer(&self) -> &[Id] {
        &self.newer
    }

    /// Why the snapshot shows files that were deleted, or the other way round; none where its deletions are those of the pack.
    pub fn other_deletions(&self) -> Option<&str> {
        self.other_deletions.as_deref()
    }

    /// Why the snapshot cannot stand for what is there; none where it can.
    pub fn is_stale(&self) -> Option<String> {
        let first = self.missing.first()?;
        let dir = self.dir.display();
        Some(format!(
            "the snapshot of {dir} is of another state: {} of its {} chunks are not there, the first is {}; `stallscope pack rebuild {dir}` makes one of the chunks that are",
            self.missing.len(),
            self.snapshot.chunks(),
            first.file_name()
        ))
    }

    /// The numbers of all records in the order in which they lie: chunk by chunk, and from each chunk's begin to its end.
    pub fn as_they_lie(&self) -> Result<Vec<usize>> {
        let _reads_on = self.snapshot.read_on();
        let places = (0..self.snapshot.records()).map(|number| {
            let entry = self.snapshot.entry(number)?;
            Ok((entry.chunk, entry.offset, number))
        });
        let mut places = places.collect::<Result<Vec<_>>>()?;
        places.sort_unstable();
        Ok(places.into_iter().map(|(_, _, number)| number).collect())
    }

    /// Reads a record into `to`, which has its size, and compares it with its checksum.
    pub fn read(&self, entry: &Entry<'_>, to: &mut [u8]) -> Result<()> {
        if to.len() as u64 != entry.bytes {
            return Err(Error::Refused(format!("{} has {} bytes", shown(entry.name), entry.bytes)));
        }
        if !entry.is_compressed() {
            self.read_stored(entry, to, 0)?;
            return self.compare(entry, crc32c::crc32c(to));
        }
        let mut frame = vec![0; self.stored_size(entry)?];
        self.read_stored(entry, &mut frame, 0)?;
        self.compare(entry, crc32c::crc32c(&frame))?;
        expand(&frame, to).map_err(|what| self.wrong(entry, &what))
    }

    /// All bytes of a record, compared with its checksum.
    pub fn whole(&self, entry: &Entry<'_>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.size_of(entry)?];
        self.read(entry, &mut bytes)?;
        Ok(bytes)
    }

    /// Hands a record's bytes over piece by piece, however many it has. They are what was packed only if this returns no error.
    pub fn stream(&self, entry: &Entry<'_>, to: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if entry.is_compressed() {
            return self.whole(entry)?.chunks(PIECE_BYTES).try_for_each(to);
        }
        let mut piece = vec![0; self.size_of(entry)?.min(PIECE_BYTES)];
        let (mut done, mut crc) = (0, 0);
        while done < entry.stored_bytes {
            let part = piece.len().min((entry.stored_bytes - done) as usize);
            self.read_stored(entry, &mut piece[..part], done)?;
            crc = crc32c::crc32c_append(crc, &piece[..part]);
            to(&piece[..part])?;
            done += part as u64;
        }
        self.compare(entry, crc)
    }

    /// Reads what a record has from `from` on. One that is compressed is expanded for it; of another nothing is compared with the
    /// checksum, which is of the whole.
    pub fn read_part(&self, entry: &Entry<'_>, to: &mut [u8], from: u64) -> Result<()> {
        if !entry.is_compressed() {
            return self.read_stored(entry, to, from);
        }
        let whole = self.whole(entry)?;
        let begin = usize::try_from(from).ok();
        let part = begin.and_then(|begin| whole.get(begin..begin.checked_add(to.len())?));
        to.copy_from_slice(part.ok_or_else(|| self.wrong(entry, "is cut"))?);
        Ok(())
    }

    /// Reads what is stored of a record from `from` on, and compares it with nothing.
    fn read_stored(&self, entry: &Entry<'_>, to: &mut [u8], from: u64) -> Result<()> {
        if !is_readable(entry.codec) {
            return Err(self.wrong(entry, OTHER_CODEC));
        }
        let at = entry.offset.checked_add(from).ok_or_else(|| self.wrong(entry, "lies nowhere"))?;
        match self.fill(entry.chunk, at, to)? {
            filled if filled == to.len() => Ok(()),
            _ => Err(self.wrong(entry, "is cut")),
        }
    }

    /// The bytes of a chunk from `at` on, which may be of many records and are compared with no checksum.
    pub(crate) fn read_chunk(&self, number: usize, at: u64, to: &mut [u8]) -> Result<()> {
        match self.fill(number, at, to)? {
            filled if filled == to.len() => Ok(()),
            _ => {
                Err(Error::damaged(&self.dir.join(self.snapshot.chunk(number)?.id.file_name()), "it is cut"))
            }
        }
    }

    /// How many bytes there were.
    fn fill(&self, number: usize, at: u64, to: &mut [u8]) -> Result<usize> {
        let facts = self.snapshot.chunk(number)?;
        let path = self.dir.join(facts.id.file_name());
        let mut filled = 0;
        while filled < to.len() {
            let Some(at) = at.checked_add(filled as u64) else { break };
            let pread = |file: BorrowedFd<'_>| rustix::io::pread(file, &mut to[filled..], at);
            match self.with_chunk(number, &path, facts.bytes, pread)? {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).doing("read", &path),
            }
        }
        Ok(filled)
    }

    /// Waits until a record is on the shelf, and is one that can be taken from there.
    pub fn shelved(&self, shelf: &Shelf, entry: &Entry<'_>) -> Option<Place> {
        let can_be = is_readable(entry.codec) && entry.stored_bytes > 0;
        can_be.then(|| shelf.wait_for(entry.chunk, entry.offset, entry.stored_bytes)).flatten()
    }

    /// Takes a record from where it was found on the shelf; `to` has its size. Else, and if it is not whole there, as `read`.
    pub fn take(&self, shelf: &Shelf, place: Place, entry: &Entry<'_>, to: &mut [u8]) -> Result<()> {
        let is_whole = match entry.is_compressed() {
            false => shelf.copy(place, to) && crc32c::crc32c(to) == entry.crc,
            true => {
                // No more than it expands to.
                let mut frame = vec![0; entry.stored_bytes as usize];
                shelf.copy(place, &mut frame)
                    && crc32c::crc32c(&frame) == entry.crc
                    && expand(&frame, to).is_ok()
            }
        };
        if is_whole { Ok(()) } else { self.read(entry, to) }
    }

    fn compare(&self, entry: &Entry<'_>, crc: u32) -> Result<()> {
        if crc == entry.crc { Ok(()) } else { Err(self.wrong(entry, OTHER_BYTES)) }
    }

    /// What is wrong with a record, in a sentence that names its chunk.
    fn wrong(&self, entry: &Entry<'_>, what: &str) -> Error {
        match self.snapshot.chunk(entry.chunk) {
            Ok(facts) => about(&self.dir.join(facts.id.file_name()), entry, what),
            Err(error) => error,
        }
    }

    /// How many bytes to allocate for a record; an error where its chunk can't have so many.
    pub fn size_of(&self, entry: &Entry<'_>) -> Result<usize> {
        if !is_readable(entry.codec) {
            return Err(self.wrong(entry, OTHER_CODEC));
        }
        let stored = self.stored_size(entry)?;
        // What is compressed has no more than a record may have.
        Ok(if entry.is_compressed() { entry.bytes as usize } else { stored })
    }

    /// How many bytes it has in its chunk; an error where that can't have so many.
    fn stored_size(&self, entry: &Entry<'_>) -> Result<usize> {
        let facts = self.snapshot.chunk(entry.chunk)?;
        let path = self.dir.join(facts.id.file_name());
        // Its length by the file, not by what was written about it.
        let end = entry.offset.checked_add(entry.stored_bytes).filter(|end| *end <= facts.bytes);
        let size = end.and_then(|_| usize::try_from(entry.stored_bytes).ok());
        let size = size.ok_or_else(|| about(&path, entry, "lies behind its end"))?;
        let is_known =
            self.opened.get(entry.chunk).is_some_and(|place| place.load(Ordering::Relaxed) != CLOSED);
        if !is_known {
            self.with_chunk(entry.chunk, &path, facts.bytes, |_| ())?;
        }
        Ok(size)
    }

    /// Does `act` with the chunk's file, which has to have as many bytes as it had.
    fn with_chunk<T>(
        &self,
        number: usize,
        path: &Path,
        bytes: u64,
        act: impl FnOnce(BorrowedFd<'_>) -> T,
    ) -> Result<T> {
        let Some(place) = self.opened.get(number) else {
            return Err(Error::damaged(path, "no such chunk"));
        };
        let known = place.load(Ordering::Acquire);
        if known >= 0 {
            // SAFETY: a descriptor that was put into this place stays open until `self` is dropped.
            return Ok(act(unsafe { BorrowedFd::borrow_raw(known) }));
        }
        let name = path.file_name().unwrap_or_default();
        let file = match open_plain_in(&self.folder, name.as_ref()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_replaced() => {
                let dir = self.dir.display();
                return Err(Error::Refused(format!(
                    "{dir} is in another state than when it was opened, and {} is gone; open it anew",
                    path.display()
                )));
            }
            other => other.doing("open", path)?,
        };
        let count = file.metadata().doing("open", path)?.len();
        if count < bytes {
            return Err(Error::damaged(path, format!("it is cut: of {bytes} bytes {count} are left")));
        }
        self.keep(place, file, act)
    }

    /// Whether the folder has the snapshot of another state by now.
    fn is_replaced(&self) -> bool {
        let now = to_read(&self.dir).and_then(|folder| Snapshot::open_in(&folder, &self.dir));
        now.is_ok_and(|now| now.version() != self.snapshot.version())
    }

    fn keep<T>(&self, place: &AtomicI32, file: File, act: impl FnOnce(BorrowedFd<'_>) -> T) -> Result<T> {
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            // One that another thread has kept meanwhile stays.
            let _ = place.compare_exchange(CLOSED, SEEN, Ordering::Relaxed, Ordering::Relaxed);
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

/// Why this snapshot, which has these chunks, is not of what was deleted by now.
fn other_deletions(
    dir: &Path,
    snapshot: &Snapshot,
    chunks: &[ChunkFacts],
    deleted: Result<(Option<Id>, Deleted)>,
) -> Option<String> {
    let shown = dir.display();
    match deleted {
        Err(error) => Some(format!(
            "which files of {shown} were deleted cannot be read, and the snapshot has what was: {error}; `stallscope pack verify {shown}` names all that is wrong"
        )),
        Ok((_, deleted)) if version(snapshot.pack(), chunks, &deleted) == snapshot.version() => None,
        Ok(_) => Some(format!(
            "the snapshot of {shown} has other deletions than the pack: deleting goes on, or was interrupted; delete again, or `stallscope pack rebuild {shown}`"
        )),
    }
}

fn about(path: &Path, entry: &Entry<'_>, what: &str) -> Error {
    Error::damaged(path, format!("its record {} {what}", shown(entry.name)))
}

impl Drop for Pack {
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
