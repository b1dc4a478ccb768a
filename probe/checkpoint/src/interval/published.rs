//! CheckFreq's and PCcheck's intervals, as baselines: in steps, from a profile that is taken once.

use super::{Rule, Settings, Step};

/// Steps that are profiled: from the sixth to the hundredth, as CheckFreq's code does.
const SKIPPED: u64 = 5;
const PROFILED: u64 = 100;
/// What CheckFreq's code has as its budget, whatever is asked for.
const CODED_BUDGET: f64 = 0.05;

#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    seen: u64,
    profiled_s: f64,
    /// T_i: a step, profiled once and never again.
    step_s: f64,
    /// T_o of the profiled save.
    blocked_s: f64,
    profiling_save: bool,
    /// k; 0 while profiling.
    steps: u64,
    /// Since the last save began.
    interval_s: f64,
    interval_steps: u64,
    watching: bool,
}

impl Published {
    pub(super) fn step(&mut self, step: Step, _settings: &Settings) {
        self.seen += 1;
        if self.seen > SKIPPED && self.seen <= PROFILED && !self.profiling_save {
            self.profiled_s += step.wall_s;
            self.step_s = self.profiled_s / (self.seen - SKIPPED) as f64;
        }
        if self.profiling_save && self.steps == 0 {
            self.blocked_s += step.blocked_s;
        }
        self.interval_s += step.wall_s;
        self.interval_steps += 1;
    }

    pub(super) fn begun(&mut self) {
        self.profiling_save |= self.steps == 0;
    }

    pub(super) fn drained(&mut self, persist_s: f64, settings: &Settings) {
        if self.steps == 0 && self.profiling_save {
            self.steps = self.profile(persist_s, settings);
            self.watching = settings.rule != Rule::PcCheck;
            (self.interval_s, self.interval_steps) = (0.0, 0);
        } else if self.watching {
            self.adapt(settings);
        }
    }

    /// The interval in steps. `persist_s` is T_c + T_s, from the beginning of the copy to its end on disk.
    fn profile(&self, persist_s: f64, settings: &Settings) -> u64 {
        let step = self.step_s.max(1e-9);
        // T_o = max(0, T_c - (T_i - T_w)) in the paper; here it is measured: what the save blocked.
        let drained = steps_in(persist_s - self.blocked_s, step);
        let steps = match settings.rule {
            Rule::CheckFreqAsCoded => drained,
            Rule::PcCheck => {
                steps_in(persist_s, f64::from(settings.concurrent) * (1.0 + settings.overhead) * step)
            }
            _ => drained.max(steps_in(self.blocked_s, settings.overhead * step)),
        };
        steps.max(1.0) as u64
    }

    /// k += 2 while an interval costs more than the budget by the profiled step; never less.
    fn adapt(&mut self, settings: &Settings) {
        let coded = settings.rule == Rule::CheckFreqAsCoded;
        let budget = if coded { CODED_BUDGET } else { settings.overhead };
        let expected = self.interval_steps as f64 * self.step_s;
        if self.interval_steps >= self.steps && expected > 0.0 {
            if (self.interval_s - expected) / expected > budget {
                self.steps += 2;
            } else if coded {
                self.watching = false;
            }
            (self.interval_s, self.interval_steps) = (0.0, 0);
        }
    }

    pub(super) fn due(&self, since_last_steps: u64) -> bool {
        match self.steps {
            0 => self.seen >= PROFILED && !self.profiling_save,
            steps => since_last_steps >= steps,
        }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }
}

/// Rounded up, but for what is rounding itself.
fn steps_in(time_s: f64, step_s: f64) -> f64 {
    let steps = time_s / step_s;
    (steps - steps.abs() * 1e-9).ceil()
}
