//! The chunks of a pack that lie in object storage.

use super::{Pack, Source, about, is_replaced_at, too_short};
use crate::chunk::OTHER_BYTES;
use crate::deleted::{DELETED, Deleted};
use crate::error::{Error, Result};
use crate::frame::{MOST_EXPANDED_BYTES, expand};
use crate::objects::{Got, Objects, Wanted, merged};
use crate::record::is_readable;
use crate::snapshot::{ChunkFacts, Entry, HEADER_BYTES, SNAPSHOT, Snapshot, version, version_in};
use crate::tier::{Local, Tier};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of a snapshot, which is in memory as a whole: that of some 40 million files.
const MOST_SNAPSHOT_BYTES: u64 = 4 << 30;
/// Of a list of deletions: of two thousand million files.
const MOST_DELETED_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct InStore {
    objects: Arc<dyn Objects>,
    /// Whether the store has given a chunk's length, and it was as long as the snapshot has it.
    known: Box<[AtomicBool]>,
    is_kept: bool,
}

impl Pack {
    /// Opens a pack whose files are objects; `url` names it in sentences. Its chunks are neither listed nor looked at: one that is
    /// gone is an error where it is read.
    pub fn open_objects(url: PathBuf, objects: Arc<dyn Objects>) -> Result<Pack> {
        let path = url.join(SNAPSHOT);
        let Some(bytes) = objects.whole(SNAPSHOT, MOST_SNAPSHOT_BYTES)? else {
            return Err(Error::Refused(format!(
                "{} is no pack: there is no {}; name the folder that was uploaded whole, its snapshot last",
                url.display(),
                path.display()
            )));
        };
        let snapshot = Snapshot::parse(bytes, &path)?;
        let named =
            (0..snapshot.chunks()).map(|number| snapshot.chunk(number)).collect::<Result<Vec<_>>>()?;
        let deleted = match objects.whole(DELETED, MOST_DELETED_BYTES) {
            Ok(Some(bytes)) => Deleted::parse(&bytes, &url.join(DELETED)).map(|(_, deleted)| deleted),
            Ok(None) => Ok(Deleted::default()),
            Err(error) => Err(error),
        };
        let other_deletions = other_deletions(&url, &snapshot, &named, deleted);
        let known = named.iter().map(|_| AtomicBool::new(false)).collect();
        let source = Source::Objects(InStore { objects, known, is_kept: false });
        let (missing, newer) = (Vec::new(), Vec::new());
        Ok(Pack { dir: url, source, snapshot, missing, newer, other_deletions })
    }

    /// The bytes of several records, each checked. Of a pack in object storage those that lie near each other are read by one
    /// request, and several requests at once.
    pub fn whole_of_each(&self, entries: &[Entry<'_>]) -> Vec<Result<Vec<u8>>> {
        let Source::Objects(store) = &self.source else {
            return entries.iter().map(|entry| self.whole(entry)).collect();
        };
        let mut found: Vec<Option<Result<Vec<u8>>>> = entries.iter().map(|_| None).collect();
        let (mut numbers, mut ranges) = (Vec::new(), Vec::new());
        for (number, entry) in entries.iter().enumerate() {
            // What is of no length or too long to be merged is read by itself, and so is what is no record.
            let end = entry.offset.checked_add(entry.stored_bytes);
            let can_be = is_readable(entry.codec) && (1..=MOST_EXPANDED_BYTES).contains(&entry.stored_bytes);
            if let Some(end) = end.filter(|_| can_be && self.size_of(entry).is_ok()) {
                numbers.push(number);
                ranges.push((entry.chunk, entry.offset..end));
            }
        }
        let spans = merged(&ranges);
        let facts: Result<Vec<_>> = spans.iter().map(|span| self.snapshot.chunk(span.chunk)).collect();
        if let Ok(facts) = facts {
            let wanted: Vec<_> =
                spans.iter().zip(&facts).map(|(span, facts)| of_chunk(facts, span.range.clone())).collect();
            for ((span, facts), got) in spans.iter().zip(&facts).zip(store.objects.read(&wanted)) {
                let got = self.seen(store, span.chunk, facts, got);
                for one in &span.of {
                    let (number, begin) = (numbers[*one], (ranges[*one].1.start - span.range.start) as usize);
                    let entry = &entries[number];
                    found[number] = match &got {
                        Ok(got) => {
                            let stored = got.get(begin..begin + entry.stored_bytes as usize);
                            stored.and_then(|stored| self.made_of(entry, stored).ok()).map(Ok)
                        }
                        // What came damaged is asked for once more, each by itself; the error is that one's.
                        Err(Error::Damaged { .. }) => None,
                        // All of its time is over, or it won't be there.
                        Err(error) => Some(Err(Error::Refused(error.to_string()))),
                    };
                }
            }
        }
        found
            .into_iter()
            .zip(entries)
            .map(|(found, entry)| found.unwrap_or_else(|| self.whole(entry)))
            .collect()
    }

    /// From now on chunks are kept in a folder on a local disk as they are first read. Only of a pack in object storage.
    pub fn keep_in(&mut self, local: &Local) -> Result<()> {
        let Source::Objects(store) = &mut self.source else {
            let sentence =
                format!("{} is a folder: no other one is needed to keep it in", self.dir.display());
            return Err(Error::Refused(sentence));
        };
        let chunks = (0..self.snapshot.chunks()).map(|number| self.snapshot.chunk(number));
        let chunks = chunks.map(|facts| facts.map(|facts| (facts.id, facts.bytes))).collect::<Result<_>>()?;
        let tier = Tier::open(store.objects.clone(), local, self.snapshot.version(), chunks)?;
        store.objects = Arc::new(tier);
        store.is_kept = true;
        Ok(())
    }

    /// Whether its chunks are kept on a local disk, which fetches them whole.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(&self.source, Source::Objects(store) if store.is_kept)
    }

    /// A record came damaged from wherever its chunk is kept.
    pub(super) fn forget(&self, entry: &Entry<'_>) {
        if let (Source::Objects(store), Ok(facts)) = (&self.source, self.snapshot.chunk(entry.chunk)) {
            store.objects.forget(&facts.id.file_name());
        }
    }

    /// Whether requests for it go over a network, so that many at once and large ones are faster.
    pub fn is_in_store(&self) -> bool {
        matches!(self.source, Source::Objects(_))
    }

    fn made_of(&self, entry: &Entry<'_>, stored: &[u8]) -> Result<Vec<u8>> {
        if crc32c::crc32c(stored) != entry.crc {
            return Err(self.wrong(entry, OTHER_BYTES));
        }
        if !entry.is_compressed() {
            return Ok(stored.to_vec());
        }
        let mut bytes = vec![0; entry.bytes as usize];
        expand(stored, &mut bytes).map_err(|what| self.wrong(entry, &what))?;
        Ok(bytes)
    }

    /// How many bytes there were.
    pub(super) fn fill_from(
        &self,
        store: &InStore,
        number: usize,
        facts: &ChunkFacts,
        at: u64,
        to: &mut [u8],
    ) -> Result<usize> {
        let end = at.saturating_add(to.len() as u64).min(facts.bytes);
        if end <= at {
            return Ok(0);
        }
        let got = store.objects.read(&[of_chunk(facts, at..end)]).pop();
        let got = got.unwrap_or_else(|| Err(Error::Refused("no answer of the store".into())));
        let bytes = self.seen(store, number, facts, got)?;
        let filled = bytes.len().min(to.len());
        to[..filled].copy_from_slice(&bytes[..filled]);
        Ok(filled)
    }

    /// What came of a chunk; an error that says more where the pack is in another state by now.
    fn seen(&self, store: &InStore, number: usize, facts: &ChunkFacts, got: Result<Got>) -> Result<Vec<u8>> {
        let path = self.dir.join(facts.id.file_name());
        match got {
            Ok(got) if got.size < facts.bytes => Err(too_short(&path, facts.bytes, got.size)),
            Ok(got) => {
                if let Some(known) = store.known.get(number) {
                    known.store(true, Ordering::Relaxed);
                }
                Ok(got.bytes)
            }
            Err(Error::Io { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle)
                    && self.is_replaced_in(store) =>
            {
                Err(is_replaced_at(&self.dir, &path))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the store has the snapshot of another state by now.
    fn is_replaced_in(&self, store: &InStore) -> bool {
        let header = Wanted { name: SNAPSHOT.into(), range: 0..HEADER_BYTES as u64 };
        match store.objects.read(&[header]).pop() {
            Some(Ok(got)) => version_in(&got.bytes).is_some_and(|now| now != self.snapshot.version()),
            Some(Err(Error::Io { source, .. })) => source.kind() == ErrorKind::StaleNetworkFileHandle,
            _ => false,
        }
    }

    /// An error where the chunk cannot have so many bytes of a record. Who writes the snapshot writes any number into it, and memory
    /// for more than a compressed record may have is taken only once the store itself has given the chunk's length.
    pub(super) fn is_long_enough(
        &self,
        store: &InStore,
        entry: &Entry<'_>,
        facts: &ChunkFacts,
    ) -> Result<()> {
        let is_known = store.known.get(entry.chunk).is_some_and(|known| known.load(Ordering::Relaxed));
        if is_known || entry.stored_bytes <= MOST_EXPANDED_BYTES {
            return Ok(());
        }
        let path = self.dir.join(facts.id.file_name());
        match self.fill_from(store, entry.chunk, facts, facts.bytes.saturating_sub(1), &mut [0])? {
            1 => Ok(()),
            _ => Err(about(&path, entry, "lies behind its end")),
        }
    }
}

/// Why this snapshot is not of what was deleted by now; none where it is. Who may not list a bucket hears that an object that is not there
/// is forbidden: where nothing was deleted by the snapshot, that is no fault.
fn other_deletions(
    url: &Path,
    snapshot: &Snapshot,
    chunks: &[ChunkFacts],
    deleted: Result<Deleted>,
) -> Option<String> {
    let fits = |deleted: &Deleted| version(snapshot.pack(), chunks, deleted) == snapshot.version();
    let url = url.display();
    match deleted {
        Ok(deleted) if fits(&deleted) => None,
        Err(_) if fits(&Deleted::default()) => None,
        Ok(_) => Some(format!(
            "the snapshot of {url} has other deletions than the pack: its upload goes on, or was interrupted; upload `deleted` again, and the snapshot after it"
        )),
        Err(error) => Some(format!(
            "which files of {url} were deleted cannot be read, and the snapshot has what was: {error}"
        )),
    }
}

fn of_chunk(facts: &ChunkFacts, range: std::ops::Range<u64>) -> Wanted {
    Wanted { name: facts.id.file_name(), range }
}
