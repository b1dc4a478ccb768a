//! What the ledger gives beside steps and sums: the slowest steps in full, checkpoints, workers and caches over time,
//! and how single batches were made.

use crate::ledger::Ledger;
use crate::process::ProcessKind;
use crate::rank::owner;
use stallscope_model::{BatchService, CachePeriod, CacheSummary, CheckpointEvent, StepDetail, WorkerPeriod};

/// Periods of workers that are gone, and that nobody took yet.
const MAX_LAST_PERIODS: usize = 16_384;

impl Ledger {
    /// The training steps closed since the last call that were among the three slowest of their rank and minute by
    /// then: a slower one that follows takes the place of the fastest of them.
    pub fn details(&mut self) -> Vec<StepDetail> {
        self.ranks.values_mut().flat_map(|rank| rank.details.drain(..)).collect()
    }

    /// Checkpoints reported since the last call. One stands for those of its rank that lie within it, in the foreground
    /// as in the background: a save may call another one, which is reported first, and the kernel reports one save
    /// several times, longer each time.
    pub fn checkpoints(&mut self) -> Vec<CheckpointEvent> {
        let mut events = Vec::new();
        for rank in self.ranks.values_mut() {
            let number = rank.number;
            events.extend(rank.calls.events.drain(..).map(|event| CheckpointEvent { rank: number, ..event }));
        }
        events
    }

    /// How batches were made that became known since the last call: a sample, at most 20 a rank and second.
    pub fn services(&mut self) -> Vec<BatchService> {
        self.services.take(&self.processes, self.now_ns, self.config.patience_ns)
    }

    /// What the caches of all loaders gave so far, and how they stand.
    pub fn caches(&self) -> Vec<CacheSummary> {
        self.caches.summaries(&self.ranks)
    }

    /// What caches gave since the last call: to be added to what was reported of the same periods before. A batch is reported
    /// about a second after it was made.
    pub fn cache_periods(&mut self) -> Vec<CachePeriod> {
        self.caches.take_periods()
    }

    /// What workers did since the last call: to be added to what was reported of the same periods before.
    pub fn worker_periods(&mut self) -> Vec<WorkerPeriod> {
        let mut workers: Vec<(u32, u32)> = Vec::new();
        for (pid, process) in &self.processes {
            if process.facts.kind == ProcessKind::Worker
                && process.is_placed(self.now_ns, self.config.patience_ns)
                && let Some(of) = owner(*pid, &self.processes, |pid| self.ranks.contains_key(&pid))
                && let Some(rank) = self.ranks.get(&of)
            {
                workers.push((*pid, rank.number));
            }
        }
        workers.into_iter().for_each(|(pid, rank)| self.keep_periods(pid, rank));
        std::mem::take(&mut self.last_periods)
    }

    /// Takes what a worker did before it is forgotten.
    pub(crate) fn keep_periods(&mut self, pid: u32, rank: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let (loader, worker) = process.place();
        let periods = process.take_periods().into_iter();
        self.last_periods.extend(periods.map(|(start_ns, load)| WorkerPeriod {
            start_ns,
            rank,
            loader,
            worker,
            load,
        }));
        self.last_periods.truncate(MAX_LAST_PERIODS);
    }
}
