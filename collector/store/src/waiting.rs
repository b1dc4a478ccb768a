//! What lies behind the sums, on its way to the file.

use crate::sampled::Sampled;
use stallscope_model::{
    AuditEvent, BatchService, CachePeriod, CheckpointEvent, Phase, StepDetail, WorkerPeriod,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Of each kind, while the disk cannot be written to; more are dropped.
const WAITING: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) details: Vec<StepDetail>,
    pub(crate) checkpoints: Vec<CheckpointEvent>,
    workers: BTreeMap<(u64, u32, u16, u32), WorkerPeriod>,
    caches: BTreeMap<(u64, u32, u16, Phase), CachePeriod>,
    pub(crate) audit: Vec<AuditEvent>,
    pub(crate) services: Vec<BatchService>,
    sampled: Sampled,
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

    pub(crate) fn cache(&mut self, period: CachePeriod) {
        let key = (period.start_ns, period.rank, period.loader, period.phase);
        let full = self.caches.len() >= WAITING;
        match self.caches.entry(key) {
            Entry::Occupied(known) => known.into_mut().add(&period),
            Entry::Vacant(_) if full => self.dropped += 1,
            Entry::Vacant(place) => drop(place.insert(period)),
        }
    }

    pub(crate) fn audit(&mut self, event: AuditEvent) {
        push(&mut self.audit, event, &mut self.dropped);
    }

    pub(crate) fn service(&mut self, service: BatchService) {
        if self.sampled.takes(service.rank, service.ready_ns) {
            push(&mut self.services, service, &mut self.dropped);
        }
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = &WorkerPeriod> {
        self.workers.values()
    }

    pub(crate) fn caches(&self) -> impl Iterator<Item = &CachePeriod> {
        self.caches.values()
    }

    /// Drops everything, counted.
    pub(crate) fn give_up(&mut self) {
        let waiting = self.details.len() + self.checkpoints.len() + self.workers.len() + self.caches.len();
        self.dropped += (waiting + self.audit.len() + self.services.len()) as u64;
        self.written();
    }

    /// To be called once everything is committed.
    pub(crate) fn written(&mut self) {
        self.details.clear();
        self.checkpoints.clear();
        self.workers.clear();
        self.caches.clear();
        self.audit.clear();
        self.services.clear();
    }
}

fn push<T>(waiting: &mut Vec<T>, item: T, dropped: &mut u64) {
    if waiting.len() < WAITING {
        waiting.push(item);
    } else {
        *dropped += 1;
    }
}
