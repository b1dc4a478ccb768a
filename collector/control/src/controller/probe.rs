//! Trying a change: windows without it, with it, without it, and so on until it is clear what it does.
//!
//! The window before is what was seen last; the window after cancels what changed meanwhile by itself. A window
//! begins when all that was under way at the turn has been taken, and is at least three times as long as that.

use super::harm::Usual;
use super::seed::{Kind, Proposal};
use super::shared::{Beside, Rates};
use super::turn::Turn;
use crate::ranks::{self, Job};
use crate::stats::{self, Figure, Gain};

/// Smallest gain that is kept.
pub(crate) const DELTA: f64 = 0.02;
/// Steps of a window, at least; where the case is clear, fewer suffice, and the queue goes by once and not three times.
const FEWEST: u32 = 30;
const FEWEST_CLEAR: u32 = 10;
/// A window is no shorter, so that what happens once a second happens in each.
const SHORTEST_NS: f64 = 5e9;
/// Nor much longer: many short windows show more than a few long ones where something comes and goes.
const LONGEST: u32 = 5;
/// Standard deviation of a window's pace that its length aims at.
pub(crate) const AIM: f64 = 0.0075;
/// Attempts before it is given up as not measurable.
const MOST_PAIRS: usize = 8;
/// After so many it is given up unless at least the middle of what was measured is enough.
const ENOUGH_PAIRS: usize = 3;
/// A release that lets training wait so much more, as a share, is none.
const WAIT: f64 = 0.01;
/// Chance of error of a look before a window is complete, which may be taken every second.
const EARLY: f64 = 1.0 / 16.0;
/// And of one when it is; there are at most this many that can keep.
const LOOKS: f64 = 2.0 * MOST_PAIRS as f64;
/// Of "it is worse": stopping for it loses nothing.
const HARM_ALPHA: f64 = 0.02;
/// Training time that one probe may take in all.
pub(crate) const LONGEST_PROBE_NS: u64 = 900_000_000_000;
/// Training without a single step, beyond so many steps of before: after a change that adds, whose workers have to start, and
/// after one that takes away.
const SILENCE: (f64, f64) = (30e9, 20.0);
const SILENCE_WITH_LESS: (f64, f64) = (2e9, 10.0);

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) decision: u64,
    pub(crate) proposal: Proposal,
    pub(crate) stage: Stage,
    /// Windows that are complete: without, with, without, …
    pub(crate) legs: Vec<Figure>,
    pub(crate) alpha: f64,
    /// Loss that a release may cost, at most.
    pub(crate) allowance: f64,
    pub(crate) restless: f64,
    /// Steps of a window without and with it: at least, and at most.
    pub(crate) fewest: [u32; 2],
    pub(crate) enough: [u32; 2],
    /// To be left out after each turn to the setting without, and with it.
    pub(crate) settle: [u32; 2],
    /// Training time since it began; evaluation and the like don't count.
    pub(crate) spent_ns: u64,
    /// Memory before and at most, without what caches keep, which fill meanwhile: for what it costs.
    pub(crate) own_bytes: u64,
    pub(crate) most_own_bytes: u64,
    /// And of all of the job.
    pub(crate) most_memory_bytes: u64,
    pub(crate) stall_before: f64,
    pub(crate) stall_with: f64,
    /// Of the newest window without it.
    pub(crate) stall_without: f64,
    pub(crate) applied_logged: bool,
    /// What the steps of the ranks that are turned were like before.
    pub(crate) usual: Vec<(u32, Usual)>,
    /// Training time that windows with it cost so far: those before, and the one under way.
    pub(crate) cost_ns: f64,
    pub(crate) leg_cost_ns: f64,
    /// What was read before, where that is known.
    pub(crate) before: Option<Rates>,
    /// What others read from the same storage.
    pub(crate) beside: Beside,
    /// Each window goes on until that is known.
    pub(crate) waits_for_others: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Stage {
    Turning(Turn),
    /// All values in force since `since_ns`. What was under way at `settles_ns` does not count.
    Measuring {
        since_ns: u64,
        settles_ns: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// More has to be seen.
    Open,
    /// The window is complete; on with the next one.
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

    pub(crate) fn note_memory(&mut self, job: &Job) {
        self.most_own_bytes = self.most_own_bytes.max(job.own_bytes());
        self.most_memory_bytes = self.most_memory_bytes.max(job.memory_bytes());
    }

    /// It leaves the job with less of something: it can only cost, and nothing has to start first.
    fn takes_away(&self) -> bool {
        matches!(self.proposal.kind, Kind::Ease | Kind::Release)
    }

    /// Counts what the change cost since the turn, and says why it hurts, where a few steps show that.
    pub(crate) fn harmed(&mut self, job: &Job, since_ns: u64) -> Option<String> {
        if !self.is_with() {
            return None;
        }
        let (settle, waits) = if self.takes_away() {
            (0, self.proposal.kind == Kind::Release)
        } else {
            (self.settle[1], false)
        };
        let (mut why, mut most_ns) = (None, None);
        for (rank, usual) in &self.usual {
            let Some(rank) = job.ranks.get(rank) else { continue };
            let cost_ns = usual.cost_ns(&rank.pace.since(since_ns, 0));
            most_ns = Some(most_ns.unwrap_or(cost_ns).max(cost_ns));
            why = why.or_else(|| usual.harmed(&rank.pace.since(since_ns, settle), waits));
        }
        self.leg_cost_ns = most_ns.unwrap_or(0.0);
        why
    }

    /// The gain as far as the window under way shows it.
    pub(crate) fn so_far(&self, job: &Job, since_ns: u64) -> Option<Gain> {
        let leg = ranks::figure(&job.groups(since_ns, 0), u32::MAX)?;
        let legs: Vec<Figure> = self.legs.iter().copied().chain([leg]).collect();
        stats::compare(&legs, self.restless, HARM_ALPHA)
    }

    /// Whether training has stood still for so long that it must be the change.
    pub(crate) fn is_silent(&self, silent_ns: u64, step_ns: f64) -> bool {
        let (least_ns, steps) = if self.takes_away() { SILENCE_WITH_LESS } else { SILENCE };
        self.is_with() && silent_ns as f64 > least_ns + steps * step_ns
    }

    /// Looks at what was measured since the turn.
    pub(crate) fn judge(&mut self, job: &Job, since_ns: u64, settles_ns: u64) -> Verdict {
        let with = usize::from(self.is_with());
        let mut groups = job.groups(settles_ns, self.settle[with]);
        for rank in &mut groups {
            rank.retain(|group| group.start_ns >= since_ns);
        }
        let seen = groups.iter().map(|rank| crate::window::steps(rank)).min().unwrap_or(0);
        if seen < self.fewest[with] {
            return Verdict::Open;
        }
        let Some(leg) = ranks::figure(&groups, u32::MAX) else { return Verdict::Open };
        if self.is_with() {
            self.stall_with = ranks::worst_stall(&groups);
        } else {
            self.stall_without = ranks::worst_stall(&groups);
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

/// What a raise was to remove went away by itself, so its effect is unknown.
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
        Kind::Release | Kind::Swap => [most, slow(0.0)],
    }
}

/// How a probe measures, by what the job was like since `from_ns`. `None`: too little was seen yet.
pub(crate) struct Plan {
    pub(crate) before: Figure,
    pub(crate) fewest: [u32; 2],
    pub(crate) enough: [u32; 2],
    pub(crate) stall: f64,
    /// See [`stats::compare`]; `None`: too few steps were seen.
    pub(crate) restless: Option<f64>,
}

/// `drains`: batches under way without and with the change. `clear`: a few steps suffice.
pub(crate) fn plan(
    job: &Job,
    from_ns: u64,
    settle: u32,
    drains: [u32; 2],
    aim: f64,
    clear: bool,
) -> Option<Plan> {
    let groups = job.groups(from_ns, settle);
    let step_ns = job.step_ns();
    if step_ns <= 0.0 {
        return None;
    }
    let least = |steps: u32, times: u32| {
        drains.map(|drain| steps.max(times * drain).max((SHORTEST_NS / step_ns) as u32))
    };
    let whole = least(FEWEST, 3);
    let fewest = if clear { least(FEWEST_CLEAR, 1) } else { whole };
    let seen = groups.iter().map(|rank| crate::window::steps(rank)).min()?;
    if seen < fewest[0] {
        return None;
    }
    // Where steps come in groups, one batch of each worker, it takes more of them to see how much they vary.
    let figure = |steps: u32| {
        [steps, seen].into_iter().find_map(|steps| Some((ranks::figure(&groups, steps)?, steps)))
    };
    let (first, of) = figure(fewest[0])?;
    // Noise of one step, correlation included, and the steps that make it small enough.
    let steps = (first.variance * f64::from(of) / (aim * aim)).min(1e9) as u32;
    let enough = whole.map(|whole| steps.clamp(whole, whole.saturating_mul(LONGEST)));
    let newest: Vec<Vec<_>> =
        groups.iter().map(|rank| crate::window::newest(rank, enough[0].min(seen)).to_vec()).collect();
    Some(Plan {
        before: figure(enough[0].min(seen))?.0,
        fewest,
        enough,
        stall: ranks::worst_stall(&newest),
        restless: restless(&groups, enough[0]),
    })
}

/// Of what was seen since, in windows of `steps`; of the first rank, as ranks of a job go at one pace.
fn restless(groups: &[Vec<crate::window::StepGroup>], steps: u32) -> Option<f64> {
    let mut rest = groups.first()?.as_slice();
    let mut figures = Vec::new();
    loop {
        let window = crate::window::newest(rest, steps);
        if window.is_empty() || crate::window::steps(window) < steps {
            break;
        }
        figures.extend(ranks::figure(&[window.to_vec()], u32::MAX));
        rest = &rest[..rest.len() - window.len()];
    }
    stats::restless(&figures)
}
