//! Sees that the job does another kind of work than before.
//!
//! A two-sided CUSUM (Page, 1954) on the logarithm of what a batch costs: the trainer's own work, a worker's CPU, a
//! worker's reading. Reference and spread are learnt from the job itself, and anew, for twice as long, after each
//! alarm, so that what comes and goes (a neighbour, say) is part of what is usual in the end.

use crate::fit::weight;
use crate::ranks::Job;
use crate::stats;
use crate::window::Sums;

/// One point of the chart is made of this long.
const PERIOD_NS: u64 = 10_000_000_000;
/// Points that a reference is learnt from at first, and at most.
const LEARNT: usize = 12;
const MOST_LEARNT: usize = 96;
/// In standard deviations: what is usual, and what it has to add up to.
const ALLOWANCE: f64 = 0.5;
const ALARM: f64 = 10.0;
/// No job is steadier than this, as a share.
const STEADIEST: f64 = 0.05;
/// Of the last points' mean, as a logarithm: less is no other kind of work.
const LEAST: f64 = 0.15;
const LAST: usize = 4;

/// Of one cost.
#[derive(Clone, Debug, Default)]
struct Chart {
    learnt: Vec<f64>,
    reference: Option<(f64, f64)>,
    up: f64,
    down: f64,
    last: Vec<f64>,
}

impl Chart {
    /// The factor by which the cost changed, where it did.
    fn add(&mut self, cost: f64, learn: usize) -> Option<f64> {
        let x = cost.ln();
        let Some((mean, spread)) = self.reference else {
            self.learnt.push(x);
            if self.learnt.len() >= learn {
                let spread = stats::variance(&self.learnt)?.sqrt().max(STEADIEST);
                self.reference = Some((stats::mean(&self.learnt)?, spread));
            }
            return None;
        };
        self.last.push(x);
        if self.last.len() > LAST {
            self.last.remove(0);
        }
        let off = ((x - mean) / spread).clamp(-4.0, 4.0);
        self.up = (self.up + off - ALLOWANCE).max(0.0);
        self.down = (self.down - off - ALLOWANCE).max(0.0);
        let change = stats::mean(&self.last)? - mean;
        let alarm = self.up > ALARM && change > LEAST || self.down > ALARM && change < -LEAST;
        (alarm && self.last.len() == LAST).then(|| change.exp())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Drift {
    charts: [Chart; 3],
    next_ns: u64,
    learn: usize,
}

/// With no knob being turned; while one is, which changes what reading costs; and while a cache fills.
pub(crate) const ALL: usize = COSTS.len();
pub(crate) const NOT_READING: usize = 2;
pub(crate) const OWN_WORK: usize = 1;
const COSTS: [&str; 3] =
    ["training's own work on a batch", "a worker's CPU time for a batch", "a worker's reading for a batch"];

impl Default for Drift {
    fn default() -> Self {
        Drift { charts: Default::default(), next_ns: 0, learn: LEARNT }
    }
}

impl Drift {
    /// A sentence on what changed, where something did, by as many of the costs as nothing of ours changes just now
    /// ([`ALL`], [`NOT_READING`], [`OWN_WORK`]).
    pub(crate) fn look(&mut self, job: &Job, now_ns: u64, costs_to_see: usize) -> Option<String> {
        if now_ns < self.next_ns {
            return None;
        }
        self.next_ns = now_ns.saturating_add(PERIOD_NS);
        let costs = [compute_ns(job), service_ns(job, |s| s.cpu_ns), service_ns(job, |s| s.fetch_ns)];
        for (at, cost) in costs.into_iter().enumerate().take(costs_to_see) {
            let Some(cost) = cost.filter(|cost| *cost >= 1000.0) else { continue };
            if let Some(factor) = self.charts[at].add(cost, self.learn) {
                self.learn = (self.learn * 2).min(MOST_LEARNT);
                self.charts = Default::default();
                return Some(format!("{} takes {factor:.2} times as long as before", COSTS[at]));
            }
        }
        None
    }

    /// Another setting: what reading costs is learnt anew.
    pub(crate) fn turned(&mut self) {
        self.charts[2] = Chart::default();
    }

    /// The same after another cache, whose hits take a worker less CPU time, too.
    pub(crate) fn cache_turned(&mut self) {
        self.charts[1..].fill(Chart::default());
    }
}

fn compute_ns(job: &Job) -> Option<f64> {
    let costs: Vec<f64> = job
        .training()
        .map(|rank| rank.recent(0, 0, PERIOD_NS))
        .filter(|sums: &Sums| sums.steps >= 3.0)
        .map(|sums| sums.compute_ns / sums.steps)
        .collect();
    stats::mean(&costs)
}

fn service_ns(job: &Job, cost: fn(&stallscope_model::BatchService) -> u64) -> Option<f64> {
    let costs: Vec<(f64, f64)> = job
        .training()
        .flat_map(|rank| rank.services.iter().rev().take(20))
        .map(|service| (cost(service) as f64, weight(service)))
        .collect();
    stats::weighted_mean(&costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_change_is_seen_and_noise_is_not() {
        let mut chart = Chart::default();
        let noise = |at: usize| 1.0 + 0.1 * ((at * 7919 % 13) as f64 / 6.0 - 1.0);
        assert!((0..500).all(|at| chart.add(1e6 * noise(at), LEARNT).is_none()));
        let seen = (0..30).position(|at| chart.add(2e6 * noise(at), LEARNT).is_some());
        assert!(seen.is_some_and(|periods| periods < 10), "{seen:?}");
    }

    #[test]
    fn one_odd_period_is_no_drift() {
        let mut chart = Chart::default();
        let costs = |at: usize| if at == 50 { 1e8 } else { 1e6 };
        assert!((0..100).all(|at| chart.add(costs(at), LEARNT).is_none()));
    }
}
