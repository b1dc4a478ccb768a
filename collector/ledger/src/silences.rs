//! Trainers in the midst of an epoch that have got no batch for longer than ever before.

use crate::ledger::Ledger;
use crate::summary::workers;

/// Gaps between batches before there is a history to compare with.
const FEWEST_GAPS: u64 = 16;
/// How many times as long as the longest gap a silence has to last.
const TIMES_LONGEST: u64 = 10;

/// The times between the batches that a trainer was handed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gaps {
    count: u64,
    longest_ns: u64,
    last_ns: u64,
}

impl Gaps {
    pub(crate) fn batch(&mut self, time_ns: u64) {
        if self.last_ns > 0 {
            self.count += 1;
            self.longest_ns = self.longest_ns.max(time_ns.saturating_sub(self.last_ns));
        }
        self.last_ns = self.last_ns.max(time_ns);
    }
}

/// A trainer that has got no batch for far longer than its own history lets expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    pub rank: u32,
    /// Of the trainer.
    pub pid: u32,
    /// When the last batch was handed over.
    pub since_ns: u64,
    /// The longest time between two batches before.
    pub longest_ns: u64,
    /// Worker number, where a shim tells it, and pid of those that are alive.
    pub workers: Vec<(Option<u32>, u32)>,
}

impl Ledger {
    /// The trainers within an epoch or an evaluation without a batch for at least `least_ns`, and for ten times as long as
    /// between any two batches before: loading, epochs, evaluations and saves are part of that history.
    pub fn silences(&self, now_ns: u64, least_ns: u64) -> Vec<Silence> {
        let is_silent = |gaps: &Gaps| {
            let silent_ns = now_ns.saturating_sub(gaps.last_ns);
            gaps.count >= FEWEST_GAPS
                && silent_ns >= least_ns
                && silent_ns >= gaps.longest_ns.saturating_mul(TIMES_LONGEST)
        };
        let silent =
            self.ranks.values().filter(|rank| !rank.ended && rank.phases.iterates() && is_silent(&rank.gaps));
        let mut silences: Vec<Silence> = silent
            .map(|rank| Silence {
                rank: rank.number,
                pid: rank.pid,
                since_ns: rank.gaps.last_ns,
                longest_ns: rank.gaps.longest_ns,
                workers: Vec::new(),
            })
            .collect();
        if silences.is_empty() {
            return silences;
        }
        let mut by_rank = workers(self);
        for silence in &mut silences {
            let alive = by_rank.remove(&silence.pid).unwrap_or_default().into_iter();
            silence.workers = alive
                .filter(|process| process.exited_ns.is_none())
                .map(|process| (process.shim.last_place.map(|(_, worker)| worker), process.facts.pid))
                .collect();
        }
        // From outside nobody sees an epoch's end, but that of its workers.
        silences.retain(|silence| {
            !silence.workers.is_empty()
                || self.ranks.get(&silence.pid).is_some_and(|rank| rank.shim_handovers > 0)
        });
        silences
    }
}
