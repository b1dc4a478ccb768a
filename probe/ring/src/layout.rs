//! Where things are in a lane. Writer and reader each have a cache line of their own.

use stallscope_abi::lane::WORDS;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"STLLLANE");

/// Offsets of the 8-byte header words, in words.
pub(crate) const MAGIC_AT: usize = 0;
/// Low half: version of the layout, high half: bytes of a record.
pub(crate) const VERSION_AT: usize = 1;
/// Low half: records in the long ring, high half: pid of the writer in its own namespace.
pub(crate) const CAPACITY_AT: usize = 2;
pub(crate) const SHORT_HEAD_AT: usize = 8;
pub(crate) const LONG_HEAD_AT: usize = 9;
pub(crate) const DROPPED_AT: usize = 10;
pub(crate) const SHORT_TAIL_AT: usize = 16;
pub(crate) const LONG_TAIL_AT: usize = 17;
pub(crate) const RECORDS_AT: usize = 32;

/// Records of the short ring: with the header they fill three pages, half of a small first-level cache, and most processes
/// write fewer between two looks of the collector.
const SHORT_RECORDS: u32 = 256;

/// Records of the short ring of a lane whose long one holds `capacity`: none where that is short itself.
pub(crate) const fn short_records(capacity: u32) -> u32 {
    if capacity > SHORT_RECORDS { SHORT_RECORDS } else { 0 }
}

/// The header alone.
pub(crate) const HEADER_BYTES: usize = RECORDS_AT * 8;

/// Where the long ring begins, in words.
pub(crate) const fn long_at(capacity: u32) -> usize {
    RECORDS_AT + short_records(capacity) as usize * WORDS
}

pub(crate) const fn lane_bytes(capacity: u32) -> usize {
    (long_at(capacity) + capacity as usize * WORDS) * 8
}

pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn unpair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
