//! What is known of each record, and how a chunk's index has it.

use crate::fields::{u16_at, u32_at, u64_at};
use crate::frame::MOST_EXPANDED_BYTES;
use crate::names::MOST_NAME_BYTES;

/// Bytes of a record in a chunk's index, without its name.
pub(crate) const ENTRY_BYTES: usize = 48;
/// What a chunk has for the label of a record that has none.
pub(crate) const NO_LABEL: u32 = u32::MAX;
/// The record's bytes are as they were.
pub(crate) const CODEC_NONE: u8 = 0;
/// They are a frame of zstd.
pub(crate) const CODEC_ZSTD: u8 = 1;

/// A file in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its path relative to what was packed, with `/` between parts.
    pub name: Vec<u8>,
    /// Where in its chunk it begins.
    pub offset: u64,
    /// How many bytes it has there.
    pub stored_bytes: u64,
    /// How many bytes it has once it is expanded.
    pub bytes: u64,
    /// When its source was changed last, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// CRC32C of the stored bytes.
    pub crc: u32,
    /// The number of its class; none of a file that lies in no folder.
    pub label: Option<u32>,
    /// How its bytes are stored: 0 as they are, 1 as a frame of zstd.
    pub codec: u8,
}

impl Record {
    /// The byte behind it, in its chunk; none where there can't be one.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.stored_bytes)
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        into.extend(self.offset.to_le_bytes());
        into.extend(self.stored_bytes.to_le_bytes());
        into.extend(self.bytes.to_le_bytes());
        into.extend(self.mtime_ns.to_le_bytes());
        into.extend(self.crc.to_le_bytes());
        into.extend(self.label.unwrap_or(NO_LABEL).to_le_bytes());
        into.extend((self.name.len() as u16).to_le_bytes());
        into.extend([self.codec, 0, 0, 0, 0, 0]);
    }

    /// Of an entry, and the names that follow from its own on; none where they don't make a record.
    pub(crate) fn decode(entry: &[u8], names: &[u8]) -> Option<Record> {
        let name_bytes = usize::from(u16_at(entry, 40)?);
        let record = Record {
            name: names.get(..name_bytes)?.to_vec(),
            offset: u64_at(entry, 0)?,
            stored_bytes: u64_at(entry, 8)?,
            bytes: u64_at(entry, 16)?,
            mtime_ns: u64_at(entry, 24)? as i64,
            crc: u32_at(entry, 32)?,
            label: label(u32_at(entry, 36)?),
            codec: *entry.get(42)?,
        };
        let is_whole = may_be(record.codec, record.stored_bytes, record.bytes)
            && (1..=MOST_NAME_BYTES).contains(&record.name.len());
        (entry.get(43..48)? == [0; 5] && is_whole).then_some(record)
    }
}

/// Whether this program knows how to read what is stored so.
pub(crate) fn is_readable(codec: u8) -> bool {
    matches!(codec, CODEC_NONE | CODEC_ZSTD)
}

/// Whether so many bytes may be stored as so many. Who reads a frame takes memory for both.
pub(crate) fn may_be(codec: u8, stored_bytes: u64, bytes: u64) -> bool {
    match codec {
        CODEC_NONE => stored_bytes == bytes,
        CODEC_ZSTD => stored_bytes < bytes && bytes <= MOST_EXPANDED_BYTES,
        _ => true,
    }
}

pub(crate) fn label(stored: u32) -> Option<u32> {
    (stored != NO_LABEL).then_some(stored)
}
