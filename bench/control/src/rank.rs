//! One rank of a simulated job: its pipeline, what it keeps and saves, and its knobs.

use crate::cache::{Cache, Spared};
use crate::saves::{After, Saver};
use crate::scenario::{Scenario, Setting, World};
use stallscope_control::pipeline::{Demand, Pipeline, StepOutcome};
use stallscope_control::{Action, Random};
use stallscope_model::{BatchService, Cause, Causes, EvidenceKinds, Knob, KnobState, Phase, StepLedger};
use std::cell::RefCell;
use std::rc::Rc;

const MOST_WORKERS: u64 = 32;
const MOST_PREFETCH: u64 = 256;
const MOST_FETCHERS: u64 = 16;
const MOST_CACHE: u64 = 1 << 40;
const MOST_INTERVAL_S: u64 = 604_800;
const LEAST_CACHE: u64 = 1 << 20;
/// Of a process that reads ahead.
const FETCHER_BYTES: u64 = 120 << 20;
/// Of what is missing, what such processes read in time at best; and of the storage, what they leave to workers at least.
const IN_TIME: f64 = 0.95;
const LEFT: f64 = 0.05;

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

/// Why training stands still between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Still {
    Peers,
    Evaluation,
    Snapshot,
    Persist,
    Restart,
}

pub(crate) struct Rank {
    pub(crate) pipeline: Pipeline<Draw>,
    world: Rc<RefCell<World>>,
    pub(crate) knobs: Vec<Knob>,
    /// Of each knob, what was asked for, and when it comes into force.
    pending: Vec<Option<(u64, u64)>>,
    pub(crate) cache: Option<Cache>,
    pub(crate) saver: Option<Saver>,
    spared: Spared,
    /// Samples that training takes a second, by the last steps.
    pace: f64,
    pub(crate) steps: Vec<StepLedger>,
    pub(crate) services: Vec<BatchService>,
    /// CPU time as of the last two steps' ends.
    cpu: [(u64, u64); 2],
    trainer_cpu_ns: u64,
    index: u64,
    /// Nanoseconds that the next hand-over's transfer holds for other reasons.
    owed: Vec<(Still, u64)>,
}

impl Rank {
    pub(crate) fn new(scenario: &Scenario, number: u32, setting: &Setting, seed: u64) -> Rank {
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
        let knobs = knobs(scenario, number, setting);
        let (workers, prefetch) = (setting.workers, setting.prefetch);
        let saver = scenario.saving.map(|saving| {
            let mut saver = Saver::new(saving, seed, scenario.length_s);
            saver.turn(setting.interval_s);
            saver
        });
        Rank {
            pipeline: Pipeline::new(workers, prefetch, conditions, seed ^ u64::from(number), draw),
            world,
            pending: vec![None; knobs.len()],
            knobs,
            cache: scenario.kept.map(|kept| Cache::new(kept, setting.cache_bytes)),
            saver,
            spared: Spared::default(),
            pace: 0.0,
            steps: Vec::new(),
            services: Vec::new(),
            cpu: [(0, 0); 2],
            trainer_cpu_ns: 0,
            index: 0,
            owed: Vec::new(),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.knobs[0].rank
    }

    pub(crate) fn value(&self, name: &str) -> u64 {
        self.knobs.iter().find(|knob| knob.name == name).map_or(0, |knob| knob.value)
    }

    /// Workers, batches, processes that read ahead, and what is kept.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let kept = self.cache.as_ref().map_or(0, Cache::kept_bytes);
        self.pipeline.memory_bytes() + kept + self.value("cache.fetchers") * FETCHER_BYTES
    }

    /// One step; `memory`: of the whole job.
    pub(crate) fn step(&mut self, scenario: &Scenario, memory: u64) -> StepOutcome {
        let now_ns = self.pipeline.now_ns();
        let t = now_ns as f64 / 1e9;
        {
            let mut world = self.world.borrow_mut();
            *world = scenario.world(t, world.seed, world.rank);
            world.strain(scenario, memory);
            let sample_bytes = world.demand.bytes / f64::from(world.demand.samples.max(1));
            let storage = &mut world.conditions.storage;
            if let Some(saver) = &self.saver {
                let left = saver.disk_left(now_ns as f64);
                storage.bytes_per_s *= left;
                storage.latency_ns /= left;
            }
            if let Some(cache) = &self.cache {
                let fetchers = self.knobs.iter().find(|knob| knob.name == "cache.fetchers");
                let missing = (1.0 - cache.hits(t)) * self.pace;
                let of_one_s = storage.latency_ns / 1e9 + sample_bytes / storage.bytes_per_s;
                let read = fetchers.map_or(0.0, |knob| knob.value as f64 / of_one_s.max(1e-9));
                let read = read.min(storage.bytes_per_s / sample_bytes.max(1e-9));
                let ahead = if missing > 0.0 { (read / missing).min(IN_TIME) } else { 0.0 };
                let kept = cache.hits(t);
                self.spared = Spared { kept, ahead: (1.0 - kept) * ahead };
                storage.cached_share = kept + (1.0 - kept) * ahead;
                let taken = ahead * missing * sample_bytes;
                storage.bytes_per_s = (storage.bytes_per_s - taken).max(LEFT * storage.bytes_per_s);
            }
            *self.pipeline.conditions() = world.conditions;
        }
        self.take_requests();
        let step = self.pipeline.next_step();
        let compute = step.causes[Cause::Compute] as f64 * self.world.borrow().conditions.trainer_threads;
        self.trainer_cpu_ns += compute as u64;
        let after = self.trainer_cpu_ns + self.pipeline.worker_cpu_ns();
        self.cpu = [self.cpu[1], (step.end_ns, after)];
        self.record(&step.causes, step.start_ns, step.end_ns, step.samples);
        self.keep(&step);
        step
    }

    /// What was made since, and what the cache has of it.
    fn keep(&mut self, step: &StepOutcome) {
        let step_s = (step.end_ns - step.start_ns) as f64 / 1e9;
        self.pace = 0.9 * self.pace + 0.1 * f64::from(step.samples) / step_s.max(1e-9);
        let own = self.number();
        for made in &step.made {
            let samples = u64::from(made.samples);
            let missed = made.missed.map(|missed| u64::from(missed).min(samples));
            if let (Some(cache), Some(missed)) = (&mut self.cache, missed) {
                cache.made(samples, missed, self.spared);
            }
            let missed = made.missed.filter(|_| self.cache.is_some());
            self.services.push(BatchService { rank: own, missed, ..made.clone() });
        }
    }

    /// What saves and failures make of the end of a step.
    pub(crate) fn save(&mut self, step: &StepOutcome) -> After {
        let Some(saver) = &mut self.saver else { return After::default() };
        let after = saver.step(step.end_ns, step.samples);
        self.stand_still(Still::Snapshot, after.snapshot_ns);
        self.stand_still(Still::Persist, after.persist_ns);
        self.stand_still(Still::Restart, after.restart_ns);
        after
    }

    /// As of a moment within the last step, which ends in the next second.
    pub(crate) fn cpu_ns(&self, now_ns: u64) -> u64 {
        let [(from_ns, before), (to_ns, after)] = self.cpu;
        let share = now_ns.saturating_sub(from_ns) as f64 / to_ns.saturating_sub(from_ns).max(1) as f64;
        before + (after.saturating_sub(before) as f64 * share.min(1.0)) as u64
    }

    pub(crate) fn ask(&mut self, scenario: &Scenario, action: &Action, now_ns: u64) {
        let Some(at) = self.knobs.iter().position(|knob| knob.name == action.knob) else { return };
        let knob = &mut self.knobs[at];
        knob.requested = Some(action.value);
        knob.set_by = "controller".to_owned();
        match scenario.refuses {
            Some(reason) => {
                knob.state = KnobState::Refused;
                knob.reason = reason.to_owned();
            }
            None => {
                knob.state = KnobState::Pending;
                self.pending[at] = Some((now_ns + scenario.answer_ns, action.value));
            }
        }
        if scenario.lies {
            knob.state = KnobState::Applied;
            knob.value = action.value;
            self.pending[at] = None;
        }
    }

    fn take_requests(&mut self) {
        for at in 0..self.knobs.len() {
            let Some((due_ns, value)) = self.pending[at] else { continue };
            if self.pipeline.now_ns() < due_ns {
                continue;
            }
            self.pending[at] = None;
            let knob = &mut self.knobs[at];
            let mut value = value.clamp(knob.min, knob.max);
            match knob.name.as_str() {
                "workers" => self.pipeline.set_workers(value as u32),
                "prefetch" => self.pipeline.set_prefetch(value as u32),
                "cache.bytes" => self.cache.iter_mut().for_each(|cache| cache.resize(value)),
                "ckpt.interval" => {
                    value = self.saver.as_mut().map_or(value, |saver| saver.turn(value));
                }
                _ => {}
            }
            knob.value = value;
            knob.state = KnobState::Applied;
        }
    }

    pub(crate) fn stand_still(&mut self, why: Still, ns: u64) {
        if ns > 0 {
            self.pipeline.stand_still(ns);
            self.owed.push((why, ns));
        }
    }

    /// What stood still in the step is reported as what it was.
    fn record(&mut self, causes: &Causes, start_ns: u64, end_ns: u64, samples: u32) {
        let mut step = StepLedger {
            rank: self.number(),
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
        for (why, ns) in self.owed.drain(..) {
            let ns = ns.min(step.causes[Cause::Transfer]);
            step.causes[Cause::Transfer] -= ns;
            let phase = match why {
                Still::Peers | Still::Snapshot | Still::Persist => {
                    let cause = match why {
                        Still::Snapshot => Cause::Snapshot,
                        Still::Persist => Cause::Persist,
                        _ => Cause::Peer,
                    };
                    step.causes[cause] += ns;
                    continue;
                }
                Still::Evaluation => Phase::Evaluation,
                Still::Restart => Phase::Between,
            };
            let mut causes = Causes::default();
            causes[Cause::Compute] = ns;
            others.push(StepLedger { phase, loader: 1, start_ns: step.end_ns - ns, causes, ..step.clone() });
            step.end_ns -= ns;
        }
        self.steps.push(step);
        self.steps.append(&mut others);
    }
}

/// Those that the job has, as the script set them, at `setting`.
fn knobs(scenario: &Scenario, rank: u32, setting: &Setting) -> Vec<Knob> {
    let knob = |name: &str, unit: &str, value: u64, least: u64, most: u64| Knob {
        rank,
        loader: (name != "ckpt.interval").then_some(0),
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
        initial: value,
        min: least.min(value),
        max: most,
        ..Knob::default()
    };
    let mut all = vec![
        knob("workers", "workers", u64::from(setting.workers), 1, MOST_WORKERS),
        knob("prefetch", "batches", u64::from(setting.prefetch), 1, MOST_PREFETCH),
    ];
    if let Some(kept) = &scenario.kept {
        all.push(knob("cache.bytes", "bytes", setting.cache_bytes, LEAST_CACHE, MOST_CACHE));
        let fetchers = kept.fetchers.map(|_| u64::from(setting.fetchers));
        all.extend(fetchers.map(|count| knob("cache.fetchers", "processes", count, 0, MOST_FETCHERS)));
    }
    if scenario.saving.is_some() {
        all.push(knob("ckpt.interval", "seconds", setting.interval_s, 0, MOST_INTERVAL_S));
    }
    all
}
