//! A rolling window: a share of the samples is pinned, the others stream through a window in a new order each pass, and
//! each is used so many times while it is there. Every sample has as many uses as any other, so that nothing has to be
//! weighted; reads fall to about one over the uses. A function of the seed alone.
//!
//! Close to data echoing (Choi et al., 2019), which repeats batches or samples at once; here uses of a sample are spread
//! over the window.

use super::state::{Read, Written};
use super::{Draw, Draws, World};
use crate::random::Random;

#[derive(Debug)]
pub(crate) struct Reuse {
    uses: u32,
    window: usize,
    pinned: Vec<u32>,
    streamed: Vec<u32>,
    /// What is still to come of this pass, last first.
    coming: Vec<u32>,
    /// In the window, with the uses that are left.
    inside: Vec<(u32, u32)>,
    /// By id, whether it is in the window.
    is_inside: Vec<bool>,
    cycle: Vec<u32>,
    random: Random,
}

impl Reuse {
    pub(crate) fn new(samples: u32, seed: u64, uses: u32, window_share: f64, pinned_share: f64) -> Reuse {
        let share = |share: f64| (f64::from(samples) * share.clamp(0.0, 1.0)) as usize;
        let mut pinned = Random::new(seed, "pin").permutation(samples);
        let streamed = pinned.split_off(share(pinned_share).min(samples as usize - 1));
        Reuse {
            uses: uses.max(1),
            window: share(window_share).max(1),
            pinned,
            streamed,
            coming: Vec::new(),
            inside: Vec::new(),
            is_inside: vec![false; samples as usize],
            cycle: Vec::new(),
            random: Random::new(seed, "reuse"),
        }
    }

    /// The next pass; those that are in the window still come in its second half.
    fn refill(&mut self) {
        let mut order = self.streamed.clone();
        self.random.shuffle(&mut order);
        let half = order.len() / 2;
        let (late, mut order): (Vec<u32>, Vec<u32>) =
            order.into_iter().partition(|id| self.is_inside[*id as usize]);
        let mut second = order.split_off(half.min(order.len()));
        second.extend(late);
        self.random.shuffle(&mut second);
        order.append(&mut second);
        order.reverse();
        self.coming = order;
    }

    fn next(&mut self) -> u32 {
        let samples = self.pinned.len() + self.streamed.len();
        if !self.pinned.is_empty() && self.random.below(samples) < self.pinned.len() {
            if self.cycle.is_empty() {
                self.cycle = self.pinned.clone();
                self.random.shuffle(&mut self.cycle);
            }
            if let Some(id) = self.cycle.pop() {
                return id;
            }
        }
        while self.inside.len() < self.window {
            if self.coming.is_empty() {
                self.refill();
            }
            match self.coming.pop() {
                // Twice at once in a window that is as large as the stream.
                Some(id) if self.is_inside[id as usize] => {
                    self.coming.push(id);
                    break;
                }
                Some(id) => {
                    self.is_inside[id as usize] = true;
                    self.inside.push((id, self.uses));
                }
                None => break,
            }
        }
        let at = self.random.below(self.inside.len());
        let (id, left) = &mut self.inside[at];
        let id = *id;
        *left -= 1;
        if *left == 0 {
            self.is_inside[id as usize] = false;
            self.inside.swap_remove(at);
        }
        id
    }
}

impl Draws for Reuse {
    fn chunk(&mut self, _: &World<'_>) -> Vec<Draw> {
        let samples = self.pinned.len() + self.streamed.len();
        (0..samples).map(|_| Draw::plain(self.next())).collect()
    }

    /// The next use of whatever is in the window is known.
    fn ahead(&self) -> u32 {
        2
    }

    fn save(&self, state: &mut Written) {
        state.u64(self.random.drawn());
        state.u32s(self.coming.iter().copied());
        state.u32s(self.inside.iter().map(|(id, _)| *id));
        state.u32s(self.inside.iter().map(|(_, left)| *left));
        state.u32s(self.cycle.iter().copied());
    }

    fn load(&mut self, state: &mut Read<'_>) -> Option<()> {
        let samples = self.is_inside.len();
        self.random.go_on_behind(state.u64()?);
        self.coming = state.ids(samples)?;
        let (ids, left) = (state.ids(samples)?, state.u32s()?);
        if ids.len() != left.len() || left.contains(&0) {
            return None;
        }
        ids.iter().for_each(|id| self.is_inside[*id as usize] = true);
        self.inside = ids.into_iter().zip(left).collect();
        self.cycle = state.ids(samples)?;
        Some(())
    }
}
