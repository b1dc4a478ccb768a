//! Runs jobs under policies, and says how they did.

use crate::job::{Job, Tally};
use crate::policy::{HillClimbing, Nothing, Ours, Policy};
use crate::scenario::Scenario;
use stallscope_model::{Act, AuditEvent};
use std::collections::BTreeMap;

/// What a controller may take to learn about a job; regret is given after it, and from the start on.
pub(crate) const WARM_UP_S: usize = 600;
/// Settings that the best static one is looked for among: workers, and batches ahead for each.
const WORKERS: [u32; 12] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24];
const AHEAD: [u32; 4] = [1, 2, 4, 8];
const GRID_SEEDS: u64 = 3;
const FINALISTS: usize = 6;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) tally: Tally,
    pub(crate) audit: Vec<AuditEvent>,
    pub(crate) settings: Vec<(u64, u64)>,
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

pub(crate) fn run(scenario: &Scenario, setting: (u32, u32), seed: u64, policy: &mut dyn Policy) -> Ran {
    let mut job = Job::new(scenario, setting, seed);
    while !job.is_over() {
        let observation = job.second();
        let actions = policy.observe(&observation);
        job.ask(&actions);
    }
    let settings = job.settings();
    let audit = policy.end(job.now_ns);
    Ran { tally: job.tally, audit, settings }
}

pub(crate) fn untouched(scenario: &Scenario, seed: u64) -> Ran {
    run(scenario, scenario.setting, seed, &mut Nothing)
}

pub(crate) fn ours(scenario: &Scenario, seed: u64) -> Ran {
    run(scenario, scenario.setting, seed, &mut Ours::new(scenario.budgets, seed))
}

pub(crate) fn hill_climbing(scenario: &Scenario, seed: u64) -> Ran {
    run(scenario, scenario.setting, seed, &mut HillClimbing::new())
}

pub(crate) fn fixed(scenario: &Scenario, setting: (u32, u32), seed: u64) -> Ran {
    run(scenario, setting, seed, &mut Nothing)
}

/// The setting, the same for all ranks, that is fastest over the whole trace and keeps the budgets: all of the grid
/// on one seed, the best few on more.
pub(crate) fn best_static(scenario: &Scenario) -> (u32, u32) {
    let grid = WORKERS.iter().flat_map(|workers| AHEAD.map(|ahead| (*workers, workers * ahead)));
    let mut found: Vec<((u32, u32), f64)> =
        grid.map(|setting| (setting, worth(scenario, setting, 0))).collect();
    for last in [FINALISTS, 1] {
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found.truncate(last);
        for (setting, pace) in &mut found {
            *pace += (1..GRID_SEEDS).map(|seed| worth(scenario, *setting, seed)).sum::<f64>();
        }
    }
    found.first().map_or(scenario.setting, |(setting, _)| *setting)
}

/// Its pace; nothing where it breaks a budget.
fn worth(scenario: &Scenario, setting: (u32, u32), seed: u64) -> f64 {
    let ran = fixed(scenario, setting, seed);
    if ran.tally.violations == 0 { ran.pace(scenario.measured_from()) } else { f64::MIN / 100.0 }
}
