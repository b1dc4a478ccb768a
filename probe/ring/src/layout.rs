//! Where things are in a lane. Writer and reader each have a cache line of their own.

use crate::spsc::WORDS;
use stallscope_abi::lane::Record;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"STLLLANE");

/// Offsets of the 8-byte header words, in words.
pub(crate) const MAGIC_AT: usize = 0;
/// Low half: version of the layout, high half: bytes of a record.
pub(crate) const VERSION_AT: usize = 1;
/// Low half: records in the ring, high half: pid of the writer in its own namespace.
pub(crate) const CAPACITY_AT: usize = 2;
pub(crate) const HEAD_AT: usize = 8;
pub(crate) const DROPPED_AT: usize = 9;
pub(crate) const TAIL_AT: usize = 16;
pub(crate) const RECORDS_AT: usize = 32;

pub(crate) const fn lane_bytes(capacity: u32) -> usize {
    (RECORDS_AT + capacity as usize * WORDS) * 8
}

pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn unpair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

const _: () = assert!(size_of::<Record>() == WORDS * 8);

pub(crate) fn to_words(record: &Record) -> [u64; WORDS] {
    let tag = u64::from(record.kind) | u64::from(record.loader) << 16 | u64::from(record.id) << 32;
    [record.time_ns, tag, record.a, record.b, record.c, record.d]
}

pub(crate) fn from_words([time_ns, tag, a, b, c, d]: [u64; WORDS]) -> Record {
    Record { time_ns, kind: tag as u16, loader: (tag >> 16) as u16, id: (tag >> 32) as u32, a, b, c, d }
}
