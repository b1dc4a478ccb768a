//! Jobs that no constant of the controller was chosen by. Each is of a kind that is among the others, with other figures.

use crate::cache::{Kept, concentrated};
use crate::goodput::{batch, kept, saving, storage, within};
use crate::saves::Saving;
use crate::scenario::{GIB, Half, MB, MIB, MS, Scenario, base};
use stallscope_control::pipeline::{Demand, Storage};
use stallscope_model::Budgets;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = loaders();
    all.extend(goodput());
    all.iter_mut().for_each(|scenario| scenario.half = Half::HeldOut);
    all
}

fn far(latency_ms: f64) -> Storage {
    storage(latency_ms, 2000.0)
}

fn decode(cpu_ms: f64, compute_ms: f64) -> Demand {
    Demand { cpu_ns: cpu_ms * MS, compute_ns: compute_ms * MS, ..base("").demand }
}

fn loaders() -> Vec<Scenario> {
    vec![
        Scenario { storage: far(120.0), demand: decode(40.0, 80.0), ..base("slow storage, a quick network") },
        Scenario {
            storage: storage(8.0, 50.0),
            demand: Demand { bytes: 12.0 * MB, ..decode(90.0, 200.0) },
            ..base("slow storage, larger samples")
        },
        Scenario { demand: decode(600.0, 90.0), setting: (1, 2), ..base("slow decode, one worker") },
        Scenario {
            storage: far(200.0),
            worker_bytes: 700 * MIB,
            node_bytes: 16 * GIB,
            cliff_bytes: 7 * GIB,
            ..base("memory cliff, smaller workers")
        },
        Scenario { demand: decode(500.0, 120.0), budgets: within(5.0), ..base("slow decode within 5 GiB") },
        Scenario {
            demand: decode(500.0, 150.0),
            cpus: 12.0,
            course: |t, world| {
                if world.bursts(t, 90.0, 90.0) {
                    world.conditions.neighbours = 8.0;
                }
            },
            stationary: false,
            ..base("a neighbour on the CPUs half of the time")
        },
        Scenario {
            storage: far(200.0),
            course: |t, world| world.conditions.storage.cached_share = (t / 400.0).min(0.95),
            stationary: false,
            ..base("cold cache that warms quickly")
        },
        Scenario {
            storage: far(50.0),
            course: |t, world| {
                if t > 1000.0 {
                    world.conditions.storage.latency_ns *= 5.0;
                }
            },
            stationary: false,
            ..base("storage that gets far")
        },
        Scenario {
            course: |_, world| world.hiccup = (0.01, 3000.0 * MS),
            setting: (3, 6),
            ..base("a batch of three seconds now and then")
        },
        Scenario {
            ranks: 2,
            cpus: 24.0,
            demand: decode(500.0, 120.0),
            budgets: Budgets { cores: Some(12.0), ..Budgets::default() },
            ..base("2 ranks, 12 cores allowed")
        },
        Scenario {
            negative: true,
            setting: (4, 8),
            demand: decode(120.0, 200.0),
            ..base("compute-bound, 4 workers")
        },
    ]
}

fn goodput() -> Vec<Scenario> {
    vec![
        Scenario {
            demand: batch(250.0),
            storage: storage(3.0, 60.0),
            kept: Some(Kept { hits: concentrated, ..kept(10.0) }),
            budgets: within(7.5),
            ..base("memory for a part, uses concentrated")
        },
        // Training's own work takes four times as long from then on.
        Scenario {
            demand: batch(60.0),
            storage: storage(5.0, 2000.0),
            kept: Some(kept(5.0)),
            budgets: within(9.5),
            course: |t, world| {
                if t > 1000.0 {
                    world.demand.compute_ns *= 4.0;
                }
            },
            stationary: false,
            ..base("a cache that training does not feel any more")
        },
        Scenario {
            demand: batch(80.0),
            storage: storage(2.0, 70.0),
            kept: Some(kept(4.0)),
            budgets: within(8.0),
            saving: Some(Saving {
                bytes: 300.0 * MB,
                bytes_per_s: 35.0 * MB,
                share: 0.5,
                mtbf_s: 7200.0,
                ..saving(15)
            }),
            ..base("saves and reads on one disk, with a cache")
        },
        Scenario {
            saving: Some(Saving {
                blocked_ns: 800.0 * MS,
                mtbf_s: 900.0,
                burst: (5, 20.0),
                restart_s: 10.0,
                ..saving(600)
            }),
            length_s: 7200,
            ..base("failures in larger bursts")
        },
        Scenario {
            demand: batch(60.0),
            storage: storage(4.0, 60.0),
            kept: Some(Kept { fetchers: Some(2), ..kept(16.0) }),
            budgets: within(16.0),
            length_s: 3600,
            ..base("a cache that fills slowly, with processes that read ahead")
        },
    ]
}
