//! Random numbers of a stream.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

#[derive(Debug)]
pub(crate) struct Noise(Pcg64Mcg);

impl Noise {
    /// The same numbers for the same seed and purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Noise {
        Noise(Pcg64Mcg::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ purpose))
    }

    /// From 0 up to, and without, 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.0.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    /// Mean 0 and variance 1, within 3.5: the sum of four uniform numbers. Quick, because every use of a sample takes one a pixel.
    pub(crate) fn rough(&mut self) -> f32 {
        let bits = self.0.next_u64();
        let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xFFFF).sum();
        (sum as f32 / 65536.0 - 2.0) * 1.732
    }

    /// Mean 0 and variance 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit()).cos()
    }
}
