//! SHADE's sampler (FAST 2023): with replacement, by `ln(10 + rank in its batch) + s`; those that are in the cache when
//! the epoch is drawn come `copies` times and first.
//!
//! As published, a batch's weights are given to the samples that stood at its places in the order of drawing, which is not
//! the order of training; nothing is weighted in the loss; and with many copies the end of the epoch is cut wrongly.
//! Corrected, weights go to the samples that were trained on, an epoch has as many draws as there are samples, and each
//! draw bears `1 / (N p)`, `p` with the copies in it. That is nearly, not exactly, unbiased: misses that are cut off where the
//! copies leave no place are not in `p`.

use super::state::{Read, Written};
use super::{Draw, Draws, Selection, World, sane, with_replacement};
use crate::random::Random;

#[derive(Debug)]
pub(crate) struct Shade {
    selection: Selection,
    copies: f64,
    weights: Vec<f64>,
    /// The order of drawing, before residents were put first.
    raw: Vec<u32>,
    smoothing: f64,
    epoch: u64,
    loss_sum: f64,
    losses: f64,
    loss_before: f64,
    random: Random,
}

impl Shade {
    pub(crate) fn new(samples: u32, seed: u64, selection: Selection, copies: f64) -> Shade {
        Shade {
            selection,
            copies: copies.clamp(1.0, 100.0),
            weights: vec![1.0; samples as usize],
            raw: Vec::new(),
            smoothing: 0.0,
            epoch: 0,
            loss_sum: 0.0,
            losses: 0.0,
            loss_before: 0.0,
            random: Random::new(seed, "shade"),
        }
    }

    fn smooth(&mut self) {
        let loss = if self.losses > 0.0 { self.loss_sum / self.losses } else { 0.0 };
        match self.epoch {
            0 => {}
            1 => self.smoothing = 0.01 * loss,
            _ if self.loss_before > 0.0 => {
                self.smoothing *= ((loss - self.loss_before) / self.loss_before).exp();
            }
            _ => {}
        }
        (self.loss_before, self.loss_sum, self.losses) = (loss, 0.0, 0.0);
        self.epoch = self.epoch.saturating_add(1);
    }
}

impl Draws for Shade {
    fn chunk(&mut self, world: &World<'_>) -> Vec<Draw> {
        self.smooth();
        let samples = self.weights.len();
        let p: Vec<f64> = self.weights.iter().map(|weight| weight + self.smoothing).collect();
        let total: f64 = p.iter().sum();
        self.raw = with_replacement(&p, samples, &mut self.random);
        let (hits, mut misses): (Vec<u32>, Vec<u32>) =
            self.raw.iter().copied().partition(|id| (world.resident)(*id));
        // Whole copies of all, and one more of the first half where it is so many and a half.
        let mut ids: Vec<u32> = Vec::with_capacity(samples);
        (0..self.copies as usize).for_each(|_| ids.extend(&hits));
        ids.extend(&hits[..(hits.len() as f64 * self.copies.fract()) as usize]);
        self.random.shuffle(&mut misses);
        match (samples.checked_sub(ids.len()), self.selection) {
            (Some(rest), _) => ids.extend(misses.iter().take(rest)),
            (None, Selection::AsPublished) => {
                let cut = ids.len() - samples;
                ids.extend(&misses[..misses.len().saturating_sub(cut)]);
            }
            (None, Selection::Corrected) => ids.truncate(samples),
        }
        let probability = |id: u32| {
            let copies = if (world.resident)(id) { self.copies } else { 1.0 };
            copies * p[id as usize] / total
        };
        // So that the copies' probabilities are such: what they sum up to over all samples.
        let whole: f64 = (0..samples as u32).map(probability).sum();
        ids.into_iter()
            .map(|id| match self.selection {
                Selection::AsPublished => Draw::plain(id),
                Selection::Corrected => {
                    Draw { id, weight: (whole / (samples as f64 * probability(id))) as f32 }
                }
            })
            .collect()
    }

    fn trained(&mut self, place: usize, ids: &[u32], losses: &[f32]) {
        let mut order: Vec<usize> = (0..ids.len().min(losses.len())).collect();
        order.sort_by(|a, b| sane(losses[*a]).total_cmp(&sane(losses[*b])));
        for (rank, position) in order.into_iter().enumerate() {
            let id = match self.selection {
                Selection::AsPublished => self.raw.get(place + position).copied(),
                Selection::Corrected => Some(ids[position]),
            };
            if let Some(weight) = id.and_then(|id| self.weights.get_mut(id as usize)) {
                *weight = (10.0 + rank as f64).ln();
            }
            self.loss_sum += sane(losses[position]);
            self.losses += 1.0;
        }
    }

    fn score(&self, id: u32) -> Option<f64> {
        self.weights.get(id as usize).copied()
    }

    fn save(&self, state: &mut Written) {
        state.u64(self.random.drawn());
        state.u64(self.epoch);
        state.f64s(self.weights.iter().copied());
        state.u32s(self.raw.iter().copied());
        state.f64s([self.smoothing, self.loss_sum, self.losses, self.loss_before].into_iter());
    }

    fn load(&mut self, state: &mut Read<'_>) -> Option<()> {
        self.random.go_on_behind(state.u64()?);
        self.epoch = state.u64()?;
        self.weights = state.scores(self.weights.len())?;
        self.raw = state.ids(self.weights.len())?;
        [self.smoothing, self.loss_sum, self.losses, self.loss_before] = state.scores(4)?.try_into().ok()?;
        Some(())
    }
}
