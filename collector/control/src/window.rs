//! The steps of a rank, kept so that any window of the last minutes can be examined.

use crate::stats::Piece;
use stallscope_model::{Cause, Phase, StepLedger};
use std::collections::VecDeque;

/// Steps of fast jobs are kept together, so that memory is bounded by time and not by their number.
const GROUP_NS: u64 = 200_000_000;
/// Four minutes of fast steps; more of slow ones.
const MOST_GROUPS: usize = 1200;

/// One or some training steps in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepGroup {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) steps: u32,
    pub(crate) samples: u64,
    /// Of these steps, without what checkpoints took of them: a loader's knobs are not judged by that.
    pub(crate) wall_ns: u64,
    pub(crate) compute_ns: u64,
    pub(crate) fetch_ns: u64,
    pub(crate) prep_ns: u64,
    /// Waits for data, the two above included.
    pub(crate) stall_ns: u64,
    /// Runnable without a CPU: the trainer, or the worker it waited for.
    pub(crate) crowded_ns: u64,
    /// Waits for other ranks.
    pub(crate) peer_ns: u64,
    /// Training steps since the last that was not training.
    pub(crate) since_gap: u32,
}

impl StepGroup {
    fn add(&mut self, step: &StepLedger) {
        self.end_ns = step.end_ns;
        self.steps += 1;
        self.samples += u64::from(step.samples);
        let wall = step.end_ns - step.start_ns;
        self.wall_ns += wall.saturating_sub(step.causes.checkpoint_stall_ns());
        self.compute_ns += step.causes[Cause::Compute].min(wall);
        self.fetch_ns += step.causes[Cause::Fetch].min(wall);
        self.prep_ns += step.causes[Cause::Prep].min(wall);
        self.stall_ns += step.causes.data_stall_ns().min(wall);
        self.peer_ns += step.causes[Cause::Peer].min(wall);
        self.crowded_ns +=
            step.causes[Cause::Starved].saturating_add(step.causes[Cause::Preempted]).min(wall);
    }
}

/// What a rank's training steps of one loader were like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    groups: VecDeque<StepGroup>,
    open: Option<StepGroup>,
    since_gap: u32,
    /// Training steps between the last two interruptions.
    uninterrupted: u32,
    last_end_ns: u64,
    /// Of a step: no longer than what a clock can have shown. Steps that are none (end before start, before the
    /// last one's end) are left out and counted.
    pub(crate) odd_steps: u64,
}

/// No step lasts longer; what says so is not believed.
const LONGEST_STEP_NS: u64 = 24 * 3600 * 1_000_000_000;

impl Pace {
    pub(crate) fn add(&mut self, step: &StepLedger) {
        if step.end_ns <= step.start_ns
            || step.start_ns < self.last_end_ns
            || step.end_ns - step.start_ns > LONGEST_STEP_NS
        {
            self.odd_steps += 1;
            return;
        }
        self.last_end_ns = step.end_ns;
        if step.phase != Phase::Training {
            if self.since_gap > 0 {
                self.uninterrupted = self.since_gap;
            }
            self.since_gap = 0;
            self.close();
            return;
        }
        let group = self.open.get_or_insert(StepGroup {
            start_ns: step.start_ns,
            since_gap: self.since_gap,
            ..StepGroup::default()
        });
        group.add(step);
        self.since_gap = self.since_gap.saturating_add(1);
        if group.end_ns - group.start_ns >= GROUP_NS {
            self.close();
        }
    }

    /// Another clock: nothing of before can be compared with what comes.
    pub(crate) fn forget(&mut self) {
        *self = Pace::default();
    }

    fn close(&mut self) {
        let Some(group) = self.open.take() else { return };
        if self.groups.len() == MOST_GROUPS {
            self.groups.pop_front();
        }
        self.groups.push_back(group);
    }

    pub(crate) fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }

    /// What began at or after `from_ns`, without the first `settle` steps, and without as many (but at most a quarter
    /// of an epoch) after each interruption of training, whose batches come from a queue that filled meanwhile.
    pub(crate) fn since(&self, from_ns: u64, settle: u32) -> Vec<StepGroup> {
        let mut skipped = 0;
        let skip = if self.uninterrupted > 0 { settle.min(self.uninterrupted / 4) } else { settle };
        self.groups
            .iter()
            .filter(|group| group.start_ns >= from_ns)
            .filter(|group| {
                let settled = skipped >= settle;
                skipped = skipped.saturating_add(group.steps);
                settled && group.since_gap >= skip
            })
            .copied()
            .collect()
    }
}

/// The last of them that hold at least `steps`.
pub(crate) fn newest(groups: &[StepGroup], steps: u32) -> &[StepGroup] {
    let mut held = 0;
    for (at, group) in groups.iter().enumerate().rev() {
        held += group.steps;
        if held >= steps {
            return &groups[at..];
        }
    }
    groups
}

pub(crate) fn steps(groups: &[StepGroup]) -> u32 {
    groups.iter().fold(0, |sum, group| sum.saturating_add(group.steps))
}

/// Samples and time of each; batches instead where not every batch says how many samples it has.
pub(crate) fn pieces(groups: &[StepGroup]) -> Vec<Piece> {
    let counted = groups.iter().all(|group| group.samples > 0);
    groups
        .iter()
        .map(|group| Piece {
            samples: if counted { group.samples as f64 } else { f64::from(group.steps) },
            ns: group.wall_ns as f64,
        })
        .collect()
}

/// Sums over a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) steps: f64,
    pub(crate) samples: f64,
    pub(crate) wall_ns: f64,
    pub(crate) compute_ns: f64,
    pub(crate) fetch_ns: f64,
    pub(crate) prep_ns: f64,
    pub(crate) stall_ns: f64,
    pub(crate) crowded_ns: f64,
    pub(crate) peer_ns: f64,
}

impl Sums {
    pub(crate) fn of(groups: &[StepGroup]) -> Self {
        let mut sums = Self::default();
        for group in groups {
            sums.steps += f64::from(group.steps);
            sums.samples += group.samples as f64;
            sums.wall_ns += group.wall_ns as f64;
            sums.compute_ns += group.compute_ns as f64;
            sums.fetch_ns += group.fetch_ns as f64;
            sums.prep_ns += group.prep_ns as f64;
            sums.stall_ns += group.stall_ns as f64;
            sums.crowded_ns += group.crowded_ns as f64;
            sums.peer_ns += group.peer_ns as f64;
        }
        sums
    }

    pub(crate) fn share(&self, ns: f64) -> f64 {
        if self.wall_ns > 0.0 { (ns / self.wall_ns).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub(crate) fn stall_share(&self) -> f64 {
        self.share(self.stall_ns)
    }

    pub(crate) fn step_ns(&self) -> f64 {
        if self.steps > 0.0 { self.wall_ns / self.steps } else { 0.0 }
    }
}
