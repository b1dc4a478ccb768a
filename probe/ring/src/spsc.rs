//! The ring itself, over borrowed atomics, so that the same lines run in shared memory and under loom.
//!
//! `head` and `tail` count records since the lane was made and never wrap in practice. Records are moved as
//! relaxed atomic words: the other side may be hostile and write while we read, which must not be undefined.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// 8-byte words of one record.
pub(crate) const WORDS: usize = 6;

/// What both sides see. `words.len()` is `WORDS` times a power of two.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) head: &'a AtomicU64,
    pub(crate) tail: &'a AtomicU64,
    pub(crate) dropped: &'a AtomicU64,
    pub(crate) words: &'a [AtomicU64],
}

impl<'a> Shared<'a> {
    fn capacity(&self) -> u64 {
        (self.words.len() / WORDS) as u64
    }

    #[inline]
    fn slot(&self, position: u64) -> &'a [AtomicU64] {
        let at = (position & (self.capacity() - 1)) as usize * WORDS;
        &self.words[at..at + WORDS]
    }
}

/// The writer's own account; it never reads `head` back.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    head: u64,
    tail_seen: u64,
    dropped: u64,
}

impl Producer {
    /// Appends a record, or counts it as dropped when the reader is a whole ring behind.
    #[inline]
    pub(crate) fn push(&mut self, shared: Shared<'_>, record: [u64; WORDS]) -> bool {
        if self.head.wrapping_sub(self.tail_seen) >= shared.capacity() {
            let tail = shared.tail.load(Ordering::Acquire);
            if self.head.wrapping_sub(tail) >= shared.capacity() {
                self.count_dropped(shared);
                return false;
            }
            self.tail_seen = tail;
        }
        for (word, value) in shared.slot(self.head).iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        self.head += 1;
        shared.head.store(self.head, Ordering::Release);
        true
    }

    pub(crate) fn count_dropped(&mut self, shared: Shared<'_>) {
        self.dropped += 1;
        shared.dropped.store(self.dropped, Ordering::Relaxed);
    }
}

/// The reader's own account; `tail` in shared memory is written, and read only to resume.
#[derive(Debug)]
pub(crate) struct Consumer {
    tail: u64,
}

/// `head` and `tail` contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Consumer {
    /// Continues where the last reader stopped.
    pub(crate) fn resume(shared: Shared<'_>) -> Consumer {
        Consumer { tail: shared.tail.load(Ordering::Acquire) }
    }

    /// Hands over what is there now, at most one ring full. The writer gets the room back afterwards, so a
    /// reader that dies in between leaves these records to the next one.
    ///
    /// A `head` that no honest writer can have made moves the reader there and gives [`Nonsense`].
    pub(crate) fn drain(
        &mut self,
        shared: Shared<'_>,
        mut each: impl FnMut([u64; WORDS]),
    ) -> Result<u64, Nonsense> {
        let head = shared.head.load(Ordering::Acquire);
        let available = head.wrapping_sub(self.tail);
        if available > shared.capacity() {
            self.tail = head;
            shared.tail.store(head, Ordering::Release);
            return Err(Nonsense);
        }
        for offset in 0..available {
            let slot = shared.slot(self.tail.wrapping_add(offset));
            each(std::array::from_fn(|word| slot[word].load(Ordering::Relaxed)));
        }
        self.tail = head;
        shared.tail.store(head, Ordering::Release);
        Ok(available)
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct Ring {
        head: AtomicU64,
        tail: AtomicU64,
        dropped: AtomicU64,
        words: Vec<AtomicU64>,
    }

    impl Ring {
        fn new(capacity: usize) -> Arc<Ring> {
            Arc::new(Ring {
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
                words: (0..capacity * WORDS).map(|_| AtomicU64::new(0)).collect(),
            })
        }

        fn shared(&self) -> Shared<'_> {
            Shared { head: &self.head, tail: &self.tail, dropped: &self.dropped, words: &self.words }
        }
    }

    #[test]
    fn every_interleaving_delivers_whole_records_in_order_or_counts_them() {
        const PUSHES: u64 = 3;
        loom::model(|| {
            let ring = Ring::new(2);
            let writer = thread::spawn({
                let ring = ring.clone();
                move || {
                    let mut producer = Producer::default();
                    for n in 1..=PUSHES {
                        producer.push(ring.shared(), [n; WORDS]);
                    }
                }
            });
            let mut seen = Vec::new();
            let mut consumer = Consumer::resume(ring.shared());
            consumer.drain(ring.shared(), |record| seen.push(record)).unwrap();
            writer.join().unwrap();
            consumer.drain(ring.shared(), |record| seen.push(record)).unwrap();
            assert!(seen.iter().all(|record| record.iter().all(|word| *word == record[0])), "torn: {seen:?}");
            assert!(seen.windows(2).all(|pair| pair[0][0] < pair[1][0]), "out of order: {seen:?}");
            assert_eq!(seen.len() as u64 + ring.dropped.load(Ordering::Relaxed), PUSHES);
        });
    }
}
