//! iCACHE's H-cache (HPCA 2023), from its published description: a heap with the least important on top, where a newcomer
//! is kept if it is above the top. Scores are those of the last epoch's end: the heap that is used stands still while a
//! shadow of it is scored anew, and the two change places between epochs.

use super::ranking::Ranking;
use super::{Policy, Score, Use};
use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Icache {
    kept: Ranking<Score>,
    /// As of the last epoch's end.
    scores: HashMap<u32, Score>,
    /// Scores that came since.
    shadow: HashMap<u32, Score>,
}

impl Icache {
    pub(crate) fn new(capacity_bytes: u64) -> Icache {
        Icache { kept: Ranking::new(capacity_bytes), scores: HashMap::new(), shadow: HashMap::new() }
    }
}

impl Policy for Icache {
    fn contains(&self, id: u32) -> bool {
        self.kept.contains(id)
    }

    fn used_bytes(&self) -> u64 {
        self.kept.used_bytes()
    }

    fn hit(&mut self, _: &Use) {}

    fn miss(&mut self, used: &Use, evicted: &mut Vec<u32>) -> bool {
        let score = self.scores.get(&used.id).copied().unwrap_or_default();
        self.kept.admit(used.id, used.bytes, score, evicted)
    }

    fn scored(&mut self, id: u32, score: f64) {
        self.shadow.insert(id, Score::new(score));
    }

    fn epoch(&mut self) {
        self.scores.extend(self.shadow.drain());
        let ids: Vec<u32> = self.kept.ids().collect();
        for id in ids {
            self.kept.rank(id, self.scores.get(&id).copied().unwrap_or_default());
        }
    }

    fn forget(&mut self, id: u32) {
        self.kept.remove(id);
    }

    fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>) {
        self.kept.resize(capacity_bytes, evicted);
    }
}
