//! Writes chunks: small records gather in memory until there are enough, a large one gets a chunk of its own.

use crate::chunk::{self, Chunk, FULL_INDEX_BYTES, HEADER_BYTES};
use crate::error::{Error, Result};
use crate::frame::{Frames, MOST_EXPANDED_BYTES};
use crate::id::{Id, Ids};
use crate::names::{fault_of, shown};
use crate::record::{CODEC_NONE, CODEC_ZSTD, ENTRY_BYTES, Record};
use crate::storage::{Fresh, Storage};
use stallscope_folder::Folder;
use std::borrow::Cow;

/// What is known of a file beside its name and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct About {
    /// When it was changed last, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The number of its class.
    pub label: Option<u32>,
}

/// Writes the chunks of one pack.
#[derive(Debug)]
pub struct Writer<'a> {
    storage: &'a dyn Storage,
    folder: &'a Folder,
    pack: Id,
    ids: Ids,
    chunk_bytes: u64,
    has_labels: bool,
    frames: Option<Frames>,
    /// Records that were compressed, and how many bytes that saved.
    compressed: (u64, u64),
    /// Of the chunk that is being gathered.
    records: Vec<Record>,
    body: Vec<u8>,
    index_bytes: usize,
    /// Of chunks that are on disk: without their records' bytes.
    written: Vec<Chunk>,
}

impl<'a> Writer<'a> {
    /// Into this folder, after chunks up to `last`; a chunk is written once it has `chunk_bytes`. `has_labels`: labels came with the
    /// files, and are not by their folders.
    pub fn new(
        storage: &'a dyn Storage,
        folder: &'a Folder,
        pack: Id,
        last: Option<Id>,
        chunk_bytes: u64,
        has_labels: bool,
    ) -> Writer<'a> {
        Writer {
            storage,
            folder,
            pack,
            ids: Ids::after(last),
            chunk_bytes,
            has_labels,
            frames: None,
            compressed: (0, 0),
            records: Vec::new(),
            body: Vec::new(),
            index_bytes: 0,
            written: Vec::new(),
        }
    }

    /// Compresses what is added by zstd at this level, where that is worth it.
    pub fn compressing(mut self, level: Option<i32>) -> Result<Writer<'a>> {
        self.frames = level.map(Frames::new).transpose()?;
        Ok(self)
    }

    /// How many records were compressed, and how many bytes that saved.
    pub fn compressed(&self) -> (u64, u64) {
        self.compressed
    }

    /// Whether a record of so many bytes is one for `add_large`.
    pub fn is_large(&self, bytes: u64) -> bool {
        bytes >= self.chunk_bytes && (self.frames.is_none() || bytes > MOST_EXPANDED_BYTES)
    }

    /// Adds a record. It is on disk after `flush` at the latest.
    pub fn add(&mut self, name: &[u8], bytes: &[u8], about: About) -> Result<()> {
        check(name)?;
        let (record, stored) = stored(self.frames.as_mut(), name, bytes, about);
        if record.codec == CODEC_ZSTD {
            self.compressed.0 += 1;
            self.compressed.1 += record.bytes - record.stored_bytes;
        }
        self.gather(record, &stored)
    }

    /// Adds a record of another chunk, stored as it is there.
    pub(crate) fn add_again(&mut self, record: &Record, stored: &[u8]) -> Result<()> {
        check(&record.name)?;
        self.gather(record.clone(), stored)
    }

    /// The same of one that `is_large`, piece by piece: by holes a few bytes on disk can be as many as are wanted.
    pub(crate) fn add_large_again(
        &mut self,
        record: &Record,
        pieces: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        check(&record.name)?;
        let (id, mut fresh) = self.begin()?;
        pieces(&mut |piece| fresh.write_sparse(piece))?;
        self.end(id, fresh, vec![Record { offset: HEADER_BYTES as u64, ..record.clone() }])
    }

    fn gather(&mut self, mut record: Record, stored: &[u8]) -> Result<()> {
        if record.stored_bytes >= self.chunk_bytes {
            let (id, mut fresh) = self.begin()?;
            fresh.write(stored)?;
            record.offset = HEADER_BYTES as u64;
            return self.end(id, fresh, vec![record]);
        }
        record.offset = (HEADER_BYTES + self.body.len()) as u64;
        self.body.extend_from_slice(stored);
        self.index_bytes += ENTRY_BYTES + record.name.len();
        self.records.push(record);
        match self.body.len() as u64 >= self.chunk_bytes || self.index_bytes >= FULL_INDEX_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes what was gathered, however little it is.
    pub fn flush(&mut self) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let (id, mut fresh) = self.begin()?;
        // What is added again may be a hole where it was.
        fresh.write_sparse(&self.body)?;
        self.body.clear();
        self.index_bytes = 0;
        let records = std::mem::take(&mut self.records);
        self.end(id, fresh, records)
    }

    /// A chunk's file, with its header.
    fn begin(&mut self) -> Result<(Id, Fresh<'a>)> {
        let id = self.ids.next();
        let mut fresh = Fresh::create(self.storage, self.folder, &id.file_name())?;
        fresh.write(&chunk::header(id, self.pack, self.has_labels))?;
        Ok((id, fresh))
    }

    /// Ends the file of a chunk whose records' bytes were written.
    fn end(&mut self, id: Id, mut fresh: Fresh<'a>, records: Vec<Record>) -> Result<()> {
        let (end, index_crc) = chunk::end(id, &records);
        fresh.write(&end)?;
        fresh.finish()?;
        let body: u64 = records.iter().map(|record| record.stored_bytes).sum();
        let bytes = HEADER_BYTES as u64 + body + end.len() as u64;
        let (pack, has_labels) = (self.pack, self.has_labels);
        self.written.push(Chunk { id, pack, bytes, index_crc, has_labels, records });
        Ok(())
    }

    /// Writes a record into a chunk of its own, as it is. `next` gives its bytes piece by piece, at last an empty one; where it
    /// fails, nothing is left of the chunk, and that error is returned.
    pub fn add_large<E: From<Error>>(
        &mut self,
        name: &[u8],
        mut next: impl FnMut() -> std::result::Result<Option<Vec<u8>>, E>,
        about: impl FnOnce() -> std::result::Result<About, E>,
    ) -> std::result::Result<(), E> {
        check(name)?;
        let (id, mut fresh) = self.begin()?;
        let (mut bytes, mut crc) = (0_u64, 0);
        while let Some(piece) = next()? {
            fresh.write(&piece)?;
            crc = crc32c::crc32c_append(crc, &piece);
            bytes += piece.len() as u64;
        }
        let records = vec![record(name, HEADER_BYTES as u64, bytes, crc, about()?)];
        Ok(self.end(id, fresh, records)?)
    }

    /// The chunks that were written.
    pub fn finish(mut self) -> Result<Vec<Chunk>> {
        self.flush()?;
        Ok(std::mem::take(&mut self.written))
    }
}

/// A chunk of these records, as bytes: for tests, and for who writes one elsewhere.
pub fn chunk_of(id: Id, pack: Id, records: &[(&[u8], &[u8], About)]) -> Result<Vec<u8>> {
    chunk_compressed(id, pack, records, None)
}

/// The same, with records that are compressed at this level where that is worth it.
pub fn chunk_compressed(
    id: Id,
    pack: Id,
    records: &[(&[u8], &[u8], About)],
    level: Option<i32>,
) -> Result<Vec<u8>> {
    let mut bytes = chunk::header(id, pack, false);
    let mut frames = level.map(Frames::new).transpose()?;
    let mut made = Vec::with_capacity(records.len());
    for (name, content, about) in records {
        check(name)?;
        let (record, stored) = stored(frames.as_mut(), name, content, *about);
        made.push(Record { offset: bytes.len() as u64, ..record });
        bytes.extend_from_slice(&stored);
    }
    bytes.extend(chunk::end(id, &made).0);
    Ok(bytes)
}

fn check(name: &[u8]) -> Result<()> {
    match fault_of(name) {
        Some(fault) => {
            Err(Error::Refused(format!("{} cannot be packed under this name: {fault}", shown(name))))
        }
        None => Ok(()),
    }
}

/// A record of these bytes that lies nowhere yet, and what is stored of it.
fn stored<'b>(
    frames: Option<&mut Frames>,
    name: &[u8],
    bytes: &'b [u8],
    about: About,
) -> (Record, Cow<'b, [u8]>) {
    let (stored, codec) = match frames.and_then(|frames| frames.of(bytes)) {
        Some(frame) => (Cow::Owned(frame), CODEC_ZSTD),
        None => (Cow::Borrowed(bytes), CODEC_NONE),
    };
    let record = record(name, 0, bytes.len() as u64, crc32c::crc32c(&stored), about);
    (Record { stored_bytes: stored.len() as u64, codec, ..record }, stored)
}

fn record(name: &[u8], offset: u64, bytes: u64, crc: u32, about: About) -> Record {
    let About { mtime_ns, label } = about;
    let codec = CODEC_NONE;
    Record { name: name.to_vec(), offset, stored_bytes: bytes, bytes, mtime_ns, crc, label, codec }
}
