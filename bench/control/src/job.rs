//! A simulated job: ranks on the pipeline of the model, in an environment that changes, seen as a session would see it.

use crate::scenario::{Scenario, World};
use stallscope_control::pipeline::{Demand, Pipeline};
use stallscope_control::{Action, NodeState, Observation, Random, RankObservation};
use stallscope_model::{BatchService, Cause, Causes, EvidenceKinds, Knob, KnobState, Phase, StepLedger};
use std::cell::RefCell;
use std::rc::Rc;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// What a step is known later.
const LATE_NS: u64 = SECOND_NS;
pub(crate) const MOST_WORKERS: u64 = 32;
pub(crate) const MOST_PREFETCH: u64 = 256;

/// How a batch's cost wanders: an AR(1) process on its logarithm, and now and then a far slower one.
struct Noise {
    random: Random,
    carried: f64,
}

impl Noise {
    fn normal(&mut self) -> f64 {
        // Irwin-Hall: twelve uniforms are normal enough here.
        (0..12).map(|_| self.random.unit()).sum::<f64>() - 6.0
    }

    /// Mean about 1, with spread `sigma`, correlation .7 and a tail of one in fifty.
    fn factor(&mut self, sigma: f64) -> f64 {
        self.carried = 0.7 * self.carried + 0.51_f64.sqrt() * self.normal();
        let tail = if self.random.unit() < 0.02 { self.random.unit().powf(-0.5).min(8.0) } else { 1.0 };
        (sigma * self.carried - sigma * sigma / 2.0).exp() * tail
    }
}

type Draw = Box<dyn FnMut(u64) -> Demand>;

struct Rank {
    pipeline: Pipeline<Draw>,
    world: Rc<RefCell<World>>,
    knobs: [Knob; 2],
    /// Taken out of the last pending request: when it comes into force.
    pending: [Option<(u64, u64)>; 2],
    steps: Vec<StepLedger>,
    services: Vec<BatchService>,
    /// CPU time as of the last two steps' ends.
    cpu: [(u64, u64); 2],
    trainer_cpu_ns: u64,
    index: u64,
    /// Nanoseconds that the next hand-over's transfer holds for other reasons.
    owed: Vec<(Phase, u64)>,
}

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Samples by the second in which their step ended.
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

const NAMES: [(&str, &str); 2] = [("workers", "workers"), ("prefetch", "batches")];

impl<'a> Job<'a> {
    /// `setting`: workers and prefetch of every rank.
    pub(crate) fn new(scenario: &'a Scenario, setting: (u32, u32), seed: u64) -> Self {
        let ranks = (0..scenario.ranks)
            .map(|number| {
                let world = Rc::new(RefCell::new(scenario.world(0.0, seed, number)));
                let shared = world.clone();
                let mut noise =
                    Noise { random: Random::new(seed ^ (u64::from(number) << 32) ^ 0xbe7c), carried: 0.0 };
                let (recorded, first) = (scenario.recorded.clone(), seed.wrapping_mul(37));
                let draw: Draw = Box::new(move |index| {
                    let world = shared.borrow();
                    let mut demand = world.demand;
                    if let Some(at) = first.wrapping_add(index).checked_rem(recorded.len() as u64) {
                        let (memory_bytes, handover_ns) = (demand.memory_bytes, demand.handover_ns);
                        return Demand { memory_bytes, handover_ns, ..recorded[at as usize] };
                    }
                    demand.cpu_ns *= noise.factor(world.spread);
                    demand.bytes *= noise.factor(world.spread);
                    demand.blocked_ns *= noise.factor(world.spread);
                    if noise.random.unit() < world.hiccup.0 {
                        demand.blocked_ns += world.hiccup.1;
                    }
                    demand.compute_ns *= 1.0 + 0.02 * (noise.random.unit() - 0.5);
                    demand
                });
                let conditions = world.borrow().conditions;
                let (workers, prefetch) = setting;
                let knob = |at: usize, value: u32, max: u64| Knob {
                    rank: number,
                    loader: Some(0),
                    name: NAMES[at].0.to_owned(),
                    unit: NAMES[at].1.to_owned(),
                    value: u64::from(value),
                    initial: u64::from(value),
                    min: 1,
                    max,
                    ..Knob::default()
                };
                Rank {
                    pipeline: Pipeline::new(workers, prefetch, conditions, seed ^ u64::from(number), draw),
                    world,
                    knobs: [knob(0, workers, MOST_WORKERS), knob(1, prefetch, MOST_PREFETCH)],
                    pending: [None; 2],
                    steps: Vec::new(),
                    services: Vec::new(),
                    cpu: [(0, 0); 2],
                    trainer_cpu_ns: 0,
                    index: 0,
                    owed: Vec::new(),
                }
            })
            .collect();
        Job {
            scenario,
            ranks,
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
            let t = rank.pipeline.now_ns() as f64 / 1e9;
            {
                let mut world = rank.world.borrow_mut();
                *world = scenario.world(t, world.seed, world.rank);
                world.strain(scenario, memory);
                *rank.pipeline.conditions() = world.conditions;
            }
            rank.take_requests();
            let step = rank.pipeline.next_step();
            let compute = step.causes[Cause::Compute] as f64 * rank.world.borrow().conditions.trainer_threads;
            rank.trainer_cpu_ns += compute as u64;
            let after = rank.trainer_cpu_ns + rank.pipeline.worker_cpu_ns();
            rank.cpu = [rank.cpu[1], (step.end_ns, after)];
            rank.record(&step.causes, step.start_ns, step.end_ns, step.samples);
            let own = rank.knobs[0].rank;
            rank.services.extend(step.made.into_iter().map(|made| BatchService { rank: own, ..made }));
            ends.push(rank.pipeline.now_ns());
            let second = (step.end_ns / SECOND_NS) as usize;
            if self.tally.samples.len() <= second {
                self.tally.samples.resize(second + 1, 0.0);
            }
            self.tally.samples[second] += f64::from(step.samples);
        }
        self.steps += 1;
        let last = ends.iter().copied().max().unwrap_or(0);
        let evaluates = self.steps >= self.next_evaluation;
        if evaluates {
            self.next_evaluation += scenario.epoch_steps.unwrap_or(u64::MAX);
        }
        for (rank, end) in self.ranks.iter_mut().zip(ends) {
            if last > end {
                rank.stand_still(Phase::Training, last - end);
            }
            if evaluates {
                rank.stand_still(Phase::Evaluation, 20 * SECOND_NS);
            }
        }
    }

    fn memory_bytes(&self) -> u64 {
        let own = |rank: &Rank| self.scenario.trainer_bytes + rank.pipeline.memory_bytes();
        self.ranks.iter().map(own).sum()
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
        let seen_until_ns = self.now_ns.saturating_sub(LATE_NS);
        let frozen = scenario.frozen_s.as_ref().is_some_and(|span| span.contains(&(self.now_ns / SECOND_NS)));
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
                let services = rank.services.drain(..made.unwrap_or(rank.services.len())).collect();
                RankObservation {
                    rank: rank.knobs[0].rank,
                    seen_until_ns: seen_min,
                    phase: steps.last().map_or(Phase::Training, |step| step.phase),
                    steps,
                    services: if scenario.no_services { Vec::new() } else { services },
                    knobs: rank.knobs.to_vec(),
                    caches: Vec::new(),
                    checkpoints: None,
                    memory_bytes: if scenario.no_memory {
                        0
                    } else {
                        scenario.trainer_bytes + rank.pipeline.memory_bytes()
                    },
                    worker_bytes: match scenario.no_memory {
                        true => Vec::new(),
                        false => vec![scenario.worker_bytes; rank.knobs[0].value as usize],
                    },
                    cpu_ns: rank.cpu_ns(self.now_ns).max(1),
                    descriptors: 50,
                }
            })
            .collect();
        Observation {
            now_ns: self.now_ns,
            ranks,
            node: NodeState {
                cpus: scenario.cpus,
                memory_available_bytes: scenario.node_bytes.saturating_sub(memory),
                memory_limit_bytes: scenario.node_bytes,
                memory_pressure_share: (!scenario.no_memory).then_some(self.pressure),
                shm_free_bytes: None,
                descriptor_limit: 1024,
            },
        }
    }

    pub(crate) fn ask(&mut self, actions: &[Action]) {
        for action in actions {
            let Some(rank) = self.ranks.iter_mut().find(|rank| rank.knobs[0].rank == action.rank) else {
                continue;
            };
            let Some(at) = rank.knobs.iter().position(|knob| knob.name == action.knob) else { continue };
            let knob = &mut rank.knobs[at];
            knob.requested = Some(action.value);
            knob.set_by = "controller".to_owned();
            match self.scenario.refuses {
                Some(reason) => {
                    knob.state = KnobState::Refused;
                    knob.reason = reason.to_owned();
                }
                None => {
                    knob.state = KnobState::Pending;
                    rank.pending[at] = Some((self.now_ns + self.scenario.answer_ns, action.value));
                }
            }
            if self.scenario.lies {
                knob.state = KnobState::Applied;
                knob.value = action.value;
                rank.pending[at] = None;
            }
        }
    }

    pub(crate) fn settings(&self) -> Vec<(u64, u64)> {
        self.ranks.iter().map(|rank| (rank.knobs[0].value, rank.knobs[1].value)).collect()
    }
}

impl Rank {
    /// As of a moment within the last step, which ends in the next second.
    fn cpu_ns(&self, now_ns: u64) -> u64 {
        let [(from_ns, before), (to_ns, after)] = self.cpu;
        let share = now_ns.saturating_sub(from_ns) as f64 / to_ns.saturating_sub(from_ns).max(1) as f64;
        before + (after.saturating_sub(before) as f64 * share.min(1.0)) as u64
    }

    fn take_requests(&mut self) {
        for at in 0..2 {
            let Some((due_ns, value)) = self.pending[at] else { continue };
            if self.pipeline.now_ns() < due_ns {
                continue;
            }
            self.pending[at] = None;
            let value = value.clamp(self.knobs[at].min, self.knobs[at].max);
            match at {
                0 => self.pipeline.set_workers(value as u32),
                _ => self.pipeline.set_prefetch(value as u32),
            }
            self.knobs[at].value = value;
            self.knobs[at].state = KnobState::Applied;
        }
    }

    fn stand_still(&mut self, phase: Phase, ns: u64) {
        self.pipeline.stand_still(ns);
        self.owed.push((phase, ns));
    }

    /// What stood still in the step is reported as what it was.
    fn record(&mut self, causes: &Causes, start_ns: u64, end_ns: u64, samples: u32) {
        let mut step = StepLedger {
            rank: self.knobs[0].rank,
            loader: 0,
            phase: Phase::Training,
            index: self.index,
            part: false,
            start_ns,
            end_ns,
            causes: *causes,
            hidden_ns: None,
            producer: None,
            samples,
            evidence: EvidenceKinds { kernel: true, shim: true },
        };
        self.index += 1;
        let mut others = Vec::new();
        for (phase, ns) in self.owed.drain(..) {
            let ns = ns.min(step.causes[Cause::Transfer]);
            step.causes[Cause::Transfer] -= ns;
            if phase == Phase::Training {
                step.causes[Cause::Peer] += ns;
                continue;
            }
            let mut causes = Causes::default();
            causes[Cause::Compute] = ns;
            others.push(StepLedger { phase, loader: 1, start_ns: step.end_ns - ns, causes, ..step.clone() });
            step.end_ns -= ns;
        }
        self.steps.push(step);
        self.steps.append(&mut others);
    }
}
