//! iCACHE's importance-informed selection (HPCA 2023), from its published description: five epochs of everything, then a
//! sample is drawn with the probability `percentile^0.33` of its last loss among the 1,024 looked at before it.
//!
//! As published, percentiles from the 99th on count as none, so that the hardest hundredth is never drawn; and each epoch
//! begins without a history, so that the first 1,024 always are. Corrected, neither is so, and what is drawn is weighted
//! by one over its probability, times the share of the samples that is drawn: a batch's weighted mean is that of a plain
//! shuffle's batch, and an epoch has fewer batches.

use super::state::{Read, Written};
use super::{Draw, Draws, Selection, World, sane};
use crate::random::Random;
use std::collections::VecDeque;

const WARM_UP_EPOCHS: u64 = 5;
const POWER: f64 = 0.33;
const HISTORY: usize = 1024;
/// Never quite nothing, so that every weight is finite.
const LEAST: f64 = 0.05;

#[derive(Debug)]
pub(crate) struct Iis {
    losses: Vec<f64>,
    selection: Selection,
    /// The losses looked at last, in order of looking and in order of size.
    history: VecDeque<f64>,
    /// How many are looked at.
    most: usize,
    sorted: Vec<f64>,
    epoch: u64,
    random: Random,
}

impl Iis {
    pub(crate) fn new(samples: u32, seed: u64, selection: Selection) -> Iis {
        Iis {
            losses: vec![0.0; samples as usize],
            selection,
            // A smaller data set would have all of it drawn for further epochs.
            most: if selection == Selection::Corrected { HISTORY.min(samples as usize) } else { HISTORY },
            history: VecDeque::new(),
            sorted: Vec::new(),
            epoch: 0,
            random: Random::new(seed, "iis"),
        }
    }

    /// The probability with which a sample of this loss is drawn, by what was looked at before.
    fn chance(&self, loss: f64) -> f64 {
        if self.history.len() < self.most {
            return 1.0;
        }
        let percentile = self.place(loss) as f64 / self.sorted.len() as f64;
        match self.selection {
            Selection::AsPublished if percentile >= 0.99 => 0.0,
            Selection::AsPublished => percentile.powf(POWER),
            Selection::Corrected => percentile.powf(POWER).max(LEAST),
        }
    }

    /// How many of the history are smaller.
    fn place(&self, loss: f64) -> usize {
        self.sorted.partition_point(|known| *known < loss)
    }

    fn remember(&mut self, loss: f64) {
        if self.history.len() == self.most
            && let Some(oldest) = self.history.pop_front()
        {
            self.sorted.remove(self.place(oldest));
        }
        self.history.push_back(loss);
        self.sorted.insert(self.place(loss), loss);
    }
}

impl Draws for Iis {
    fn chunk(&mut self, _: &World<'_>) -> Vec<Draw> {
        let everything = self.epoch < WARM_UP_EPOCHS;
        self.epoch = self.epoch.saturating_add(1);
        let order = self.random.permutation(self.losses.len() as u32);
        if everything {
            return order.into_iter().map(Draw::plain).collect();
        }
        if self.selection == Selection::AsPublished {
            self.history.clear();
            self.sorted.clear();
        }
        let mut drawn = Vec::new();
        let mut chances = 0.0;
        for id in order {
            let loss = self.losses[id as usize];
            let chance = self.chance(loss);
            self.remember(loss);
            chances += chance;
            if self.random.unit() < chance {
                let weight = match self.selection {
                    Selection::AsPublished => 1.0,
                    Selection::Corrected => (1.0 / chance) as f32,
                };
                drawn.push(Draw { id, weight });
            }
        }
        if self.selection == Selection::Corrected {
            let share = (chances / self.losses.len() as f64) as f32;
            drawn.iter_mut().for_each(|draw| draw.weight *= share);
        }
        if drawn.is_empty() {
            drawn.push(Draw::plain(self.random.below(self.losses.len()) as u32));
        }
        drawn
    }

    fn trained(&mut self, _: usize, ids: &[u32], losses: &[f32]) {
        for (id, loss) in ids.iter().zip(losses) {
            if let Some(known) = self.losses.get_mut(*id as usize) {
                *known = sane(*loss);
            }
        }
    }

    fn score(&self, id: u32) -> Option<f64> {
        self.losses.get(id as usize).copied()
    }

    fn save(&self, state: &mut Written) {
        state.u64(self.random.drawn());
        state.u64(self.epoch);
        state.f64s(self.losses.iter().copied());
        state.f64s(self.history.iter().copied());
    }

    fn load(&mut self, state: &mut Read<'_>) -> Option<()> {
        self.random.go_on_behind(state.u64()?);
        self.epoch = state.u64()?;
        self.losses = state.scores(self.losses.len())?;
        let history = state.f64s()?;
        if history.len() > self.most || history.iter().any(|loss| loss.is_nan()) {
            return None;
        }
        history.into_iter().for_each(|loss| self.remember(loss));
        Some(())
    }
}
