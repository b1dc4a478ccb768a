//! What stops the controller: too many rollbacks, and sentences that need saying once.

use super::seed::Proposal;
use crate::stats::Figure;
use std::collections::{BTreeMap, VecDeque};

const HOUR_NS: u64 = 3_600_000_000_000;
/// Rollbacks within an hour that stop it for another.
const MOST_ROLLBACKS: usize = 3;
/// A kept change is watched for this long.
const PROBATION_NS: u64 = 300_000_000_000;
/// The same sentence is not repeated before.
const AGAIN_NS: u64 = 600_000_000_000;

/// A change that was kept and may still turn out to be bad.
#[derive(Clone, Debug)]
pub(crate) struct Probation {
    pub(crate) decision: u64,
    pub(crate) proposal: Proposal,
    /// Of the job without the change.
    pub(crate) before: Figure,
    pub(crate) restless: f64,
    pub(crate) stall_with: f64,
    pub(crate) window_steps: u32,
    pub(crate) kept_ns: u64,
}

impl Probation {
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns > self.kept_ns.saturating_add(PROBATION_NS)
    }
}

/// Counts what had to be taken back in a hurry: a probe that was merely not proven is no such thing, that is what
/// probes are for and patience bounds them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rollbacks {
    at_ns: VecDeque<u64>,
    frozen_until_ns: u64,
}

impl Rollbacks {
    /// True when this one was one too many.
    pub(crate) fn add(&mut self, now_ns: u64) -> bool {
        self.at_ns.push_back(now_ns);
        while self.at_ns.front().is_some_and(|ns| ns.saturating_add(HOUR_NS) < now_ns) {
            self.at_ns.pop_front();
        }
        let freezes = self.at_ns.len() >= MOST_ROLLBACKS;
        if freezes {
            self.frozen_until_ns = now_ns.saturating_add(HOUR_NS);
            self.at_ns.clear();
        }
        freezes
    }

    pub(crate) fn frozen(&self, now_ns: u64) -> bool {
        now_ns < self.frozen_until_ns
    }

    /// `None` where it is not frozen.
    pub(crate) fn frozen_until_ns(&self, now_ns: u64) -> Option<u64> {
        self.frozen(now_ns).then_some(self.frozen_until_ns)
    }
}

/// Sentences that stay true for a while.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mentioned {
    last: BTreeMap<&'static str, u64>,
}

impl Mentioned {
    /// Whether to mention it: it is new, or was last mentioned long ago. `topic` stands for the sentence, whose figures
    /// change every second.
    pub(crate) fn is_new(&mut self, topic: &'static str, now_ns: u64) -> bool {
        let new = self.last.get(topic).is_none_or(|ns| now_ns >= ns.saturating_add(AGAIN_NS) || now_ns < *ns);
        if new {
            self.last.insert(topic, now_ns);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_rollback_of_an_hour_freezes_for_an_hour() {
        let mut rollbacks = Rollbacks::default();
        let minute = 60_000_000_000;
        assert!(!rollbacks.add(0) && !rollbacks.add(50 * minute) && !rollbacks.add(70 * minute));
        assert!(rollbacks.add(90 * minute));
        assert!(rollbacks.frozen(149 * minute) && !rollbacks.frozen(150 * minute));
    }
}
