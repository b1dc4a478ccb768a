//! Runs jobs under policies, and says how they did.

use crate::job::{Job, Tally};
use crate::policy::{HillClimbing, Nothing, Ours, Policy};
use crate::scenario::{Scenario, Setting};
use stallscope_model::{Act, AuditEvent};
use std::collections::BTreeMap;

/// What a controller may take to learn about a job; regret is given after it, and from the start on.
pub(crate) const WARM_UP_S: usize = 600;
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) tally: Tally,
    pub(crate) audit: Vec<AuditEvent>,
    pub(crate) settings: Vec<Setting>,
}

impl Ran {
    /// Samples a second from second `from` on.
    pub(crate) fn pace(&self, from: usize) -> f64 {
        let seconds = self.tally.samples.get(from..).unwrap_or_default();
        // The last one is not complete.
        let seconds = &seconds[..seconds.len().saturating_sub(1)];
        if seconds.is_empty() { 0.0 } else { seconds.iter().sum::<f64>() / seconds.len() as f64 }
    }

    #[cfg(test)]
    pub(crate) fn samples(&self) -> f64 {
        self.tally.samples.iter().sum()
    }

    pub(crate) fn acts(&self, act: Act) -> usize {
        self.audit.iter().filter(|event| event.act == act).count()
    }

    /// Kept changes of a knob that go the other way than the one kept before.
    pub(crate) fn reversals(&self) -> usize {
        let mut last: BTreeMap<(&str, Option<u32>), bool> = BTreeMap::new();
        let mut count = 0;
        for event in self.audit.iter().filter(|event| event.act == Act::Keep) {
            let up = event.to > event.from;
            if last.insert((&event.knob, event.rank), up).is_some_and(|before| before != up) {
                count += 1;
            }
        }
        count
    }
}

pub(crate) fn run(scenario: &Scenario, setting: Setting, seed: u64, policy: &mut dyn Policy) -> Ran {
    run_while(scenario, setting, seed, policy, |_| true)
}

fn run_while(
    scenario: &Scenario,
    setting: Setting,
    seed: u64,
    policy: &mut dyn Policy,
    goes_on: impl Fn(&Tally) -> bool,
) -> Ran {
    let mut job = Job::new(scenario, setting, seed);
    while !job.is_over() && goes_on(&job.tally) {
        let observation = job.second();
        let actions = policy.observe(&observation);
        job.ask(&actions);
    }
    let settings = job.settings();
    let audit = policy.end(job.now_ns);
    Ran { tally: job.tally, audit, settings }
}

pub(crate) fn untouched(scenario: &Scenario, seed: u64) -> Ran {
    run(scenario, scenario.script(), seed, &mut Nothing)
}

pub(crate) fn ours(scenario: &Scenario, seed: u64) -> Ran {
    run(scenario, scenario.script(), seed, &mut Ours::new(scenario.budgets, seed))
}

pub(crate) fn hill_climbing(scenario: &Scenario, seed: u64) -> Ran {
    run(scenario, scenario.script(), seed, &mut HillClimbing::new())
}

pub(crate) fn fixed(scenario: &Scenario, setting: Setting, seed: u64) -> Ran {
    run(scenario, setting, seed, &mut Nothing)
}

/// The same until it breaks a budget, as it is no setting to be held against then.
pub(crate) fn fixed_within_budget(scenario: &Scenario, setting: Setting, seed: u64) -> Ran {
    run_while(scenario, setting, seed, &mut Nothing, |tally| tally.violations == 0)
}
