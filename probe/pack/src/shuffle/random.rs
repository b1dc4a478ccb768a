//! Random numbers that stay the same over versions of this program: an epoch that is taken up has the order that it had.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A stream of its own for each epoch and purpose of a seed.
pub(super) struct Random(Pcg64Mcg);

impl Random {
    pub(super) fn new(seed: u64, epoch: u64, purpose: u64) -> Random {
        let mut bytes = [0; 16];
        for (at, number) in [epoch, purpose].into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        Random(Pcg64Mcg::seed_from_u64(seed ^ crate::snapshot::hash(&bytes)))
    }

    /// From 0 up to, and without, 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of `0..count`; `count` is at least 1.
    pub(super) fn below(&mut self, count: usize) -> usize {
        // The bias of a 64-bit product is below 2^-32 for any number of samples.
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
