#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use loom::sync::Arc;
use loom::thread;

/// Two samples, and three blocks of a word each.
struct Shared {
    slots: [[AtomicU64; 4]; 2],
    words: [AtomicU64; 3],
    next: [AtomicU32; 3],
}

impl Shared {
    fn new() -> Shared {
        Shared { slots: Default::default(), words: Default::default(), next: Default::default() }
    }

    fn slot(&self, id: usize) -> Slot<'_> {
        let [sequence, tag, length, first] = &self.slots[id];
        Slot { sequence, tag, length, first }
    }

    fn data(&self) -> Data<'_> {
        Data { words: &self.words, next: &self.next, block_bytes: WORD }
    }

    /// The pool's part: a sample of two words, whose bytes are its tag and the tag plus 1.
    fn keep(&self, id: usize, tag: u64, blocks: [u32; 2]) {
        for (block, value) in blocks.into_iter().zip(tag..) {
            write_words(&self.words, block as usize, &value.to_ne_bytes());
        }
        self.next[blocks[0] as usize].store(blocks[1], Ordering::Relaxed);
        self.slot(id).set(tag, 2 * WORD as u64, blocks[0]);
    }

    /// A client's part: what it gets, if anything, is the sample.
    fn look(&self, id: usize, tag: u64) -> bool {
        let slot = self.slot(id);
        let Some(entry) = slot.entry().filter(|entry| entry.tag == tag) else { return false };
        assert_eq!(entry.bytes, 2 * WORD as u64);
        let mut words = [0_u64; 2];
        // SAFETY: the entry says that it has so many bytes.
        let copied = unsafe { self.data().copy(entry.first, entry.bytes, words.as_mut_ptr().cast()) };
        if !copied || !slot.still(entry) {
            return false;
        }
        assert_eq!(words, [tag, tag + 1], "another's bytes");
        true
    }
}

#[test]
fn in_every_interleaving_a_sample_that_takes_anothers_blocks_is_never_taken_for_it() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        shared.keep(0, 10, [0, 1]);
        let pool = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.slot(0).clear();
                shared.keep(1, 20, [1, 0]);
            }
        });
        shared.look(0, 10);
        pool.join().unwrap();
        assert!(!shared.look(0, 10) && shared.look(1, 20));
    });
}

#[test]
fn in_every_interleaving_a_sample_is_found_whole_or_not_yet() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        let pool = thread::spawn({
            let shared = shared.clone();
            move || shared.keep(1, 20, [2, 0])
        });
        shared.look(1, 20);
        pool.join().unwrap();
        assert!(shared.look(1, 20));
    });
}

#[test]
fn in_every_interleaving_a_sample_that_moves_is_whole_or_a_miss() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        shared.keep(0, 10, [0, 2]);
        let pool = thread::spawn({
            let shared = shared.clone();
            move || {
                write_words(&shared.words, 1, &11_u64.to_ne_bytes());
                shared.slot(0).moved(0, || shared.next[0].store(1, Ordering::Relaxed));
                write_words(&shared.words, 2, &99_u64.to_ne_bytes());
            }
        });
        shared.look(0, 10);
        pool.join().unwrap();
        assert!(shared.look(0, 10));
    });
}

#[test]
fn in_every_interleaving_a_sample_read_from_elsewhere_has_its_own_tag() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        shared.keep(0, 10, [0, 1]);
        let pool = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.slot(0).clear();
                shared.keep(0, 30, [0, 1]);
            }
        });
        shared.look(0, 10);
        pool.join().unwrap();
        assert!(!shared.look(0, 10) && shared.look(0, 30));
    });
}
