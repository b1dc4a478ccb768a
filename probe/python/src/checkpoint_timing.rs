//! When to save, by what the training steps take: measured here, decided by `stallscope_checkpoint::interval`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stallscope_checkpoint::Yielding;
use stallscope_checkpoint::interval::{Account, Interval, Rule, Settings, Step};
use std::sync::{Mutex, PoisonError};

/// A save is slowed down to this at most while it takes the disk from the loader, bytes a second.
const SLOWEST_BYTES_PER_S: u64 = 8 << 20;
/// Steps that what a loader waits is averaged over.
const STEPS: f64 = 16.0;
/// Steps beside a save between two looks at them.
const LOOK: u32 = 8;

/// The steps of a job and what its saves cost. Times are CLOCK_MONOTONIC, ns.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct CheckpointTiming {
    timing: Mutex<Timing>,
}

#[derive(Debug)]
struct Timing {
    interval: Interval,
    /// When the last step ended.
    last_ns: Option<u64>,
    /// Blocked for saves since then.
    blocked_ns: u64,
    /// Whether a save was under way at any moment since then.
    saving: bool,
    /// When the save under way began.
    begun_ns: Option<u64>,
    waits: Waits,
}

/// What a step waits for its batch, on average, in seconds.
#[derive(Debug)]
struct Waits {
    yielding: Yielding,
    quiet_s: Option<f64>,
    saving_s: Option<f64>,
    steps: u32,
    written_bytes_per_s: f64,
}

#[pymethods]
impl CheckpointTiming {
    #[new]
    fn new(rule: &str, overhead: f64, mtbf_s: f64, every: f64) -> PyResult<CheckpointTiming> {
        let rule = match rule {
            "budget" => Rule::Budget,
            "steps" => Rule::EverySteps(every as u64),
            "seconds" => Rule::EverySeconds(every),
            "young-daly" => Rule::YoungDaly,
            "checkfreq" => Rule::CheckFreq,
            "checkfreq-as-coded" => Rule::CheckFreqAsCoded,
            "pccheck" => Rule::PcCheck,
            other => return Err(PyValueError::new_err(format!("there is no rule {other:?}"))),
        };
        let interval = Interval::new(Settings { rule, overhead, mtbf_s, concurrent: 2 });
        let waits = Waits {
            yielding: Yielding::new(SLOWEST_BYTES_PER_S),
            quiet_s: None,
            saving_s: None,
            steps: 0,
            written_bytes_per_s: 1e9,
        };
        let timing = Timing { interval, last_ns: None, blocked_ns: 0, saving: false, begun_ns: None, waits };
        Ok(CheckpointTiming { timing: Mutex::new(timing) })
    }

    /// A training step ended at `now_ns`, of which `waited_ns` were spent waiting for its batch; `working`: whether the
    /// background is at work. Gives why a save is due, if it is, and another limit on what is being written, bytes a
    /// second, if it is to be changed: 0 for none.
    fn step(&self, now_ns: u64, waited_ns: u64, working: bool) -> (Option<String>, Option<u64>) {
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        timing.drained(now_ns, working);
        timing.saving |= working;
        let mut limit = None;
        // When the first one began is not known, but it counts.
        let wall_s = timing.last_ns.map_or(0.0, |last_ns| seconds(now_ns.saturating_sub(last_ns)));
        let step = Step { wall_s, blocked_s: seconds(timing.blocked_ns), saving: timing.saving };
        timing.interval.step(step);
        if timing.last_ns.is_some() {
            let step_s = timing.interval.step_s();
            limit = timing.waits.observe(seconds(waited_ns), step.saving, step_s);
        }
        timing.last_ns = Some(now_ns);
        timing.blocked_ns = 0;
        timing.saving = working;
        (timing.interval.due().map(|why| why.to_string()), limit)
    }

    /// A save began at `began_ns` and blocked until `ended_ns`.
    fn saved(&self, began_ns: u64, ended_ns: u64) {
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        timing.interval.begun();
        timing.begun_ns = Some(began_ns);
        timing.saving = true;
        timing.blocked_ns += ended_ns.saturating_sub(began_ns);
    }

    /// Blocked besides, waiting for a save to end.
    fn blocked(&self, blocked_ns: u64) {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).blocked_ns += blocked_ns;
    }

    /// How fast a save was written.
    fn written(&self, bytes_per_s: f64) {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).waits.written_bytes_per_s = bytes_per_s;
    }

    /// Seconds until a save may be due, by the period in force, and a step's. 0 where it is not known.
    fn outlook(&self) -> (f64, f64) {
        let timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        (timing.interval.interval_s(), timing.interval.step_s())
    }

    /// In seconds: what saves cost so far, the time trained, a save's cost, how long one drains, the period in force.
    fn costs(&self) -> (f64, f64, f64, f64, f64) {
        let timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        let interval = &timing.interval;
        let (spent_s, trained_s) = (interval.spent_s(), interval.trained_s());
        (spent_s, trained_s, interval.cost_s(), interval.persist_s(), interval.interval_s())
    }

    /// In seconds: what the budget's rule goes by, whatever sets the period, and its own period: a save's cost, how long one
    /// drains, the mean time between failures, the period.
    fn rule(&self) -> (f64, f64, f64, f64) {
        let timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        let interval = &timing.interval;
        (interval.cost_s(), interval.persist_s(), interval.settings().mtbf_s, interval.budget_interval_s())
    }

    /// The period in seconds that the budget allows and the one that failures ask for, where it forbids that.
    fn forbidden(&self) -> Option<(f64, f64)> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).interval.account().forbidden()
    }

    /// Saves every so many seconds from now on; none for the rule's own period.
    fn set_interval(&self, period_s: Option<f64>) {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).interval.set_interval_s(period_s);
    }
}

impl CheckpointTiming {
    /// What is kept for the next run.
    pub(crate) fn account(&self) -> Account {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).interval.account()
    }

    pub(crate) fn resume(&self, account: &Account) {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).interval.resume(account);
    }
}

impl Timing {
    fn drained(&mut self, now_ns: u64, working: bool) {
        if !working && let Some(begun_ns) = self.begun_ns.take() {
            self.interval.drained(seconds(now_ns.saturating_sub(begun_ns)));
        }
    }
}

impl Waits {
    fn observe(&mut self, waited_s: f64, saving: bool, step_s: f64) -> Option<u64> {
        let mean = if saving { &mut self.saving_s } else { &mut self.quiet_s };
        *mean = Some(mean.map_or(waited_s, |mean| mean + (waited_s - mean) / STEPS));
        self.steps += u32::from(saving);
        let (Some(saving_s), Some(quiet_s)) = (self.saving_s, self.quiet_s) else { return None };
        if !saving || !self.steps.is_multiple_of(LOOK) {
            return None;
        }
        Some(self.yielding.observe(saving_s, quiet_s, step_s, self.written_bytes_per_s).unwrap_or(0))
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
