//! Jobs with a cache, with checkpoints and failures, or both: what counts is what they have trained on and not lost.

use crate::cache::{Kept, a_third, never, plain};
use crate::saves::Saving;
use crate::scenario::{GIB, MB, MIB, MS, Scenario, base};
use stallscope_control::pipeline::{Demand, Storage};
use stallscope_model::Budgets;

/// Bytes of a sample of [`batch`].
pub(crate) const SAMPLE_BYTES: u64 = 125_000;

/// A batch of 64 samples, each of which is there or is read.
pub(crate) fn batch(cpu_ms: f64) -> Demand {
    Demand { requests: 64, cpu_ns: cpu_ms * MS, bytes: 8.0 * MB, ..base("").demand }
}

/// Each read takes so long, and all together get so much.
pub(crate) fn storage(latency_ms: f64, mb_per_s: f64) -> Storage {
    Storage { latency_ns: latency_ms * MS, bytes_per_s: mb_per_s * MB, ..Storage::default() }
}

pub(crate) fn within(gib: f64) -> Budgets {
    Budgets { memory_bytes: Some((gib * GIB as f64) as u64), ..Budgets::default() }
}

/// With a small cache to begin with.
pub(crate) fn kept(dataset_gib: f64) -> Kept {
    Kept {
        dataset_bytes: (dataset_gib * GIB as f64) as u64,
        sample_bytes: SAMPLE_BYTES,
        own_bytes: 64 * MIB,
        hits: plain,
        drawn_once: never,
        fetchers: None,
    }
}

/// Saves that are cheap beside what they guard, of a job that hardly fails.
pub(crate) fn saving(every_s: u64) -> Saving {
    Saving {
        every_s,
        blocked_ns: 300.0 * MS,
        bytes: 400.0 * MB,
        bytes_per_s: 200.0 * MB,
        share: 0.0,
        mtbf_s: 21_600.0,
        burst: (1, 0.0),
        restart_s: 20.0,
    }
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        // All of the data and the workers that keep up would take 8 GiB beside the trainer's 3.
        Scenario {
            demand: batch(350.0),
            storage: storage(2.0, 40.0),
            kept: Some(kept(6.0)),
            budgets: within(7.0),
            ..base("memory for half of cache and workers")
        },
        // Storage gives less than training takes: workers do not help, and after a quarter of an hour the cache does not either.
        Scenario {
            demand: batch(60.0),
            storage: storage(1.0, 40.0),
            kept: Some(Kept { drawn_once: |t| t > 900.0, ..kept(4.0) }),
            budgets: within(8.2),
            stationary: false,
            ..base("a cache that stops paying")
        },
        // A third of the data has nine draws in ten: more of the cache is worth little.
        Scenario {
            demand: batch(60.0),
            storage: storage(4.0, 100.0),
            kept: Some(Kept { hits: a_third, ..kept(4.0) }),
            budgets: within(7.0),
            ..base("a cache with a knee")
        },
        Scenario {
            storage: storage(5.0, 80.0),
            saving: Some(Saving { bytes_per_s: 48.0 * MB, share: 0.6, ..saving(10) }),
            ..base("saves and reads on one disk")
        },
        Scenario {
            saving: Some(Saving {
                blocked_ns: 1500.0 * MS,
                bytes: 200.0 * MB,
                bytes_per_s: 100.0 * MB,
                mtbf_s: 600.0,
                burst: (3, 40.0),
                restart_s: 15.0,
                ..saving(300)
            }),
            length_s: 4800,
            ..base("failures in bursts")
        },
        // A pass over the data takes a quarter of an hour.
        Scenario {
            demand: batch(60.0),
            storage: storage(2.0, 30.0),
            kept: Some(kept(24.0)),
            length_s: 5400,
            ..base("a cache that fills slowly")
        },
        Scenario {
            demand: batch(60.0),
            storage: storage(8.0, 120.0),
            kept: Some(kept(3.0)),
            saving: Some(Saving { blocked_ns: 400.0 * MS, mtbf_s: 3600.0, ..saving(3) }),
            budgets: within(8.0),
            ..base("far storage, a small cache, a save every 3 s")
        },
    ]
}
