//! The hand-over in every interleaving (`--cfg loom`). The batches, queue and threads are those of `super`, with loom's locks
//! and numbers; for bytes there are cells that loom watches, a piece each. Who reads or writes a cell beside another who
//! writes it, with nothing that orders the two, fails the test.

use super::Mutex;
use loom::cell::UnsafeCell;
use loom::sync::MutexGuard;
use std::mem::size_of;
use std::sync::PoisonError;

type Cell = UnsafeCell<u8>;

pub(super) const PIECE_BYTES: usize = size_of::<Cell>();

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies what is in the cells that lie at these bytes.
///
/// # Safety
/// Both are the beginning of a cell, followed by others up to so many bytes.
pub(super) unsafe fn copy_nonoverlapping(from: *const u8, to: *mut u8, bytes: usize) {
    let (from, to) = (from.cast::<Cell>(), to.cast_const().cast::<Cell>());
    for at in 0..bytes / PIECE_BYTES {
        // SAFETY: this function's contract; a cell may be shared, and loom sees who is in it.
        unsafe {
            let value = (*from.add(at)).with(|value| *value);
            (*to.add(at)).with_mut(|place| *place = value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Batch, Copiers};
    use loom::thread;
    use std::sync::Arc;

    struct Tensors {
        from: Vec<Cell>,
        to: Vec<Cell>,
    }

    impl Tensors {
        fn of(pieces: u8) -> Arc<Tensors> {
            let cells = |first: u8| (first..first + pieces).map(Cell::new).collect();
            Arc::new(Tensors { from: cells(1), to: cells(101) })
        }

        fn batch(&self) -> Batch {
            let mut batch = Batch::default();
            let bytes = self.from.len() * PIECE_BYTES;
            // SAFETY: the cells outlive the `wait` of each test, and those of `to` are another vector's.
            unsafe { batch.push(self.from.as_ptr().cast(), self.to.as_ptr().cast_mut().cast(), bytes) };
            batch
        }

        fn copied(&self) -> bool {
            // SAFETY: loom fails the test where somebody writes these meanwhile.
            let read = |cell: &Cell| cell.with(|value| unsafe { *value });
            self.from.iter().zip(&self.to).all(|(from, to)| read(from) == read(to))
        }

        /// As an optimiser does when the fence has let it.
        fn change(&self) {
            for cell in &self.from {
                // SAFETY: loom fails the test where somebody reads or writes these meanwhile.
                cell.with_mut(|value| unsafe { *value = 99 });
            }
        }
    }

    /// With up to three switches away from a thread that could go on, which takes seconds.
    fn in_every_interleaving(test: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(test);
    }

    #[test]
    fn what_is_waited_for_is_copied_whole_and_may_change_then() {
        in_every_interleaving(|| {
            let tensors = Tensors::of(2);
            let copiers = Copiers::new(1);
            let batch = copiers.begin(tensors.batch());
            batch.wait();
            assert!(batch.done() && tensors.copied());
            tensors.change();
        });
    }

    #[test]
    fn two_threads_and_the_one_that_waits_share_a_batch() {
        in_every_interleaving(|| {
            let tensors = Tensors::of(3);
            let copiers = Copiers::new(2);
            copiers.begin(tensors.batch()).wait();
            assert!(tensors.copied());
            tensors.change();
        });
    }

    #[test]
    fn two_may_wait_for_one_batch() {
        in_every_interleaving(|| {
            let tensors = Tensors::of(2);
            let copiers = Copiers::new(1);
            let batch = copiers.begin(tensors.batch());
            let other = thread::spawn({
                let (tensors, batch) = (tensors.clone(), batch.clone());
                move || {
                    batch.wait();
                    assert!(tensors.copied());
                }
            });
            batch.wait();
            assert!(tensors.copied());
            other.join().unwrap();
            tensors.change();
        });
    }

    #[test]
    fn a_batch_that_is_called_done_may_be_read() {
        in_every_interleaving(|| {
            let tensors = Tensors::of(1);
            let copiers = Copiers::new(1);
            let batch = copiers.begin(tensors.batch());
            if batch.done() {
                assert!(tensors.copied());
                tensors.change();
            }
        });
    }

    #[test]
    fn batches_handed_in_before_the_end_are_copied_and_the_threads_end() {
        in_every_interleaving(|| {
            let tensors = [Tensors::of(1), Tensors::of(1)];
            let copiers = Copiers::new(1);
            let batches = tensors.each_ref().map(|tensors| copiers.begin(tensors.batch()));
            drop(copiers);
            assert!(
                batches.iter().all(|batch| batch.done()) && tensors.iter().all(|tensors| tensors.copied())
            );
        });
    }
}
