//! CPU time that a change would take, and whether that is the job's to take.

use super::{Delta, Headroom};
use crate::observation::MachineCpus;
use crate::ranks::{Job, Rank};
use crate::stats;

/// Of a core, that stays idle beside what is added: what others do comes in bursts.
const LEFT_IDLE: f64 = 0.1;
/// Of the machine's cores: where fewer are idle over seconds, somebody waits for one.
const NONE_IDLE: f64 = 0.02;
/// Of the machine's cores: who uses fewer is nobody to be kept from them, but services, and who looks on.
const NOBODY: f64 = 0.1;

/// CPU that a rank's loader and trainer take.
struct Cpu {
    /// Of a worker that always has a batch to make, share of a core.
    busy: f64,
    /// Of the loader, cores, were training never waiting.
    loader_most: f64,
    /// Of all that is no worker's, cores: now, and were training never waiting.
    trainer: f64,
    trainer_most: f64,
}

impl Cpu {
    fn of(rank: &Rank) -> Option<Cpu> {
        let shares: Vec<f64> = rank
            .services
            .iter()
            .map(|service| {
                let wall = service.ready_ns - service.start_ns;
                (service.cpu_ns as f64 + service.runnable_ns as f64) / wall as f64
            })
            .collect();
        let count = shares.len() as f64;
        if count < 8.0 {
            return None;
        }
        let spread = (stats::variance(&shares)? / count).sqrt();
        let busy = (stats::mean(&shares)? + 2.0 * spread).clamp(0.02, 1.0);
        let cpu_ns: Vec<f64> = rank.services.iter().map(|service| service.cpu_ns as f64).collect();
        let recent = rank.recent(0, 0, 30_000_000_000);
        let step_ns = recent.step_ns();
        if step_ns <= 0.0 {
            return None;
        }
        let batch_ns = stats::mean(&cpu_ns)?;
        let trainer = (rank.cores()? - batch_ns / step_ns).max(0.0);
        // A rank that waits for slower ones works more, too, once these are faster.
        let waits = recent.stall_share() + recent.share(recent.peer_ns);
        let free = (1.0 - waits).max(0.05);
        Some(Cpu {
            busy,
            loader_most: 1.1 * batch_ns / (step_ns * free),
            trainer,
            trainer_most: trainer / free,
        })
    }

    /// Of all that is no worker's, with so many times the workers of now: training gets no more batches than these make.
    fn trainer(&self, times: f64) -> f64 {
        // Without workers batches were the trainer's to make.
        if times.is_finite() { (self.trainer * times).min(self.trainer_most) } else { self.trainer_most }
    }
}

impl Headroom {
    pub(super) fn cores(&self, job: &Job, deltas: &[Delta]) -> Result<(), String> {
        if deltas.iter().all(|delta| delta.workers <= 0) {
            return Ok(());
        }
        let spare = match self.budgets.spare_cores_only {
            true => {
                Some(self.beside_others(job).ok_or("it is not known yet what others leave of the cores")?)
            }
            false => None,
        };
        let limit = self.cores_limit().min(spare.unwrap_or(f64::INFINITY));
        let mut after = 0.0;
        for rank in job.ranks.values() {
            let delta: i64 =
                deltas.iter().filter(|delta| delta.rank == rank.rank).map(|delta| delta.workers).sum();
            let now = rank.value("workers").unwrap_or(0) as f64;
            let workers = now + delta as f64;
            after += match Cpu::of(rank) {
                Some(cpu) => (workers * cpu.busy).min(cpu.loader_most) + cpu.trainer(workers / now),
                None => workers + 1.0,
            };
        }
        if after <= limit {
            return Ok(());
        }
        let whose = if spare == Some(limit) { "others leave it" } else { "it may use" };
        Err(format!("it may take the job to {after:.1} cores, and {whose} {limit:.1}"))
    }

    /// What may be used: the budget, and never more than there is.
    fn cores_limit(&self) -> f64 {
        let there = if self.node.cpus > 0.0 { self.node.cpus } else { f64::INFINITY };
        self.budgets.cores.map_or(there, |cores| cores.min(there))
    }

    /// What the job has, and what is idle beside it; `None` where either is not known.
    fn beside_others(&self, job: &Job) -> Option<f64> {
        let own = job.cores()?;
        Some(own + (self.node.machine?.idle - LEFT_IDLE).max(0.0))
    }

    /// Why workers that were added are to go, as others may wait for the cores that they have; `None`: they may stay.
    pub(crate) fn crowds(&self, job: &Job) -> Option<String> {
        let MachineCpus { idle, busy } = self.node.machine.filter(|_| self.budgets.spare_cores_only)?;
        let all = idle + busy;
        let others = busy - job.cores()?;
        (idle < NONE_IDLE * all && others > NOBODY * all)
            .then(|| format!("others use {others:.1} of {all:.1} cores, and none is idle"))
    }
}
