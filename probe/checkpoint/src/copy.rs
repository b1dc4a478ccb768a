//! Copies many tensors with several threads, which share the bytes evenly: tensors are cut into pieces, and each thread
//! takes the next piece when it is done with one.

#[cfg(loom)]
mod model;

#[cfg(not(loom))]
use crate::arena::lock;
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(loom)]
use loom::thread::{self, JoinHandle};
#[cfg(loom)]
use model::{PIECE_BYTES, copy_nonoverlapping, lock};
use std::collections::VecDeque;
#[cfg(not(loom))]
use std::ptr::copy_nonoverlapping;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::thread::{self, JoinHandle};

/// Small enough to balance, large enough that taking one costs nothing.
#[cfg(not(loom))]
const PIECE_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug)]
struct Piece {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

/// Pieces to copy, and how far that is.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pieces: Vec<Piece>,
    next: AtomicUsize,
    copied: Mutex<usize>,
    all_copied: Condvar,
}

// SAFETY: the pointers are only used in `run`, and the caller of `push` promised that they are good for it from any
// thread until `wait` returns. The destinations of different pieces do not overlap (same promise), and `next` hands each
// piece to one thread. That `wait` and `done` come after all copies, whichever thread made them, is tried in every interleaving
// (`model`).
unsafe impl Send for Batch {}
// SAFETY: as above.
unsafe impl Sync for Batch {}

impl Batch {
    /// Adds a range.
    ///
    /// # Safety
    /// Until `wait` has returned, or the batch is dropped without having been run: `from` is readable and `to` writable
    /// for `bytes`, nobody else writes either or reads `to`, and no range of this batch overlaps `to`.
    pub(crate) unsafe fn push(&mut self, from: *const u8, to: *mut u8, bytes: usize) {
        for at in (0..bytes).step_by(PIECE_BYTES) {
            // SAFETY: `at` is below `bytes`, so both stay within their ranges.
            let (from, to) = unsafe { (from.add(at), to.add(at)) };
            self.pieces.push(Piece { from, to, bytes: PIECE_BYTES.min(bytes - at) });
        }
    }

    /// Copies pieces until none is left to take.
    fn run(&self) {
        let mut copied = 0;
        // Relaxed: the number alone matters here; the bytes become visible through `copied`'s lock.
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: `push`'s promise; `fetch_add` gave this piece to nobody else.
            unsafe { copy_nonoverlapping(piece.from, piece.to, piece.bytes) };
            copied += 1;
        }
        let mut all = lock(&self.copied);
        *all += copied;
        if *all == self.pieces.len() {
            self.all_copied.notify_all();
        }
    }

    /// Whether every piece was copied.
    pub(crate) fn done(&self) -> bool {
        *lock(&self.copied) == self.pieces.len()
    }

    /// Until every piece was copied, helping with those that nobody has taken yet.
    pub(crate) fn wait(&self) {
        self.run();
        let mut copied = lock(&self.copied);
        while *copied < self.pieces.len() {
            copied = self.all_copied.wait(copied).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Threads that copy, beside the one that waits.
#[derive(Debug)]
pub(crate) struct Copiers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Arc<Batch>>,
    closing: bool,
}

impl Copiers {
    /// So many threads; fewer where the system has no more to give, down to none.
    pub(crate) fn new(threads: usize) -> Copiers {
        let shared = Arc::new(Shared::default());
        let threads = (0..threads)
            .map_while(|_| {
                let shared = shared.clone();
                thread::Builder::new().name("ckpt-copy".into()).spawn(move || shared.serve()).ok()
            })
            .collect();
        Copiers { shared, threads }
    }

    /// Has the threads copy it. Who needs it done calls `wait`, which works without any thread too.
    pub(crate) fn begin(&self, batch: Batch) -> Arc<Batch> {
        let batch = Arc::new(batch);
        if batch.pieces.is_empty() {
            return batch;
        }
        let mut state = lock(&self.shared.state);
        for _ in &self.threads {
            state.batches.push_back(batch.clone());
        }
        drop(state);
        self.shared.work.notify_all();
        batch
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            let mut state = lock(&self.state);
            let batch = loop {
                if let Some(batch) = state.batches.pop_front() {
                    break batch;
                }
                if state.closing {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            batch.run();
        }
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_once_whatever_the_sizes() {
        let copiers = Copiers::new(3);
        for sizes in [vec![], vec![0], vec![1, 2, 3], vec![PIECE_BYTES * 2 + 1, 7, PIECE_BYTES, 1]] {
            let sources: Vec<Vec<u8>> =
                sizes.iter().map(|size| (0..*size).map(|at| (at * 31 % 251) as u8).collect()).collect();
            let mut targets: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
            let mut batch = Batch::default();
            for (source, target) in sources.iter().zip(&mut targets) {
                // SAFETY: distinct vectors of equal length that outlive the `wait` below.
                unsafe { batch.push(source.as_ptr(), target.as_mut_ptr(), source.len()) };
            }
            let batch = copiers.begin(batch);
            batch.wait();
            assert!(batch.done());
            assert_eq!(sources, targets);
        }
    }

    #[test]
    fn a_thread_that_waits_finds_all_of_it_copied() {
        let copiers = Copiers::new(2);
        for round in 1..=200_u8 {
            let source = vec![round; 40];
            let mut target = vec![0_u8; 40];
            let mut batch = Batch::default();
            for at in 0..40 {
                // SAFETY: one byte each of two vectors that outlive every `wait` below.
                unsafe { batch.push(source.as_ptr().add(at), target.as_mut_ptr().add(at), 1) };
            }
            let batch = copiers.begin(batch);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        batch.wait();
                        assert!(batch.done());
                    });
                }
            });
            assert_eq!(source, target);
        }
    }

    #[test]
    fn waiting_needs_no_threads() {
        let (source, mut target) = ([7_u8; 100], [0_u8; 100]);
        let mut batch = Batch::default();
        // SAFETY: two arrays that outlive the `wait` below.
        unsafe { batch.push(source.as_ptr(), target.as_mut_ptr(), 100) };
        Copiers::new(0).begin(batch).wait();
        assert_eq!(source, target);
    }
}
