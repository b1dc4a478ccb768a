//! Time by cause and rank in bins of equal length, and the window of it that is shown. Pure.

use stallscope_model::{Causes, Phase};
use std::collections::BTreeMap;

/// Time and steps of one rank in one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Of training.
    pub causes: Causes,
    pub steps: u64,
    pub samples: u64,
    pub longest_ns: u64,
    /// Time in other phases.
    pub other_ns: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: &Sum) {
        self.causes += &other.causes;
        self.steps += other.steps;
        self.samples += other.samples;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.other_ns += other.other_ns;
    }

    /// The sum of `steps` steps of a phase.
    pub(crate) fn of(phase: Phase, causes: &Causes, steps: u64, samples: u64, longest_ns: u64) -> Sum {
        match phase {
            Phase::Training => Sum { causes: *causes, steps, samples, longest_ns, other_ns: 0 },
            _ => Sum { other_ns: causes.total_ns(), ..Sum::default() },
        }
    }

    /// Mean length of the steps, less their wait for other ranks: the other ranks wait for the longest.
    fn own_ns(&self) -> u64 {
        let peer_ns = self.causes[stallscope_model::Cause::Peer];
        self.causes.total_ns().saturating_sub(peer_ns) / self.steps.max(1)
    }

    /// Mean length of the steps; 0 without any.
    pub(crate) fn step_ns(&self) -> u64 {
        self.causes.total_ns() / self.steps.max(1)
    }
}

/// Bins of one length over a part of the run.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    bin_ns: u64,
    bins: BTreeMap<u64, BTreeMap<u32, Sum>>,
}

impl Series {
    pub(crate) fn new(bin_ns: u64) -> Series {
        Series { bin_ns: bin_ns.max(1), bins: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, at_ns: u64, rank: u32, sum: &Sum) {
        let start_ns = at_ns - at_ns % self.bin_ns;
        self.bins.entry(start_ns).or_default().entry(rank).or_default().add(sum);
    }

    /// Drops the bins from the one of `at_ns` on, and returns when that one begins.
    pub(crate) fn cut(&mut self, at_ns: u64) -> u64 {
        let start_ns = at_ns - at_ns % self.bin_ns;
        self.bins.split_off(&start_ns);
        start_ns
    }

    /// Start of the newest bin.
    pub(crate) fn newest_ns(&self) -> Option<u64> {
        self.bins.last_key_value().map(|(start_ns, _)| *start_ns)
    }

    /// End of the longest step, to the precision of a bin, and its length.
    pub(crate) fn longest(&self) -> Option<(u64, u64)> {
        let longest =
            |ranks: &BTreeMap<u32, Sum>| ranks.values().map(|sum| sum.longest_ns).max().unwrap_or(0);
        self.bins
            .iter()
            .map(|(start_ns, ranks)| (start_ns + self.bin_ns, longest(ranks)))
            .filter(|(_, longest_ns)| *longest_ns > 0)
            .max_by_key(|(_, longest_ns)| *longest_ns)
    }

    /// The bins between two moments, empty ones included.
    pub(crate) fn window(&self, from_ns: u64, to_ns: u64) -> Window {
        let first_ns = from_ns - from_ns % self.bin_ns;
        let to_ns = to_ns.max(from_ns);
        let count = ((to_ns - first_ns).div_ceil(self.bin_ns)).clamp(1, 100_000);
        let mut bins = vec![Sum::default(); count as usize];
        let mut ranks: BTreeMap<u32, Sum> = BTreeMap::new();
        let mut job = Sum::default();
        let mut after_last = 0;
        for (start_ns, sums) in self.bins.range(first_ns..to_ns.max(first_ns + 1)) {
            let place = ((start_ns - first_ns) / self.bin_ns) as usize;
            let Some(bin) = bins.get_mut(place) else { break };
            let mut reach_ns = 0;
            for (rank, sum) in sums {
                ranks.entry(*rank).or_default().add(sum);
                reach_ns = reach_ns.max(sum.causes.total_ns() + sum.other_ns);
            }
            if let Some(slowest) = sums.values().max_by_key(|sum| (sum.own_ns(), sum.other_ns)) {
                bin.add(slowest);
                job.add(slowest);
            }
            // A step is counted in the bin where it ended; the empty bins that it went through are shown like that one.
            let like = Sum { steps: 0, samples: 0, ..*bin };
            let through = place.saturating_sub((reach_ns / self.bin_ns) as usize).max(after_last);
            bins[through..place].fill(like);
            after_last = place + 1;
        }
        Window {
            from_ns: first_ns,
            to_ns,
            bin_ns: self.bin_ns,
            bins,
            job,
            ranks: ranks.into_iter().collect(),
        }
    }
}

/// A part of the run, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub from_ns: u64,
    pub to_ns: u64,
    pub bin_ns: u64,
    /// The job's own ledger: in each bin the one of the rank that the others waited for.
    pub bins: Vec<Sum>,
    /// All of the bins together.
    pub job: Sum,
    /// The whole window by rank.
    pub ranks: Vec<(u32, Sum)>,
}

impl Window {
    /// The bins merged or repeated into as many as there are columns.
    pub(crate) fn columns(&self, columns: usize) -> Vec<Sum> {
        let length_ns = self.to_ns.saturating_sub(self.from_ns).max(1);
        let edge = |column: usize| (length_ns as u128 * column as u128 / columns.max(1) as u128) as u64;
        (0..columns)
            .map(|column| {
                let last = self.bins.len().saturating_sub(1);
                let from = ((edge(column) / self.bin_ns.max(1)) as usize).min(last);
                let to = (edge(column + 1).saturating_sub(1) / self.bin_ns.max(1)) as usize;
                let mut sum = Sum::default();
                for bin in self.bins.iter().take(to.min(last) + 1).skip(from) {
                    sum.add(bin);
                }
                sum
            })
            .collect()
    }

    /// The rank that the others wait for: its steps took longest, less its own wait for others. `None` when
    /// no rank is slower than the others by more than 5%.
    pub(crate) fn slowest(&self) -> Option<u32> {
        let mut own: Vec<(u64, u32)> = self
            .ranks
            .iter()
            .filter(|(_, sum)| sum.steps > 0)
            .map(|(rank, sum)| (sum.own_ns(), *rank))
            .collect();
        own.sort_unstable();
        match own.as_slice() {
            [.., (next_ns, _), (slowest_ns, rank)] if *slowest_ns as f64 > *next_ns as f64 * 1.05 => {
                Some(*rank)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stallscope_model::Cause;

    fn sum(cause: Cause, ns: u64) -> Sum {
        let mut causes = Causes::default();
        causes[cause] = ns;
        Sum::of(Phase::Training, &causes, 1, 32, ns)
    }

    #[test]
    fn a_long_step_is_shown_over_all_the_time_it_took() {
        let mut series = Series::new(10);
        series.add(5, 0, &sum(Cause::Compute, 5));
        series.add(45, 0, &sum(Cause::Fetch, 40));
        let window = series.window(0, 50);
        let fetch: Vec<u64> = window.bins.iter().map(|bin| bin.causes[Cause::Fetch]).collect();
        assert_eq!(fetch, [0, 40, 40, 40, 40]);
        // The total counts it once.
        assert_eq!((window.job.steps, window.job.causes.total_ns()), (2, 45));
        assert_eq!(series.longest(), Some((50, 40)));
    }

    #[test]
    fn the_slowest_is_whom_the_others_wait_for() {
        let mut series = Series::new(10);
        for rank in 0..4 {
            let causes = if rank == 2 {
                [(Cause::Fetch, 60), (Cause::Peer, 0)]
            } else {
                [(Cause::Fetch, 20), (Cause::Peer, 40)]
            };
            for (cause, ns) in causes {
                let mut part = sum(cause, ns);
                part.steps = u64::from(cause == Cause::Fetch);
                series.add(5, rank, &part);
            }
        }
        assert_eq!(series.window(0, 10).slowest(), Some(2));
        assert_eq!(Series::new(10).window(0, 10).slowest(), None);
    }

    proptest! {
        #[test]
        fn columns_cover_what_the_bins_hold(
            bin_ns in 1u64..50, from in 0u64..1000, span in 1u64..1000, columns in 1usize..250,
            steps in proptest::collection::vec((0u64..2000, 1u64..5), 0..40),
        ) {
            let mut series = Series::new(bin_ns);
            for (at, ns) in &steps {
                series.add(*at, 0, &sum(Cause::Prep, *ns));
            }
            let window = series.window(from, from + span);
            prop_assert!(window.job.causes.total_ns() <= steps.iter().map(|(_, ns)| ns).sum::<u64>());
            let shown = window.columns(columns);
            prop_assert_eq!(shown.len(), columns);
            let any = |bins: &[Sum]| bins.iter().any(|bin| bin.causes.total_ns() > 0);
            prop_assert_eq!(any(&shown), any(&window.bins));
        }
    }
}
