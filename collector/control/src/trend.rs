//! How fast something that is left gets less.

use std::collections::VecDeque;

/// What is looked back on.
const LONG_NS: u64 = 60_000_000_000;
/// Seconds that suffice where something grows steadily; their median ignores a single jump.
const SHORT: usize = 8;
/// Growth in steps shows only in a mean over several of them.
const SEVERAL_NS: u64 = 20_000_000_000;
/// After something was turned: processes start and end, and take and give back what they have at once.
const UNSETTLED_NS: u64 = 5_000_000_000;

/// What was left, second by second, since the last turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trend {
    seen: VecDeque<(u64, u64)>,
    from_ns: u64,
    /// The newest, whatever was turned.
    last: Option<(u64, u64)>,
    plunges_per_s: f64,
}

impl Trend {
    /// Knobs were turned.
    pub(crate) fn turned(&mut self, now_ns: u64) {
        self.seen.clear();
        self.from_ns = now_ns.saturating_add(UNSETTLED_NS);
    }

    pub(crate) fn take(&mut self, now_ns: u64, left: u64) {
        if self.seen.back().is_some_and(|(last_ns, _)| *last_ns >= now_ns) {
            self.seen.clear();
        }
        let before = self.last.replace((now_ns, left)).filter(|(before_ns, _)| *before_ns < now_ns);
        self.plunges_per_s = before.map_or(0.0, |before| falls_per_s(before, (now_ns, left)).max(0.0));
        if now_ns < self.from_ns {
            return;
        }
        self.seen.push_back((now_ns, left));
        while self.seen.front().is_some_and(|(at_ns, _)| at_ns.saturating_add(LONG_NS) < now_ns) {
            self.seen.pop_front();
        }
    }

    /// So much less counts as left from now on, also of what was seen before.
    pub(crate) fn lower(&mut self, by: u64) {
        let all = self.seen.iter_mut().chain(&mut self.last);
        all.for_each(|(_, left)| *left = left.saturating_sub(by));
    }

    /// Whether enough was seen since the last turn.
    pub(crate) fn is_known(&self) -> bool {
        self.seen.len() > SHORT
    }

    /// So much less in the last second, be it a jump or the beginning of more.
    pub(crate) fn plunges_per_s(&self) -> f64 {
        self.plunges_per_s
    }

    /// So much less each second, as the last seconds have it or the mean of the last minute, whichever is more; 0 where it gets
    /// more, or too little was seen.
    pub(crate) fn falls_per_s(&self) -> f64 {
        let (Some(first), Some(last)) = (self.seen.front(), self.seen.back()) else { return 0.0 };
        let mean = if last.0 - first.0 >= SEVERAL_NS { falls_per_s(*first, *last) } else { 0.0 };
        let newest = self.seen.len().saturating_sub(SHORT + 1);
        let pairs = self.seen.iter().skip(newest).zip(self.seen.iter().skip(newest + 1));
        let mut each: Vec<f64> = pairs.map(|(before, after)| falls_per_s(*before, *after)).collect();
        each.sort_unstable_by(f64::total_cmp);
        let middle = if each.len() < SHORT { 0.0 } else { each[each.len() / 2] };
        middle.max(mean).max(0.0)
    }
}

fn falls_per_s(before: (u64, u64), after: (u64, u64)) -> f64 {
    (before.1 as f64 - after.1 as f64) * 1e9 / (after.0 - before.0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(left: impl Fn(u64) -> u64, seconds: u64) -> f64 {
        let mut trend = Trend::default();
        (0..seconds).for_each(|second| trend.take(second * 1_000_000_000, left(second)));
        trend.falls_per_s()
    }

    #[test]
    fn what_falls_all_the_time_is_seen_within_seconds_and_a_jump_is_none() {
        assert_eq!(of(|second| 1000 - 10 * second, 5), 0.0);
        assert_eq!(of(|second| 1000 - 10 * second, 9), 10.0);
        assert_eq!(of(|second| if second < 5 { 1000 } else { 400 }, 15), 0.0);
        assert_eq!(of(|second| 1000 + 10 * second, 60), 0.0);
    }

    #[test]
    fn what_falls_in_steps_is_seen_as_their_mean() {
        let steps = of(|second| 1000 - 100 * (second / 10), 41);
        assert!((9.0..=11.0).contains(&steps), "{steps}");
    }

    #[test]
    fn what_a_turn_takes_at_once_is_no_trend_and_clocks_may_run_backwards() {
        let mut trend = Trend::default();
        (0..30).for_each(|second| trend.take(second * 1_000_000_000, 1000 - 10 * second));
        trend.turned(30_000_000_000);
        (30..35).for_each(|second| trend.take(second * 1_000_000_000, 100));
        (35..60).for_each(|second| trend.take(second * 1_000_000_000, 90));
        assert_eq!(trend.falls_per_s(), 0.0);
        assert_eq!(trend.plunges_per_s(), 0.0);
        trend.take(60_000_000_000, 50);
        assert_eq!(trend.plunges_per_s(), 40.0);
        trend.lower(40);
        trend.take(61_000_000_000, 10);
        assert_eq!(trend.plunges_per_s(), 0.0);
        trend.take(0, 5);
        assert_eq!(trend.plunges_per_s(), 0.0);
        trend.take(u64::MAX, 1);
        assert_eq!(trend.falls_per_s(), 0.0);
    }
}
