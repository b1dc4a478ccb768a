//! What one task did, as consecutive stretches of time.

use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked, Slice, TaskSlot, Times, state};
use std::collections::VecDeque;

/// Stretches kept of one task. Beyond it the older half is made coarser, so that memory is bounded while sums
/// stay exact.
const MAX_STRETCHES: usize = 2048;

const PARTS: usize = 2 + BLOCKED_KINDS;

/// Where a task's time went, and what the other threads of its process used meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) times: Times,
    pub(crate) sibling_cpu_ns: u64,
}

impl Activity {
    pub(crate) fn blocked(kind: Blocked, ns: u64) -> Activity {
        let mut activity = Activity::default();
        activity.times.blocked_ns[kind as usize] = ns;
        activity
    }

    pub(crate) fn of(&self, kind: Blocked) -> u64 {
        self.times.blocked_ns[kind as usize]
    }

    pub(crate) fn add(&mut self, other: &Activity) {
        let (mine, theirs) = (&mut self.times, &other.times);
        mine.cpu_ns = mine.cpu_ns.saturating_add(theirs.cpu_ns);
        mine.cpu_read_ns = mine.cpu_read_ns.saturating_add(theirs.cpu_read_ns);
        mine.runnable_ns = mine.runnable_ns.saturating_add(theirs.runnable_ns);
        for (a, b) in mine.blocked_ns.iter_mut().zip(theirs.blocked_ns) {
            *a = a.saturating_add(b);
        }
        self.sibling_cpu_ns = self.sibling_cpu_ns.saturating_add(other.sibling_cpu_ns);
    }

    fn parts(&self) -> [u64; PARTS] {
        let mut parts = [0; PARTS];
        parts[0] = self.times.cpu_ns;
        parts[1] = self.times.runnable_ns;
        parts[2..].copy_from_slice(&self.times.blocked_ns);
        parts
    }

    /// Time accounted for, which can exceed 64 bits only in a record that makes no sense.
    fn whole_ns(&self) -> u128 {
        self.parts().iter().map(|ns| u128::from(*ns)).sum()
    }

    /// The same mixture over `span_ns`: its parts add up to exactly that. Nanoseconds that rounding leaves over
    /// go to the parts that lost most by it. A mixture of nothing is time blocked in something unnamed.
    pub(crate) fn fit(&self, span_ns: u64) -> Activity {
        let whole = self.whole_ns();
        if whole == u128::from(span_ns) {
            return *self;
        }
        if whole == 0 {
            return Activity::blocked(Blocked::Other, span_ns);
        }
        let parts = self.parts();
        let mut shares = [0u64; PARTS];
        let mut rests = [0u128; PARTS];
        for i in 0..PARTS {
            let product = u128::from(parts[i]) * u128::from(span_ns);
            shares[i] = (product / whole) as u64;
            rests[i] = product % whole;
        }
        for _ in 0..span_ns - shares.iter().sum::<u64>() {
            let mut most = 0;
            for i in 1..PARTS {
                if rests[i] > rests[most] {
                    most = i;
                }
            }
            shares[most] += 1;
            rests[most] = 0;
        }
        let mut blocked_ns = [0; BLOCKED_KINDS];
        blocked_ns.copy_from_slice(&shares[2..]);
        let times = Times {
            cpu_ns: shares[0],
            cpu_read_ns: scale(self.times.cpu_read_ns, shares[0], parts[0]).min(shares[0]),
            runnable_ns: shares[1],
            blocked_ns,
        };
        let sibling = u128::from(self.sibling_cpu_ns) * u128::from(span_ns) / whole;
        Activity { times, sibling_cpu_ns: u64::try_from(sibling).unwrap_or(u64::MAX) }
    }
}

/// `value * part / whole` without overflow; 0 when `whole` is.
pub(crate) fn scale(value: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(value) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}

/// One stretch; its activity adds up to its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) activity: Activity,
}

impl Stretch {
    /// `None` when it is empty. An activity that doesn't add up to the span is scaled to it.
    pub(crate) fn new(start_ns: u64, end_ns: u64, activity: Activity) -> Option<Stretch> {
        (start_ns < end_ns).then(|| Stretch { start_ns, end_ns, activity: activity.fit(end_ns - start_ns) })
    }

    pub(crate) fn of_slice(slice: &Slice) -> Option<Stretch> {
        let activity = Activity { times: slice.times, sibling_cpu_ns: slice.sibling_cpu_ns };
        Stretch::new(slice.start_ns, slice.header.time_ns, activity)
    }

    /// The stretch under way in a slot: what was accounted since the last slice, then the state that holds.
    /// The siblings' CPU time of both is spread over both, as nothing says when it was used.
    pub(crate) fn of_slot(slot: &TaskSlot, now_ns: u64) -> [Option<Stretch>; 2] {
        let since_ns = slot.since_ns.clamp(slot.slice_start_ns, now_ns.max(slot.slice_start_ns));
        let sibling = slot.sibling_cpu_ns.saturating_sub(slot.sent_sibling_cpu_ns);
        let span_ns = now_ns.saturating_sub(slot.slice_start_ns);
        let mut accounted = Activity { times: difference(&slot.total, &slot.sent), sibling_cpu_ns: 0 }
            .fit(since_ns - slot.slice_start_ns);
        let held_ns = now_ns.saturating_sub(since_ns);
        let mut holds = match slot.state {
            state::RUNNING => {
                Activity { times: Times { cpu_ns: held_ns, ..Times::default() }, sibling_cpu_ns: 0 }
            }
            state::RUNNABLE => {
                Activity { times: Times { runnable_ns: held_ns, ..Times::default() }, sibling_cpu_ns: 0 }
            }
            state::BLOCKED => {
                Activity::blocked(Blocked::from_u8(slot.blocked_in).unwrap_or(Blocked::Other), held_ns)
            }
            _ => return [Stretch::new(slot.slice_start_ns, since_ns, accounted), None],
        };
        accounted.sibling_cpu_ns = scale(sibling, since_ns - slot.slice_start_ns, span_ns);
        holds.sibling_cpu_ns = scale(sibling, held_ns, span_ns);
        [Stretch::new(slot.slice_start_ns, since_ns, accounted), Stretch::new(since_ns, now_ns, holds)]
    }

    fn clipped(&self, a_ns: u64, b_ns: u64) -> Option<Stretch> {
        Stretch::new(self.start_ns.max(a_ns), self.end_ns.min(b_ns), self.activity)
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

/// What [`Timeline::push`] made of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Whole,
    /// Part of it, or all, told of time that was known already.
    Overlapping,
    /// It was kept, but the oldest stretch had to go.
    HistoryLost,
}

/// The stretches of one task, in order and without overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    stretches: VecDeque<Stretch>,
    /// Provisional: replaced by the slice that tells of the same time.
    open: [Option<Stretch>; 2],
    /// Everything ever pushed.
    pub(crate) total: Activity,
}

impl Timeline {
    /// Adds a stretch. One that comes late is put where it belongs; what is known already is kept.
    pub(crate) fn push(&mut self, stretch: Stretch) -> Pushed {
        self.open = [None, None];
        let at = self.stretches.partition_point(|known| known.start_ns < stretch.start_ns);
        let from = at.checked_sub(1).map_or(0, |before| self.stretches[before].end_ns);
        let to = self.stretches.get(at).map_or(u64::MAX, |after| after.start_ns);
        let Some(fitting) = stretch.clipped(from, to) else { return Pushed::Overlapping };
        self.stretches.insert(at, fitting);
        self.total.add(&fitting.activity);
        if self.stretches.len() > MAX_STRETCHES && !self.coarsen() {
            self.stretches.pop_front();
            return Pushed::HistoryLost;
        }
        if fitting == stretch { Pushed::Whole } else { Pushed::Overlapping }
    }

    pub(crate) fn set_open(&mut self, open: [Option<Stretch>; 2]) {
        let from = self.stretches.back().map_or(0, |last| last.end_ns);
        self.open = open.map(|stretch| stretch.and_then(|stretch| stretch.clipped(from, u64::MAX)));
    }

    /// Joins neighbours in the older half; false when there were none to join.
    fn coarsen(&mut self) -> bool {
        let before = self.stretches.len();
        let newer = self.stretches.split_off(before / 2);
        let mut older: VecDeque<Stretch> = VecDeque::with_capacity(MAX_STRETCHES + 1);
        let mut joined_last = true;
        for stretch in self.stretches.drain(..) {
            match older.back_mut() {
                Some(last) if !joined_last && last.end_ns == stretch.start_ns => {
                    last.end_ns = stretch.end_ns;
                    last.activity.add(&stretch.activity);
                    joined_last = true;
                }
                _ => {
                    older.push_back(stretch);
                    joined_last = false;
                }
            }
        }
        older.extend(newer);
        self.stretches = older;
        self.stretches.len() < before
    }

    /// Whether anything was ever told of the task, kept or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.total == Activity::default() && self.open == [None, None]
    }

    fn iter(&self) -> impl Iterator<Item = &Stretch> {
        self.stretches.iter().chain(self.open.iter().flatten())
    }

    /// End of the last stretch; 0 when there is none.
    pub(crate) fn covered_to_ns(&self) -> u64 {
        self.iter().last().map_or(0, |last| last.end_ns)
    }

    /// What the task did in `[a_ns, b_ns)`. A stretch that is cut gives in proportion. Calls `gap` for each part
    /// nothing is known of; activity and gaps together are exactly `b_ns - a_ns`.
    pub(crate) fn query(&self, a_ns: u64, b_ns: u64, mut gap: impl FnMut(u64, u64)) -> Activity {
        let mut activity = Activity::default();
        let mut at_ns = a_ns;
        let first = self.stretches.partition_point(|stretch| stretch.end_ns <= a_ns);
        for stretch in self.stretches.range(first..).chain(self.open.iter().flatten()) {
            if stretch.start_ns >= b_ns {
                break;
            }
            let Some(part) = stretch.clipped(a_ns, b_ns) else { continue };
            if part.start_ns > at_ns {
                gap(at_ns, part.start_ns);
            }
            activity.add(&part.activity);
            at_ns = part.end_ns;
        }
        if at_ns < b_ns {
            gap(at_ns, b_ns);
        }
        activity
    }

    /// Drops what ended at or before `horizon_ns`.
    pub(crate) fn forget_before(&mut self, horizon_ns: u64) {
        let ended = self.stretches.partition_point(|stretch| stretch.end_ns <= horizon_ns);
        self.stretches.drain(..ended);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.stretches.len()
    }
}
