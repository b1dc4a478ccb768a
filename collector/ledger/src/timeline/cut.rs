//! Cutting an interval in two, where something tells what came before a moment within it.

use super::{Activity, Interval, MAX_INTERVALS, Timeline, difference};

impl Timeline {
    /// End of what is reported for good.
    pub(crate) fn reported_to_ns(&self) -> u64 {
        self.intervals.back().map_or(0, |last| last.end_ns)
    }

    /// The interval that began before `at_ns` and goes on then, of those that are reported for good.
    pub(crate) fn under_way(&self, at_ns: u64) -> Option<Interval> {
        let at = self.intervals.partition_point(|interval| interval.end_ns <= at_ns);
        self.intervals.get(at).filter(|interval| interval.start_ns < at_ns).copied()
    }

    /// Cuts `whole`, which is [`under_way`](Timeline::under_way) at `at_ns`, in two: `first` and what is left of it.
    pub(crate) fn cut(&mut self, whole: &Interval, at_ns: u64, first: Activity) {
        let rest = Activity {
            times: difference(&whole.activity.times, &first.times),
            sibling_cpu_ns: whole.activity.sibling_cpu_ns.saturating_sub(first.sibling_cpu_ns),
            sibling_runnable_ns: whole.activity.sibling_runnable_ns.saturating_sub(first.sibling_runnable_ns),
        };
        let (first, rest) =
            (Interval::new(whole.start_ns, at_ns, first), Interval::new(at_ns, whole.end_ns, rest));
        let at = self.intervals.partition_point(|interval| interval.end_ns <= at_ns);
        if let (Some(first), Some(rest), Some(known)) = (first, rest, self.intervals.get_mut(at)) {
            *known = rest;
            self.intervals.insert(at, first);
        }
        if self.intervals.len() > MAX_INTERVALS {
            self.coarsen();
        }
    }
}
