//! The jobs: what a batch asks for, what is around it, and what goes wrong.

use crate::cache::Kept;
use crate::run::WARM_UP_S;
use crate::saves::Saving;
use serde::{Deserialize, Serialize};
use stallscope_control::Random;
use stallscope_control::pipeline::{Conditions, Demand, Storage};
use stallscope_model::Budgets;
use std::ops::Range;

pub(crate) const MS: f64 = 1e6;
pub(crate) const MB: f64 = 1e6;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// What holds at a moment, for one rank.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) rank: u32,
    pub(crate) demand: Demand,
    pub(crate) conditions: Conditions,
    /// Of a batch's cost, as a logarithm.
    pub(crate) spread: f64,
    /// Share of batches that are held up, and for how long.
    pub(crate) hiccup: (f64, f64),
}

/// The values of all knobs of a rank; those that a job has not are nothing to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) workers: u32,
    pub(crate) prefetch: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) fetchers: u32,
    pub(crate) interval_s: u64,
}

impl Setting {
    /// What of it the scenario's job has.
    pub(crate) fn words(&self, scenario: &Scenario) -> String {
        let mut words = format!("{} workers, {} batches", self.workers, self.prefetch);
        if let Some(kept) = &scenario.kept {
            words += &format!(", {} MiB of cache", self.cache_bytes / MIB);
            if kept.fetchers.is_some() {
                words += &format!(", {} fetchers", self.fetchers);
            }
        }
        if scenario.saving.is_some() {
            words += &format!(", a save every {} s", self.interval_s);
        }
        words
    }
}

/// What a scenario is for: constants are chosen by those of one half, and what they are worth is seen by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Chosen,
    HeldOut,
}

impl Half {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Half::Chosen => "",
            Half::HeldOut => "held out",
        }
    }
}

/// Changes a world with time, in seconds.
pub(crate) type Course = fn(f64, &mut World);

#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) half: Half,
    pub(crate) ranks: u32,
    /// Workers and prefetch that the script sets.
    pub(crate) setting: (u32, u32),
    pub(crate) length_s: u64,
    pub(crate) cpus: f64,
    pub(crate) node_bytes: u64,
    pub(crate) trainer_bytes: u64,
    /// Memory of the job from which on the kernel has to reclaim what is needed.
    pub(crate) cliff_bytes: u64,
    pub(crate) budgets: Budgets,
    /// Nothing can be gained: it has to stay untouched.
    pub(crate) negative: bool,
    /// Held against the bars; the others are there to see that nothing bad happens.
    pub(crate) barred: bool,
    /// Neither the work nor what is around it changes.
    pub(crate) stationary: bool,
    pub(crate) epoch_steps: Option<u64>,
    pub(crate) dies_s: Option<u64>,
    pub(crate) frozen_s: Option<Range<u64>>,
    pub(crate) refuses: Option<&'static str>,
    pub(crate) lies: bool,
    pub(crate) no_services: bool,
    pub(crate) no_memory: bool,
    pub(crate) answer_ns: u64,
    /// Batches that are replayed, round and round; where there are none, `demand` is drawn from.
    pub(crate) recorded: Vec<Demand>,
    pub(crate) demand: Demand,
    pub(crate) storage: Storage,
    pub(crate) worker_bytes: u64,
    pub(crate) course: Course,
    /// A data set with a cache, for jobs of one rank.
    pub(crate) kept: Option<Kept>,
    pub(crate) saving: Option<Saving>,
}

impl Scenario {
    /// As the script sets them.
    pub(crate) fn script(&self) -> Setting {
        Setting {
            workers: self.setting.0,
            prefetch: self.setting.1,
            cache_bytes: self.kept.map_or(0, |kept| kept.own_bytes),
            fetchers: self.kept.and_then(|kept| kept.fetchers).unwrap_or(0),
            interval_s: self.saving.map_or(0, |saving| saving.every_s),
        }
    }

    /// Second from which on policies are compared: after the warm-up, where the job lives that long.
    pub(crate) fn measured_from(&self) -> usize {
        if self.dies_s.is_some() || self.length_s <= WARM_UP_S as u64 { 0 } else { WARM_UP_S }
    }

    pub(crate) fn world(&self, t: f64, seed: u64, rank: u32) -> World {
        let conditions = Conditions {
            storage: self.storage,
            cores: self.cpus / f64::from(self.ranks),
            trainer_threads: 0.0,
            worker_bytes: self.worker_bytes,
            ..Conditions::default()
        };
        let mut world =
            World { seed, rank, demand: self.demand, conditions, spread: 0.3, hiccup: (0.0, 0.0) };
        (self.course)(t, &mut world);
        world
    }
}

impl World {
    /// Share of time in which somebody waits for memory.
    pub(crate) fn pressure(scenario: &Scenario, memory_bytes: u64) -> f64 {
        let over = memory_bytes.saturating_sub(scenario.cliff_bytes) as f64 / GIB as f64;
        (over * 0.3).min(0.9)
    }

    /// Beyond the cliff everything gets slower, sharply.
    pub(crate) fn strain(&mut self, scenario: &Scenario, memory_bytes: u64) {
        let pressure = World::pressure(scenario, memory_bytes);
        self.conditions.slowdown = 1.0 + 4.0 * pressure;
        self.conditions.storage.latency_ns *= 1.0 + 4.0 * pressure;
    }

    /// On for some of the time, by a plan of its own for each seed: minutes of `on` and `off` on average.
    pub(crate) fn bursts(&self, t: f64, on_s: f64, off_s: f64) -> bool {
        let mut random = Random::new(self.seed ^ 0x5eed_b0b5);
        let (mut at, mut on) = (0.0, false);
        loop {
            at += random.exponential() * if on { on_s } else { off_s };
            if at > t {
                return on;
            }
            on = !on;
        }
    }
}

pub(crate) fn base(name: &'static str) -> Scenario {
    Scenario {
        name,
        half: Half::Chosen,
        ranks: 1,
        setting: (2, 4),
        length_s: 2400,
        cpus: 16.0,
        node_bytes: 64 * GIB,
        trainer_bytes: 3 * GIB,
        cliff_bytes: u64::MAX,
        budgets: Budgets::default(),
        negative: false,
        barred: true,
        stationary: true,
        epoch_steps: None,
        dies_s: None,
        frozen_s: None,
        refuses: None,
        lies: false,
        no_services: false,
        no_memory: false,
        answer_ns: 300_000_000,
        recorded: Vec::new(),
        demand: Demand {
            samples: 64,
            cpu_ns: 60.0 * MS,
            requests: 4,
            bytes: 8.0 * MB,
            blocked_ns: 0.0,
            handover_ns: 0.5 * MS,
            compute_ns: 150.0 * MS,
            memory_bytes: 40 * MIB,
            ..Demand::default()
        },
        storage: Storage { latency_ns: 2.0 * MS, bytes_per_s: 2000.0 * MB, ..Storage::default() },
        worker_bytes: 300 * MIB,
        course: |_, _| {},
        kept: None,
        saving: None,
    }
}

/// A network that is trained on both of two cores, which its workers need now and then as well: with one of its two workers it
/// waits for data.
fn compute_bound_on_two_cores(name: &'static str) -> Scenario {
    Scenario {
        negative: true,
        cpus: 2.0,
        storage: Storage { latency_ns: 40.0 * MS, ..Storage::default() },
        demand: Demand {
            samples: 8,
            requests: 8,
            bytes: 0.0,
            cpu_ns: 160.0 * MS,
            compute_ns: 360.0 * MS,
            ..base("").demand
        },
        course: |_, world| world.conditions.trainer_threads = 2.0,
        ..base(name)
    }
}

/// Two ranks of which the first is the slower one, with cores for the workers that there are and no more.
fn lopsided(name: &'static str, course: Course) -> Scenario {
    let budgets = Budgets { cores: Some(4.5), ..Budgets::default() };
    Scenario { ranks: 2, budgets, barred: false, course, ..base(name) }
}

/// Memory for the workers that there are and no more.
fn without_memory(name: &'static str, storage: Storage) -> Scenario {
    let budgets = Budgets { memory_bytes: Some(4 * GIB), ..Budgets::default() };
    Scenario { storage, budgets, barred: false, ..base(name) }
}

/// All of them, those with bars first.
pub(crate) fn all() -> Vec<Scenario> {
    let slow = |latency_ms: f64| Storage {
        latency_ns: latency_ms * MS,
        bytes_per_s: 2000.0 * MB,
        ..Storage::default()
    };
    let decode = |ms: f64| Demand { cpu_ns: ms * MS, ..base("").demand };
    let mut all = vec![
        Scenario { storage: slow(300.0), ..base("slow storage, latency") },
        Scenario {
            storage: Storage { latency_ns: 5.0 * MS, bytes_per_s: 30.0 * MB, ..Storage::default() },
            ..base("slow storage, bandwidth")
        },
        Scenario { demand: decode(1000.0), ..base("slow decode") },
        Scenario {
            demand: decode(1500.0),
            budgets: Budgets { cores: Some(6.0), ..Budgets::default() },
            ..base("slow decode, 6 cores allowed")
        },
        Scenario {
            storage: slow(300.0),
            worker_bytes: 1024 * MIB,
            node_bytes: 24 * GIB,
            cliff_bytes: 9 * GIB,
            ..base("memory cliff")
        },
        Scenario {
            storage: slow(300.0),
            budgets: Budgets { memory_bytes: Some(6 * GIB), ..Budgets::default() },
            ..base("memory budget")
        },
        Scenario {
            demand: decode(700.0),
            course: |t, world| {
                if world.bursts(t, 60.0, 120.0) {
                    world.conditions.neighbours = 14.0;
                }
            },
            stationary: false,
            ..base("bursty neighbour on the CPUs")
        },
        Scenario {
            storage: slow(100.0),
            course: |t, world| {
                if world.bursts(t, 45.0, 120.0) {
                    world.conditions.storage.latency_ns *= 3.0;
                }
            },
            stationary: false,
            ..base("bursty neighbour on the storage")
        },
        Scenario {
            storage: slow(300.0),
            course: |t, world| world.conditions.storage.cached_share = (t / 900.0).min(0.8),
            stationary: false,
            ..base("cold cache that warms")
        },
        Scenario {
            demand: decode(400.0),
            course: |t, world| {
                world.demand.cpu_ns *= if t > 1500.0 {
                    0.5
                } else if t > 800.0 {
                    3.0
                } else {
                    1.0
                };
            },
            stationary: false,
            ..base("drifting work")
        },
        Scenario {
            course: |_, world| world.hiccup = (0.02, 1500.0 * MS),
            setting: (4, 8),
            ..base("a slow batch now and then")
        },
        Scenario {
            demand: decode(800.0),
            cpus: 4.0,
            setting: (12, 24),
            course: |_, world| world.conditions.trainer_threads = 2.0,
            ..base("too many workers for 4 CPUs")
        },
        Scenario { demand: decode(600.0), epoch_steps: Some(400), ..base("epochs with evaluation") },
        Scenario {
            ranks: 4,
            cpus: 32.0,
            course: |_, world| {
                if world.rank == 2 {
                    world.demand.cpu_ns *= 12.0;
                }
            },
            ..base("4 ranks, one slow")
        },
        Scenario { ranks: 4, cpus: 64.0, demand: decode(700.0), ..base("4 ranks, all slow") },
        lopsided("2 ranks, a worker to spare", |_, world| {
            world.demand.cpu_ns = if world.rank == 0 { 600.0 } else { 250.0 } * MS;
        }),
        lopsided("2 ranks, none to spare", |_, world| {
            world.demand.cpu_ns = if world.rank == 0 { 600.0 } else { 420.0 } * MS;
        }),
        without_memory("no memory for workers, storage is far", slow(300.0)),
        without_memory(
            "no memory for workers, storage is narrow",
            Storage { latency_ns: 5.0 * MS, bytes_per_s: 12.0 * MB, ..Storage::default() },
        ),
        Scenario { negative: true, ..base("compute-bound") },
        compute_bound_on_two_cores("compute-bound on two cores"),
        Scenario { length_s: 100, ..compute_bound_on_two_cores("compute-bound on two cores, 100 s") },
        Scenario {
            barred: false,
            length_s: 100,
            storage: Storage { latency_ns: 120.0 * MS, ..Storage::default() },
            demand: Demand { samples: 16, requests: 16, bytes: 0.0, ..base("").demand },
            ..base("storage that is far, 100 s")
        },
        Scenario {
            negative: true,
            setting: (4, 8),
            storage: Storage {
                cached_share: 1.0,
                cache_bytes_per_s: 4e9,
                latency_ns: 20.0 * MS,
                ..Storage::default()
            },
            demand: Demand { compute_ns: 40.0 * MS, ..base("").demand },
            ..base("all cached")
        },
        Scenario {
            barred: false,
            storage: slow(300.0),
            refuses: Some("its loader is an IterableDataset"),
            ..base("a job that refuses")
        },
        Scenario {
            barred: false,
            storage: slow(300.0),
            dies_s: Some(60),
            ..base("a job that dies in mid-probe")
        },
        Scenario { barred: false, storage: slow(300.0), lies: true, ..base("knobs that lie") },
        Scenario {
            barred: false,
            storage: slow(300.0),
            frozen_s: Some(30..900),
            ..base("telemetry frozen for a quarter hour")
        },
        Scenario {
            barred: false,
            storage: slow(300.0),
            no_services: true,
            no_memory: true,
            ..base("missing sensors")
        },
    ];
    all.extend(crate::recorded::scenarios());
    all.extend(crate::goodput::scenarios());
    all.extend(crate::held_out::scenarios());
    all
}
