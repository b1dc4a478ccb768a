//! Least recently used goes first. The baseline that a page cache resembles.

use super::ranking::Ranking;
use super::{Policy, Use};

#[derive(Debug)]
pub(crate) struct Lru {
    kept: Ranking<u64>,
}

impl Lru {
    pub(crate) fn new(capacity_bytes: u64) -> Lru {
        Lru { kept: Ranking::new(capacity_bytes) }
    }
}

impl Policy for Lru {
    fn contains(&self, id: u32) -> bool {
        self.kept.contains(id)
    }

    fn used_bytes(&self) -> u64 {
        self.kept.used_bytes()
    }

    fn hit(&mut self, used: &Use) {
        // From 1, so that a new sample always ranks above the oldest.
        self.kept.rank(used.id, used.at + 1);
    }

    fn miss(&mut self, used: &Use, evicted: &mut Vec<u32>) -> bool {
        self.kept.admit(used.id, used.bytes, used.at + 1, evicted)
    }

    fn forget(&mut self, id: u32) {
        self.kept.remove(id);
    }

    fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>) {
        self.kept.resize(capacity_bytes, evicted);
    }
}
