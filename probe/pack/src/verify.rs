//! Reads every byte of a pack and names each fault.

use crate::chunk::{OTHER_BYTES, OTHER_CODEC};
use crate::deleted::{DELETED, Deleted};
use crate::error::{Error, Result};
use crate::folder::{Listing, list, open_plain_in, read_chunk, to_read};
use crate::frame::expanded;
use crate::id::Id;
use crate::names::{MOST_SHOWN_BYTES, shown};
use crate::record::{CODEC_ZSTD, is_readable};
use crate::snapshot::{ChunkFacts, Entry, MOST_DAMAGED, SNAPSHOT, Snapshot, build, version};
use crate::{Chunk, Record};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PIECE_BYTES: usize = 1 << 20;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The chunk's file, `snapshot` or `deleted`.
    pub file: String,
    /// The record, where it is one's: its name, or the beginning of a long one.
    pub record: Option<Vec<u8>>,
    /// What is wrong with it.
    pub what: String,
}

/// What came of verifying.
#[derive(Debug, Default)]
pub struct Verified {
    /// Chunks that are there.
    pub chunks: usize,
    /// Records whose bytes are right, superseded and deleted ones among them.
    pub records: u64,
    /// Of these records.
    pub bytes: u64,
    /// All that is wrong, but for records beyond the first 10,000.
    pub faults: Vec<Fault>,
    /// How many of these there are.
    pub unnamed: u64,
}

/// Verifies a pack. `progress` hears how many chunks were read, of how many.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<Verified> {
    let folder = to_read(dir)?;
    let listing = list(&folder, dir)?;
    if listing.chunks.is_empty() && !listing.has_snapshot {
        return Err(Error::Refused(format!(
            "{} is no pack: it has neither a snapshot nor chunks",
            dir.display()
        )));
    }
    let mut verified = Verified { chunks: listing.chunks.len(), ..Verified::default() };
    let snapshot = match Snapshot::open_in(&folder, dir) {
        Ok(snapshot) => Some(snapshot),
        Err(error) => {
            verified.fault(SNAPSHOT, None, fault_of(error));
            None
        }
    };
    let mut whole = Vec::with_capacity(listing.chunks.len());
    let mut parts = None;
    let mut pack = snapshot.as_ref().map(Snapshot::pack);
    for (number, id) in listing.chunks.iter().enumerate() {
        progress(number, listing.chunks.len());
        match read_chunk(&folder, dir, *id, pack) {
            Ok((file, chunk)) => {
                pack = pack.or(Some(chunk.pack));
                for record in &chunk.records {
                    verified.record(&file, id.file_name(), record);
                }
                whole.push(chunk);
            }
            Err(error) => {
                let readable = snapshot.as_ref().and_then(|snapshot| {
                    // Looked through once: there may be many chunks that do not say what is in them.
                    let entries = parts.get_or_insert_with(|| by_chunk(snapshot)).get(id)?;
                    by_snapshot(&mut verified, &folder, entries, *id)
                });
                let rest = readable.map_or_else(String::new, |(whole, all)| {
                    format!("; {whole} of its {all} records can be read by the snapshot")
                });
                verified.fault(&id.file_name(), None, fault_of(error) + &rest);
            }
        }
    }
    progress(listing.chunks.len(), listing.chunks.len());
    let deleted = verified.deleted(&folder, dir, pack, &whole);
    if let Some(snapshot) = &snapshot {
        verified.snapshot(snapshot, &listing, &whole, deleted.as_ref())?;
    }
    Ok(verified)
}

/// Without the path, which stands beside it.
fn fault_of(error: Error) -> String {
    match error {
        Error::Damaged { what, .. } => what,
        Error::Io { doing, source, .. } => format!("cannot {doing} it: {source}"),
        Error::Refused(sentence) => sentence,
    }
}

/// What the snapshot has in each chunk, as far as it is not damaged.
fn by_chunk(snapshot: &Snapshot) -> HashMap<Id, Vec<Entry<'_>>> {
    let mut parts: HashMap<Id, Vec<Entry<'_>>> = HashMap::new();
    for entry in snapshot.entries().flatten() {
        if let Ok(facts) = snapshot.chunk(entry.chunk) {
            parts.entry(facts.id).or_default().push(entry);
        }
    }
    parts
}

/// Of a chunk that does not say any more what is in it: how many of the records that the snapshot has in it can be read.
fn by_snapshot(
    verified: &mut Verified,
    folder: &OwnedFd,
    entries: &[Entry<'_>],
    id: Id,
) -> Option<(u64, u64)> {
    let file = open_plain_in(folder, id.file_name().as_ref()).ok()?;
    let length = file.metadata().ok()?.len();
    let mut left = length;
    let before = verified.records;
    for entry in entries {
        // As records lie beside each other; else a snapshot of some megabytes has a chunk read a million times.
        let there = length.saturating_sub(entry.offset).min(entry.stored_bytes);
        let Some(rest) = left.checked_sub(there) else {
            verified.fault(&id.file_name(), None, "the snapshot has more bytes of records in it than it has");
            break;
        };
        left = rest;
        let record = Record {
            name: entry.name.to_vec(),
            offset: entry.offset,
            stored_bytes: entry.stored_bytes,
            bytes: entry.bytes,
            mtime_ns: entry.mtime_ns,
            crc: entry.crc,
            label: entry.label,
            codec: entry.codec,
        };
        verified.record(&file, id.file_name(), &record);
    }
    Some((verified.records - before, entries.len() as u64))
}

impl Verified {
    fn fault(&mut self, file: &str, record: Option<&[u8]>, what: impl Into<String>) {
        // Records of 64 bytes may share one long name, and be wrong all of them.
        if record.is_some() && self.faults.len() >= MOST_DAMAGED {
            self.unnamed += 1;
            return;
        }
        let cut = |name: &[u8]| match name.get(..MOST_SHOWN_BYTES) {
            Some(begin) => [begin, "…".as_bytes()].concat(),
            None => name.to_vec(),
        };
        self.faults.push(Fault { file: file.into(), record: record.map(cut), what: what.into() });
    }

    fn record(&mut self, file: &File, name: String, record: &Record) {
        match read_through(file, record) {
            Ok(()) => {
                self.records += 1;
                self.bytes = self.bytes.saturating_add(record.bytes);
            }
            Err(what) => self.fault(&name, Some(&record.name), what),
        }
    }

    /// What was deleted; none where that cannot be read.
    fn deleted(
        &mut self,
        folder: &OwnedFd,
        dir: &Path,
        pack: Option<Id>,
        whole: &[Chunk],
    ) -> Option<Deleted> {
        let deleted = Deleted::read_of(folder, dir, pack);
        let fits = |deleted: &Deleted| whole.iter().try_for_each(|chunk| deleted.fits(chunk, dir));
        match deleted.and_then(|deleted| fits(&deleted).map(|()| deleted)) {
            Ok(deleted) => Some(deleted),
            Err(error) => {
                self.fault(DELETED, None, fault_of(error));
                None
            }
        }
    }

    fn snapshot(
        &mut self,
        snapshot: &Snapshot,
        listing: &Listing,
        whole: &[Chunk],
        deleted: Option<&Deleted>,
    ) -> Result<()> {
        let before = (self.faults.len(), self.unnamed);
        let (mut named, mut damaged) = (BTreeSet::new(), 0);
        // Not with the capacity that it says: a snapshot of holes has billions of chunks.
        let mut chunks: Vec<ChunkFacts> = Vec::new();
        for number in 0..snapshot.chunks() {
            if damaged > MOST_DAMAGED {
                self.fault(SNAPSHOT, None, format!("more than {MOST_DAMAGED} of its chunks are no chunks"));
                break;
            }
            match snapshot.chunk(number) {
                Ok(facts) => {
                    named.insert(facts.id);
                    chunks.push(facts);
                    if listing.chunks.binary_search(&facts.id).is_err() {
                        self.fault(&facts.id.file_name(), None, "it is not there, and the snapshot has it");
                    }
                }
                Err(error) => {
                    damaged += 1;
                    self.fault(SNAPSHOT, None, fault_of(error));
                }
            }
        }
        for id in listing.chunks.iter().filter(|id| !named.contains(id)) {
            self.fault(
                &id.file_name(),
                None,
                "the snapshot does not have it: packing goes on, or was interrupted",
            );
        }
        for error in snapshot.entries().filter_map(Result::err) {
            self.fault(SNAPSHOT, None, fault_of(error));
        }
        let Some(deleted) = deleted else { return Ok(()) };
        if chunks.len() == snapshot.chunks()
            && version(snapshot.pack(), &chunks, deleted) != snapshot.version()
        {
            self.fault(
                SNAPSHOT,
                None,
                "it has other deletions than the pack: deleting goes on, or was interrupted",
            );
        }
        // What is left: an index by hash, or a snapshot that was made of other chunks of these names.
        let all_read = whole.len() == listing.chunks.len() && (self.faults.len(), self.unnamed) == before;
        if all_read && build(snapshot.pack(), whole, deleted)? != snapshot.bytes() {
            self.fault(SNAPSHOT, None, "it is not what its chunks give");
        }
        Ok(())
    }
}

/// Whether a record's bytes are those that were packed.
fn read_through(file: &File, record: &Record) -> std::result::Result<(), String> {
    if !is_readable(record.codec) {
        return Err(OTHER_CODEC.into());
    }
    // A frame is expanded whole; no other record is in memory whole.
    let mut frame = Vec::new();
    let mut piece = vec![0; PIECE_BYTES.min(record.stored_bytes as usize)];
    let (mut at, mut left, mut crc) = (record.offset, record.stored_bytes, 0);
    while left > 0 {
        let part = &mut piece[..PIECE_BYTES.min(left as usize)];
        file.read_exact_at(part, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "is cut".into(),
            _ => format!("cannot be read: {error}"),
        })?;
        crc = crc32c::crc32c_append(crc, part);
        if record.codec == CODEC_ZSTD {
            frame.extend_from_slice(part);
        }
        at = at.checked_add(part.len() as u64).ok_or("lies nowhere")?;
        left -= part.len() as u64;
    }
    match crc == record.crc {
        true if record.codec == CODEC_ZSTD => expanded(&frame, record.bytes).map(drop),
        true => Ok(()),
        false => Err(OTHER_BYTES.into()),
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.record {
            Some(name) => write!(f, "{}: record {} {}", self.file, shown(name), self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100,000 records of 64 bytes that shared one name of 4,096 had taken `pack verify` 0.8 GB.
    #[test]
    fn of_records_some_are_named_and_their_names_cut() {
        let mut verified = Verified::default();
        (0..MOST_DAMAGED + 5).for_each(|_| verified.fault("chunk", Some(&[b'x'; 4096]), "is cut"));
        verified.fault(SNAPSHOT, None, "is not there");
        assert_eq!((verified.faults.len(), verified.unnamed), (MOST_DAMAGED + 1, 5));
        assert!(verified.faults.iter().all(|fault| fault.to_string().len() < 400));
    }
}
