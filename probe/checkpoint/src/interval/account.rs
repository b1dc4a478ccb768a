//! What saves have cost a job, from run to run.

use serde::{Deserialize, Serialize};

/// What the saves of a job have cost so far, kept from run to run: so the budget is one of the whole job, however often it
/// is cut off, and a run knows from its first step what a save costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The budget p; 0 where another rule or a period that somebody set was in force.
    pub overhead: f64,
    /// Mean time between failures that the rule goes by, in seconds.
    pub mtbf_s: f64,
    /// What all saves have cost, in seconds: blocked, and steps slowed down.
    pub spent_s: f64,
    /// All steps together, in seconds.
    pub trained_s: f64,
    /// What each of the recent saves cost, in seconds, and how long it drained.
    pub costs_s: Vec<f64>,
    /// As above.
    pub persists_s: Vec<f64>,
    /// Credit that did not fit into the bucket, in seconds.
    pub forfeited_s: f64,
    /// What the bucket holds, in seconds.
    pub bucket_s: f64,
    /// The period in force, in seconds.
    pub interval_s: f64,
}

impl Account {
    /// The period that the budget allows and the one that failures ask for, in seconds, where the budget forbids what they
    /// ask for by a quarter or more: then the job loses more to failures than it needs to. None while that is not known.
    pub fn forbidden(&self) -> Option<(f64, f64)> {
        let cost_s = self.cost_s();
        let (allowed_s, wanted_s) = (cost_s / self.overhead, young_s(cost_s, self.mtbf_s));
        let known = self.overhead > 0.0 && self.costs_s.len() > 1;
        (known && allowed_s > 1.25 * wanted_s).then_some((allowed_s, wanted_s))
    }

    /// What a save costs, by the recent ones, in seconds.
    pub fn cost_s(&self) -> f64 {
        self.costs_s.iter().sum::<f64>() / self.costs_s.len().max(1) as f64
    }
}

/// Young's period for a save of this cost, in seconds.
pub(super) fn young_s(cost_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * cost_s * mtbf_s).sqrt()
}
