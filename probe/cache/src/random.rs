//! Random numbers that stay the same over versions of this program: a run that is resumed draws what it would have
//! drawn.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A stream of its own for each purpose of a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    stream: Pcg64Mcg,
    /// Numbers drawn so far: with seed and purpose the whole state.
    drawn: u64,
}

impl Random {
    pub(crate) fn new(seed: u64, purpose: &str) -> Random {
        // FNV-1a; only has to tell purposes apart.
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Random { stream: Pcg64Mcg::seed_from_u64(seed ^ hash), drawn: 0 }
    }

    pub(crate) fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Goes on behind the first `drawn` numbers. Only for a stream that is new.
    pub(crate) fn go_on_behind(&mut self, drawn: u64) {
        self.stream.advance(u128::from(drawn));
        self.drawn = drawn;
    }

    fn number(&mut self) -> u64 {
        self.drawn += 1;
        self.stream.next_u64()
    }

    /// From 0 up to, and without, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `0..count`; `count` is at least 1.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        // The bias of a 64-bit product is below 2^-32 for any number of samples.
        ((u128::from(self.number()) * count as u128) >> 64) as usize
    }

    /// From a normal distribution with mean 0 and deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    pub(crate) fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..count).collect();
        self.shuffle(&mut ids);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_goes_on_where_another_was_left() {
        let mut whole = Random::new(9, "test");
        whole.permutation(50);
        whole.normal();
        let mut resumed = Random::new(9, "test");
        resumed.go_on_behind(whole.drawn());
        assert_eq!(resumed.permutation(50), whole.permutation(50));
        assert_eq!(resumed.drawn(), whole.drawn());
    }
}
