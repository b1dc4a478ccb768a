//! Compressed files of which programs read one part after the other: each is expanded once for reads that follow each other.

use stallscope_pack::MOST_EXPANDED_BYTES;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// As many as one of them may have.
const MOST_BYTES: u64 = MOST_EXPANDED_BYTES;
/// Of those that are being expanded, with what they are expanded from: one may have as many. One for each thread had taken 1 GB,
/// for 32 reads of a pack of 76 KB.
const MOST_AT_ONCE: u64 = 2 * MOST_EXPANDED_BYTES;

/// What was used last, by the number of its record.
#[derive(Debug, Default)]
pub(crate) struct Expanded(Mutex<Vec<(usize, Arc<Vec<u8>>)>>);

impl Expanded {
    /// All bytes of a record, if they are kept.
    pub(crate) fn get(&self, record: usize) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.kept();
        let at = kept.iter().rposition(|(number, _)| *number == record)?;
        // What was used last comes last.
        kept[at..].rotate_left(1);
        kept.last().map(|(_, bytes)| bytes.clone())
    }

    /// Keeps them, and gives up what was not used for longest.
    pub(crate) fn put(&self, record: usize, bytes: Arc<Vec<u8>>) {
        let mut kept = self.kept();
        kept.retain(|(number, _)| *number != record);
        kept.push((record, bytes));
        let mut all: u64 = kept.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let mut gone = 0;
        while all > MOST_BYTES && gone + 1 < kept.len() {
            all -= kept[gone].1.len() as u64;
            gone += 1;
        }
        kept.drain(..gone);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(usize, Arc<Vec<u8>>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many bytes are taken for files that are being expanded.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    taken: u64,
    /// Turns are taken in order of arrival: where whatever fits went first, one that takes most of the memory waited while smaller ones came.
    next: u64,
    served: u64,
}

/// Until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    of: &'a Memory,
    bytes: u64,
}

impl Memory {
    /// Waits for who came before and until there are so many, which who has some gives back without waiting for others.
    pub(crate) fn take(&self, bytes: u64) -> Taken<'_> {
        // What has more is refused when it is read.
        let bytes = bytes.min(MOST_AT_ONCE);
        let mut turns = self.turns();
        let own = turns.next;
        turns.next += 1;
        let is_to_wait = |turns: &mut Turns| turns.served != own || turns.taken + bytes > MOST_AT_ONCE;
        let turns = self.changed.wait_while(turns, is_to_wait);
        let mut turns = turns.unwrap_or_else(PoisonError::into_inner);
        turns.served += 1;
        turns.taken += bytes;
        // The next one may fit as well.
        self.changed.notify_all();
        Taken { of: self, bytes }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.of.turns().taken -= self.bytes;
        self.of.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn files_are_expanded_within_their_memory() {
        let (memory, now, most) = (Memory::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let (memory, now, most) = (&memory, &now, &most);
                scope.spawn(move || {
                    for round in 0..50 {
                        // More than all is as much as all.
                        let bytes = MOST_AT_ONCE / 8 * ((thread + round) % 10);
                        let taken = memory.take(bytes);
                        most.fetch_max(
                            now.fetch_add(taken.bytes, Ordering::SeqCst) + taken.bytes,
                            Ordering::SeqCst,
                        );
                        std::thread::yield_now();
                        now.fetch_sub(taken.bytes, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), MOST_AT_ONCE);
        assert_eq!(memory.turns().taken, 0);
    }

    /// Smaller ones that came later had gone before one that takes most of the memory, for as long as any came.
    #[test]
    fn files_are_expanded_in_the_order_in_which_they_are_asked_for() {
        let (memory, order) = (&Memory::default(), &Mutex::new(Vec::new()));
        let wait_for = |next| {
            while memory.turns().next != next {
                std::thread::yield_now();
            }
        };
        let first = memory.take(MOST_AT_ONCE / 2);
        std::thread::scope(|scope| {
            for (nth, bytes) in [(1, MOST_AT_ONCE), (2, 1), (3, 1)] {
                scope.spawn(move || {
                    let _taken = memory.take(bytes);
                    order.lock().map(|mut order| order.push(nth)).ok();
                });
                wait_for(nth + 1);
            }
            drop(first);
        });
        assert_eq!(order.lock().ok().map(|order| order[0]), Some(1));
    }

    #[test]
    fn what_was_used_last_is_kept_within_its_bytes() {
        let expanded = Expanded::default();
        let half = |byte| Arc::new(vec![byte; MOST_BYTES as usize / 2]);
        expanded.put(1, half(1));
        expanded.put(2, half(2));
        assert_eq!(expanded.get(1).map(|bytes| bytes[0]), Some(1));
        expanded.put(3, half(3));
        let kept = |number| expanded.get(number).map(|bytes| bytes[0]);
        assert_eq!([1, 2, 3].map(kept), [Some(1), None, Some(3)]);
        expanded.put(4, Arc::new(vec![4; MOST_BYTES as usize]));
        assert_eq!([1, 3, 4].map(kept), [None, None, Some(4)]);
        // Once more is no second one.
        expanded.put(4, half(5));
        expanded.put(6, half(6));
        assert_eq!([4, 6].map(kept), [Some(5), Some(6)]);
    }
}
