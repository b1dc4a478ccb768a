//! What one task did within each period, as it becomes known.

use crate::timeline::{Activity, Interval};
use stallscope_model::WorkerPeriod;
use std::collections::VecDeque;

/// Periods that wait to be taken, and that a single interval may reach back over.
const MAX_PERIODS: u64 = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Periods {
    /// Time up to here is accounted for: what is reported of it again (the slice after an interval that was still under
    /// way) counts no more.
    at_ns: u64,
    /// By their start.
    untaken: VecDeque<(u64, Activity)>,
}

impl Periods {
    pub(crate) fn add(&mut self, interval: &Interval) {
        let reach_ns = interval.end_ns.saturating_sub((MAX_PERIODS - 1) * WorkerPeriod::LENGTH_NS);
        let mut from_ns = interval.start_ns.max(self.at_ns).max(reach_ns);
        self.at_ns = self.at_ns.max(interval.end_ns);
        while from_ns < interval.end_ns {
            let period_ns = from_ns - from_ns % WorkerPeriod::LENGTH_NS;
            let to_ns = interval.end_ns.min(period_ns + WorkerPeriod::LENGTH_NS);
            if self.untaken.back().is_none_or(|(last_ns, _)| *last_ns != period_ns) {
                self.untaken.push_back((period_ns, Activity::default()));
            }
            if let Some((_, sum)) = self.untaken.back_mut() {
                match to_ns - from_ns == interval.end_ns - interval.start_ns {
                    true => sum.add(&interval.activity),
                    false => sum.add(&interval.activity.fit(to_ns - from_ns)),
                }
            }
            from_ns = to_ns;
        }
        while self.untaken.len() as u64 > MAX_PERIODS {
            self.untaken.pop_front();
        }
    }

    pub(crate) fn take(&mut self) -> Vec<(u64, Activity)> {
        self.untaken.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_abi::kernel::Blocked;

    const S: u64 = 1_000_000_000;

    fn reading(start_ns: u64, end_ns: u64) -> Interval {
        Interval::new(start_ns, end_ns, Activity::blocked(Blocked::FileRead, end_ns - start_ns)).unwrap()
    }

    fn taken(periods: &mut Periods) -> Vec<(u64, u64)> {
        periods.take().iter().map(|(start_ns, sum)| (start_ns / S, sum.of(Blocked::FileRead) / S)).collect()
    }

    #[test]
    fn an_interval_is_cut_at_the_periods_borders() {
        let mut periods = Periods::default();
        periods.add(&reading(7 * S, 31 * S));
        assert_eq!(taken(&mut periods), [(0, 3), (10, 10), (20, 10), (30, 1)]);
    }

    #[test]
    fn time_counts_once() {
        let mut periods = Periods::default();
        // Under way at two looks, then reported whole.
        periods.add(&reading(2 * S, 5 * S));
        assert_eq!(taken(&mut periods), [(0, 3)]);
        periods.add(&reading(2 * S, 8 * S));
        periods.add(&reading(2 * S, 12 * S));
        periods.add(&reading(12 * S, 13 * S));
        assert_eq!(taken(&mut periods), [(0, 5), (10, 3)]);
        assert_eq!(taken(&mut periods), []);
    }

    #[test]
    fn an_interval_without_end_is_bounded() {
        let mut periods = Periods::default();
        periods.add(&reading(0, 1 << 56));
        periods.add(&reading((1 << 56) + 100 * S, (1 << 56) + 150 * S));
        assert_eq!(periods.take().len() as u64, MAX_PERIODS);
    }
}
