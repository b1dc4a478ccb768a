//! Which processes the ledger remembers: pids that are used again, and what is forgotten when.

use crate::at_once;
use crate::ledger::Ledger;
use crate::process::{Process, ProcessKind};
use crate::rank::{Rank, owner};
use crate::services;
use crate::summary::workers;

const MAX_RETIRED: usize = 1024;
/// What is kept of processes as long as there is no rank: of few, a job's start, until its shim or a detector tells what it
/// is; of many, what a detector needs.
const KEPT_OF_FEW_NS: u64 = 600_000_000_000;
const KEPT_OF_MANY_NS: u64 = 10_000_000_000;
const FEW: usize = 64;

impl Ledger {
    /// pids come round again: a new process under the pid of one that is gone begins anew. A trainer's is kept,
    /// as its steps are. The kernel's record of a short process may come when its shim has hung up already: what
    /// began before the end is the same process.
    pub(crate) fn replace_if_gone(&mut self, pid: u32, began_ns: Option<u64>) {
        let is_gone = |process: &&mut Process| {
            process.exited_ns.is_some_and(|exited_ns| began_ns.is_none_or(|began_ns| began_ns >= exited_ns))
        };
        let Some(process) = self.processes.get_mut(&pid).filter(is_gone) else { return };
        if let Some(rank) = self.ranks.get_mut(&pid) {
            process.exited_ns = None;
            (rank.ended, rank.left) = (false, false);
        } else {
            self.retire(pid);
            self.touch(pid, began_ns.unwrap_or(0));
        }
    }

    /// Drops evidence that no open step needs.
    pub(crate) fn forget(&mut self, now_ns: u64) {
        let live = self.ranks.values().filter(|rank| !rank.ended || !rank.pending.is_empty());
        let kept_ns = if self.processes.len() <= FEW { KEPT_OF_FEW_NS } else { KEPT_OF_MANY_NS };
        let horizon_ns = live.map(Rank::horizon_ns).min().unwrap_or_else(|| now_ns.saturating_sub(kept_ns));
        // A process without reports since has no more to drop than the last time reported; it goes with the next.
        let needed_ns = self.services.needs_from_ns(horizon_ns);
        for process in self.processes.values_mut().filter(|process| process.has_reports) {
            process.has_reports = false;
            process.forget_before(services::makes_from_ns(process, needed_ns, horizon_ns));
        }
        let gone = |process: &Process| process.exited_ns.is_some_and(|exited_ns| exited_ns < needed_ns);
        let gone: Vec<u32> = self
            .processes
            .iter()
            .filter(|(pid, process)| gone(process) && !self.ranks.contains_key(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if !gone.is_empty() {
            self.count_workers();
        }
        gone.into_iter().for_each(|pid| self.retire(pid));
    }

    /// Before some are forgotten: who begins later was not there together with them.
    fn count_workers(&mut self) {
        let counted: Vec<(u32, u32)> =
            workers(self).into_iter().map(|(pid, workers)| (pid, at_once::most(&workers))).collect();
        for (pid, most) in counted {
            if let Some(rank) = self.ranks.get_mut(&pid) {
                rank.workers_at_once = rank.workers_at_once.max(most);
            }
        }
    }

    /// Keeps a worker's load with its rank, and drops the rest of it.
    pub(crate) fn retire(&mut self, pid: u32) {
        self.caches.last_of(pid, &self.processes, &self.ranks);
        if let Some(process) = self.processes.get(&pid)
            && process.facts.kind == ProcessKind::Worker
            && let Some(of) = owner(pid, &self.processes, |pid| self.ranks.contains_key(&pid))
            && let Some(rank) = self.ranks.get_mut(&of)
        {
            let mut place = process.place();
            if rank.retired.len() >= MAX_RETIRED && !rank.retired.contains_key(&place) {
                place = (u16::MAX, u32::MAX);
            }
            *rank.retired.entry(place).or_default() += &process.load();
            let number = rank.number;
            self.keep_periods(pid, number);
        }
        if let Some(process) = self.processes.remove(&pid) {
            self.lost.history = self.lost.history.saturating_add(process.history_dropped());
        }
    }
}
