//! What steps and saves cost, as measured.

use super::{Account, Step};
use std::collections::VecDeque;

/// Clean steps that say what a step costs now.
const STEPS: usize = 64;
/// Saves that say what a save costs now.
const SAVES: usize = 4;
/// What exceeds so many medians is no step of this kind (an evaluation, a sleeping machine) and counts as that much.
const OUTLIER: f64 = 20.0;

#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Walls of recent steps without a save.
    clean: VecDeque<f64>,
    /// Their mean, without outliers.
    step_s: f64,
    clean_steps: u64,
    clean_since_save: u64,
    trained_s: f64,
    /// Of saves before the present one.
    spent_before_s: f64,
    present: Option<Present>,
    costs: VecDeque<f64>,
    persists: VecDeque<f64>,
    saves: u64,
    since_last_s: f64,
    since_last_steps: u64,
}

/// A save, from its beginning to the next one's: its last steps may come after it has drained.
#[derive(Clone, Debug, Default)]
struct Present {
    wall_s: f64,
    steps: u64,
    blocked_s: f64,
    /// What a step cost without it when it began.
    step_s: f64,
    drained: bool,
}

impl Present {
    fn cost_s(&self) -> f64 {
        // Noise may make the steps around a save look faster; what it blocked, it has cost all the same.
        (self.wall_s - self.steps as f64 * self.step_s).max(self.blocked_s)
    }
}

impl Measured {
    pub(super) fn step(&mut self, step: Step) {
        let wall_s = if step.wall_s.is_finite() { step.wall_s.max(0.0) } else { 0.0 };
        let blocked_s = if step.blocked_s.is_finite() { step.blocked_s.clamp(0.0, wall_s) } else { 0.0 };
        self.trained_s += wall_s;
        self.since_last_s += wall_s;
        self.since_last_steps += 1;
        match &mut self.present {
            Some(present) if step.saving || blocked_s > 0.0 => {
                present.wall_s += wall_s;
                present.steps += 1;
                present.blocked_s += blocked_s;
                self.clean_since_save = 0;
            }
            // Blocked by what was not begun here: its own account all the same.
            None if blocked_s > 0.0 => self.spent_before_s += blocked_s,
            _ => {
                self.clean_steps += 1;
                self.clean_since_save += 1;
                self.clean.push_back(wall_s);
                if self.clean.len() > STEPS {
                    self.clean.pop_front();
                }
                self.step_s = typical(&self.clean);
                self.settle();
            }
        }
    }

    /// A save that has drained and was followed by a clean step costs nothing more.
    fn settle(&mut self) {
        if let Some(present) = self.present.take_if(|present| present.drained && present.steps > 0) {
            let cost = present.cost_s();
            self.spent_before_s += cost;
            remember(&mut self.costs, cost);
        }
    }

    pub(super) fn resume(&mut self, account: &Account, overhead: f64) {
        let sane = |value: &f64| value.is_finite() && *value >= 0.0;
        let Account { spent_s, trained_s, .. } = account;
        if !sane(spent_s) || !sane(trained_s) {
            return;
        }
        let recent = |values: &[f64]| values.iter().copied().filter(sane).take(SAVES).collect();
        (self.costs, self.persists) = (recent(&account.costs_s), recent(&account.persists_s));
        self.trained_s = *trained_s;
        self.spent_before_s = spent_s.min(overhead * trained_s + self.dearest_cost_s());
        // The first of a run is one that learns what a save costs.
        self.saves = u64::from(!self.costs.is_empty());
    }

    pub(super) fn recent(&self) -> (Vec<f64>, Vec<f64>) {
        (self.costs.iter().copied().collect(), self.persists.iter().copied().collect())
    }

    pub(super) fn begun(&mut self) {
        if let Some(present) = self.present.take() {
            self.spent_before_s += present.cost_s();
            remember(&mut self.costs, present.cost_s());
        }
        self.present = Some(Present { step_s: self.step_s(), ..Present::default() });
        self.saves += 1;
        (self.since_last_s, self.since_last_steps, self.clean_since_save) = (0.0, 0, 0);
    }

    pub(super) fn drained(&mut self, persist_s: f64) {
        if persist_s.is_finite() {
            remember(&mut self.persists, persist_s.max(0.0));
        }
        if let Some(present) = &mut self.present {
            present.drained = true;
        }
    }

    /// A step without a save, by the recent ones; 0 before there are any.
    pub(super) fn step_s(&self) -> f64 {
        self.step_s
    }

    /// Mean of the recent saves, the present one as far as it has come if there is no other.
    pub(super) fn cost_s(&self) -> f64 {
        if self.costs.is_empty() { self.present_cost_s() } else { mean(&self.costs) }
    }

    pub(super) fn dearest_cost_s(&self) -> f64 {
        self.costs.iter().copied().fold(self.present_cost_s(), f64::max)
    }

    fn present_cost_s(&self) -> f64 {
        self.present.as_ref().map_or(0.0, Present::cost_s)
    }

    pub(super) fn persist_s(&self) -> f64 {
        if self.persists.is_empty() { 0.0 } else { mean(&self.persists) }
    }

    pub(super) fn spent_s(&self) -> f64 {
        self.spent_before_s + self.present_cost_s()
    }

    /// Whether no save is under way whose cost may still grow.
    pub(super) fn settled(&self) -> bool {
        self.present.is_none()
    }

    pub(super) fn trained_s(&self) -> f64 {
        self.trained_s
    }

    pub(super) fn saves(&self) -> u64 {
        self.saves
    }

    pub(super) fn clean_steps(&self) -> u64 {
        self.clean_steps
    }

    pub(super) fn clean_since_save(&self) -> u64 {
        self.clean_since_save
    }

    pub(super) fn since_last_s(&self) -> f64 {
        self.since_last_s
    }

    pub(super) fn since_last_steps(&self) -> u64 {
        self.since_last_steps
    }
}

fn remember(values: &mut VecDeque<f64>, value: f64) {
    values.push_back(value);
    if values.len() > SAVES {
        values.pop_front();
    }
}

/// The mean, in which what exceeds so many medians counts as that much.
fn typical(values: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let most = sorted[sorted.len() / 2] * OUTLIER;
    sorted.iter().map(|value| value.min(most)).sum::<f64>() / sorted.len() as f64
}

fn mean(values: &VecDeque<f64>) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
