//! When to save. Pure: the caller measures and acts; time is what the steps add up to.
//!
//! A save costs what it blocks the job *and* what it slows the steps around it. Its period is
//!
//! ```text
//! tau = max(T_o / p, T_persist / N, sqrt(2 T_o MTBF))
//! ```
//!
//! with the mean cost T_o of recent saves, the budget p, the time T_persist until a save has drained, N snapshots in
//! memory, and the mean time between failures. The last term is Young's (1974), with the cost that the job feels in place
//! of the whole write, which overlaps with training; the first two are CheckFreq's (FAST'21) and PCcheck's (ASPLOS'25)
//! limits. The budget is a ceiling, not a target: where failures are rare, saves are rarer than it allows.
//!
//! The first term is kept by a token bucket, which makes the budget a bound: a save begins only when what all before cost,
//! and the dearest of the recent ones once more, is within p of the time trained. So at any moment the cost is at most p of
//! the time and one save. Where the budget allows fewer saves than failures ask for, what a run that was cut off had left is
//! there for the next one, which then saves earlier than after T_o / p; the bucket holds a few saves, so that years of
//! credit are not spent in an hour.

mod account;
mod measured;
mod published;

pub use account::Account;
use account::young_s;
use measured::Measured;
use published::Published;
use std::fmt;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The module's.
    Budget,
    /// Every so many steps.
    EverySteps(u64),
    /// Every so many seconds.
    EverySeconds(f64),
    /// sqrt(2 T_o MTBF) alone.
    YoungDaly,
    /// CheckFreq's Algorithm 1 with its adaptation, as the paper has them.
    CheckFreq,
    /// CheckFreq as its code has it: without the budget's term, adapting to 5% until that is first met.
    CheckFreqAsCoded,
    /// PCcheck's: every T_w/(N q t) steps, with q = 1 + p.
    PcCheck,
}

/// What the rules go by.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What decides.
    pub rule: Rule,
    /// The budget p: the part of the time that saves may cost, above 0.
    pub overhead: f64,
    /// Mean time between failures, in seconds.
    pub mtbf_s: f64,
    /// The number N of snapshots that may be in memory at once.
    pub concurrent: u32,
}

/// A step of training that ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// From the end of the step before to its own, in seconds.
    pub wall_s: f64,
    /// Of it, blocked for a save: copying, fencing, waiting for an arena.
    pub blocked_s: f64,
    /// Whether a save was under way at any moment of it: copied, written, read back.
    pub saving: bool,
}

/// Why a save is due now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// None was made yet, and its cost is to be known.
    First,
    /// The budget allows for one.
    Budget,
    /// The one before has drained.
    Drained,
    /// By cost and failures, one now loses least.
    Failures,
    /// The period that somebody set is over, or the one of another rule.
    Period,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::First => "the first, to learn what it costs",
            Why::Budget => "the budget allows for it",
            Why::Drained => "the one before has drained",
            Why::Failures => "it costs less than what a failure would lose",
            Why::Period => "its period is over",
        })
    }
}

/// Says when a save is due, from the steps of a job and what its saves cost.
#[derive(Clone, Debug)]
pub struct Interval {
    settings: Settings,
    measured: Measured,
    published: Published,
    forfeited_s: f64,
    bucket_s: f64,
    /// Set by somebody, in seconds.
    set_s: Option<f64>,
}

/// Undisturbed steps before the first save, and between the end of one save and the next: what a step costs without a
/// save is learned from them.
const CLEAN_BEFORE: u64 = 10;
const CLEAN_BETWEEN: u64 = 4;
/// Saves that the bucket holds, of the dearest kind that there was within about a day: what a few dear ones in an hour of
/// interference need must not be forfeited in the hours between.
const BUCKET: f64 = 8.0;
const BUCKET_SHRINKS_S: f64 = 86_400.0;

impl Interval {
    /// One that has seen nothing yet. A budget that is no positive number counts as a billionth, and so on: there are no
    /// settings that make it fail.
    pub fn new(settings: Settings) -> Interval {
        let sane = |value: f64, low: f64| if value.is_finite() { value.max(low) } else { 1e9 };
        let settings = Settings {
            overhead: sane(settings.overhead, 1e-9),
            mtbf_s: sane(settings.mtbf_s, 1e-3),
            concurrent: settings.concurrent.max(1),
            ..settings
        };
        let (measured, published) = Default::default();
        Interval { settings, measured, published, forfeited_s: 0.0, bucket_s: 0.0, set_s: None }
    }

    /// Goes on from what earlier runs of the job were given to [`Interval::account`]. What makes no sense is left out. Runs
    /// without a budget may have spent more than this one's: of such a debt no more is taken over than one save.
    pub fn resume(&mut self, account: &Account) {
        self.measured.resume(account, self.settings.overhead);
        self.forfeited_s = 0.0;
        let most = (self.credit_s() + self.measured.dearest_cost_s()).max(0.0);
        self.forfeited_s = if account.forfeited_s > 0.0 { account.forfeited_s.min(most) } else { 0.0 };
        self.bucket_s = Some(account.bucket_s).filter(|bucket| bucket.is_finite()).unwrap_or(0.0);
        self.fill(0.0);
    }

    /// What is to be kept for the next run.
    pub fn account(&self) -> Account {
        let (costs_s, persists_s) = self.measured.recent();
        let bounded = self.settings.rule == Rule::Budget && self.set_s.is_none();
        Account {
            overhead: Some(self.settings.overhead).filter(|_| bounded).unwrap_or(0.0),
            mtbf_s: self.settings.mtbf_s,
            spent_s: self.spent_s(),
            trained_s: self.trained_s(),
            costs_s,
            persists_s,
            forfeited_s: self.forfeited_s,
            bucket_s: self.bucket_s,
            // No number is no JSON.
            interval_s: Some(self.interval_s()).filter(|period| period.is_finite()).unwrap_or(0.0),
        }
    }

    /// Takes a step that ended.
    pub fn step(&mut self, step: Step) {
        self.measured.step(step);
        self.published.step(step, &self.settings);
        self.fill(if step.wall_s.is_finite() { step.wall_s } else { 0.0 });
    }

    /// What does not fit into the bucket is forfeited.
    fn fill(&mut self, wall_s: f64) {
        let shrunk = self.bucket_s * (1.0 - wall_s / BUCKET_SHRINKS_S).clamp(0.0, 1.0);
        self.bucket_s = shrunk.max(BUCKET * self.measured.dearest_cost_s());
        self.forfeited_s += (self.credit_s() - self.bucket_s).max(0.0);
    }

    /// What saves may still cost at this moment, in seconds.
    fn credit_s(&self) -> f64 {
        self.settings.overhead * self.trained_s() - self.spent_s() - self.forfeited_s
    }

    /// A save begins with the next step.
    pub fn begun(&mut self) {
        self.measured.begun();
        self.published.begun();
    }

    /// A save has drained, this many seconds after it had begun: written, committed, read back.
    pub fn drained(&mut self, persist_s: f64) {
        self.measured.drained(persist_s);
        self.published.drained(persist_s, &self.settings);
    }

    /// Whether a save is due at the end of this step, and why. Whether one can begin (an arena is free) is for the caller
    /// to see.
    pub fn due(&self) -> Option<Why> {
        let measured = &self.measured;
        if let Some(period) = self.set_s {
            return (measured.since_last_s() >= period).then_some(Why::Period);
        }
        match self.settings.rule {
            Rule::Budget => self.due_by_budget(),
            Rule::EverySteps(steps) => (measured.since_last_steps() >= steps.max(1)).then_some(Why::Period),
            Rule::EverySeconds(period) => (measured.since_last_s() >= period).then_some(Why::Period),
            Rule::YoungDaly if measured.saves() == 0 => self.first(),
            Rule::YoungDaly => (measured.since_last_s() >= self.young_daly_s()).then_some(Why::Failures),
            Rule::CheckFreq | Rule::CheckFreqAsCoded | Rule::PcCheck => {
                self.published.due(measured.since_last_steps()).then_some(Why::Period)
            }
        }
    }

    fn first(&self) -> Option<Why> {
        (self.measured.clean_steps() >= CLEAN_BEFORE).then_some(Why::First)
    }

    fn due_by_budget(&self) -> Option<Why> {
        let measured = &self.measured;
        if measured.saves() == 0 {
            return self.first();
        }
        let known = measured.saves() > 1 || measured.settled();
        let clean = measured.clean_since_save() >= CLEAN_BETWEEN && measured.clean_steps() >= CLEAN_BEFORE;
        let [budget, drained, failures] = self.terms_s();
        // What a run that was cut off had left shortens the first term: as much the fuller the bucket is, so that saves
        // stay evenly apart.
        let full = self.credit_s() / self.bucket_s.max(1e-9);
        let spread = budget * (1.0 - full.clamp(0.0, 1.0));
        let wanted = measured.since_last_s() >= spread.max(drained).max(failures);
        if !(measured.dearest_cost_s() <= self.credit_s() && known && clean && wanted) {
            return None;
        }
        Some(if failures >= budget && failures >= drained {
            Why::Failures
        } else if budget >= drained {
            Why::Budget
        } else {
            Why::Drained
        })
    }

    fn terms_s(&self) -> [f64; 3] {
        let cost = self.measured.cost_s();
        let drained = self.measured.persist_s() / f64::from(self.settings.concurrent);
        [cost / self.settings.overhead, drained, self.young_daly_s()]
    }

    fn young_daly_s(&self) -> f64 {
        young_s(self.measured.cost_s(), self.settings.mtbf_s)
    }

    /// The period in force, in seconds: set, or by the rule. 0 while nothing is known.
    pub fn interval_s(&self) -> f64 {
        let step = self.measured.step_s();
        match (self.set_s, self.settings.rule) {
            (Some(period), _) => period,
            (None, Rule::Budget) => self.budget_interval_s(),
            (None, Rule::EverySteps(steps)) => steps as f64 * step,
            (None, Rule::EverySeconds(period)) => period,
            (None, Rule::YoungDaly) => self.young_daly_s(),
            (None, _) => self.published.steps() as f64 * step,
        }
    }

    /// The period of [`Rule::Budget`], in seconds, whatever is in force: 0 while nothing is known.
    pub fn budget_interval_s(&self) -> f64 {
        self.terms_s().into_iter().fold(self.measured.step_s(), f64::max)
    }

    /// The knob: saves every so many seconds from now on, whatever the rule and the budget say; none gives it back.
    pub fn set_interval_s(&mut self, period: Option<f64>) {
        self.set_s = period.filter(|period| period.is_finite() && *period >= 0.0);
    }

    /// Another mean time between failures, as the history of the job grows.
    pub fn set_mtbf_s(&mut self, mtbf_s: f64) {
        if mtbf_s.is_finite() && mtbf_s > 0.0 {
            self.settings.mtbf_s = mtbf_s;
        }
    }

    /// What the rules go by.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What all saves have cost so far, in seconds: blocked, and steps slowed down.
    pub fn spent_s(&self) -> f64 {
        self.measured.spent_s()
    }

    /// All steps together, in seconds.
    pub fn trained_s(&self) -> f64 {
        self.measured.trained_s()
    }

    /// What a save costs, by the recent ones, in seconds.
    pub fn cost_s(&self) -> f64 {
        self.measured.cost_s()
    }

    /// How long a save drains, by the recent ones, in seconds.
    pub fn persist_s(&self) -> f64 {
        self.measured.persist_s()
    }

    /// A step without a save, by the recent ones, in seconds.
    pub fn step_s(&self) -> f64 {
        self.measured.step_s()
    }
}
