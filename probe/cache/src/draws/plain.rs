//! Every sample once an epoch, in an order that is new each time.

use super::state::{Read, Written};
use super::{Draw, Draws, World};
use crate::random::Random;

#[derive(Debug)]
pub(crate) struct Plain {
    samples: u32,
    random: Random,
}

impl Plain {
    pub(crate) fn new(samples: u32, seed: u64) -> Plain {
        Plain { samples, random: Random::new(seed, "plain") }
    }
}

impl Draws for Plain {
    fn chunk(&mut self, _: &World<'_>) -> Vec<Draw> {
        self.random.permutation(self.samples).into_iter().map(Draw::plain).collect()
    }

    fn save(&self, state: &mut Written) {
        state.u64(self.random.drawn());
    }

    fn load(&mut self, state: &mut Read<'_>) -> Option<()> {
        self.random.go_on_behind(state.u64()?);
        Some(())
    }
}
