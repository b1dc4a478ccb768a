//! Writes chunks: small records gather in memory until there are enough, a large one gets a chunk of its own.

use crate::chunk::{self, Chunk, FULL_INDEX_BYTES, HEADER_BYTES};
use crate::error::{Error, Result};
use crate::id::{Id, Ids};
use crate::names::{fault_of, shown};
use crate::record::{CODEC_NONE, ENTRY_BYTES, Record};
use crate::storage::{Fresh, Storage};
use stallscope_folder::Folder;

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
            records: Vec::new(),
            body: Vec::new(),
            index_bytes: 0,
            written: Vec::new(),
        }
    }

    /// Whether a record of so many bytes gets a chunk of its own.
    pub fn is_large(&self, bytes: u64) -> bool {
        bytes >= self.chunk_bytes
    }

    /// Adds a record. It is on disk after `flush` at the latest.
    pub fn add(&mut self, name: &[u8], bytes: &[u8], about: About) -> Result<()> {
        check(name)?;
        let offset = (HEADER_BYTES + self.body.len()) as u64;
        self.body.extend_from_slice(bytes);
        let crc = crc32c::crc32c(bytes);
        self.records.push(record(name, offset, bytes.len() as u64, crc, about));
        self.index_bytes += ENTRY_BYTES + name.len();
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
        let id = self.ids.next();
        let (end, index_crc) = chunk::end(id, &self.records);
        let mut fresh = Fresh::create(self.storage, self.folder, &id.file_name())?;
        fresh.write(&chunk::header(id, self.pack, self.has_labels))?;
        fresh.write(&self.body)?;
        fresh.write(&end)?;
        fresh.finish()?;
        let bytes = (HEADER_BYTES + self.body.len() + end.len()) as u64;
        self.body.clear();
        self.index_bytes = 0;
        let records = std::mem::take(&mut self.records);
        self.written.push(self.chunk(id, bytes, index_crc, records));
        Ok(())
    }

    fn chunk(&self, id: Id, bytes: u64, index_crc: u32, records: Vec<Record>) -> Chunk {
        Chunk { id, pack: self.pack, bytes, index_crc, has_labels: self.has_labels, records }
    }

    /// Writes a record into a chunk of its own. `next` gives its bytes piece by piece, at last an empty one; where it
    /// fails, nothing is left of the chunk, and that error is returned.
    pub fn add_large<E: From<Error>>(
        &mut self,
        name: &[u8],
        mut next: impl FnMut() -> std::result::Result<Option<Vec<u8>>, E>,
        about: impl FnOnce() -> std::result::Result<About, E>,
    ) -> std::result::Result<(), E> {
        check(name)?;
        let id = self.ids.next();
        let mut fresh = Fresh::create(self.storage, self.folder, &id.file_name())?;
        fresh.write(&chunk::header(id, self.pack, self.has_labels))?;
        let (mut bytes, mut crc) = (0_u64, 0);
        while let Some(piece) = next()? {
            fresh.write(&piece)?;
            crc = crc32c::crc32c_append(crc, &piece);
            bytes += piece.len() as u64;
        }
        let records = vec![record(name, HEADER_BYTES as u64, bytes, crc, about()?)];
        let (end, index_crc) = chunk::end(id, &records);
        fresh.write(&end)?;
        fresh.finish()?;
        let bytes = HEADER_BYTES as u64 + bytes + end.len() as u64;
        self.written.push(self.chunk(id, bytes, index_crc, records));
        Ok(())
    }

    /// The chunks that were written.
    pub fn finish(mut self) -> Result<Vec<Chunk>> {
        self.flush()?;
        Ok(std::mem::take(&mut self.written))
    }
}

/// A chunk of these records, as bytes: for tests, and for who writes one elsewhere.
pub fn chunk_of(id: Id, pack: Id, records: &[(&[u8], &[u8], About)]) -> Result<Vec<u8>> {
    let mut bytes = chunk::header(id, pack, false);
    let mut made = Vec::with_capacity(records.len());
    for (name, content, about) in records {
        check(name)?;
        let crc = crc32c::crc32c(content);
        made.push(record(name, bytes.len() as u64, content.len() as u64, crc, *about));
        bytes.extend_from_slice(content);
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

fn record(name: &[u8], offset: u64, bytes: u64, crc: u32, about: About) -> Record {
    let About { mtime_ns, label } = about;
    let codec = CODEC_NONE;
    Record { name: name.to_vec(), offset, stored_bytes: bytes, bytes, mtime_ns, crc, label, codec }
}
