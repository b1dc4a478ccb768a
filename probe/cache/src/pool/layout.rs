//! Where what lies in a space's index and data.
//!
//! The index begins with a page of figures and joint curves; behind them lie the slots of all samples by id, and behind those the words
//! that say which block follows which. The data are blocks and nothing else. Both are as large as they may ever have to
//! be, and sparse.

use super::board::{BOARD_WORDS, BOARDS};
use super::memory::{Memory, PAGE_BYTES};
use super::slots::{Data, LARGEST_BLOCK, SMALLEST_BLOCK, Slot};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SLOT_WORDS: usize = 4;
/// Behind the figures, in words.
const BOARDS_AT: usize = 64;
const _: () = assert!((BOARDS_AT + BOARDS * BOARD_WORDS) * 8 <= PAGE_BYTES);

/// The figures, in the order of their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Of each block; 0 until the first sample came.
    BlockBytes,
    /// 1 once the pool has left in an orderly way.
    Left,
    CapacityBytes,
    KeptBytes,
    KeptSamples,
    Evictions,
    Fills,
    Refused,
    Clients,
}

/// Sizes of a space's memory, as both sides compute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    samples: usize,
    /// Of the data; a multiple of the page.
    pub(crate) data_bytes: usize,
}

impl Layout {
    /// Most samples of a space.
    pub(crate) const MOST_SAMPLES: u64 = u32::MAX as u64;

    /// `None` where these cannot be.
    pub(crate) fn new(samples: u64, data_bytes: u64) -> Option<Layout> {
        let pages = data_bytes.checked_next_multiple_of(PAGE_BYTES as u64)?.max(PAGE_BYTES as u64);
        let layout =
            Layout { samples: usize::try_from(samples).ok()?, data_bytes: usize::try_from(pages).ok()? };
        (samples <= Layout::MOST_SAMPLES && pages <= 1 << 44).then_some(layout)
    }

    /// The smallest size of a block that lets 32 bits number all of them.
    pub(crate) fn smallest_block(self) -> u32 {
        let needed = (self.data_bytes as u64).div_ceil(u64::from(u32::MAX)).next_power_of_two();
        SMALLEST_BLOCK.max(needed as u32)
    }

    pub(crate) fn index_bytes(self) -> usize {
        (self.next_at() + self.most_blocks() * 4).next_multiple_of(PAGE_BYTES)
    }

    fn most_blocks(self) -> usize {
        self.data_bytes / self.smallest_block() as usize
    }

    fn next_at(self) -> usize {
        PAGE_BYTES + self.samples * SLOT_WORDS * 8
    }
}

/// A space's memory as somebody sees it.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) layout: Layout,
    pub(crate) index: &'a Memory,
    pub(crate) data: &'a Memory,
}

impl<'a> Seen<'a> {
    #[inline]
    pub(crate) fn slot(self, id: u64) -> Option<Slot<'a>> {
        let id = usize::try_from(id).ok().filter(|id| *id < self.layout.samples)?;
        let words = self.index.words(PAGE_BYTES + id * SLOT_WORDS * 8, SLOT_WORDS);
        let [sequence, tag, length, first] = words else { return None };
        Some(Slot { sequence, tag, length, first })
    }

    pub(crate) fn figure(self, figure: Figure) -> &'a AtomicU64 {
        &self.index.words(figure as usize * 8, 1)[0]
    }

    /// Where a joint miss-ratio curve is published.
    pub(crate) fn board(self, nth: usize) -> &'a [AtomicU64] {
        self.index.words((BOARDS_AT + nth * BOARD_WORDS) * 8, BOARD_WORDS)
    }

    #[inline]
    pub(crate) fn next(self) -> &'a [AtomicU32] {
        self.index.halves(self.layout.next_at(), self.layout.most_blocks())
    }

    /// `None` until the first sample came, or where the pool says what cannot be.
    #[inline]
    pub(crate) fn blocks(self) -> Option<Data<'a>> {
        let block_bytes = self.figure(Figure::BlockBytes).load(Ordering::Relaxed);
        let right = block_bytes.is_power_of_two()
            && (u64::from(SMALLEST_BLOCK)..=u64::from(LARGEST_BLOCK)).contains(&block_bytes);
        right.then(|| Data {
            words: self.data.words(0, self.layout.data_bytes / 8),
            next: self.next(),
            block_bytes: block_bytes as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_size_overflows_and_32_bits_number_every_block(samples: u64, data_bytes: u64) {
            if let Some(layout) = Layout::new(samples, data_bytes) {
                prop_assert!(layout.most_blocks() <= u32::MAX as usize);
                prop_assert!(layout.smallest_block() <= LARGEST_BLOCK);
                prop_assert!(layout.index_bytes() >= layout.next_at() + 4 * layout.most_blocks());
            }
        }
    }
}
