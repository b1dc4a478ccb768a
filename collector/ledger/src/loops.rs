//! What the shim tells of a loop beside its loaders: where its steps end, and what was saved.

use crate::ledger::Ledger;
use crate::process::ProcessKind;
use crate::rank::owner;
use crate::steps::{NO_LOADER, Phases};
use stallscope_abi::lane::{Caller, Checkpoint, Step, StepSource};

impl Ledger {
    /// A step of the optimiser, or one that the script tells.
    pub(crate) fn step(&mut self, pid: u32, time_ns: u64, step: Step) {
        let by_script = step.source == StepSource::Script;
        let met_under_way = self.config.attached && !self.ranks.contains_key(&pid);
        let rank = self.trainer(pid);
        if met_under_way {
            rank.phases = Phases::under_way(time_ns, NO_LOADER);
            return;
        }
        self.trainer_pieces(pid, |rank, pieces| rank.phases.step(by_script, time_ns, pieces));
    }

    /// A checkpoint was saved. Another process than a trainer saves for the trainer above it, beside the training.
    pub(crate) fn saved(&mut self, pid: u32, end_ns: u64, call: &Checkpoint) {
        let of = self.saves_for(pid, call.caller == Caller::Forked);
        let background = call.caller == Caller::Thread || of != pid;
        self.trainer(of).calls.checkpoint(pid, end_ns, call, background);
    }

    fn saves_for(&self, pid: u32, forked: bool) -> u32 {
        let process = |pid: u32| self.processes.get(&pid);
        let trains = process(pid).is_some_and(|process| process.facts.kind == ProcessKind::Trainer);
        if trains || self.ranks.contains_key(&pid) {
            return pid;
        }
        let trainer = owner(pid, &self.processes, |pid| self.ranks.contains_key(&pid));
        // Before its first step nobody knows a trainer; who forked the child runs Python, as the child does.
        let greeted = |pid: u32| process(pid).is_some_and(|process| process.greeted);
        let parent = || owner(pid, &self.processes, greeted).filter(|_| forked);
        trainer.or_else(parent).unwrap_or(pid)
    }
}
