//! The steps of a rank, kept so that any stretch of the last minutes can be looked at.

use crate::stats::Piece;
use stallscope_model::{Cause, Phase, StepLedger};
use std::collections::VecDeque;

/// Steps of fast jobs are kept together, so that memory is bounded by time and not by their number.
const BEAD_NS: u64 = 200_000_000;
/// Four minutes of fast steps; more of slow ones.
const MOST_BEADS: usize = 1200;

/// One or some training steps in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bead {
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

impl Bead {
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
    beads: VecDeque<Bead>,
    open: Option<Bead>,
    since_gap: u32,
    /// Training steps between the last two interruptions.
    stretch: u32,
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
                self.stretch = self.since_gap;
            }
            self.since_gap = 0;
            self.close();
            return;
        }
        let bead = self.open.get_or_insert(Bead {
            start_ns: step.start_ns,
            since_gap: self.since_gap,
            ..Bead::default()
        });
        bead.add(step);
        self.since_gap = self.since_gap.saturating_add(1);
        if bead.end_ns - bead.start_ns >= BEAD_NS {
            self.close();
        }
    }

    /// Another clock: nothing of before can be compared with what comes.
    pub(crate) fn forget(&mut self) {
        *self = Pace::default();
    }

    fn close(&mut self) {
        let Some(bead) = self.open.take() else { return };
        if self.beads.len() == MOST_BEADS {
            self.beads.pop_front();
        }
        self.beads.push_back(bead);
    }

    pub(crate) fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }

    /// What began at or after `from_ns`, without the first `settle` steps, and without as many (but at most a quarter
    /// of an epoch) after each interruption of training, whose batches come from a queue that filled meanwhile.
    pub(crate) fn since(&self, from_ns: u64, settle: u32) -> Vec<Bead> {
        let mut skipped = 0;
        let skip = if self.stretch > 0 { settle.min(self.stretch / 4) } else { settle };
        self.beads
            .iter()
            .filter(|bead| bead.start_ns >= from_ns)
            .filter(|bead| {
                let settled = skipped >= settle;
                skipped = skipped.saturating_add(bead.steps);
                settled && bead.since_gap >= skip
            })
            .copied()
            .collect()
    }
}

/// The last of them that hold at least `steps`.
pub(crate) fn newest(beads: &[Bead], steps: u32) -> &[Bead] {
    let mut held = 0;
    for (at, bead) in beads.iter().enumerate().rev() {
        held += bead.steps;
        if held >= steps {
            return &beads[at..];
        }
    }
    beads
}

pub(crate) fn steps(beads: &[Bead]) -> u32 {
    beads.iter().fold(0, |sum, bead| sum.saturating_add(bead.steps))
}

/// Samples and time of each; batches instead where not every batch says how many samples it has.
pub(crate) fn pieces(beads: &[Bead]) -> Vec<Piece> {
    let counted = beads.iter().all(|bead| bead.samples > 0);
    beads
        .iter()
        .map(|bead| Piece {
            samples: if counted { bead.samples as f64 } else { f64::from(bead.steps) },
            ns: bead.wall_ns as f64,
        })
        .collect()
}

/// Sums over a stretch.
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
    pub(crate) fn of(beads: &[Bead]) -> Self {
        let mut sums = Self::default();
        for bead in beads {
            sums.steps += f64::from(bead.steps);
            sums.samples += bead.samples as f64;
            sums.wall_ns += bead.wall_ns as f64;
            sums.compute_ns += bead.compute_ns as f64;
            sums.fetch_ns += bead.fetch_ns as f64;
            sums.prep_ns += bead.prep_ns as f64;
            sums.stall_ns += bead.stall_ns as f64;
            sums.crowded_ns += bead.crowded_ns as f64;
            sums.peer_ns += bead.peer_ns as f64;
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
