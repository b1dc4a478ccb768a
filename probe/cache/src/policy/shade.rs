//! SHADE's cache (FAST 2023): the least important goes first, among equals the least used; a newcomer is kept if what the
//! ghost list remembers of it is above the least of those kept. As theirs, the ghost list knows every sample that was
//! seen. Theirs throws where a sample is not on it, and then never keeps it; ours keeps those that have no score yet only
//! while there is capacity.

use super::ranking::Ranking;
use super::{Policy, Score, Use};
use std::collections::HashMap;

type Rank = (Score, u64);

#[derive(Debug)]
pub(crate) struct Shade {
    kept: Ranking<Rank>,
    /// Of every sample that was used: its score, and how often it was used.
    ghost: HashMap<u32, Rank>,
}

impl Shade {
    pub(crate) fn new(capacity_bytes: u64) -> Shade {
        Shade { kept: Ranking::new(capacity_bytes), ghost: HashMap::new() }
    }

    fn used(&mut self, id: u32) -> Rank {
        let rank = self.ghost.entry(id).or_default();
        rank.1 += 1;
        *rank
    }
}

impl Policy for Shade {
    fn contains(&self, id: u32) -> bool {
        self.kept.contains(id)
    }

    fn used_bytes(&self) -> u64 {
        self.kept.used_bytes()
    }

    fn hit(&mut self, used: &Use) {
        let rank = self.used(used.id);
        self.kept.rank(used.id, rank);
    }

    fn miss(&mut self, used: &Use, evicted: &mut Vec<u32>) -> bool {
        let rank = self.used(used.id);
        self.kept.admit(used.id, used.bytes, rank, evicted)
    }

    fn scored(&mut self, id: u32, score: f64) {
        let rank = self.ghost.entry(id).or_default();
        rank.0 = Score::new(score);
        let rank = *rank;
        self.kept.rank(id, rank);
    }

    fn forget(&mut self, id: u32) {
        self.kept.remove(id);
    }

    fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>) {
        self.kept.resize(capacity_bytes, evicted);
    }
}
