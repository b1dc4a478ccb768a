//! What a pipeline is given, and what it gives.

use stallscope_model::{BatchService, Causes};

/// What a batch asks for, drawn by the caller when the batch is given out. Figures below zero count as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    pub samples: u32,
    /// On a core, by the worker, at full speed.
    pub cpu_ns: f64,
    /// Reads of it that can be cached or not, each by itself. 0: it reads nothing.
    pub requests: u32,
    /// Read in all.
    pub bytes: f64,
    /// Of its reads together, beside what [`Storage::latency_ns`] gives for each.
    pub latency_ns: f64,
    /// The worker is blocked in something that is neither.
    pub blocked_ns: f64,
    /// From finished to in the trainer's hands, with the trainer waiting.
    pub handover_ns: f64,
    /// The trainer's own work once it has the batch, with all the cores that it wants.
    pub compute_ns: f64,
    /// The trainer waits for its device or for something else that needs no core, after that.
    pub device_ns: f64,
    /// Of a finished batch that waits for the trainer.
    pub memory_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storage {
    /// Of one request, however many there are.
    pub latency_ns: f64,
    /// Shared by all that read; may be infinite.
    pub bytes_per_s: f64,
    /// Likewise.
    pub requests_per_s: f64,
    /// How much of the time in which nobody read it makes up for afterwards, as a limited disk or link does.
    pub credit_ns: f64,
    /// Share of requests that storage isn't asked for.
    pub cached_share: f64,
    /// Of what is cached; not shared.
    pub cache_bytes_per_s: f64,
}

impl Default for Storage {
    /// Costs nothing.
    fn default() -> Storage {
        Storage {
            latency_ns: 0.0,
            bytes_per_s: f64::INFINITY,
            requests_per_s: f64::INFINITY,
            credit_ns: 0.0,
            cached_share: 0.0,
            cache_bytes_per_s: f64::INFINITY,
        }
    }
}

/// What the pipeline finds around it; may change at any time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    pub storage: Storage,
    pub cores: f64,
    /// Cores that the trainer's own work wants at once; 0: a device does it.
    pub trainer_threads: f64,
    /// With which power of its share of the cores the trainer's work goes on: 1 for one thread, more for threads that wait
    /// for each other, as one that has no core holds up those that have.
    pub trainer_power: f64,
    /// Threads of others that always want a core, beside a worker and beside the trainer.
    pub neighbours: f64,
    pub trainer_neighbours: f64,
    /// Everything that runs on a core takes this many times as long (memory pressure); at least 1.
    pub slowdown: f64,
    /// The trainer stands still for it for each worker that is added in mid-run.
    pub worker_start_ns: f64,
    pub worker_bytes: u64,
}

impl Default for Conditions {
    fn default() -> Conditions {
        Conditions {
            storage: Storage::default(),
            cores: f64::INFINITY,
            trainer_threads: 1.0,
            trainer_power: 1.0,
            neighbours: 0.0,
            trainer_neighbours: 0.0,
            slowdown: 1.0,
            // Of one fork, measured (torch 2.15 with a data set in memory).
            worker_start_ns: 25e6,
            worker_bytes: 0,
        }
    }
}

/// One step: from the hand-over of a batch to that of the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Of the batch that the trainer had in hand, from 0.
    pub batch: u64,
    pub samples: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Adds up to `end_ns - start_ns`.
    pub causes: Causes,
    /// Number of the worker that made the next batch, whose making was waited for.
    pub producer: u32,
    /// Of batches that became ready meanwhile.
    pub made: Vec<BatchService>,
}

impl StepOutcome {
    pub fn wall_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    pub fn wait_ns(&self) -> u64 {
        self.causes.data_stall_ns()
    }
}
