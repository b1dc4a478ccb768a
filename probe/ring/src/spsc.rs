//! The rings of a lane, over borrowed atomics, so that the same lines run in shared memory and under loom.
//!
//! A lane has two: a short one, which is used over and over so that its memory stays in the caches and page tables of both
//! sides, and a long one for what comes while the reader is busy. The writer moves to the long ring when the short one is
//! full, and back when the reader has taken everything of the long one. Records arrive in order:
//!
//! - the reader looks at the long ring's head first: whatever the writer put into the short ring before it moved is
//!   visible to it then, and is handed over first;
//! - the writer moves back only when the long ring's tail says that all of it was handed over: what it puts into the short
//!   ring from then on cannot overtake.
//!
//! `head` and `tail` count records since the lane was made and never wrap in practice. Records are moved as
//! relaxed atomic words, or by the kernel: the other side may be hostile and write while we read, which must not be undefined.

use stallscope_abi::lane::WORDS;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// How far one ring is written and read, and how many records it holds: a power of two, or 0.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) head: &'a AtomicU64,
    pub(crate) tail: &'a AtomicU64,
    pub(crate) capacity: u64,
}

impl Ends<'_> {
    /// Where the record of this number is, in records. To be called for a ring that holds some.
    #[inline]
    pub(crate) fn place(&self, number: u64) -> u64 {
        number & (self.capacity - 1)
    }
}

/// What its writer sees of one ring.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) ends: Ends<'a>,
    /// `WORDS` for each record that it holds.
    pub(crate) words: &'a [AtomicU64],
}

impl<'a> Ring<'a> {
    #[inline]
    fn slot(&self, number: u64) -> &'a [AtomicU64] {
        let at = self.ends.place(number) as usize * WORDS;
        &self.words[at..at + WORDS]
    }
}

/// What the writer sees of a lane.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) short: Ring<'a>,
    pub(crate) long: Ring<'a>,
    pub(crate) dropped: &'a AtomicU64,
}

/// Which of a lane's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Short,
    Long,
}

/// The writer's account of one ring; it never reads `head` back.
#[derive(Debug, Default)]
struct Written {
    head: u64,
    tail_seen: u64,
}

impl Written {
    /// Appends a record, or refuses it when the reader is a whole ring behind.
    #[inline]
    fn push(&mut self, ring: Ring<'_>, record: [u64; WORDS]) -> bool {
        let Ends { head, tail, capacity } = ring.ends;
        if self.head.wrapping_sub(self.tail_seen) >= capacity {
            let tail = tail.load(Ordering::Acquire);
            if self.head.wrapping_sub(tail) >= capacity {
                return false;
            }
            self.tail_seen = tail;
        }
        for (word, value) in ring.slot(self.head).iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        self.head += 1;
        head.store(self.head, Ordering::Release);
        true
    }
}

/// The writer's own account.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    short: Written,
    long: Written,
    /// Records go to the long ring.
    moved: bool,
    dropped: u64,
}

impl Producer {
    /// Appends a record, or counts it as dropped when both rings are full.
    #[inline]
    pub(crate) fn push(&mut self, shared: Shared<'_>, record: [u64; WORDS]) -> bool {
        if self.moved && shared.long.ends.tail.load(Ordering::Acquire) == self.long.head {
            self.moved = false;
        }
        if !self.moved && self.short.push(shared.short, record) {
            return true;
        }
        self.moved = true;
        let taken = self.long.push(shared.long, record);
        if !taken {
            self.count_dropped(shared);
        }
        taken
    }

    pub(crate) fn count_dropped(&mut self, shared: Shared<'_>) {
        self.dropped += 1;
        shared.dropped.store(self.dropped, Ordering::Relaxed);
    }
}

/// The reader's own account; a `tail` in shared memory is written, and read only to resume.
#[derive(Debug)]
pub(crate) struct Consumer {
    short_tail: u64,
    long_tail: u64,
}

/// A `head` and its `tail` contradict each other, or records could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense;

/// Records handed over from each ring, and those that were there and stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) short: u64,
    pub(crate) long: u64,
    pub(crate) left: u64,
}

impl Consumer {
    /// Continues where the last reader stopped.
    pub(crate) fn resume(short: Ends<'_>, long: Ends<'_>) -> Consumer {
        Consumer {
            short_tail: short.tail.load(Ordering::Acquire),
            long_tail: long.tail.load(Ordering::Acquire),
        }
    }

    /// Has `read` hand over the oldest `most` of what is there now, at most both rings full: so many records of a ring from the
    /// one of a number on. The writer gets the slots back afterwards, so a reader that dies in between leaves these records to
    /// the next one.
    ///
    /// A `head` that no honest writer can have made moves the reader to both and gives [`Nonsense`], and so does a `read` that
    /// fails.
    pub(crate) fn drain(
        &mut self,
        short: Ends<'_>,
        long: Ends<'_>,
        most: u64,
        mut read: impl FnMut(Which, u64, u64) -> std::io::Result<()>,
    ) -> Result<Taken, Nonsense> {
        // In this order: see above.
        let long_head = long.head.load(Ordering::Acquire);
        let short_head = short.head.load(Ordering::Acquire);
        let in_short = short_head.wrapping_sub(self.short_tail);
        let in_long = long_head.wrapping_sub(self.long_tail);
        let is_honest = in_short <= short.capacity && in_long <= long.capacity;
        let mut taken = Taken::default();
        if is_honest {
            taken.short = in_short.min(most);
            // None before all of the short ring.
            taken.long = in_long.min(most - taken.short);
            taken.left = in_short + in_long - taken.short - taken.long;
        }
        let is_read = is_honest
            && read(Which::Short, self.short_tail, taken.short).is_ok()
            && read(Which::Long, self.long_tail, taken.long).is_ok();
        let (short_tail, long_tail) = if is_read {
            (self.short_tail.wrapping_add(taken.short), self.long_tail.wrapping_add(taken.long))
        } else {
            (short_head, long_head)
        };
        // A word that is not written stays in the writer's cache.
        for (ring, tail, to) in
            [(short, &mut self.short_tail, short_tail), (long, &mut self.long_tail, long_tail)]
        {
            if *tail != to {
                *tail = to;
                ring.tail.store(to, Ordering::Release);
            }
        }
        if is_read { Ok(taken) } else { Err(Nonsense) }
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct Memory {
        heads: [AtomicU64; 2],
        tails: [AtomicU64; 2],
        dropped: AtomicU64,
        words: [Vec<AtomicU64>; 2],
    }

    impl Memory {
        fn new(capacities: [usize; 2]) -> Arc<Memory> {
            let zeros = || [AtomicU64::new(0), AtomicU64::new(0)];
            Arc::new(Memory {
                heads: zeros(),
                tails: zeros(),
                dropped: AtomicU64::new(0),
                words: capacities.map(|capacity| (0..capacity * WORDS).map(|_| AtomicU64::new(0)).collect()),
            })
        }

        fn shared(&self) -> Shared<'_> {
            let ring = |n: usize| {
                let words = &self.words[n];
                let capacity = (words.len() / WORDS) as u64;
                Ring { ends: Ends { head: &self.heads[n], tail: &self.tails[n], capacity }, words }
            };
            Shared { short: ring(0), long: ring(1), dropped: &self.dropped }
        }

        fn drain(&self, consumer: &mut Consumer, most: u64, seen: &mut Vec<[u64; WORDS]>) {
            let Shared { short, long, .. } = self.shared();
            let read = |which, from: u64, count: u64| {
                let ring = if which == Which::Short { short } else { long };
                for number in from..from + count {
                    let slot = ring.slot(number);
                    seen.push(std::array::from_fn(|word| slot[word].load(Ordering::Relaxed)));
                }
                Ok(())
            };
            consumer.drain(short.ends, long.ends, most, read).unwrap();
        }
    }

    /// `drains` of at most `most` records while the writer pushes, and one of all after.
    fn every_interleaving(capacities: [usize; 2], pushes: u64, drains: usize, most: u64) {
        loom::model(move || {
            let memory = Memory::new(capacities);
            let writer = thread::spawn({
                let memory = memory.clone();
                move || {
                    let mut producer = Producer::default();
                    for n in 1..=pushes {
                        producer.push(memory.shared(), [n; WORDS]);
                    }
                }
            });
            let mut seen = Vec::new();
            let Shared { short, long, .. } = memory.shared();
            let mut consumer = Consumer::resume(short.ends, long.ends);
            for _ in 0..drains {
                let before = seen.len();
                memory.drain(&mut consumer, most, &mut seen);
                assert!((seen.len() - before) as u64 <= most);
            }
            writer.join().unwrap();
            memory.drain(&mut consumer, u64::MAX, &mut seen);
            assert!(seen.iter().all(|record| record.iter().all(|word| *word == record[0])), "torn: {seen:?}");
            assert!(seen.windows(2).all(|pair| pair[0][0] < pair[1][0]), "out of order: {seen:?}");
            assert_eq!(seen.len() as u64 + memory.dropped.load(Ordering::Relaxed), pushes);
        });
    }

    #[test]
    fn every_interleaving_delivers_whole_records_in_order_or_counts_them() {
        every_interleaving([0, 2], 3, 1, u64::MAX);
    }

    #[test]
    fn a_writer_that_moves_to_the_long_ring_and_back_keeps_the_order() {
        every_interleaving([1, 1], 3, 2, u64::MAX);
    }

    #[test]
    fn a_reader_that_takes_a_part_keeps_the_order() {
        every_interleaving([1, 1], 3, 3, 1);
        every_interleaving([2, 1], 4, 2, 1);
    }
}
