//! Which records were deleted: a bit for each record of a chunk that has any, of all chunks in one file, which is replaced in
//! one step. docs/packs.md has each byte.

use crate::chunk::{Chunk, MOST_RECORDS, VERSION, of_another_version};
use crate::error::{Doing, Error, Result};
use crate::fields::{bytes_at, is_sealed, sealed, u32_at, u64_at};
use crate::folder::open_plain_in;
use crate::id::Id;
use crate::storage::{Fresh, Storage};
use bits::Bits;
use stallscope_folder::Folder;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;

mod bits;

/// The name of its file in a pack; there is none where nothing was deleted.
pub const DELETED: &str = "deleted";

const MAGIC: &[u8; 8] = b"STLPDEL\0";
const HEADER_BYTES: usize = 64;
/// Of a chunk's marks, before its bits.
const ENTRY_BYTES: usize = 20;
/// No file has more: a bit for each record that a snapshot can have, and as much again for what is about them.
const MOST_BYTES: u64 = 1 << 30;
const BEGINS_OTHERWISE: &str = "it does not begin as a list of what was deleted does";
const IS_CUT: &str = "it is cut, or has grown";

/// The records of a pack that were deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    of: BTreeMap<Id, Marks>,
}

/// Of one chunk; the bit of record n is bit n % 8 of byte n / 8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    records: u32,
    bits: Bits,
}

impl Marks {
    fn of(records: u32) -> Marks {
        Marks { records, bits: Bits::default() }
    }

    /// Whether the record of this number is deleted.
    pub(crate) fn is(&self, record: usize) -> bool {
        self.bits.has(record)
    }

    /// One chunk's, of the `left` bytes that `fill` gives, whose checksum is `crc`; none where they are not of a chunk.
    fn next(
        left: &mut u64,
        crc: &mut u32,
        fill: &mut impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<Option<(Id, Marks)>> {
        let mut begin = [0; ENTRY_BYTES];
        let Some(rest) = left.checked_sub(ENTRY_BYTES as u64) else { return Ok(None) };
        fill(&mut begin)?;
        let (Some(id), Some(records)) = (bytes_at(&begin, 0), u32_at(&begin, 16)) else { return Ok(None) };
        let count = u64::from(records.div_ceil(8));
        let Some(rest) = rest.checked_sub(count).filter(|_| records <= MOST_RECORDS) else { return Ok(None) };
        let mut bytes = vec![0; count as usize];
        fill(&mut bytes)?;
        *crc = crc32c::crc32c_append(crc32c::crc32c_append(*crc, &begin), &bytes);
        *left = rest;
        let marks = Marks { records, bits: Bits::of(&bytes) };
        Ok(marks.is_possible().then_some((Id(id), marks)))
    }

    /// Only bits of records, and at least one.
    fn is_possible(&self) -> bool {
        self.bits.last().is_some_and(|last| last < self.records as usize)
    }
}

impl Deleted {
    /// Of a pack's folder, and which pack it is of; `None` and nothing deleted where there is no such file. `dir` is for the
    /// sentence of an error.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub(crate) fn read(folder: &impl AsFd, dir: &Path) -> Result<(Option<Id>, Deleted)> {
        let path = dir.join(DELETED);
        let file = match open_plain_in(folder, DELETED.as_ref()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok((None, Deleted::default()));
            }
            other => other.doing("open", &path)?,
        };
        let length = file.metadata().doing("read", &path)?.len();
        let (pack, deleted) = Deleted::piece_by_piece(BufReader::new(file), length, &path)?;
        Ok((Some(pack), deleted))
    }

    /// As `read`, of a pack that is known.
    pub(crate) fn read_of(folder: &impl AsFd, dir: &Path, pack: Option<Id>) -> Result<Deleted> {
        match Deleted::read(folder, dir)? {
            (Some(own), _) if pack.is_some_and(|pack| pack != own) => {
                Err(Error::damaged(&dir.join(DELETED), "it is of another pack"))
            }
            (_, deleted) => Ok(deleted),
        }
    }

    /// From memory: of which pack it is, and what it says. `path` is for the sentence of an error.
    ///
    /// # Errors
    /// These bytes are not those of such a file, or damaged.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<(Id, Deleted)> {
        Deleted::piece_by_piece(bytes, bytes.len() as u64, path)
    }

    /// Of so many bytes. It ends at the first that cannot be: a file of holes may have as many as it likes, and takes no memory.
    fn piece_by_piece(mut from: impl Read, length: u64, path: &Path) -> Result<(Id, Deleted)> {
        let damaged = |what: &str| Error::damaged(path, what);
        let mut fill = |to: &mut [u8]| match from.read_exact(to) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(damaged(IS_CUT)),
            other => other.doing("read", path),
        };
        if length < HEADER_BYTES as u64 {
            return Err(damaged(BEGINS_OTHERWISE));
        }
        let mut header = [0; HEADER_BYTES];
        fill(&mut header)?;
        if !header.starts_with(MAGIC) {
            return Err(damaged(BEGINS_OTHERWISE));
        }
        if !is_sealed(&header) {
            return Err(damaged("its header has another checksum"));
        }
        let version = u32_at(&header, 8);
        if version != Some(VERSION) {
            return Err(Error::damaged(path, of_another_version(version)));
        }
        if u64_at(&header, 32) != Some(length) || length > MOST_BYTES {
            return Err(damaged(IS_CUT));
        }
        let (mut of, mut left, mut crc) = (BTreeMap::new(), length - HEADER_BYTES as u64, 0);
        while left > 0 {
            let (id, marks) = Marks::next(&mut left, &mut crc, &mut fill)?
                .ok_or_else(|| damaged("its marks are of no chunk, or overwritten"))?;
            if of.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return Err(damaged("its chunks are not in order"));
            }
            of.insert(id, marks);
        }
        if u32_at(&header, 44) != Some(crc) {
            return Err(damaged("its marks have another checksum"));
        }
        match (bytes_at(&header, 16), u32_at(&header, 40)) {
            (Some(pack), Some(count)) if count as usize == of.len() => Ok((Id(pack), Deleted { of })),
            _ => Err(damaged("it has not as many chunks as it says")),
        }
    }

    /// Whether nothing is deleted.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// What is deleted of a chunk; none where nothing is.
    pub(crate) fn of(&self, chunk: Id) -> Option<&Marks> {
        self.of.get(&chunk)
    }

    /// Whether the record of this number in this chunk is deleted.
    pub fn is(&self, chunk: Id, record: usize) -> bool {
        self.of(chunk).is_some_and(|marks| marks.is(record))
    }

    /// From now on it is. `false` where it was before.
    pub(crate) fn mark(&mut self, chunk: &Chunk, record: usize) -> bool {
        let marks = self.of.entry(chunk.id).or_insert_with(|| Marks::of(chunk.records.len() as u32));
        let is_new = !marks.is(record);
        if record < chunk.records.len() {
            marks.bits.set(record);
        }
        is_new
    }

    /// Without the chunks of which this is false.
    pub(crate) fn only(&self, is_there: impl Fn(Id) -> bool) -> Deleted {
        let of = self.of.iter().filter(|(id, _)| is_there(**id));
        Deleted { of: of.map(|(id, marks)| (*id, marks.clone())).collect() }
    }

    /// An error where a chunk's marks are of another number of records than it has.
    pub(crate) fn fits(&self, chunk: &Chunk, dir: &Path) -> Result<()> {
        let records = chunk.records.len();
        match self.of(chunk.id) {
            Some(marks) if marks.records as usize != records => Err(Error::damaged(
                &dir.join(DELETED),
                format!("it has {} records of {}, which has {records}", marks.records, chunk.id.file_name()),
            )),
            _ => Ok(()),
        }
    }

    /// The marks as they are in the file, behind its header.
    pub(crate) fn marks(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (id, marks) in &self.of {
            bytes.extend(id.0);
            bytes.extend(marks.records.to_le_bytes());
            let begin = bytes.len();
            bytes.resize(begin + (marks.records as usize).div_ceil(8), 0);
            marks.bits.write(&mut bytes[begin..]);
        }
        bytes
    }

    /// As a file has it.
    pub(crate) fn encode(&self, pack: Id) -> Vec<u8> {
        let marks = self.marks();
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((HEADER_BYTES as u32).to_le_bytes());
        header.extend(pack.0);
        header.extend(((HEADER_BYTES + marks.len()) as u64).to_le_bytes());
        header.extend((self.of.len() as u32).to_le_bytes());
        header.extend(crc32c::crc32c(&marks).to_le_bytes());
        header.extend([0; 12]);
        let mut bytes = sealed(header);
        bytes.extend(marks);
        bytes
    }

    /// Puts it in the place of what the pack's folder has. It is durable when this returns.
    pub(crate) fn write(&self, folder: &Folder, pack: Id, storage: &dyn Storage) -> Result<()> {
        if self.is_empty() {
            match folder.has(OsStr::new(DELETED)) {
                true => storage.remove(folder, DELETED).doing("remove", &folder.path().join(DELETED))?,
                false => return Ok(()),
            }
        } else {
            let mut fresh = Fresh::create(storage, folder, DELETED)?;
            fresh.write(&self.encode(pack))?;
            fresh.finish()?;
        }
        storage.sync_dir(folder).doing("sync", folder.path())
    }
}

/// Makes the checksums of such a file right, as [`crate::seal`] does for chunks.
#[doc(hidden)]
pub fn seal_deleted(bytes: &mut [u8]) {
    let Some((header, marks)) = bytes.split_at_mut_checked(HEADER_BYTES) else { return };
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[32..40].copy_from_slice(&((HEADER_BYTES + marks.len()) as u64).to_le_bytes());
    header[44..48].copy_from_slice(&crc32c::crc32c(marks).to_le_bytes());
    let seal = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&seal.to_le_bytes());
}
