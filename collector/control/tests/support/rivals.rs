//! Storage with a bandwidth, of which each reader has as much as any other.

use stallscope_control::SharedStorage;
use std::collections::VecDeque;

/// Of a batch.
const BYTES: u64 = 32 * 100_000;
/// What is known of others is so many seconds old.
const LATE: usize = 8;

/// Other jobs that read without end.
#[derive(Clone, Debug)]
pub(crate) struct Rivals {
    jobs: u32,
    readers: u64,
    /// Of a batch, were this job the only one.
    alone_ns: u64,
    own_bytes: u64,
    before: u64,
    known: VecDeque<u64>,
}

impl Rivals {
    pub(crate) fn new(jobs: u32, readers: u64, alone_ns: u64) -> Rivals {
        Rivals { jobs, readers, alone_ns, own_bytes: 0, before: 0, known: VecDeque::new() }
    }

    /// Between two batches of a job with so many workers.
    pub(crate) fn batch_ns(&self, workers: u64) -> f64 {
        (self.alone_ns * (workers + self.readers)) as f64 / workers as f64
    }

    pub(crate) fn batch(&mut self) {
        self.own_bytes += BYTES;
    }

    pub(crate) fn second(&mut self) -> SharedStorage {
        let own = self.own_bytes - std::mem::replace(&mut self.before, self.own_bytes);
        self.known.push_back((BYTES * 1_000_000_000 / self.alone_ns).saturating_sub(own));
        let others_bytes_per_s = self.known[self.known.len().saturating_sub(LATE)];
        SharedStorage { own_bytes: self.own_bytes, others: self.jobs, others_bytes_per_s }
    }
}
