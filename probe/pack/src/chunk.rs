//! A chunk: header, records one after the other, their index, footer. docs/packs.md has each byte.

use crate::error::{Doing, Error, Result};
use crate::fields::{bytes_at, is_sealed, sealed, u32_at, u64_at};
use crate::frame::expanded;
use crate::id::Id;
use crate::record::{CODEC_ZSTD, ENTRY_BYTES, Record, is_readable};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The version of chunks and snapshots.
pub const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const FOOTER_BYTES: usize = 64;
/// Bytes of a chunk that are of none of its records.
pub const CHUNK_OVERHEAD: u64 = (HEADER_BYTES + FOOTER_BYTES) as u64;
/// A chunk is written once it has so many bytes of records, unless it is the last one.
pub const LEAST_CHUNK_BYTES: u64 = 4 << 20;
/// And it is written once its index has so many, whatever its records have.
pub(crate) const FULL_INDEX_BYTES: usize = 8 << 20;
/// No index has more: one is read whole.
const MOST_INDEX_BYTES: u64 = 64 << 20;
/// Of a chunk, by its index.
pub(crate) const MOST_RECORDS: u32 = MOST_INDEX_BYTES as u32 / ENTRY_BYTES as u32;

/// Among the flags of chunks and snapshots: labels came with the files.
pub(crate) const HAS_LABELS: u32 = 1;

const HEADER_MAGIC: &[u8; 8] = b"STLPACK\0";
const FOOTER_MAGIC: &[u8; 8] = b"STLPEND\0";

/// What a chunk is read from.
pub trait Bytes {
    /// How many there are.
    fn count(&self) -> io::Result<u64>;
    /// Those from `at` on, as many as `to` takes.
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<()>;
}

impl Bytes for File {
    fn count(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(to, at)
    }
}

impl Bytes for [u8] {
    fn count(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        let begin = usize::try_from(at).ok();
        let part = begin.and_then(|begin| self.get(begin..begin.checked_add(to.len())?));
        to.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// What a chunk says of itself, checked; its records' own bytes are not read for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its own.
    pub id: Id,
    /// Of the pack that it belongs to.
    pub pack: Id,
    /// Of its file.
    pub bytes: u64,
    /// CRC32C of its index.
    pub index_crc: u32,
    /// Whether labels came with the files, and are not by their folders.
    pub has_labels: bool,
    /// In the order in which they lie.
    pub records: Vec<Record>,
}

impl Chunk {
    /// Reads header, footer and index. `path` is for the sentence of an error.
    pub fn read(from: &(impl Bytes + ?Sized), path: &Path) -> Result<Chunk> {
        let count = from.count().doing("read", path)?;
        if count < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err(Error::damaged(path, format!("it is cut: {count} bytes are left")));
        }
        let mut header = [0; HEADER_BYTES];
        from.read_at(&mut header, 0).doing("read", path)?;
        let (id, pack, has_labels) = read_header(&header).map_err(|what| Error::damaged(path, what))?;
        let mut footer = [0; FOOTER_BYTES];
        let footer_at = count - FOOTER_BYTES as u64;
        from.read_at(&mut footer, footer_at).doing("read", path)?;
        let footer = Footer::read(&footer, id, count).map_err(|what| Error::damaged(path, what))?;
        // No larger than the file, and read whole.
        let mut index = vec![0; (footer_at - footer.index_at) as usize];
        from.read_at(&mut index, footer.index_at).doing("read", path)?;
        if crc32c::crc32c(&index) != footer.index_crc {
            return Err(Error::damaged(path, "its index has another checksum"));
        }
        let records = read_index(&index, &footer).map_err(|what| Error::damaged(path, what))?;
        Ok(Chunk { id, pack, bytes: count, index_crc: footer.index_crc, has_labels, records })
    }

    /// A record's bytes, checked.
    pub fn record(
        &self,
        from: &(impl Bytes + ?Sized),
        record: &Record,
    ) -> std::result::Result<Vec<u8>, String> {
        let stored = self.stored(from, record)?;
        if record.codec == CODEC_ZSTD { expanded(&stored, record.bytes) } else { Ok(stored) }
    }

    /// A record's bytes as they are stored, checked.
    pub(crate) fn stored(
        &self,
        from: &(impl Bytes + ?Sized),
        record: &Record,
    ) -> std::result::Result<Vec<u8>, String> {
        if !is_readable(record.codec) {
            return Err(OTHER_CODEC.into());
        }
        // Records lie within the file: `read` has seen to it.
        let mut bytes = vec![0; record.stored_bytes as usize];
        from.read_at(&mut bytes, record.offset).map_err(|error| format!("cannot be read: {error}"))?;
        match crc32c::crc32c(&bytes) == record.crc {
            true => Ok(bytes),
            false => Err(OTHER_BYTES.into()),
        }
    }
}

pub(crate) const OTHER_CODEC: &str = "is stored in a way that this program does not know";
pub(crate) const OTHER_BYTES: &str = "does not hold what was packed";

/// Of header bytes the ids of chunk and pack and whether labels came with the files, or what is wrong with them.
fn read_header(header: &[u8]) -> std::result::Result<(Id, Id, bool), String> {
    if !header.starts_with(HEADER_MAGIC) {
        return Err("it does not begin as a chunk does".into());
    }
    if !is_sealed(header) {
        return Err("its header has another checksum".into());
    }
    match u32_at(header, 8) {
        Some(VERSION) => {}
        version => return Err(of_another_version(version)),
    }
    match (bytes_at(header, 16), bytes_at(header, 32), u32_at(header, 48)) {
        (Some(id), Some(pack), Some(flags)) => Ok((Id(id), Id(pack), flags & HAS_LABELS != 0)),
        _ => Err("its header is cut".into()),
    }
}

pub(crate) fn of_another_version(version: Option<u32>) -> String {
    format!("it is of version {}, and this program reads version {VERSION}", version.unwrap_or_default())
}

struct Footer {
    index_at: u64,
    records: usize,
    index_crc: u32,
}

impl Footer {
    fn read(footer: &[u8], id: Id, count: u64) -> std::result::Result<Footer, String> {
        if footer.get(48..56) != Some(FOOTER_MAGIC) {
            return Err(format!("it is cut, or its end was overwritten: {count} bytes are left"));
        }
        if !is_sealed(footer) {
            return Err("its footer has another checksum".into());
        }
        let fields = (|| {
            let (at, bytes) = (u64_at(footer, 0)?, u64_at(footer, 8)?);
            Some((
                at,
                bytes,
                u32_at(footer, 16)?,
                u32_at(footer, 20)?,
                bytes_at(footer, 24)?,
                u64_at(footer, 40)?,
            ))
        })();
        let Some((index_at, index_bytes, records, index_crc, own_id, all)) = fields else {
            return Err("its footer is cut".into());
        };
        if Id(own_id) != id {
            return Err("header and footer are of two chunks".into());
        }
        if all != count {
            return Err(format!("it has {count} bytes, and had {all}"));
        }
        let end = index_at.checked_add(index_bytes);
        let fits = index_at >= HEADER_BYTES as u64 && end == Some(count - FOOTER_BYTES as u64);
        let entries = u64::from(records) * ENTRY_BYTES as u64;
        if !fits || entries > index_bytes || index_bytes > MOST_INDEX_BYTES {
            return Err("its footer describes no index".into());
        }
        Ok(Footer { index_at, records: records as usize, index_crc })
    }
}

/// The records of an index: they and their names lie without gaps, so that each byte of a chunk belongs to one thing, and
/// what is described is no more than what is there.
fn read_index(index: &[u8], footer: &Footer) -> std::result::Result<Vec<Record>, String> {
    let (entries, mut names) = index.split_at(footer.records * ENTRY_BYTES);
    let mut records = Vec::with_capacity(footer.records);
    let mut at = HEADER_BYTES as u64;
    for (number, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
        let record = Record::decode(entry, names).ok_or_else(|| format!("entry {number} is no record"))?;
        let end = record.end().filter(|end| record.offset == at && *end <= footer.index_at);
        at = end.ok_or_else(|| format!("record {number} does not lie behind the one before"))?;
        names = &names[record.name.len()..];
        records.push(record);
    }
    match at == footer.index_at && names.is_empty() {
        true => Ok(records),
        false => Err("it has bytes that belong to no record".into()),
    }
}

/// What a chunk begins with.
pub(crate) fn header(id: Id, pack: Id, has_labels: bool) -> Vec<u8> {
    let mut header = HEADER_MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((HEADER_BYTES as u32).to_le_bytes());
    header.extend(id.0);
    header.extend(pack.0);
    header.extend(if has_labels { HAS_LABELS } else { 0 }.to_le_bytes());
    header.extend([0; 8]);
    sealed(header)
}

/// What a chunk of these records ends with: index and footer; and the index's checksum.
pub(crate) fn end(id: Id, records: &[Record]) -> (Vec<u8>, u32) {
    let index_at = records.last().and_then(Record::end).unwrap_or(HEADER_BYTES as u64);
    let mut index = Vec::with_capacity(records.len() * (ENTRY_BYTES + 32) + FOOTER_BYTES);
    records.iter().for_each(|record| record.encode(&mut index));
    records.iter().for_each(|record| index.extend_from_slice(&record.name));
    let (index_bytes, index_crc) = (index.len() as u64, crc32c::crc32c(&index));
    let mut footer = index_at.to_le_bytes().to_vec();
    footer.extend(index_bytes.to_le_bytes());
    footer.extend((records.len() as u32).to_le_bytes());
    footer.extend(index_crc.to_le_bytes());
    footer.extend(id.0);
    footer.extend((index_at + index_bytes + FOOTER_BYTES as u64).to_le_bytes());
    footer.extend(FOOTER_MAGIC);
    footer.extend([0; 4]);
    index.extend(sealed(footer));
    (index, index_crc)
}

/// Makes the checksums of a chunk's header, index and footer right, whatever they say: so that tests and fuzzing get behind
/// them.
#[doc(hidden)]
pub fn seal(bytes: &mut [u8]) {
    fn reseal(part: &mut [u8]) {
        if let Some((content, seal)) = part.split_last_chunk_mut::<4>() {
            *seal = crc32c::crc32c(content).to_le_bytes();
        }
    }
    let count = bytes.len();
    if count < HEADER_BYTES + FOOTER_BYTES {
        return;
    }
    let footer_at = count - FOOTER_BYTES;
    bytes[..8].copy_from_slice(HEADER_MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes.copy_within(16..32, footer_at + 24);
    bytes[footer_at + 40..footer_at + 48].copy_from_slice(&(count as u64).to_le_bytes());
    bytes[footer_at + 48..footer_at + 56].copy_from_slice(FOOTER_MAGIC);
    let index_at = u64_at(bytes, footer_at).and_then(|at| usize::try_from(at).ok());
    if let Some(index) = index_at.and_then(|at| bytes.get(at..footer_at)) {
        let (length, crc) = (index.len() as u64, crc32c::crc32c(index));
        bytes[footer_at + 8..footer_at + 16].copy_from_slice(&length.to_le_bytes());
        bytes[footer_at + 20..footer_at + 24].copy_from_slice(&crc.to_le_bytes());
    }
    reseal(&mut bytes[..HEADER_BYTES]);
    reseal(&mut bytes[footer_at..]);
}
