//! Training's time that counts in the end: what saves and failures leave of it.

use stallscope_model::{CheckpointAccount, Knob, Phase, RankSummary};

/// How a job fails, and how long a save takes until it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Failures {
    /// Mean time between failures, in seconds.
    pub(crate) mtbf_s: f64,
    /// From the beginning of a save until it is durable, in seconds.
    pub(crate) persist_s: f64,
}

impl Failures {
    /// The share of training that failures leave, with a save every `interval_s` seconds: Daly's (2006) complete model for failures
    /// that come at random, without the time that a restart takes, which no interval changes. Where a save is durable only later, a
    /// failure loses so much more.
    pub(crate) fn left(&self, interval_s: f64) -> f64 {
        let mtbf_s = self.mtbf_s.max(1e-3);
        let exposed = (interval_s.max(0.0) / mtbf_s).min(700.0);
        let lost = if exposed < 1e-9 { 1.0 } else { exposed / exposed.exp_m1() };
        lost * (-self.persist_s.max(0.0) / mtbf_s).exp()
    }

    /// Goodput, as a share of training's time: saves every `interval_s` seconds cost `share` of it.
    pub(crate) fn goodput(&self, share: f64, interval_s: f64) -> f64 {
        ((1.0 - share.clamp(0.0, 1.0)) * self.left(interval_s)).max(1e-9)
    }
}

/// A job that saves every so often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saving {
    pub interval_s: f64,
    /// Of training's time, for each save.
    pub cost_s: f64,
    failures: Failures,
}

/// Steps of the search for the best interval; each leaves two thirds of it.
const SEARCH: usize = 80;

impl Saving {
    /// As the rank has saved so far. `knob`: its `ckpt.interval`; `mtbf_s`: the mean time between failures, where it is not to be the
    /// one that the job's Checkpointer goes by.
    ///
    /// # Errors
    /// A sentence where too little is known.
    pub fn of(rank: &RankSummary, knob: Option<&Knob>, mtbf_s: Option<f64>) -> Result<Saving, String> {
        let saved = &rank.checkpoints;
        let training = rank.phases.iter().filter(|phase| phase.phase == Phase::Training);
        let trained_s = seconds(training.map(|phase| phase.wall_ns).sum());
        if saved.count == 0 || trained_s <= 0.0 {
            return Err("no save was seen in training, so what one costs is not known".to_owned());
        }
        let rule = saved.account.and_then(|CheckpointAccount { rule, .. }| rule);
        let mtbf_s = mtbf_s.or(rule.map(|rule| seconds(rule.mtbf_ns))).ok_or(
            "how often this job fails is not known: give its mean time between failures, such as --mtbf 6h",
        )?;
        let background_s = seconds(saved.background_ns) / saved.in_background.max(1) as f64;
        let interval_s = knob.map_or(trained_s / saved.count as f64, |knob| knob.value as f64);
        Ok(Saving {
            interval_s: interval_s.max(1e-3),
            cost_s: seconds(rule.map_or(saved.blocked_each_ns(), |rule| rule.cost_ns)),
            failures: Failures {
                mtbf_s,
                persist_s: rule.map_or(background_s, |rule| seconds(rule.persist_ns)),
            },
        })
    }

    /// The same with a save every `interval_s` seconds.
    pub fn every(self, interval_s: f64) -> Saving {
        Saving { interval_s: interval_s.max(1e-3), ..self }
    }

    /// The share of training that saves cost.
    pub fn share(&self) -> f64 {
        (self.cost_s / self.interval_s).clamp(0.0, 1.0)
    }

    /// The share of training that failures are expected to cost.
    pub fn lost(&self) -> f64 {
        1.0 - self.failures.left(self.interval_s)
    }

    pub fn goodput(&self) -> f64 {
        self.failures.goodput(self.share(), self.interval_s)
    }

    pub fn mtbf_s(&self) -> f64 {
        self.failures.mtbf_s
    }

    /// The interval with the best goodput, no shorter than a save takes until it is durable. Goodput over the logarithm of the interval
    /// has one maximum.
    pub fn best(self) -> Saving {
        let (mut low, mut high) =
            (self.cost_s.max(self.failures.persist_s).max(1e-3).ln(), (20.0 * self.mtbf_s().max(1.0)).ln());
        for _ in 0..SEARCH {
            let third = (high - low) / 3.0;
            let goodput = |at: f64| self.every(at.exp()).goodput();
            if goodput(low + third) < goodput(high - third) { low += third } else { high -= third }
        }
        self.every(low.midpoint(high).exp())
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use stallscope_model::{CheckpointRule, Checkpoints, PhaseSummary};

    const SIX_HOURS: Failures = Failures { mtbf_s: 21_600.0, persist_s: 0.0 };

    #[test]
    fn a_failure_loses_half_an_interval_on_average_where_intervals_are_short() {
        let lost = 1.0 - SIX_HOURS.left(600.0);
        assert!((lost - 300.0 / 21_600.0).abs() < 1e-4, "{lost}");
        let late = Failures { persist_s: 60.0, ..SIX_HOURS };
        assert!((SIX_HOURS.left(600.0) - late.left(600.0) - 60.0 / 21_600.0).abs() < 1e-4);
    }

    #[test]
    fn what_is_never_saved_is_lost() {
        assert!(SIX_HOURS.left(1e7) < 1e-3);
        assert_eq!(SIX_HOURS.left(0.0), 1.0);
    }

    #[test]
    fn the_best_interval_is_about_youngs_where_saves_are_cheap() {
        for cost_s in [0.01, 0.4, 2.0] {
            let best = Saving { interval_s: 10.0, cost_s, failures: SIX_HOURS }.best();
            let young_s = (2.0 * cost_s * SIX_HOURS.mtbf_s).sqrt();
            assert!((best.interval_s / young_s - 1.0).abs() < 0.02, "{} for {young_s}", best.interval_s);
            for factor in [0.5, 0.9, 1.1, 2.0] {
                assert!(best.goodput() > best.every(factor * best.interval_s).goodput(), "{factor}");
            }
        }
    }

    fn rank(checkpoints: Checkpoints) -> RankSummary {
        let training = PhaseSummary {
            phase: Phase::Training,
            loader: None,
            steps: 1000,
            samples: 0,
            wall_ns: 100_000_000_000,
            causes: Default::default(),
            hidden_ns: None,
            step_p50_ns: 1,
            step_p95_ns: 1,
            step_max_ns: 1,
        };
        RankSummary { facts: Default::default(), phases: vec![training], workers: Vec::new(), checkpoints }
    }

    #[test]
    fn a_checkpointer_knows_what_it_goes_by_and_other_savers_need_the_failures() {
        let blocked = Checkpoints { count: 10, blocked_ns: 5_000_000_000, ..Checkpoints::default() };
        let why = Saving::of(&rank(blocked.clone()), None, None).unwrap_err();
        assert!(why.contains("--mtbf 6h"), "{why}");
        let saving = Saving::of(&rank(blocked.clone()), None, Some(3600.0)).unwrap();
        assert_eq!((saving.interval_s, saving.cost_s, saving.share()), (10.0, 0.5, 0.05));
        let rule =
            CheckpointRule { cost_ns: 800_000_000, mtbf_ns: 7_200_000_000_000, ..CheckpointRule::default() };
        let account = Some(CheckpointAccount { rule: Some(rule), ..CheckpointAccount::default() });
        let knob = Knob { value: 4, ..Knob::default() };
        let saving = Saving::of(&rank(Checkpoints { account, ..blocked }), Some(&knob), None).unwrap();
        assert_eq!((saving.interval_s, saving.cost_s, saving.mtbf_s()), (4.0, 0.8, 7200.0));
        assert!(Saving::of(&rank(Checkpoints::default()), None, Some(1.0)).is_err());
    }
}
