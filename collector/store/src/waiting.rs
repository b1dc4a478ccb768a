//! Step details, checkpoints and worker periods on their way to the file.

use stallscope_model::{CheckpointEvent, StepDetail, WorkerPeriod};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Of each kind, while the disk cannot be written to; more are dropped.
const WAITING: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) details: Vec<StepDetail>,
    pub(crate) checkpoints: Vec<CheckpointEvent>,
    workers: BTreeMap<(u64, u32, u16, u32), WorkerPeriod>,
    pub(crate) dropped: u64,
}

impl Waiting {
    pub(crate) fn detail(&mut self, detail: StepDetail) {
        push(&mut self.details, detail, &mut self.dropped);
    }

    pub(crate) fn checkpoint(&mut self, checkpoint: CheckpointEvent) {
        push(&mut self.checkpoints, checkpoint, &mut self.dropped);
    }

    pub(crate) fn worker(&mut self, period: WorkerPeriod) {
        let key = (period.start_ns, period.rank, period.loader, period.worker);
        let full = self.workers.len() >= WAITING;
        match self.workers.entry(key) {
            Entry::Occupied(known) => known.into_mut().load += &period.load,
            Entry::Vacant(_) if full => self.dropped += 1,
            Entry::Vacant(place) => drop(place.insert(period)),
        }
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = &WorkerPeriod> {
        self.workers.values()
    }

    /// Drops everything, counted.
    pub(crate) fn give_up(&mut self) {
        let waiting = self.details.len() + self.checkpoints.len() + self.workers.len();
        self.dropped += waiting as u64;
        self.written();
    }

    /// To be called once everything is committed.
    pub(crate) fn written(&mut self) {
        self.details.clear();
        self.checkpoints.clear();
        self.workers.clear();
    }
}

fn push<T>(waiting: &mut Vec<T>, item: T, dropped: &mut u64) {
    if waiting.len() < WAITING {
        waiting.push(item);
    } else {
        *dropped += 1;
    }
}
