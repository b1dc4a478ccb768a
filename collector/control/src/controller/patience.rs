//! How long each knob is left alone after it did not help, and how far it is turned at once.

/// Wait after the first undo; each one more doubles it.
const FIRST_WAIT_NS: u64 = 30_000_000_000;
const LONGEST_WAIT_NS: u64 = 1_800_000_000_000;
/// Chance of keeping what does not help, over all probes of one knob since something was last learnt: spread so that
/// the sum over ever so many is bounded (6 / (pi k)^2 adds up to one).
const ALPHA: f64 = 0.1;

/// Of one knob in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    /// Largest step; `None`: as far as the model says.
    pub(crate) reach: Option<u64>,
    not_before_ns: u64,
    /// Somebody else's until then, whatever the job does.
    left_until_ns: u64,
    /// Since the last that was kept, or since the job changed.
    undone: u32,
}

impl Patience {
    pub(crate) fn ready(&self, now_ns: u64) -> bool {
        now_ns >= self.not_before_ns.max(self.left_until_ns)
    }

    /// Undone so often that this knob is not expected to help any more as things are.
    pub(crate) fn resigned(&self) -> bool {
        self.undone >= 3
    }

    /// Of the next probe.
    pub(crate) fn alpha(&self) -> f64 {
        let k = f64::from(self.undone) + 1.0;
        ALPHA * 6.0 / (std::f64::consts::PI * k).powi(2)
    }

    pub(crate) fn limit(&self, step: u64) -> u64 {
        self.reach.map_or(step, |reach| step.min(reach)).max(1)
    }

    /// A step of this size was undone: half as far next time, and later. `jitter`, 0 to 1, makes the wait up to a
    /// quarter longer.
    pub(crate) fn undo(&mut self, step: u64, now_ns: u64, jitter: f64) {
        self.undone = self.undone.saturating_add(1);
        self.reach = Some((step / 2).max(1));
        let wait = FIRST_WAIT_NS.saturating_mul(1 << (self.undone - 1).min(16)).min(LONGEST_WAIT_NS);
        let more = (wait as f64 * jitter.clamp(0.0, 1.0) / 4.0) as u64;
        self.not_before_ns = now_ns.saturating_add(wait.saturating_add(more).min(LONGEST_WAIT_NS));
    }

    /// Nothing was learnt: the same once more, later.
    pub(crate) fn again(&mut self, step: u64, now_ns: u64) {
        self.undo(step, now_ns, 1.0);
        self.reach = Some(step);
    }

    /// Nothing was learnt, as something else goes first: the same once more, a little later.
    pub(crate) fn make_way(&mut self, now_ns: u64) {
        self.not_before_ns = now_ns.saturating_add(FIRST_WAIT_NS);
    }

    /// It helped: the same again, and twice as far if that is seen to be useful.
    pub(crate) fn keep(&mut self, step: u64) {
        self.undone = 0;
        self.reach = self.reach.map(|_| step.saturating_mul(2));
    }

    /// Somebody else's, or the job won't have it.
    pub(crate) fn leave_alone(&mut self, now_ns: u64) {
        self.left_until_ns = now_ns.saturating_add(LONGEST_WAIT_NS);
    }

    /// The job is another one now.
    pub(crate) fn forget(&mut self) {
        *self = Patience { left_until_ns: self.left_until_ns, ..Patience::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_helps_is_tried_ever_more_seldom_but_at_least_every_half_hour() {
        let mut patience = Patience::default();
        let (mut now_ns, mut waits) = (0, Vec::new());
        for _ in 0..10 {
            patience.undo(8, now_ns, 0.0);
            waits.push((patience.not_before_ns - now_ns) / 1_000_000_000);
            now_ns = patience.not_before_ns;
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1800, 1800, 1800, 1800]);
    }

    #[test]
    fn what_is_somebody_elses_stays_theirs_when_the_job_changes() {
        let mut patience = Patience::default();
        patience.leave_alone(0);
        patience.forget();
        assert!(!patience.ready(LONGEST_WAIT_NS - 1) && patience.ready(LONGEST_WAIT_NS));
    }

    #[test]
    fn what_made_way_is_tried_again_as_far_and_soon() {
        let mut patience = Patience::default();
        patience.make_way(0);
        assert!(!patience.ready(FIRST_WAIT_NS - 1) && patience.ready(FIRST_WAIT_NS));
        assert_eq!((patience.limit(8), patience.undone), (8, 0));
    }

    #[test]
    fn the_chance_of_an_error_is_bounded_over_all_probes() {
        let mut patience = Patience::default();
        let mut sum = 0.0;
        for _ in 0..1000 {
            sum += patience.alpha();
            patience.undo(1, 0, 0.5);
        }
        assert!(sum < 0.1, "{sum}");
    }
}
