//! Draws with replacement by importance, unbiased: `p = (1 - E) q + E / N`, weight `1 / (N p)`, as Katharopoulos and
//! Fleuret (ICML 2018) weight theirs. `q` follows a running mean of each sample's score (a gradient's norm, or its loss).
//! Ours draws four quarters of an epoch ahead: next uses become known, which is worth more than fresh scores. Guards keep
//! single samples from taking over:
//!
//! - `q` is flattened until the effective sample size is half of the draws at least;
//! - a sample that has stood above twice the mean for four epochs counts as the mean for the next four, and so on: wrong
//!   labels stay hard for ever, and would be drawn, and kept, for ever;
//! - a score goes half the way back to the mean in eight epochs without a use;
//! - where classes are known, none is drawn less often than half of its share of the samples.

use super::state::{Read, Written};
use super::{Draw, Draws, World, sane, with_replacement};
use crate::random::Random;

/// What is drawn uniformly, whatever the scores say.
const UNIFORM_SHARE: f64 = 0.3;
/// Of the old score in the running mean.
const MEMORY: f64 = 0.7;
const FLATTEN: f64 = 0.7;
const LEAST_EFFECTIVE_SHARE: f64 = 0.5;
const CHUNKS_AN_EPOCH: u32 = 4;
/// Hot is above so many means.
const HOT: f64 = 2.0;
/// Chunks that a sample may be hot before it is cooled for as many.
const HOT_CHUNKS: u8 = 16;
/// What is left of a score's distance to the mean after a chunk without a use: a half after 32.
const KEPT_A_CHUNK: f64 = 0.978_572_062_087_700_1;
const LEAST_CLASS_SHARE: f64 = 0.5;
/// Lifting one class lowers the others, some of which have to be lifted then.
const LIFTS: usize = 8;

#[derive(Debug)]
pub(crate) struct Importance {
    /// `None`: not trained on so far.
    scores: Vec<Option<f64>>,
    /// The chunk before which a sample was trained on last.
    trained: Vec<u32>,
    /// Chunks in a row that a sample has been hot, modulo a time hot and a time cooled.
    hot: Vec<u8>,
    chunk: u32,
    /// By sample; empty where they are not known.
    classes: Vec<u32>,
    random: Random,
}

impl Importance {
    pub(crate) fn new(samples: u32, seed: u64) -> Importance {
        let samples = samples as usize;
        Importance {
            scores: vec![None; samples],
            trained: vec![0; samples],
            hot: vec![0; samples],
            chunk: 0,
            classes: Vec::new(),
            random: Random::new(seed, "importance"),
        }
    }

    /// What each sample counts in this chunk.
    fn importances(&mut self) -> Vec<f64> {
        let (sum, known) =
            self.scores.iter().flatten().fold((0.0, 0.0), |(sum, known), score| (sum + score, known + 1.0));
        // Those of which nothing is known are as important as the mean.
        let mean = if known > 0.0 { sum / known } else { 1.0 };
        let now = self.chunk;
        let samples = self.scores.iter().zip(&self.trained).zip(&mut self.hot);
        samples
            .map(|((score, trained), hot)| {
                let Some(score) = *score else { return mean };
                *hot = if score > HOT * mean { (*hot + 1) % (2 * HOT_CHUNKS) } else { 0 };
                let age = now.saturating_sub(*trained).min(1000);
                let decayed = mean + (score - mean) * KEPT_A_CHUNK.powi(age as i32);
                if *hot >= HOT_CHUNKS { decayed.min(mean) } else { decayed }
            })
            .collect()
    }

    /// The probability of each sample to be the next draw.
    fn probabilities(&mut self) -> Vec<f64> {
        let samples = self.scores.len() as f64;
        let importances = self.importances();
        let mut power = 1.0;
        loop {
            let raised: Vec<f64> =
                importances.iter().map(|importance| importance.max(0.0).powf(power)).collect();
            let total: f64 = raised.iter().sum();
            let probability = |raised: &f64| {
                let q = if total > 0.0 { raised / total } else { 1.0 / samples };
                (1.0 - UNIFORM_SHARE) * q + UNIFORM_SHARE / samples
            };
            let mut p: Vec<f64> = raised.iter().map(probability).collect();
            self.lift_classes(&mut p);
            // (E w)^2 / E w^2 with w = 1 / (N p).
            let effective = 1.0 / p.iter().map(|p| 1.0 / (samples * samples * p)).sum::<f64>();
            if effective >= LEAST_EFFECTIVE_SHARE || power < 0.01 {
                return p;
            }
            power *= FLATTEN;
        }
    }

    /// Gives classes that are drawn too seldom their least share; what stays within a class is in proportion.
    fn lift_classes(&self, p: &mut [f64]) {
        let Some(classes) = self.classes.iter().max().map(|most| *most as usize + 1) else { return };
        let mut least = vec![0.0; classes];
        let mut share = vec![0.0; classes];
        for (class, p) in self.classes.iter().zip(&*p) {
            least[*class as usize] += LEAST_CLASS_SHARE / self.classes.len() as f64;
            share[*class as usize] += p;
        }
        let before = share.clone();
        for _ in 0..LIFTS {
            let is_low: Vec<bool> = share.iter().zip(&least).map(|(share, least)| share <= least).collect();
            let lifted: f64 =
                least.iter().zip(&is_low).filter(|(_, low)| **low).map(|(least, _)| least).sum();
            let others: f64 =
                share.iter().zip(&is_low).filter(|(_, low)| !**low).map(|(share, _)| share).sum();
            if others <= 0.0 {
                break;
            }
            for ((share, least), low) in share.iter_mut().zip(&least).zip(is_low) {
                *share = if low { *least } else { *share * (1.0 - lifted) / others };
            }
        }
        for (class, p) in self.classes.iter().zip(p) {
            let class = *class as usize;
            if before[class] > 0.0 {
                *p *= share[class] / before[class];
            }
        }
    }
}

impl Draws for Importance {
    fn chunk(&mut self, _: &World<'_>) -> Vec<Draw> {
        let p = self.probabilities();
        self.chunk = self.chunk.saturating_add(1);
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
            let id = *id as usize;
            if let (Some(score), Some(trained)) = (self.scores.get_mut(id), self.trained.get_mut(id)) {
                let new = sane(*loss);
                *score = Some(score.map_or(new, |old| MEMORY * old + (1.0 - MEMORY) * new));
                *trained = self.chunk;
            }
        }
    }

    fn score(&self, id: u32) -> Option<f64> {
        *self.scores.get(id as usize)?
    }

    fn classes(&mut self, of: &[u32]) {
        if of.len() == self.scores.len() && of.iter().all(|class| (*class as usize) < of.len()) {
            self.classes = of.to_vec();
        }
    }

    fn save(&self, state: &mut Written) {
        state.u64(self.random.drawn());
        state.u64(u64::from(self.chunk));
        state.f64s(self.scores.iter().map(|score| score.unwrap_or(-1.0)));
        state.u32s(self.trained.iter().copied());
        state.bytes(&self.hot);
    }

    fn load(&mut self, state: &mut Read<'_>) -> Option<()> {
        let samples = self.scores.len();
        self.random.go_on_behind(state.u64()?);
        self.chunk = state.u64()?.try_into().ok()?;
        let scores = state.f64s()?;
        self.trained = state.u32s()?;
        self.hot = state.bytes()?.to_vec();
        let lengths = [scores.len(), self.trained.len(), self.hot.len()];
        if lengths != [samples; 3] || scores.iter().any(|score| !score.is_finite()) {
            return None;
        }
        if self.hot.iter().any(|hot| *hot >= 2 * HOT_CHUNKS) {
            return None;
        }
        self.scores = scores.into_iter().map(|score| (score >= 0.0).then_some(score)).collect();
        Some(())
    }
}
