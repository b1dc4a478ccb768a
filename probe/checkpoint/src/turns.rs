//! How many threads may do something at once.

use crate::arena::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// So many may go on; the others wait for one of them to be done.
#[derive(Debug)]
pub(crate) struct Turns {
    left: Mutex<usize>,
    given_back: Condvar,
}

impl Turns {
    pub(crate) fn new(turns: usize) -> Turns {
        Turns { left: Mutex::new(turns), given_back: Condvar::new() }
    }

    /// Waits for a turn, which lasts until what this returns is dropped.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut left = lock(&self.left);
        while *left == 0 {
            left = self.given_back.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        *left -= 1;
        Turn(self)
    }
}

/// A turn taken.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.left) += 1;
        self.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn no_more_than_so_many_go_on_at_once_and_all_get_their_turn() {
        let (turns, inside, most, went) =
            (Turns::new(2), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = turns.take();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        went.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(went.into_inner(), 1200);
        assert!(most.into_inner() <= 2);
    }
}
