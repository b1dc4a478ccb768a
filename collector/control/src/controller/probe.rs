//! Trying a change: stretches without it, with it, without it, and so on until it is clear what it does.
//!
//! The stretch before is what was seen last; the stretch after cancels what changed meanwhile by itself. A stretch
//! begins when all that was under way at the turn has been taken, and is at least three times as long as that.

use super::seed::{Kind, Proposal};
use super::turn::Turn;
use crate::ranks::{self, Job};
use crate::stats::{self, Figure, Gain};

/// Smallest gain that is kept.
pub(crate) const DELTA: f64 = 0.02;
/// Steps of a stretch, at least.
const FEWEST: u32 = 30;
/// A stretch is no shorter, so that what happens once a second happens in each.
const SHORTEST_NS: f64 = 5e9;
/// Nor much longer: many short stretches side by side tell more than a few long ones where something comes and goes.
const LONGEST: u32 = 5;
/// Standard deviation of a stretch's pace that its length aims at.
pub(crate) const AIM: f64 = 0.0075;
/// Times that it is tried before it is given up as not to be told.
const MOST_PAIRS: usize = 8;
/// After so many it is given up unless at least the middle of what was measured is enough.
const ENOUGH_PAIRS: usize = 3;
/// A release that lets training wait so much more, as a share, is none.
const WAIT: f64 = 0.01;
/// Chance of error of a look before a stretch is complete, which may be taken every second.
const EARLY: f64 = 1.0 / 16.0;
/// And of one when it is; there are at most this many that can keep.
const LOOKS: f64 = 2.0 * MOST_PAIRS as f64;
/// Of "it is worse": whoever stops for it loses nothing.
const HARM_ALPHA: f64 = 0.02;
/// Training time that one probe may take in all.
pub(crate) const LONGEST_PROBE_NS: u64 = 900_000_000_000;
/// Training without a single step, beyond what a stretch of as many steps took before.
pub(crate) const SILENCE_NS: u64 = 30_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) decision: u64,
    pub(crate) proposal: Proposal,
    pub(crate) stage: Stage,
    /// Stretches that are complete: without, with, without, …
    pub(crate) legs: Vec<Figure>,
    pub(crate) alpha: f64,
    /// Loss that a release may cost, at most.
    pub(crate) allowance: f64,
    pub(crate) restless: f64,
    /// Steps of a stretch without and with it: at least, and at most.
    pub(crate) fewest: [u32; 2],
    pub(crate) enough: [u32; 2],
    /// To be left out after each turn to the setting without, and with it.
    pub(crate) settle: [u32; 2],
    /// Training time since it began; evaluation and the like don't count.
    pub(crate) spent_ns: u64,
    /// Memory before, for what it costs.
    pub(crate) memory_bytes: u64,
    pub(crate) most_memory_bytes: u64,
    pub(crate) stall_before: f64,
    pub(crate) stall_with: f64,
    /// Of the newest stretch without it.
    pub(crate) stall_without: f64,
    pub(crate) applied_told: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Stage {
    Turning(Turn),
    /// All values in force since.
    Measuring(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// More has to be seen.
    Open,
    /// The stretch is complete; on with the next one.
    Next,
    Keep(Gain),
    Undo(Gain, Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Worse,
    TooLittle,
    NotClear,
    Waits,
    Vanished,
}

impl Probe {
    /// Whether the change is (being put) in force.
    pub(crate) fn is_with(&self) -> bool {
        self.legs.len() % 2 == 1
    }

    /// Looks at what was measured since the turn.
    pub(crate) fn judge(&mut self, job: &Job, since_ns: u64) -> Verdict {
        let with = usize::from(self.is_with());
        let beads = job.beads(since_ns, self.settle[with]);
        let seen = beads.iter().map(|rank| crate::window::steps(rank)).min().unwrap_or(0);
        if seen < self.fewest[with] {
            return Verdict::Open;
        }
        let Some(leg) = ranks::figure(&beads, u32::MAX) else { return Verdict::Open };
        if self.is_with() {
            self.stall_with = ranks::worst_stall(&beads);
        } else {
            self.stall_without = ranks::worst_stall(&beads);
        }
        let complete = seen >= self.enough[with];
        let mut legs = self.legs.clone();
        legs.push(leg);
        let verdict = self.verdict(&legs, complete);
        if verdict != Verdict::Open {
            self.legs = legs;
        }
        verdict
    }

    fn verdict(&self, legs: &[Figure], complete: bool) -> Verdict {
        let bounds = |alpha: f64| stats::compare(legs, self.restless, alpha);
        let share = if complete { 1.0 / LOOKS } else { EARLY };
        let (Some(gain), Some(harm)) = (bounds(self.alpha * share), bounds(HARM_ALPHA)) else {
            return if complete { Verdict::Next } else { Verdict::Open };
        };
        let needed = if self.proposal.kind == Kind::Release { -self.allowance } else { DELTA };
        if harm.high < needed.min(0.0) - DELTA / 2.0 {
            return Verdict::Undo(harm, Why::Worse);
        }
        let with = legs.len().is_multiple_of(2);
        if harm.high < needed && complete {
            return Verdict::Undo(harm, Why::TooLittle);
        }
        // Waits are seen more exactly than pace.
        if self.proposal.kind == Kind::Release && self.stall_with > self.stall_before + WAIT {
            return Verdict::Undo(harm, Why::Waits);
        }
        if !with && self.proposal.kind == Kind::Raise && stall_ended(self.stall_before, self.stall_without) {
            return Verdict::Undo(harm, Why::Vanished);
        }
        if !with && complete && legs.len() / 2 >= ENOUGH_PAIRS && harm.value < needed {
            return Verdict::Undo(harm, Why::NotClear);
        }
        match (with, gain.low >= needed) {
            // Only the way back proves that it was the change.
            (true, true) => Verdict::Next,
            (false, true) => Verdict::Keep(gain),
            (true, false) if complete => Verdict::Next,
            (false, false) if complete && legs.len() / 2 >= MOST_PAIRS => Verdict::Undo(harm, Why::NotClear),
            (false, false) if complete => Verdict::Next,
            _ => Verdict::Open,
        }
    }
}

/// What a raise was to remove went away by itself, so it cannot be told what it would have done.
fn stall_ended(before: f64, now: f64) -> bool {
    now < 0.01 && before > 0.02
}

/// Steps to leave out after a turn, without and with the change. All that was under way goes by in one drain. But a
/// full queue hides that a setting can't quite keep up for as long as it lasts: at a shortfall of a tenth, for ten.
pub(crate) fn settles(proposal: &Proposal, drains: [u32; 2]) -> [u32; 2] {
    let most = drains[0].max(drains[1]);
    let slow = |shortfall: f64| (f64::from(most) / shortfall.clamp(0.1, 1.0)) as u32;
    match proposal.kind {
        Kind::Raise | Kind::Shift => [slow(proposal.shortfall), most],
        Kind::Ease => [most; 2],
        Kind::Release => [most, slow(0.0)],
    }
}

/// How a probe measures, by what the job was like since `from_ns`. `None`: too little was seen yet.
pub(crate) struct Plan {
    pub(crate) before: Figure,
    pub(crate) fewest: [u32; 2],
    pub(crate) enough: [u32; 2],
    pub(crate) stall: f64,
    /// See [`stats::compare`]; `None`: not enough was seen to tell.
    pub(crate) restless: Option<f64>,
}

/// `drains`: batches under way without and with the change.
pub(crate) fn plan(job: &Job, from_ns: u64, settle: u32, drains: [u32; 2], aim: f64) -> Option<Plan> {
    let beads = job.beads(from_ns, settle);
    let step_ns = job.step_ns();
    if step_ns <= 0.0 {
        return None;
    }
    let fewest = drains.map(|drain| FEWEST.max(3 * drain).max((SHORTEST_NS / step_ns) as u32));
    let seen = beads.iter().map(|rank| crate::window::steps(rank)).min()?;
    if seen < fewest[0] {
        return None;
    }
    let first = ranks::figure(&beads, fewest[0])?;
    // Noise of one step, correlation included, and the steps that make it small enough.
    let steps = (first.variance * f64::from(fewest[0]) / (aim * aim)).min(1e9) as u32;
    let enough = fewest.map(|fewest| steps.clamp(fewest, fewest.saturating_mul(LONGEST)));
    let newest: Vec<Vec<_>> =
        beads.iter().map(|rank| crate::window::newest(rank, enough[0].min(seen)).to_vec()).collect();
    Some(Plan {
        before: ranks::figure(&newest, u32::MAX)?,
        fewest,
        enough,
        stall: ranks::worst_stall(&newest),
        restless: restless(&beads, enough[0]),
    })
}

/// Of what was seen since, in stretches of `steps`; of the first rank, as ranks of a job go at one pace.
fn restless(beads: &[Vec<crate::window::Bead>], steps: u32) -> Option<f64> {
    let mut rest = beads.first()?.as_slice();
    let mut figures = Vec::new();
    loop {
        let stretch = crate::window::newest(rest, steps);
        if stretch.is_empty() || crate::window::steps(stretch) < steps {
            break;
        }
        figures.extend(ranks::figure(&[stretch.to_vec()], u32::MAX));
        rest = &rest[..rest.len() - stretch.len()];
    }
    stats::restless(&figures)
}
