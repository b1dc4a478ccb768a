//! How step times are distributed.

use stallscope_model::Phase;
use stallscope_store::StepRow;
use std::collections::BTreeMap;

/// Training steps of a rank whose wall times are alike: a bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepWalls {
    pub rank: u32,
    pub low_ns: u64,
    /// The first that is in the next bucket.
    pub high_ns: u64,
    pub steps: u64,
}

/// Buckets that a doubling of the time has, as a power of two: each is 6 to 12% wide.
const FINENESS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Walls(BTreeMap<(u32, u64), u64>);

impl Walls {
    /// Counts the training steps of a row; those that were merged, at their mean.
    pub(crate) fn add(&mut self, row: &StepRow) {
        if row.step.phase == Phase::Training && row.merged > 0 {
            let wall_ns = row.step.causes.0.into_iter().fold(0, u64::saturating_add) / row.merged;
            let steps = self.0.entry((row.step.rank, low(wall_ns))).or_default();
            *steps = steps.saturating_add(row.merged);
        }
    }

    /// By rank, then by time.
    pub(crate) fn buckets(self) -> Vec<StepWalls> {
        let bucket = |((rank, low_ns), steps)| StepWalls { rank, low_ns, high_ns: high(low_ns), steps };
        self.0.into_iter().map(bucket).collect()
    }
}

/// The lowest time of the bucket that `ns` is in.
fn low(ns: u64) -> u64 {
    let dropped = ns.checked_ilog2().unwrap_or(0).saturating_sub(FINENESS);
    ns >> dropped << dropped
}

fn high(low_ns: u64) -> u64 {
    low_ns.saturating_add(1 << low_ns.checked_ilog2().unwrap_or(0).saturating_sub(FINENESS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_time_is_in_its_bucket_and_no_bucket_is_wide(ns in any::<u64>()) {
            let low_ns = low(ns);
            let high_ns = high(low_ns);
            prop_assert!(low_ns <= ns && (ns < high_ns || high_ns == u64::MAX));
            prop_assert_eq!(low(low_ns), low_ns);
            prop_assert!(high_ns - low_ns <= low_ns / 8 + 1);
        }
    }
}
