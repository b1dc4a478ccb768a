//! What one task did, as consecutive intervals of time.

mod activity;
mod cut;

pub(crate) use activity::{Activity, Helped, scale};

use crate::periods::Periods;
use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked, Slice, TaskSlot, Times, state};
use std::collections::VecDeque;

/// Intervals kept of one task. Beyond it the older half is made coarser, so that memory is bounded while sums
/// stay exact.
const MAX_INTERVALS: usize = 2048;

/// How long before an open step intervals are kept.
const LEAD_NS: u64 = 1_000_000_000;

/// One interval; its activity adds up to its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) activity: Activity,
}

impl Interval {
    /// `None` when it is empty. An activity that doesn't add up to the span is scaled to it.
    pub(crate) fn new(start_ns: u64, end_ns: u64, activity: Activity) -> Option<Interval> {
        (start_ns < end_ns).then(|| Interval { start_ns, end_ns, activity: activity.fit(end_ns - start_ns) })
    }

    pub(crate) fn of_slice(slice: &Slice) -> Option<Interval> {
        let Slice { times, sibling_cpu_ns, sibling_runnable_ns, .. } = *slice;
        let activity = Activity { times, sibling_cpu_ns, sibling_runnable_ns };
        Interval::new(slice.start_ns, slice.header.time_ns, activity)
    }

    /// The interval under way in a slot: what was accounted since the last slice, then the state that holds.
    /// The siblings' CPU time of both is spread over both, as nothing says when it was used.
    pub(crate) fn of_slot(slot: &TaskSlot, now_ns: u64) -> [Option<Interval>; 2] {
        let since_ns = slot.since_ns.clamp(slot.slice_start_ns, now_ns.max(slot.slice_start_ns));
        let sibling = slot.sibling_cpu_ns.saturating_sub(slot.sent_sibling_cpu_ns);
        let span_ns = now_ns.saturating_sub(slot.slice_start_ns);
        let mut accounted = Activity { times: difference(&slot.total, &slot.sent), ..Activity::default() }
            .fit(since_ns - slot.slice_start_ns);
        let held_ns = now_ns.saturating_sub(since_ns);
        let mut holds = match slot.state {
            state::RUNNING => {
                Activity { times: Times { cpu_ns: held_ns, ..Times::default() }, ..Activity::default() }
            }
            state::RUNNABLE => {
                Activity { times: Times { runnable_ns: held_ns, ..Times::default() }, ..Activity::default() }
            }
            state::BLOCKED => {
                Activity::blocked(Blocked::from_u8(slot.blocked_in).unwrap_or(Blocked::Other), held_ns)
            }
            _ => return [Interval::new(slot.slice_start_ns, since_ns, accounted), None],
        };
        accounted.sibling_cpu_ns = scale(sibling, since_ns - slot.slice_start_ns, span_ns);
        holds.sibling_cpu_ns = scale(sibling, held_ns, span_ns);
        [Interval::new(slot.slice_start_ns, since_ns, accounted), Interval::new(since_ns, now_ns, holds)]
    }

    fn clipped(&self, a_ns: u64, b_ns: u64) -> Option<Interval> {
        Interval::new(self.start_ns.max(a_ns), self.end_ns.min(b_ns), self.activity)
    }
}

fn difference(total: &Times, sent: &Times) -> Times {
    let mut blocked_ns = [0; BLOCKED_KINDS];
    for (kind, ns) in blocked_ns.iter_mut().enumerate() {
        *ns = total.blocked_ns[kind].saturating_sub(sent.blocked_ns[kind]);
    }
    Times {
        cpu_ns: total.cpu_ns.saturating_sub(sent.cpu_ns),
        cpu_read_ns: total.cpu_read_ns.saturating_sub(sent.cpu_read_ns),
        runnable_ns: total.runnable_ns.saturating_sub(sent.runnable_ns),
        blocked_ns,
    }
}

/// What [`Timeline::push`] made of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Whole,
    /// Part of it, or all, reported time that was known already.
    Overlapping,
}

/// The intervals of one task, in order and without overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    intervals: VecDeque<Interval>,
    /// Provisional: replaced by the slice that tells of the same time.
    open: [Option<Interval>; 2],
    /// Everything ever pushed.
    pub(crate) total: Activity,
    periods: Periods,
    /// Intervals dropped for want of capacity.
    pub(crate) dropped: u64,
}

impl Timeline {
    /// Adds an interval. One that comes late is put where it belongs; what is known already is kept.
    pub(crate) fn push(&mut self, interval: Interval) -> Pushed {
        self.open = [None, None];
        if self.intervals.back().is_none_or(|last| last.end_ns <= interval.start_ns) {
            self.insert(self.intervals.len(), interval);
            return Pushed::Whole;
        }
        let at = self.intervals.partition_point(|known| known.start_ns < interval.start_ns);
        let from = at.checked_sub(1).map_or(0, |before| self.intervals[before].end_ns);
        let to = self.intervals.get(at).map_or(u64::MAX, |after| after.start_ns);
        let Some(fitting) = interval.clipped(from, to) else { return Pushed::Overlapping };
        self.insert(at, fitting);
        if fitting == interval { Pushed::Whole } else { Pushed::Overlapping }
    }

    fn insert(&mut self, at: usize, interval: Interval) {
        self.total.add(&interval.activity);
        self.periods.add(&interval);
        self.intervals.insert(at, interval);
        if self.intervals.len() > MAX_INTERVALS {
            self.coarsen();
        }
    }

    pub(crate) fn set_open(&mut self, open: [Option<Interval>; 2]) {
        let from = self.intervals.back().map_or(0, |last| last.end_ns);
        self.open = open.map(|interval| interval.and_then(|interval| interval.clipped(from, u64::MAX)));
    }

    /// The blocked state that held at the end of the last [`Timeline::set_open`] holds until `now_ns`.
    pub(crate) fn hold_open(&mut self, now_ns: u64) {
        let Some(held) = self.open[1].as_mut() else { return };
        let longer_ns = now_ns.saturating_sub(held.end_ns);
        if let Some(blocked_ns) = held.activity.times.blocked_ns.iter_mut().find(|ns| **ns > 0) {
            *blocked_ns += longer_ns;
            held.end_ns += longer_ns;
        }
    }

    /// Joins neighbours in the older half. Where gaps between them leave too many, the oldest go.
    fn coarsen(&mut self) {
        let newer = self.intervals.split_off(self.intervals.len() / 2);
        let mut older: VecDeque<Interval> = VecDeque::with_capacity(MAX_INTERVALS + 1);
        let mut joined_last = true;
        for interval in self.intervals.drain(..) {
            match older.back_mut() {
                Some(last) if !joined_last && last.end_ns == interval.start_ns => {
                    last.end_ns = interval.end_ns;
                    last.activity.add(&interval.activity);
                    joined_last = true;
                }
                _ => {
                    older.push_back(interval);
                    joined_last = false;
                }
            }
        }
        let excess = (older.len() + newer.len()).saturating_sub(MAX_INTERVALS - MAX_INTERVALS / 8);
        self.dropped += older.drain(..excess.min(older.len())).len() as u64;
        older.extend(newer);
        self.intervals = older;
    }

    /// Whether anything was ever reported of the task, kept or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.total == Activity::default() && self.open == [None, None]
    }

    /// Everything ever reported, the interval under way included.
    pub(crate) fn so_far(&self) -> Activity {
        let mut sum = self.total;
        self.open.iter().flatten().for_each(|interval| sum.add(&interval.activity));
        sum
    }

    fn iter(&self) -> impl Iterator<Item = &Interval> {
        self.intervals.iter().chain(self.open.iter().flatten())
    }

    /// Start of the first interval that is remembered.
    pub(crate) fn begins_ns(&self) -> Option<u64> {
        self.iter().next().map(|first| first.start_ns)
    }

    /// End of the last interval; 0 when there is none.
    pub(crate) fn covered_to_ns(&self) -> u64 {
        self.iter().last().map_or(0, |last| last.end_ns)
    }

    /// What the task did in `[a_ns, b_ns)`. An interval that is cut gives in proportion. Of siblings it has what they computed in
    /// this task's own sleeps, interval by interval: what they did while it ran helped in no sleep before or after. Calls `gap` for each part
    /// nothing is known of; activity and gaps together are exactly `b_ns - a_ns`.
    pub(crate) fn query(&self, a_ns: u64, b_ns: u64, mut gap: impl FnMut(u64, u64)) -> Activity {
        let mut sum = Activity::default();
        self.each(a_ns, b_ns, |from, to, activity| match activity {
            Some(activity) => {
                sum.add(&Activity {
                    sibling_cpu_ns: activity.sibling_cpu_ns.min(activity.in_futex_ns()),
                    ..*activity
                });
            }
            None => gap(from, to),
        });
        sum
    }

    /// Calls `each` for every interval of `[a_ns, b_ns)`, cut to it, and for every gap between them, in order.
    pub(crate) fn each(&self, a_ns: u64, b_ns: u64, mut each: impl FnMut(u64, u64, Option<&Activity>)) {
        let mut at_ns = a_ns;
        let first = self.intervals.partition_point(|interval| interval.end_ns <= a_ns);
        for interval in self.intervals.range(first..).chain(self.open.iter().flatten()) {
            if interval.start_ns >= b_ns {
                break;
            }
            let Some(part) = interval.clipped(a_ns, b_ns) else { continue };
            if part.start_ns > at_ns {
                each(at_ns, part.start_ns, None);
            }
            each(part.start_ns, part.end_ns, Some(&part.activity));
            at_ns = part.end_ns;
        }
        if at_ns < b_ns {
            each(at_ns, b_ns, None);
        }
    }

    /// What the task did since the last call, by period, the interval under way included.
    pub(crate) fn take_periods(&mut self) -> Vec<(u64, Activity)> {
        self.open.iter().flatten().for_each(|interval| self.periods.add(interval));
        self.periods.take()
    }

    /// Drops what ended at or before `horizon_ns`. Where capacity allows, what led to it is kept a little longer, for
    /// the details of the step that begins there.
    pub(crate) fn forget_before(&mut self, horizon_ns: u64) {
        let has_capacity = self.intervals.len() <= MAX_INTERVALS / 2;
        let horizon_ns = if has_capacity { horizon_ns.saturating_sub(LEAD_NS) } else { horizon_ns };
        while self.intervals.pop_front_if(|interval| interval.end_ns <= horizon_ns).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(start_ns: u64, end_ns: u64) -> Interval {
        Interval::new(start_ns, end_ns, Activity::blocked(Blocked::FileRead, end_ns - start_ns)).unwrap()
    }

    fn on_cpu(start_ns: u64, end_ns: u64) -> Interval {
        let times = Times { cpu_ns: end_ns - start_ns, ..Times::default() };
        Interval::new(start_ns, end_ns, Activity { times, ..Activity::default() }).unwrap()
    }

    fn sum_ns(timeline: &Timeline, a_ns: u64, b_ns: u64) -> (Activity, u64) {
        let mut gaps_ns = 0;
        let activity = timeline.query(a_ns, b_ns, |from, to| gaps_ns += to - from);
        (activity, gaps_ns)
    }

    #[test]
    fn a_cut_interval_gives_in_proportion_and_gaps_are_reported() {
        let mut timeline = Timeline::default();
        timeline.push(reading(100, 200));
        timeline.push(on_cpu(250, 300));
        let (activity, gaps_ns) = sum_ns(&timeline, 150, 320);
        assert_eq!((activity.of(Blocked::FileRead), activity.times.cpu_ns, gaps_ns), (50, 50, 70));
        assert_eq!(sum_ns(&timeline, 0, 50), (Activity::default(), 50));
    }

    #[test]
    fn what_is_known_already_is_kept() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.push(reading(100, 200)), Pushed::Whole);
        assert_eq!(timeline.push(on_cpu(150, 250)), Pushed::Overlapping);
        assert_eq!(timeline.push(on_cpu(120, 180)), Pushed::Overlapping);
        assert_eq!(timeline.push(on_cpu(50, 120)), Pushed::Overlapping);
        let (activity, gaps_ns) = sum_ns(&timeline, 50, 250);
        assert_eq!((activity.of(Blocked::FileRead), activity.times.cpu_ns, gaps_ns), (100, 100, 0));
    }

    #[test]
    fn the_open_end_is_replaced_by_the_slice_that_follows() {
        let mut timeline = Timeline::default();
        timeline.push(on_cpu(0, 100));
        timeline.set_open([Some(reading(50, 180)), Some(on_cpu(180, 200))]);
        assert_eq!(timeline.covered_to_ns(), 200);
        assert_eq!(sum_ns(&timeline, 90, 200).0.of(Blocked::FileRead), 80);
        timeline.push(on_cpu(100, 150));
        assert_eq!(timeline.covered_to_ns(), 150);
        assert_eq!(sum_ns(&timeline, 0, 150).0.times.cpu_ns, 150);
    }

    #[test]
    fn a_blocked_state_is_held_on_until_the_next_record() {
        let mut timeline = Timeline::default();
        timeline.hold_open(500);
        assert_eq!(timeline.covered_to_ns(), 0);
        timeline.set_open([Some(on_cpu(0, 100)), Some(reading(100, 150))]);
        timeline.hold_open(300);
        timeline.hold_open(250);
        assert_eq!((timeline.covered_to_ns(), sum_ns(&timeline, 0, 300).0.of(Blocked::FileRead)), (300, 200));
        timeline.set_open([None, Some(on_cpu(300, 310))]);
        timeline.hold_open(400);
        assert_eq!(timeline.covered_to_ns(), 310);
    }

    #[test]
    fn an_open_slot_is_what_was_accounted_and_then_the_state_that_holds() {
        let mut slot = TaskSlot { slice_start_ns: 100, since_ns: 130, ..TaskSlot::default() };
        (slot.state, slot.blocked_in) = (state::BLOCKED, Blocked::Net as u8);
        (slot.total.cpu_ns, slot.sent.cpu_ns) = (1020, 1000);
        slot.total.runnable_ns = 10;
        (slot.sibling_cpu_ns, slot.sent_sibling_cpu_ns) = (100, 20);
        let [Some(accounted), Some(holds)] = Interval::of_slot(&slot, 180) else { panic!() };
        assert_eq!((accounted.activity.times.cpu_ns, accounted.activity.times.runnable_ns), (20, 10));
        assert_eq!((holds.start_ns, holds.end_ns, holds.activity.of(Blocked::Net)), (130, 180, 50));
        assert_eq!((accounted.activity.sibling_cpu_ns, holds.activity.sibling_cpu_ns), (30, 50));
        slot.state = state::EXITED;
        assert_eq!(Interval::of_slot(&slot, 180)[1], None);
    }

    #[test]
    fn history_that_does_not_fit_gets_coarser_and_keeps_its_sums() {
        let mut timeline = Timeline::default();
        for i in 0..100_000u64 {
            let push = if i % 2 == 0 { reading } else { on_cpu };
            assert_eq!(timeline.push(push(i * 10, i * 10 + 10)), Pushed::Whole);
            assert!(timeline.intervals.len() <= MAX_INTERVALS);
        }
        let (activity, gaps_ns) = sum_ns(&timeline, 0, 1_000_000);
        assert_eq!((activity.of(Blocked::FileRead), activity.times.cpu_ns, gaps_ns), (500_000, 500_000, 0));
        // The newest are as fine as ever.
        assert_eq!(sum_ns(&timeline, 999_980, 999_990).0.of(Blocked::FileRead), 10);
    }

    #[test]
    fn history_full_of_gaps_loses_its_oldest() {
        let mut timeline = Timeline::default();
        for i in 0..10_000u64 {
            timeline.push(on_cpu(i * 10, i * 10 + 5));
            assert!(timeline.intervals.len() <= MAX_INTERVALS);
        }
        assert_eq!(timeline.dropped, 10_000 - timeline.intervals.len() as u64);
        assert_eq!(timeline.covered_to_ns(), 99_995);
    }

    #[test]
    fn what_no_step_needs_is_dropped_but_not_its_sum() {
        let mut timeline = Timeline::default();
        timeline.push(on_cpu(0, 10));
        timeline.push(on_cpu(10, 20));
        timeline.forget_before(15 + LEAD_NS);
        assert_eq!((timeline.intervals.len(), timeline.total.times.cpu_ns), (1, 20));
        assert!(!timeline.is_empty());
        // Without capacity for it nothing is kept for details alone.
        for i in 2..=1026 {
            timeline.push(on_cpu(i * 10, i * 10 + 10));
        }
        timeline.forget_before(10_000);
        assert_eq!(timeline.intervals.len(), 27);
    }

    fn activity() -> impl Strategy<Value = Activity> {
        let ns = || prop_oneof![0..1000u64, Just(0), any::<u64>()];
        (ns(), ns(), ns(), prop::array::uniform15(ns()), ns(), ns()).prop_map(
            |(cpu_ns, cpu_read_ns, runnable_ns, blocked_ns, sibling_cpu_ns, sibling_runnable_ns)| Activity {
                times: Times { cpu_ns, cpu_read_ns, runnable_ns, blocked_ns },
                sibling_cpu_ns,
                sibling_runnable_ns,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_fitted_activity_adds_up_to_its_span(activity in activity(), span_ns in prop_oneof![0..5000u64, any::<u64>()]) {
            let fitted = activity.fit(span_ns);
            prop_assert_eq!(fitted.whole_ns(), u128::from(span_ns));
            // A part is off by less than a nanosecond's rounding.
            let whole = activity.whole_ns();
            for (part, of) in fitted.parts().into_iter().zip(activity.parts()) {
                if let Some(wanted) = (u128::from(of) * u128::from(span_ns)).checked_div(whole) {
                    prop_assert!(u128::from(part).abs_diff(wanted) <= 1);
                }
            }
            prop_assert!(fitted.times.cpu_read_ns <= fitted.times.cpu_ns || fitted == activity);
        }

        #[test]
        fn activity_and_gaps_are_the_time_asked_for(
            intervals in prop::collection::vec((0..500u64, 1..60u64, activity()), 0..40),
            (a_ns, length_ns) in (0..600u64, 0..300u64),
        ) {
            let mut timeline = Timeline::default();
            for (start_ns, length_ns, activity) in intervals {
                timeline.push(Interval::new(start_ns, start_ns + length_ns, activity).unwrap());
            }
            let (activity, gaps_ns) = sum_ns(&timeline, a_ns, a_ns + length_ns);
            prop_assert_eq!(activity.whole_ns() + u128::from(gaps_ns), u128::from(length_ns));
        }
    }
}
