//! Evidence that a controller has not been given yet.

use stallscope_model::{BatchService, Phase, StepLedger};
use std::collections::BTreeMap;

/// More are not kept: a controller takes them once a second.
const MOST: usize = 65_536;

/// Steps and batches since they were last taken, by rank.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    pub(crate) steps: BTreeMap<u32, Vec<StepLedger>>,
    pub(crate) services: BTreeMap<u32, Vec<BatchService>>,
    /// Of both.
    count: usize,
}

impl Fresh {
    pub(crate) fn step(&mut self, step: &StepLedger) {
        if self.has_capacity() {
            self.steps.entry(step.rank).or_default().push(step.clone());
        }
    }

    pub(crate) fn service(&mut self, service: &BatchService) {
        if self.has_capacity() {
            self.services.entry(service.rank).or_default().push(service.clone());
        }
    }

    fn has_capacity(&mut self) -> bool {
        self.count += 1;
        self.count <= MOST
    }
}

/// How long training took so far: of the lowest rank that trains, as all ranks do it at once.
#[derive(Debug, Default)]
pub(crate) struct Trained {
    rank: Option<u32>,
    ns: u64,
}

impl Trained {
    pub(crate) fn step(&mut self, step: &StepLedger) {
        if step.phase == Phase::Training && self.rank.is_none_or(|rank| step.rank <= rank) {
            self.rank = Some(step.rank);
            self.ns = self.ns.saturating_add(step.end_ns.saturating_sub(step.start_ns));
        }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns
    }
}
