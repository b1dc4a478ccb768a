//! Draws with replacement by importance, unbiased: `p = (1 - E) q + E / N`, weight `1 / (N p)`, as Katharopoulos and
//! Fleuret (ICML 2018) weight theirs. `q` follows a running mean of each sample's score (a gradient's norm, or its loss).
//! Ours draws four quarters of an epoch ahead: next uses become known, which is worth more than fresh scores, and flattens
//! `q` until the effective sample size is half of the draws at least.

use super::{Draw, Draws, World, sane, with_replacement};
use crate::random::Random;

/// What is drawn uniformly, whatever the scores say.
const UNIFORM_SHARE: f64 = 0.3;
/// Of the old score in the running mean.
const MEMORY: f64 = 0.7;
const FLATTEN: f64 = 0.7;
const LEAST_EFFECTIVE_SHARE: f64 = 0.5;
const CHUNKS_AN_EPOCH: u32 = 4;

#[derive(Debug)]
pub(crate) struct Importance {
    /// `None`: not trained on so far.
    scores: Vec<Option<f64>>,
    random: Random,
}

impl Importance {
    pub(crate) fn new(samples: u32, seed: u64) -> Importance {
        Importance { scores: vec![None; samples as usize], random: Random::new(seed, "importance") }
    }

    /// The probability of each sample to be the next draw.
    fn probabilities(&self) -> Vec<f64> {
        let samples = self.scores.len() as f64;
        let (sum, known) =
            self.scores.iter().flatten().fold((0.0, 0.0), |(sum, known), score| (sum + score, known + 1.0));
        // Those of which nothing is known are as important as the mean.
        let mean = if known > 0.0 { sum / known } else { 1.0 };
        let mut power = 1.0;
        loop {
            let raised: Vec<f64> =
                self.scores.iter().map(|score| score.unwrap_or(mean).max(0.0).powf(power)).collect();
            let total: f64 = raised.iter().sum();
            let probability = |raised: &f64| {
                let q = if total > 0.0 { raised / total } else { 1.0 / samples };
                (1.0 - UNIFORM_SHARE) * q + UNIFORM_SHARE / samples
            };
            let p: Vec<f64> = raised.iter().map(probability).collect();
            // (E w)^2 / E w^2 with w = 1 / (N p).
            let effective = 1.0 / p.iter().map(|p| 1.0 / (samples * samples * p)).sum::<f64>();
            if effective >= LEAST_EFFECTIVE_SHARE || power < 0.01 {
                return p;
            }
            power *= FLATTEN;
        }
    }
}

impl Draws for Importance {
    fn chunk(&mut self, _: &World<'_>) -> Vec<Draw> {
        let p = self.probabilities();
        let count = p.len().div_ceil(CHUNKS_AN_EPOCH as usize);
        let samples = p.len() as f64;
        with_replacement(&p, count, &mut self.random)
            .into_iter()
            .map(|id| Draw { id, weight: (1.0 / (samples * p[id as usize])) as f32 })
            .collect()
    }

    fn chunks_an_epoch(&self) -> u32 {
        CHUNKS_AN_EPOCH
    }

    fn ahead(&self) -> u32 {
        CHUNKS_AN_EPOCH
    }

    fn trained(&mut self, _: usize, ids: &[u32], losses: &[f32]) {
        for (id, loss) in ids.iter().zip(losses) {
            if let Some(score) = self.scores.get_mut(*id as usize) {
                let new = sane(*loss);
                *score = Some(score.map_or(new, |old| MEMORY * old + (1.0 - MEMORY) * new));
            }
        }
    }

    fn score(&self, id: u32) -> Option<f64> {
        *self.scores.get(id as usize)?
    }
}
