//! Who trains now, with which processes, and up to when all is reported.

use crate::ledger::Ledger;
use crate::rank::owner;
use stallscope_model::CheckpointAccount;

/// A trainer under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub rank: u32,
    /// Of the trainer.
    pub pid: u32,
    /// Trainer, workers and whatever else it started, as far as anything reported them.
    pub pids: Vec<u32>,
    /// All steps that ended before have been closed.
    pub seen_until_ns: u64,
    /// What its checkpointer last reported; `None` without one.
    pub checkpoints: Option<CheckpointAccount>,
}

impl Ledger {
    /// The trainers that have not ended, by rank; to be asked after [`Ledger::advance`] of the same moment.
    pub fn members(&self, now_ns: u64) -> Vec<Member> {
        let under_way = self.ranks.values().filter(|rank| !rank.ended);
        let mut members: Vec<Member> = under_way
            .map(|rank| Member {
                rank: rank.number,
                pid: rank.pid,
                pids: vec![rank.pid],
                checkpoints: rank.calls.checkpoints.account,
                seen_until_ns: rank.pending.front().map_or(now_ns, |piece| piece.end_ns.min(now_ns)),
            })
            .collect();
        members.sort_by_key(|member| (member.rank, member.pid));
        let alive = self.processes.iter().filter(|(_, process)| process.exited_ns.is_none());
        for (pid, _) in alive.filter(|(pid, _)| !self.ranks.contains_key(pid)) {
            let of = owner(*pid, &self.processes, |pid| self.ranks.contains_key(&pid));
            if let Some(member) = members.iter_mut().find(|member| Some(member.pid) == of) {
                member.pids.push(*pid);
            }
        }
        members
    }
}
