//! How a sample is found in shared memory without a lock, over borrowed atomics, so that the same lines run in shared
//! memory and under loom.
//!
//! A sample has a slot of four words, which only the pool writes:
//!
//! | word       | says |
//! |---|---|
//! | `sequence` | odd while the other words change; another even number after each change |
//! | `tag`      | what the sample was read from |
//! | `length`   | its bytes plus 1; 0: not kept |
//! | `first`    | its first block |
//!
//! Its bytes lie in blocks of one size, and `next` has a word a block that names the block after it, so that any free
//! blocks can hold any sample.
//!
//! Why a reader never takes bytes for a sample's that are not. It loads `sequence`, then the other words, copies, and
//! loads `sequence` again behind an acquire fence; what it copied counts only if both were the same even number. The
//! pool makes `sequence` odd, and stands behind a release fence, before it changes words of the slot or gives the
//! sample's blocks to another. So if a reader has copied any word that was written after that fence, the two fences make the
//! odd number, or a later one, visible to its second load, and the copy is thrown away. And the pool fills blocks and
//! `next` before it stores the even number with release order, so that a reader whose first load finds it finds the
//! bytes, too.
//!
//! Every access on either side, to the bytes as well, is an atomic one: a copy that races with the pool reads words of
//! either time, which is thrown away, and is no undefined behaviour. On x86-64 a longer copy is one `rep movsb`, which is
//! a third faster where memory is the limit ([`copy_words`] says why that is the same).
//!
//! A reader never waits: an odd number is a miss. A pool killed between two stores leaves an odd number at most, and so a
//! miss for ever.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Blocks are of at least so many bytes.
pub(crate) const SMALLEST_BLOCK: u32 = 128;
/// And of at most so many.
pub(crate) const LARGEST_BLOCK: u32 = 4096;

const WORD: usize = 8;

/// From so many bytes on, a string instruction is faster than words.
#[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
const STRING_BYTES: usize = 1024;

/// The words of one sample.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) sequence: &'a AtomicU64,
    pub(crate) tag: &'a AtomicU64,
    pub(crate) length: &'a AtomicU64,
    pub(crate) first: &'a AtomicU64,
}

/// What a slot held at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    sequence: u64,
    pub(crate) tag: u64,
    pub(crate) bytes: u64,
    pub(crate) first: u64,
}

impl Slot<'_> {
    /// Reader: what is kept; `None`: nothing, or it is being changed.
    #[inline]
    pub(crate) fn entry(self) -> Option<Entry> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let tag = self.tag.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        let first = self.first.load(Ordering::Relaxed);
        let bytes = length.checked_sub(1)?;
        let entry = Entry { sequence, tag, bytes, first };
        // Words of two moments must not even lead to memory being asked for.
        (sequence.is_multiple_of(2) && self.still(entry)).then_some(entry)
    }

    /// Reader: whether all that was read since `entry` was made belongs to it.
    #[inline]
    pub(crate) fn still(self, entry: Entry) -> bool {
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == entry.sequence
    }

    /// Pool: nothing is kept from now on, and what was may be overwritten.
    pub(crate) fn clear(self) {
        self.change(|slot| slot.length.store(0, Ordering::Relaxed));
    }

    /// Pool: the blocks from `first` on, which are filled and linked, are the sample.
    pub(crate) fn set(self, tag: u64, bytes: u64, first: u32) {
        self.change(|slot| {
            slot.tag.store(tag, Ordering::Relaxed);
            slot.first.store(u64::from(first), Ordering::Relaxed);
            slot.length.store(bytes + 1, Ordering::Relaxed);
        });
    }

    /// Pool: the same bytes lie in other blocks, which are filled; `link` links them.
    pub(crate) fn moved(self, first: u32, link: impl FnOnce()) {
        self.change(|slot| {
            link();
            slot.first.store(u64::from(first), Ordering::Relaxed);
        });
    }

    fn change(self, words: impl FnOnce(Self)) {
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        words(self);
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }
}

/// A space's data as both sides see it: words, and which block follows which.
#[derive(Clone, Copy)]
pub(crate) struct Data<'a> {
    pub(crate) words: &'a [AtomicU64],
    pub(crate) next: &'a [AtomicU32],
    /// A power of two.
    pub(crate) block_bytes: usize,
}

impl Data<'_> {
    /// Copies `bytes` from block `first` on to `to`; false where the blocks lead out of the data, as only those of an
    /// entry that does not hold any more, or of a broken pool, do.
    ///
    /// # Safety
    /// `to` is valid for writing `bytes` bytes.
    #[inline]
    pub(crate) unsafe fn copy(self, first: u64, bytes: u64, to: *mut u8) -> bool {
        let (Ok(mut left), Ok(mut block)) = (usize::try_from(bytes), usize::try_from(first)) else {
            return false;
        };
        let mut to = to;
        while left > 0 {
            // Blocks that lie one behind the other are copied as one.
            let mut following = block;
            let mut run_bytes = 0;
            let next = loop {
                let Some(next) = self.next.get(following) else { return false };
                run_bytes += self.block_bytes;
                if run_bytes >= left {
                    break 0;
                }
                let next = next.load(Ordering::Relaxed) as usize;
                if next != following + 1 {
                    break next;
                }
                following = next;
            };
            let from = block * (self.block_bytes / WORD);
            let copied = run_bytes.min(left);
            let Some(words) = self.words.get(from..from + copied.div_ceil(WORD)) else { return false };
            // SAFETY: `copied` bytes of what the caller vouches for are left behind `to`.
            unsafe { copy_words(words, copied, to) };
            // SAFETY: as above.
            to = unsafe { to.add(copied) };
            left -= copied;
            block = next;
        }
        true
    }
}

/// The first `bytes` bytes of `words`.
///
/// # Safety
/// `to` is valid for writing `bytes` bytes, and `words` holds as many.
#[inline]
unsafe fn copy_words(words: &[AtomicU64], bytes: usize, to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    if bytes >= STRING_BYTES {
        // SAFETY: reads and writes what the caller vouches for. The assembler's loads are loads of the machine, which knows
        // no data races: each byte is that of some moment, as if loaded by a relaxed atomic load. The compiler moves no
        // access across the block, as it may touch any memory, and `lfence` lets the load of `sequence` that comes
        // after it begin only when all loads before it are done.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                "lfence",
                inout("rcx") bytes => _,
                inout("rsi") words.as_ptr() => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    let mut to = to;
    for word in &words[..bytes / WORD] {
        let value = word.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: a whole word is left of what the caller vouches for.
        unsafe { to.cast::<[u8; WORD]>().write(value) };
        // SAFETY: as above.
        to = unsafe { to.add(WORD) };
    }
    let rest = bytes % WORD;
    if rest > 0 {
        let value = words[bytes / WORD].load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: so many bytes are left of what the caller vouches for.
        unsafe { to.copy_from_nonoverlapping(value.as_ptr(), rest) };
    }
}

/// Pool: `bytes` become the words from `at` on; the last one is filled up with zeros.
pub(crate) fn write_words(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    for (word, chunk) in words[at..].iter().zip(bytes.chunks(WORD)) {
        let mut value = [0; WORD];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod tests;
