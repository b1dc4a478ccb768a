//! A simulated job: ranks on the pipeline of the model, in an environment that changes, seen as a session would see it.

use crate::rank::{Rank, Still};
use crate::scenario::{Scenario, Setting, World};
use stallscope_control::{Action, NodeState, Observation, RankObservation};
use stallscope_model::{BatchService, Phase, StepLedger};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// What a step is known later.
const LATE_NS: u64 = SECOND_NS;

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Samples by the second in which their step ended, less those that a failure lost, in the second of the failure.
    pub(crate) samples: Vec<f64>,
    /// Highest use ever, and of cores over any ten seconds.
    pub(crate) memory_bytes: u64,
    pub(crate) cores: f64,
    /// Seconds in which a budget was exceeded.
    pub(crate) violations: u32,
}

pub(crate) struct Job<'a> {
    scenario: &'a Scenario,
    ranks: Vec<Rank>,
    pub(crate) now_ns: u64,
    seen_cpu: Vec<u64>,
    pressure: f64,
    next_evaluation: u64,
    steps: u64,
    pub(crate) tally: Tally,
}

impl<'a> Job<'a> {
    /// `setting`: of every rank.
    pub(crate) fn new(scenario: &'a Scenario, setting: Setting, seed: u64) -> Self {
        Job {
            scenario,
            ranks: (0..scenario.ranks).map(|number| Rank::new(scenario, number, &setting, seed)).collect(),
            now_ns: 0,
            seen_cpu: Vec::new(),
            pressure: 0.0,
            next_evaluation: scenario.epoch_steps.unwrap_or(u64::MAX),
            steps: 0,
            tally: Tally::default(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.now_ns >= self.scenario.length_s * SECOND_NS
            || self.scenario.dies_s.is_some_and(|dies| self.now_ns >= dies * SECOND_NS)
    }

    /// Runs on for a second, and tells what a session would know then.
    pub(crate) fn second(&mut self) -> Observation {
        self.now_ns += SECOND_NS;
        while self.ranks.iter().any(|rank| rank.pipeline.now_ns() < self.now_ns) {
            self.step();
        }
        self.account();
        self.observe()
    }

    /// All ranks make a step, and wait for the slowest, as data-parallel training does.
    fn step(&mut self) {
        let scenario = self.scenario;
        let memory = self.memory_bytes();
        let mut ends = Vec::new();
        for rank in &mut self.ranks {
            let step = rank.step(scenario, memory);
            ends.push(rank.pipeline.now_ns());
            let lost = rank.save(&step).lost;
            let second = (step.end_ns / SECOND_NS) as usize;
            if self.tally.samples.len() <= second {
                self.tally.samples.resize(second + 1, 0.0);
            }
            self.tally.samples[second] += f64::from(step.samples) - lost;
        }
        self.steps += 1;
        let last = ends.iter().copied().max().unwrap_or(0);
        let evaluates = self.steps >= self.next_evaluation;
        if evaluates {
            self.next_evaluation += scenario.epoch_steps.unwrap_or(u64::MAX);
        }
        for (rank, end) in self.ranks.iter_mut().zip(ends) {
            if last > end {
                rank.stand_still(Still::Peers, last - end);
            }
            if evaluates {
                rank.stand_still(Still::Evaluation, 20 * SECOND_NS);
            }
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.ranks.iter().map(|rank| self.scenario.trainer_bytes + rank.memory_bytes()).sum()
    }

    fn account(&mut self) {
        let memory = self.memory_bytes();
        self.seen_cpu.push(self.ranks.iter().map(|rank| rank.cpu_ns(self.now_ns)).sum());
        let seconds = self.seen_cpu.len();
        let cores = match seconds.checked_sub(11) {
            Some(before) => (self.seen_cpu[seconds - 1] - self.seen_cpu[before]) as f64 / 10e9,
            None => 0.0,
        };
        self.tally.memory_bytes = self.tally.memory_bytes.max(memory);
        self.tally.cores = self.tally.cores.max(cores);
        let budgets = &self.scenario.budgets;
        let over = budgets.memory_bytes.is_some_and(|budget| memory > budget)
            || budgets.cores.is_some_and(|budget| cores > budget * 1.02);
        self.tally.violations += u32::from(over);
        let strained = World::pressure(self.scenario, memory);
        self.pressure += (strained - self.pressure) / 10.0;
    }

    fn observe(&mut self) -> Observation {
        let scenario = self.scenario;
        let now_ns = self.now_ns;
        let seen_until_ns = now_ns.saturating_sub(LATE_NS);
        let frozen = scenario.frozen_s.as_ref().is_some_and(|span| span.contains(&(now_ns / SECOND_NS)));
        let memory = self.memory_bytes();
        let mut seen_min = seen_until_ns;
        if frozen && let Some(span) = &scenario.frozen_s {
            seen_min = span.start * SECOND_NS;
        }
        let ranks = self
            .ranks
            .iter_mut()
            .map(|rank| {
                let split = rank.steps.partition_point(|step| step.end_ns <= seen_min);
                let steps: Vec<StepLedger> = rank.steps.drain(..split).collect();
                let made = rank.services.iter().position(|made| made.ready_ns > seen_min);
                let services: Vec<BatchService> =
                    rank.services.drain(..made.unwrap_or(rank.services.len())).collect();
                RankObservation {
                    rank: rank.number(),
                    seen_until_ns: seen_min,
                    phase: steps.last().map_or(Phase::Training, |step| step.phase),
                    steps,
                    services: if scenario.no_services { Vec::new() } else { services },
                    knobs: rank.knobs.clone(),
                    caches: rank.cache.iter().map(|cache| cache.summary(now_ns as f64 / 1e9)).collect(),
                    checkpoints: rank.saver.as_ref().and_then(|saver| saver.account()),
                    memory_bytes: if scenario.no_memory {
                        0
                    } else {
                        scenario.trainer_bytes + rank.memory_bytes()
                    },
                    worker_bytes: match scenario.no_memory {
                        true => Vec::new(),
                        false => vec![scenario.worker_bytes; rank.knobs[0].value as usize],
                    },
                    cpu_ns: rank.cpu_ns(now_ns).max(1),
                    descriptors: 50,
                }
            })
            .collect();
        Observation {
            now_ns,
            ranks,
            node: NodeState {
                cpus: scenario.cpus,
                memory_available_bytes: scenario.node_bytes.saturating_sub(memory),
                memory_limit_bytes: scenario.node_bytes,
                memory_pressure_share: (!scenario.no_memory).then_some(self.pressure),
                shm_free_bytes: None,
                descriptor_limit: 1024,
                machine: None,
                storage: None,
            },
        }
    }

    pub(crate) fn ask(&mut self, actions: &[Action]) {
        for action in actions {
            if let Some(rank) = self.ranks.iter_mut().find(|rank| rank.number() == action.rank) {
                rank.ask(self.scenario, action, self.now_ns);
            }
        }
    }

    /// Of each rank, as it is now.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let of = |rank: &Rank| Setting {
            workers: rank.value("workers") as u32,
            prefetch: rank.value("prefetch") as u32,
            cache_bytes: rank.value("cache.bytes"),
            fetchers: rank.value("cache.fetchers") as u32,
            interval_s: rank.value("ckpt.interval"),
        };
        self.ranks.iter().map(of).collect()
    }
}
