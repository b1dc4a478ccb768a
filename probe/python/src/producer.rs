//! Who makes batches: a worker's main thread, or the trainer itself without workers.

use crate::clock::Clocks;
use crate::{clock, connection, guard, lane, opens};
use pyo3::prelude::*;
use stallscope_abi::lane::{Batch, Clock, ClockAt, Sample};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Samples that follow each other share a record until it spans this long, as fine as the kernel's slices, …
const SHORTEST_RECORD_NS: u64 = 1_000_000;
/// … or this part of the batch before. Their times place the reading within a batch, for waits that begin in the
/// middle of one; 16 places do that, and a record a sample costs a cache line each and the collector most of its time.
const RECORDS_A_BATCH: u64 = 16;

/// One producer's batch under way. Written by one thread at a time; atomics only because Python may move objects
/// between threads.
#[derive(Debug, Default)]
pub(crate) struct Making {
    worker: u32,
    loader: u16,
    batch: AtomicU64,
    /// 0: no batch is under way.
    start_ns: AtomicU64,
    start_cpu_ns: AtomicU64,
    collate_ns: AtomicU64,
    /// Samples made since the last record of samples, its end, and the thread's reading time then.
    unrecorded: AtomicU32,
    last_ns: AtomicU64,
    last_read_ns: AtomicU64,
    /// Duration of the batch before.
    before_ns: AtomicU64,
}

impl Making {
    /// The index of `batch` was taken up.
    pub(crate) fn begin(&self, batch: u64) {
        let clocks = clock::clocks();
        let now = clocks.time_ns;
        push_clocks(ClockAt::BatchStart, &clocks, self.loader);
        self.batch.store(batch, Ordering::Relaxed);
        self.start_cpu_ns.store(clocks.cpu_ns, Ordering::Relaxed);
        self.collate_ns.store(0, Ordering::Relaxed);
        self.unrecorded.store(0, Ordering::Relaxed);
        self.last_ns.store(now, Ordering::Relaxed);
        self.last_read_ns.store(opens::read_ns(), Ordering::Relaxed);
        self.start_ns.store(now, Ordering::Relaxed);
    }

    /// `samples` more were made, in one go.
    #[inline]
    pub(crate) fn sample(&self, samples: u32) {
        let now = clock::now_ns();
        let unrecorded = self.unrecorded.load(Ordering::Relaxed).saturating_add(samples);
        self.unrecorded.store(unrecorded, Ordering::Relaxed);
        let span_ns = now.saturating_sub(self.last_ns.load(Ordering::Relaxed));
        let piece_ns = self.before_ns.load(Ordering::Relaxed) / RECORDS_A_BATCH;
        if span_ns >= piece_ns.max(SHORTEST_RECORD_NS) {
            self.record_samples(now);
        }
    }

    /// Pushes what is not recorded of the batch's samples, which end at `now`.
    fn record_samples(&self, now: u64) {
        let samples = self.unrecorded.swap(0, Ordering::Relaxed);
        if samples == 0 {
            return;
        }
        let read = opens::read_ns();
        let sample = Sample {
            loader: self.loader,
            count: samples,
            start_ns: self.last_ns.swap(now, Ordering::Relaxed),
            batch: self.batch.load(Ordering::Relaxed),
            read_ns: read.saturating_sub(self.last_read_ns.swap(read, Ordering::Relaxed)),
        };
        lane::push(&sample.encode(now));
    }

    pub(crate) fn collate(&self) {
        self.collate_ns.store(clock::now_ns(), Ordering::Relaxed);
    }

    /// The batch is about to leave.
    pub(crate) fn ready(&self) {
        let start = self.start_ns.swap(0, Ordering::Relaxed);
        if start == 0 {
            return;
        }
        let clocks = clock::clocks();
        let now = clocks.time_ns;
        let collate = self.collate_ns.load(Ordering::Relaxed);
        self.record_samples(if collate == 0 { now } else { collate });
        self.before_ns.store(now.saturating_sub(start), Ordering::Relaxed);
        push_clocks(ClockAt::BatchReady, &clocks, self.loader);
        let batch = Batch {
            loader: self.loader,
            worker: self.worker,
            start_ns: start,
            batch: self.batch.load(Ordering::Relaxed),
            collate_ns: collate,
            cpu_ns: clocks.cpu_ns.saturating_sub(self.start_cpu_ns.load(Ordering::Relaxed)),
        };
        lane::push(&batch.encode(now));
        connection::look(now);
    }

    /// The batch to be begun next has this index; for the trainer's own, which no queue names.
    pub(crate) fn expect(&self, batch: u64) {
        self.batch.store(batch, Ordering::Relaxed);
    }

    /// Index of the batch begun last or to be begun.
    pub(crate) fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }

    /// The batch came to nothing.
    pub(crate) fn abandon(&self) {
        self.start_ns.store(0, Ordering::Relaxed);
    }
}

pub(crate) fn push_clocks(at: ClockAt, clocks: &Clocks, loader: u16) {
    let clock = Clock {
        loader,
        at,
        cpu_ns: clocks.cpu_ns,
        run_delay_ns: clocks.run_delay_ns,
        process_cpu_ns: clocks.process_cpu_ns,
        read_ns: opens::read_ns(),
    };
    lane::push(&clock.encode(clocks.time_ns));
}

/// A producer, as Python hands it around.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) making: Arc<Making>,
}

#[pymethods]
impl Producer {
    /// A worker process's only producer: this process is a worker from now on.
    #[new]
    fn new(worker: u32) -> Producer {
        guard::observe((), || crate::iteration::set_worker(true));
        Producer { making: Arc::new(Making { worker, ..Making::default() }) }
    }

    /// The batch that is expected is begun.
    fn begin(&self) {
        guard::observe((), || self.making.begin(self.making.batch()));
    }

    /// `count` samples more were made, in one go.
    fn sample(&self, count: u32) {
        guard::observe((), || self.making.sample(count));
    }

    fn collate(&self) {
        guard::observe((), || self.making.collate());
    }

    /// The batch is made.
    fn ready(&self) {
        guard::observe((), || self.making.ready());
    }

    /// The batch came to nothing.
    fn abandon(&self) {
        guard::observe((), || self.making.abandon());
    }
}

impl Producer {
    /// The trainer itself.
    pub(crate) fn in_process(loader: u16) -> Producer {
        Producer { making: Arc::new(Making { loader, ..Making::default() }) }
    }
}
