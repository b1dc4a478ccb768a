//! Cutting a stretch in two, where something tells what came before a moment within it.

use super::{Activity, MAX_STRETCHES, Stretch, Timeline, difference};

impl Timeline {
    /// End of what is told for good.
    pub(crate) fn told_to_ns(&self) -> u64 {
        self.stretches.back().map_or(0, |last| last.end_ns)
    }

    /// The stretch that began before `at_ns` and goes on then, of those that are told for good.
    pub(crate) fn under_way(&self, at_ns: u64) -> Option<Stretch> {
        let at = self.stretches.partition_point(|stretch| stretch.end_ns <= at_ns);
        self.stretches.get(at).filter(|stretch| stretch.start_ns < at_ns).copied()
    }

    /// Cuts `whole`, which is [`under_way`](Timeline::under_way) at `at_ns`, in two: `first` and what is left of it.
    pub(crate) fn cut(&mut self, whole: &Stretch, at_ns: u64, first: Activity) {
        let rest = Activity {
            times: difference(&whole.activity.times, &first.times),
            sibling_cpu_ns: whole.activity.sibling_cpu_ns.saturating_sub(first.sibling_cpu_ns),
            sibling_runnable_ns: whole.activity.sibling_runnable_ns.saturating_sub(first.sibling_runnable_ns),
        };
        let (first, rest) =
            (Stretch::new(whole.start_ns, at_ns, first), Stretch::new(at_ns, whole.end_ns, rest));
        let at = self.stretches.partition_point(|stretch| stretch.end_ns <= at_ns);
        if let (Some(first), Some(rest), Some(known)) = (first, rest, self.stretches.get_mut(at)) {
            *known = rest;
            self.stretches.insert(at, first);
        }
        if self.stretches.len() > MAX_STRETCHES {
            self.coarsen();
        }
    }
}
