//! MIN (Belady 1966) with bypass: the sample that is used again last goes first, and a newcomer that would be that one is not
//! kept. For samples of one size no policy has more hits, where all uses to come are planned. Those of which no next use
//! is planned go before all others, the longest unused first.

use super::ranking::Ranking;
use super::{Policy, Use};
use std::cmp::Reverse;

/// The higher, the sooner it is used again.
type Rank = (Reverse<u64>, u64);

#[derive(Debug)]
pub(crate) struct Min {
    kept: Ranking<Rank>,
    /// Breaks ties among those whose next use is unknown.
    now: u64,
}

impl Min {
    pub(crate) fn new(capacity_bytes: u64) -> Min {
        Min { kept: Ranking::new(capacity_bytes), now: 0 }
    }
}

impl Policy for Min {
    fn contains(&self, id: u32) -> bool {
        self.kept.contains(id)
    }

    fn used_bytes(&self) -> u64 {
        self.kept.used_bytes()
    }

    fn hit(&mut self, used: &Use) {
        self.now = used.at;
        self.kept.rank(used.id, (Reverse(used.next_at), used.at));
    }

    fn miss(&mut self, used: &Use, evicted: &mut Vec<u32>) -> bool {
        self.now = used.at;
        // A sample without a planned use takes no other's place, but may have one that is free.
        if used.next_at == Use::UNKNOWN && !self.kept.has_capacity(used.bytes) {
            return false;
        }
        self.kept.admit(used.id, used.bytes, (Reverse(used.next_at), used.at), evicted)
    }

    fn planned(&mut self, id: u32, next_at: u64) {
        self.kept.rank(id, (Reverse(next_at), self.now));
    }

    fn forget(&mut self, id: u32) {
        self.kept.remove(id);
    }

    fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>) {
        self.kept.resize(capacity_bytes, evicted);
    }
}
