//! The snapshot: one file by which a record of a pack is found, by name or by number, without a chunk being opened.
//!
//! It is mapped and read in place. Each thing in it has a checksum of its own, tested where it is read: to read all of it at
//! each opening would cost what it is there to save.

mod build;

pub use build::build;
pub(crate) use build::version;

use crate::chunk::{HAS_LABELS, VERSION, of_another_version};
use crate::error::{Doing, Error, Result};
use crate::fields::{bytes_at, is_sealed, u16_at, u32_at, u64_at};
use crate::folder::open_plain_in;
use crate::id::Id;
use crate::names::{MOST_NAME_BYTES, compare};
use crate::record::{CODEC_ZSTD, ENTRY_BYTES, label, may_be};
use memmap2::{Advice, Mmap};
use rustix::fs::CWD;
use std::cmp::Ordering;
use std::fs::Metadata;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The name of its file in a pack.
pub const SNAPSHOT: &str = "snapshot";

const MAGIC: &[u8; 8] = b"STLPSNAP";
pub(crate) const HEADER_BYTES: usize = 96;
const CHUNK_BYTES: usize = 32;
const RECORD_BYTES: usize = 64;
const BUCKET_BYTES: usize = 4;
const SLOT_BYTES: usize = 8;

/// Records that are damaged, of which each is named: of a file of holes there may be billions.
pub const MOST_DAMAGED: usize = 10_000;

/// A snapshot that was opened.
#[derive(Debug)]
pub struct Snapshot {
    held: Held,
    path: PathBuf,
    pack: Id,
    version: [u8; 32],
    bucket_bits: u32,
    chunks: usize,
    records: usize,
    has_labels: bool,
    places: Places,
    /// Of the file that is mapped.
    described: Option<Metadata>,
}

#[derive(Debug)]
enum Held {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

/// Where its parts begin.
#[derive(Debug)]
struct Places {
    chunks: usize,
    records: usize,
    buckets: usize,
    slots: usize,
    names: usize,
    end: usize,
}

/// A record as the snapshot has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name, where it lies in the snapshot: who may write to that can change it at any time. Copy it before it is checked and
    /// used as a path or a text.
    pub name: &'a [u8],
    /// The number of its chunk in the snapshot.
    pub chunk: usize,
    /// Where in the chunk it begins.
    pub offset: u64,
    /// How many bytes it has there.
    pub stored_bytes: u64,
    /// How many bytes it has once it is expanded.
    pub bytes: u64,
    /// When its source was changed last, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// CRC32C of the stored bytes.
    pub crc: u32,
    /// The number of its class.
    pub label: Option<u32>,
    /// How it is stored; 0: as it is, 1: as a frame of zstd.
    pub codec: u8,
}

/// A chunk as the snapshot has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFacts {
    /// Its id.
    pub id: Id,
    /// Of its file.
    pub bytes: u64,
    /// CRC32C of its index.
    pub index_crc: u32,
}

impl Entry<'_> {
    /// How many bytes of its chunk are of this record: its own, its entry and its name.
    pub fn bytes_in_chunk(&self) -> u64 {
        self.stored_bytes.saturating_add((ENTRY_BYTES + self.name.len()) as u64)
    }

    /// Whether a part of it takes all of it to be expanded.
    pub fn is_compressed(&self) -> bool {
        self.codec == CODEC_ZSTD
    }
}

impl Snapshot {
    /// Maps the file.
    pub fn open(path: &Path) -> Result<Snapshot> {
        Snapshot::open_at(&CWD, path, path)
    }

    /// The same, of a pack whose folder is open. `dir` is for the sentence of an error.
    pub(crate) fn open_in(folder: &impl AsFd, dir: &Path) -> Result<Snapshot> {
        Snapshot::open_at(folder, SNAPSHOT.as_ref(), &dir.join(SNAPSHOT))
    }

    fn open_at(folder: &impl AsFd, name: &Path, path: &Path) -> Result<Snapshot> {
        // A pipe in its place would be waited for.
        let file = open_plain_in(folder, name).doing("open", path)?;
        let described = file.metadata().doing("open", path)?;
        if described.len() < HEADER_BYTES as u64 {
            return Err(Error::damaged(path, "it is no whole snapshot"));
        }
        // SAFETY: what is written here is written under another name and renamed, so that nobody of ours changes a mapped
        // file. Somebody else with the right to write it may: all that is read is copied or compared as plain bytes of any
        // value and checked by a checksum, nothing is taken for a text or a type with invalid values, and no place is taken
        // from it without a check against the length of the map. A name may change after it was checked, as `Entry` has it.
        // Who cuts the file ends its readers with SIGBUS, as docs/security.md has it.
        let map = unsafe { Mmap::map(&file) }.doing("map", path)?;
        let mut snapshot = Snapshot::of(Held::Mapped(map), path)?;
        snapshot.described = Some(described);
        // Look-ups are anywhere.
        snapshot.advise(Advice::Random);
        Ok(snapshot)
    }

    /// Until what this returns is dropped the snapshot's file is read on where a part of it is not in memory: for who goes through all
    /// records by number, each page would be a read of its own.
    pub fn read_on(&self) -> ReadOn<'_> {
        self.advise(Advice::Sequential);
        ReadOn(self)
    }

    fn advise(&self, advice: Advice) {
        if let Held::Mapped(map) = &self.held {
            // It costs time alone where the kernel does not take it.
            let _ = map.advise(advice);
        }
    }

    /// From memory. `path` is for the sentence of an error.
    pub fn parse(bytes: Vec<u8>, path: &Path) -> Result<Snapshot> {
        Snapshot::of(Held::Owned(bytes), path)
    }

    fn of(held: Held, path: &Path) -> Result<Snapshot> {
        let bytes = held.bytes();
        let header = bytes.get(..HEADER_BYTES).filter(|header| header.starts_with(MAGIC));
        let header = header.ok_or_else(|| Error::damaged(path, "it does not begin as a snapshot does"))?;
        if !is_sealed(header) {
            return Err(Error::damaged(path, "its header has another checksum"));
        }
        let version = u32_at(header, 8);
        if version != Some(VERSION) {
            return Err(Error::damaged(path, of_another_version(version)));
        }
        let fields = (|| {
            let (bits, pack, digest) = (u32_at(header, 12)?, bytes_at(header, 16)?, bytes_at(header, 32)?);
            let (chunks, records) = (u32_at(header, 64)? as usize, u32_at(header, 68)? as usize);
            let places = Places::of(bits, chunks, records, u64_at(header, 72)?)?;
            let is_whole = u64_at(header, 80)? == places.end as u64;
            (is_whole && places.end == bytes.len()).then_some((
                bits,
                Id(pack),
                digest,
                chunks,
                records,
                places,
            ))
        })();
        let Some((bucket_bits, pack, version, chunks, records, places)) = fields else {
            return Err(Error::damaged(path, "it is cut, or describes what it has not"));
        };
        let has_labels = u32_at(header, 88).is_some_and(|flags| flags & HAS_LABELS != 0);
        let path = path.to_owned();
        let described = None;
        Ok(Snapshot {
            held,
            path,
            pack,
            version,
            bucket_bits,
            chunks,
            records,
            has_labels,
            places,
            described,
        })
    }

    /// Owner, mode and time of the file that is mapped.
    pub(crate) fn described(&self) -> Option<&Metadata> {
        self.described.as_ref()
    }

    /// Of the pack that it is of.
    pub fn pack(&self) -> Id {
        self.pack
    }

    /// The data set's version: another one as soon as a chunk is another one, or another record is deleted.
    pub fn version(&self) -> [u8; 32] {
        self.version
    }

    /// Whether labels came with the files, and are not by their folders.
    pub fn has_labels(&self) -> bool {
        self.has_labels
    }

    /// How many records there are.
    pub fn records(&self) -> usize {
        self.records
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// A chunk, by number; they are in the order of their ids.
    pub fn chunk(&self, number: usize) -> Result<ChunkFacts> {
        let fields = (number < self.chunks).then(|| {
            let chunk = self.part(self.places.chunks, number, CHUNK_BYTES)?;
            let chunk = chunk.get(..CHUNK_BYTES).filter(|chunk| is_sealed(chunk))?;
            let (bytes, index_crc) = (u64_at(chunk, 16)?, u32_at(chunk, 24)?);
            Some(ChunkFacts { id: Id(bytes_at(chunk, 0)?), bytes, index_crc })
        });
        fields
            .flatten()
            .ok_or_else(|| Error::damaged(&self.path, format!("its chunk {number} has another checksum")))
    }

    /// A record, by number; they are in the order of [`compare`].
    pub fn entry(&self, number: usize) -> Result<Entry<'_>> {
        let entry = if number < self.records { self.checked(number) } else { None };
        entry.ok_or_else(|| Error::damaged(&self.path, format!("its record {number} has another checksum")))
    }

    /// All records, by number. After [`MOST_DAMAGED`] that are none it ends with an error: a file of holes may have billions, of
    /// each of which something would be kept.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'_>>> {
        let (mut next, mut damaged) = (0, 0);
        let reads_on = self.read_on();
        std::iter::from_fn(move || {
            let _ = &reads_on;
            if next == self.records || damaged > MOST_DAMAGED {
                return None;
            }
            let entry = self.entry(next);
            next += 1;
            damaged += usize::from(entry.is_err());
            Some(match damaged > MOST_DAMAGED {
                true => Err(Error::damaged(
                    &self.path,
                    format!("more than {MOST_DAMAGED} of its records are no records"),
                )),
                false => entry,
            })
        })
    }

    fn checked(&self, number: usize) -> Option<Entry<'_>> {
        // A copy: what is compared with the checksum is what is returned.
        let record: &[u8; RECORD_BYTES] =
            &bytes_at(self.part(self.places.records, number, RECORD_BYTES)?, 0)?;
        let name_at = usize::try_from(u64_at(record, 0)?).ok()?.checked_add(self.places.names)?;
        let name_bytes = usize::from(u16_at(record, 52)?);
        if name_bytes > MOST_NAME_BYTES {
            return None;
        }
        let name = self.held.bytes().get(name_at..name_at.checked_add(name_bytes)?)?;
        let (content, seal) = record.split_at_checked(RECORD_BYTES - 4)?;
        if crc32c::crc32c_append(crc32c::crc32c(content), name) != u32_at(seal, 0)? {
            return None;
        }
        let entry = Entry {
            name,
            offset: u64_at(record, 8)?,
            stored_bytes: u64_at(record, 16)?,
            bytes: u64_at(record, 24)?,
            mtime_ns: u64_at(record, 32)? as i64,
            crc: u32_at(record, 40)?,
            label: label(u32_at(record, 44)?),
            chunk: u32_at(record, 48)? as usize,
            codec: *record.get(54)?,
        };
        let is_whole = may_be(entry.codec, entry.stored_bytes, entry.bytes);
        (entry.chunk < self.chunks && is_whole).then_some(entry)
    }

    /// The number of the record of this name.
    pub fn find(&self, name: &[u8]) -> Result<Option<usize>> {
        if let Some(found) = self.find_by_hash(name) {
            return Ok(Some(found));
        }
        // The hash index has no checksums: a damaged one must not hide what is there.
        self.find_by_order(name)
    }

    fn find_by_hash(&self, name: &[u8]) -> Option<usize> {
        let hash = hash(name);
        let bucket = (hash >> (64 - self.bucket_bits)) as usize;
        let buckets = self.part(self.places.buckets, bucket, BUCKET_BYTES)?;
        let (begin, end) = (u32_at(buckets, 0)? as usize, u32_at(buckets, BUCKET_BYTES)? as usize);
        let mut left = begin..end.min(self.records);
        // Slots of a bucket are sorted by tag, and those of one tag by record: however many share a bucket, the way is short.
        while !left.is_empty() {
            let middle = left.start + left.len() / 2;
            let slot = self.part(self.places.slots, middle, SLOT_BYTES)?;
            let (tag, number) = (u32_at(slot, 0)?, u32_at(slot, 4)? as usize);
            let order = match tag.cmp(&(hash as u32)) {
                // Nearly always this one: the order takes longer to tell.
                Ordering::Equal if self.entry(number).ok()?.name == name => return Some(number),
                Ordering::Equal => compare(self.entry(number).ok()?.name, name),
                other => other,
            };
            match order {
                Ordering::Equal => return Some(number),
                Ordering::Less => left.start = middle + 1,
                Ordering::Greater => left.end = middle,
            }
        }
        None
    }

    fn find_by_order(&self, name: &[u8]) -> Result<Option<usize>> {
        let mut left: Range<usize> = 0..self.records;
        while !left.is_empty() {
            let middle = left.start + left.len() / 2;
            match compare(self.entry(middle)?.name, name) {
                Ordering::Equal => return Ok(Some(middle)),
                Ordering::Less => left.start = middle + 1,
                Ordering::Greater => left.end = middle,
            }
        }
        Ok(None)
    }

    /// Its bytes, all of them.
    pub fn bytes(&self) -> &[u8] {
        self.held.bytes()
    }

    /// From the `number`th part of this size on.
    fn part(&self, begin: usize, number: usize, size: usize) -> Option<&[u8]> {
        self.held.bytes().get(begin.checked_add(number.checked_mul(size)?)?..)
    }
}

/// The data set's version by a snapshot's header; none where it is none.
pub(crate) fn version_in(header: &[u8]) -> Option<[u8; 32]> {
    let header =
        header.get(..HEADER_BYTES).filter(|header| header.starts_with(MAGIC) && is_sealed(header))?;
    bytes_at(header, 32)
}

/// What [`Snapshot::read_on`] returns.
#[derive(Debug)]
pub struct ReadOn<'a>(&'a Snapshot);

impl Drop for ReadOn<'_> {
    fn drop(&mut self) {
        self.0.advise(Advice::Random);
    }
}

impl Held {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Mapped(map) => map,
            Held::Owned(bytes) => bytes,
        }
    }
}

impl Places {
    fn of(bucket_bits: u32, chunks: usize, records: usize, names_bytes: u64) -> Option<Places> {
        // As many as records, at most twice as many.
        if !(1..=32).contains(&bucket_bits) {
            return None;
        }
        let after = |begin: usize, number: usize, size: usize| begin.checked_add(number.checked_mul(size)?);
        let chunks_at = HEADER_BYTES;
        let records_at = after(chunks_at, chunks, CHUNK_BYTES)?;
        let buckets = after(records_at, records, RECORD_BYTES)?;
        let slots = after(buckets, (1 << bucket_bits) + 1, BUCKET_BYTES)?;
        let names = after(slots, records, SLOT_BYTES)?;
        let end = after(names, usize::try_from(names_bytes).ok()?, 1)?;
        Some(Places { chunks: chunks_at, records: records_at, buckets, slots, names, end })
    }
}

/// FNV-1a of 64 bits, stirred so that its upper bits depend on all of the name.
pub(crate) fn hash(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// Makes the checksums of a snapshot's header, chunks and records right, as [`crate::seal`] does for chunks.
#[doc(hidden)]
pub fn seal_snapshot(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let count = bytes.len() as u64;
    bytes[80..88].copy_from_slice(&count.to_le_bytes());
    let word = |bytes: &[u8], at| u32_at(bytes, at).unwrap_or_default();
    let (bits, chunks, records) = (word(bytes, 12), word(bytes, 64) as usize, word(bytes, 68) as usize);
    if let Some(places) = Places::of(bits, chunks, records, 0).filter(|places| places.end <= bytes.len()) {
        let names_bytes = count - places.end as u64;
        bytes[72..80].copy_from_slice(&names_bytes.to_le_bytes());
        for at in (0..chunks).map(|number| places.chunks + number * CHUNK_BYTES) {
            let crc = crc32c::crc32c(&bytes[at..at + CHUNK_BYTES - 4]);
            bytes[at + CHUNK_BYTES - 4..at + CHUNK_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        for at in (0..records).map(|number| places.records + number * RECORD_BYTES) {
            let begin = u64_at(bytes, at).and_then(|begin| usize::try_from(begin).ok());
            let begin = begin.and_then(|begin| begin.checked_add(places.names));
            let end = begin.and_then(|begin| begin.checked_add(usize::from(u16_at(bytes, at + 52)?)));
            let name = begin.zip(end).and_then(|(begin, end)| bytes.get(begin..end)).unwrap_or_default();
            let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[at..at + RECORD_BYTES - 4]), name);
            bytes[at + RECORD_BYTES - 4..at + RECORD_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}
