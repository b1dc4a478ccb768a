//! How many of the batches that a job makes are recorded: enough for a model of it, whatever its rate.

use std::collections::{BTreeMap, BTreeSet};

const SECOND_NS: u64 = 1_000_000_000;
/// Of one rank, in a second: 200 in ten seconds.
const A_RANK: usize = 20;
/// Of all ranks together, in a second, as far as [`LEAST`] of each allow.
const A_SECOND: usize = 256;
const LEAST: usize = 2;
/// Batches become known a few seconds after they were ready; for longer no second is remembered.
const SECONDS: u64 = 120;

/// Chooses as evenly over time as it can without looking ahead: the first of each second.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    ranks: BTreeSet<u32>,
    taken: BTreeMap<(u64, u32), usize>,
}

impl Sampled {
    /// Whether one more that was ready then is to be kept.
    pub(crate) fn takes(&mut self, rank: u32, ready_ns: u64) -> bool {
        let second = ready_ns / SECOND_NS;
        self.ranks.insert(rank);
        let most = (A_SECOND / self.ranks.len()).clamp(LEAST, A_RANK);
        if let Some((newest, _)) = self.taken.last_key_value().map(|(key, _)| *key) {
            let oldest = newest.saturating_sub(SECONDS);
            if second < oldest {
                return false;
            }
            if second > newest {
                self.taken = self.taken.split_off(&(second.saturating_sub(SECONDS), 0));
            }
        }
        let taken = self.taken.entry((second, rank)).or_default();
        *taken += 1;
        *taken <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_share_of_each_second() {
        let mut sampled = Sampled::default();
        let mut taken = BTreeMap::<(u64, u32), usize>::new();
        for millisecond in 0..5_000 {
            for rank in 0..40 {
                if sampled.takes(rank, millisecond * 1_000_000) {
                    *taken.entry((millisecond / 1_000, rank)).or_default() += 1;
                }
            }
        }
        assert_eq!(taken.len(), 5 * 40);
        assert!(taken.range((1, 0)..).all(|(_, count)| *count == A_SECOND / 40), "{taken:?}");
        let mut alone = Sampled::default();
        assert_eq!((0..1_000).filter(|_| alone.takes(0, 5)).count(), A_RANK);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut sampled = Sampled::default();
        for second in 0..10_000 {
            assert!(sampled.takes(0, second * SECOND_NS));
        }
        assert!(sampled.taken.len() <= SECONDS as usize + 1);
        assert!(!sampled.takes(0, 0), "far too late");
    }
}
