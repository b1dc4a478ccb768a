//! What a pack is read from where it lies in no folder: ranges of the bytes of objects, as object storage gives them.
//!
//! How they are had is another crate's (stallscope-remote): nothing here speaks to a network.

use crate::error::Result;
use std::fmt::Debug;
use std::ops::Range;

/// Bytes of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name in the pack, as that of a file in a pack's folder.
    pub name: String,
    /// Which of its bytes; at least one.
    pub range: Range<u64>,
}

/// What there is of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// The bytes; fewer than wanted only where the object ends before.
    pub bytes: Vec<u8>,
    /// How many the whole object has.
    pub size: u64,
}

/// The objects of one pack. Used by any number of threads, before and after a fork.
pub trait Objects: Debug + Send + Sync {
    /// Several ranges at once, in their order. An object that is not there is an `Error::Io` of the kind `NotFound`, and one that is
    /// another than when it was read first of the kind `StaleNetworkFileHandle`.
    fn read(&self, wanted: &[Wanted]) -> Vec<Result<Got>>;

    /// All bytes of an object; none where it is not there. An error where it has more than `most_bytes`, which is known before they are
    /// read.
    fn whole(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>>;

    /// Bytes of this object were not what they should be: what is kept of it on the way is given up, so that the next read is one of the
    /// store.
    fn forget(&self, _name: &str) {}
}

/// What lies between two records is read along where it is no more than this: a request costs what so many bytes take.
pub(crate) const MOST_GAP_BYTES: u64 = 256 << 10;
/// And a request has no more than this, unless one record has.
pub(crate) const MOST_MERGED_BYTES: u64 = 8 << 20;

/// Ranges of one chunk that are read by one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) chunk: usize,
    pub(crate) range: Range<u64>,
    /// Which of the ranges.
    pub(crate) of: Vec<usize>,
}

/// Which requests read these ranges of chunks: those near each other by one.
pub(crate) fn merged(ranges: &[(usize, Range<u64>)]) -> Vec<Span> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|number| (ranges[*number].0, ranges[*number].1.start));
    let mut spans: Vec<Span> = Vec::new();
    for number in order {
        let (chunk, range) = &ranges[number];
        if let Some(last) = spans.last_mut().filter(|last| last.chunk == *chunk) {
            let end = last.range.end.max(range.end);
            let is_near = range.start.saturating_sub(last.range.end) <= MOST_GAP_BYTES;
            if range.end <= last.range.end || is_near && end - last.range.start <= MOST_MERGED_BYTES {
                last.range.end = end;
                last.of.push(number);
                continue;
            }
        }
        spans.push(Span { chunk: *chunk, range: range.clone(), of: vec![number] });
    }
    spans
}

#[cfg(test)]
mod tests;
