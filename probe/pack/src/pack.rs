//! A pack that is read: its snapshot, and the files of its chunks as they are needed.

mod files;
mod in_store;
mod readers;

use crate::chunk::{OTHER_BYTES, OTHER_CODEC};
use crate::deleted::Deleted;
use crate::error::{Doing, Error, Result};
use crate::folder::{is_folder, list, to_read, to_show};
use crate::frame::expand;
use crate::id::Id;
use crate::names::shown;
use crate::record::is_readable;
use crate::shelf::{Place, Shelf};
use crate::snapshot::{ChunkFacts, Entry, Snapshot, version};
use files::Files;
use in_store::InStore;
pub use readers::Readers;
use stallscope_folder::Folder;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const PIECE_BYTES: usize = 1 << 20;

/// A pack, opened for reading by any number of threads, before and after a fork.
#[derive(Debug)]
pub struct Pack {
    dir: PathBuf,
    source: Source,
    snapshot: Snapshot,
    missing: Vec<Id>,
    newer: Vec<Id>,
    other_deletions: Option<String>,
}

/// Where its chunks are.
#[derive(Debug)]
enum Source {
    Files(Files),
    Objects(InStore),
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
        let source = Source::Files(Files::new(folder, named.len()));
        Ok(Pack { dir, source, snapshot, missing, newer, other_deletions })
    }

    /// Its folder, absolute; of one in object storage its URL.
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
        match self.read_once(entry, to) {
            // What came damaged may be whole in the store.
            Err(Error::Damaged { .. }) if self.is_in_store() => {
                self.forget(entry);
                self.read_once(entry, to)
            }
            read => read,
        }
    }

    fn read_once(&self, entry: &Entry<'_>, to: &mut [u8]) -> Result<()> {
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
        let files = match &self.source {
            Source::Files(files) => files,
            Source::Objects(store) => return self.fill_from(store, number, &facts, at, to),
        };
        let mut filled = 0;
        while filled < to.len() {
            let Some(at) = at.checked_add(filled as u64) else { break };
            let pread = |file: BorrowedFd<'_>| rustix::io::pread(file, &mut to[filled..], at);
            match files.with_chunk(number, &facts, &self.dir, &self.snapshot, pread)? {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).doing("read", &self.dir.join(facts.id.file_name())),
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
        let end = entry.offset.checked_add(entry.stored_bytes).filter(|end| *end <= facts.bytes);
        let size = end.zip(usize::try_from(entry.stored_bytes).ok());
        let behind_its_end = || about(&path, entry, "lies behind its end");
        let (end, size) = size.ok_or_else(behind_its_end)?;
        let files = match &self.source {
            Source::Files(files) => files,
            Source::Objects(store) => return self.is_long_enough(store, entry, &facts).map(|()| size),
        };
        if files.count(entry.chunk).is_none() {
            files.with_chunk(entry.chunk, &facts, &self.dir, &self.snapshot, |_| ())?;
        }
        // By the file: who may write to the snapshot, which is mapped, changes any number in it after it was compared.
        match files.count(entry.chunk).is_some_and(|count| end <= count) {
            true => Ok(size),
            false => Err(behind_its_end()),
        }
    }
}

fn too_short(path: &Path, bytes: u64, left: u64) -> Error {
    Error::damaged(path, format!("it is cut: of {bytes} bytes {left} are left"))
}

/// The pack has another snapshot by now, and this chunk is not there any more as it was.
fn is_replaced_at(dir: &Path, path: &Path) -> Error {
    Error::Refused(format!(
        "{} is in another state than when it was opened, and {} is gone; open it anew",
        dir.display(),
        path.display()
    ))
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
