//! Kept samples in the order in which they would go.

use std::collections::{BTreeSet, HashMap};

/// Samples by rank, the lowest first, in so many bytes.
#[derive(Clone, Debug)]
pub(crate) struct Ranking<R> {
    capacity_bytes: u64,
    used_bytes: u64,
    order: BTreeSet<(R, u32)>,
    kept: HashMap<u32, (R, u32)>,
}

impl<R: Ord + Copy> Ranking<R> {
    pub(crate) fn new(capacity_bytes: u64) -> Ranking<R> {
        Ranking { capacity_bytes, used_bytes: 0, order: BTreeSet::new(), kept: HashMap::new() }
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.kept.contains_key(&id)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.kept.keys().copied()
    }

    /// Whether `bytes` more fit in without anybody's going.
    pub(crate) fn has_capacity(&self, bytes: u32) -> bool {
        self.used_bytes + u64::from(bytes) <= self.capacity_bytes
    }

    /// Gives a kept sample another rank.
    pub(crate) fn rank(&mut self, id: u32, rank: R) {
        if let Some((old, _)) = self.kept.get_mut(&id) {
            self.order.remove(&(*old, id));
            self.order.insert((rank, id));
            *old = rank;
        }
    }

    /// Keeps a new sample if all who would have to go for it rank below it.
    pub(crate) fn admit(&mut self, id: u32, bytes: u32, rank: R, evicted: &mut Vec<u32>) -> bool {
        if u64::from(bytes) > self.capacity_bytes {
            return false;
        }
        let mut free_bytes = self.capacity_bytes.saturating_sub(self.used_bytes);
        let mut going = 0;
        for (lowest, victim) in &self.order {
            if free_bytes >= u64::from(bytes) {
                break;
            }
            if *lowest >= rank {
                return false;
            }
            free_bytes += self.kept.get(victim).map_or(0, |(_, bytes)| u64::from(*bytes));
            going += 1;
        }
        for _ in 0..going {
            evicted.extend(self.pop());
        }
        self.used_bytes += u64::from(bytes);
        self.kept.insert(id, (rank, bytes));
        self.order.insert((rank, id));
        true
    }

    /// Lets the lowest go.
    fn pop(&mut self) -> Option<u32> {
        let (_, id) = self.order.pop_first()?;
        if let Some((_, bytes)) = self.kept.remove(&id) {
            self.used_bytes -= u64::from(bytes);
        }
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: u32) {
        if let Some((rank, bytes)) = self.kept.remove(&id) {
            self.order.remove(&(rank, id));
            self.used_bytes -= u64::from(bytes);
        }
    }

    pub(crate) fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>) {
        self.capacity_bytes = capacity_bytes;
        while self.used_bytes > capacity_bytes {
            evicted.extend(self.pop());
        }
    }
}
