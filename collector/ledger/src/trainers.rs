//! The ranks of a job: a trainer has one from its first report on.

use crate::Ledger;
use crate::process::ProcessKind;
use crate::rank::{MAX_PENDING, Rank};
use crate::steps::Piece;

/// Trainers of a job, at once and one after the other. Each is in every summary, and may take a megabyte.
pub(crate) const MAX_RANKS: usize = 4096;

impl Ledger {
    pub(crate) fn enrol(&mut self, pid: u32) {
        let facts = &self.touch(pid, 0).facts;
        let (kind, number, world_size) = (facts.kind, facts.rank, facts.world_size);
        if kind == ProcessKind::Trainer {
            let rank = self.trainer(pid);
            (rank.number, rank.ended, rank.left) = (number, false, false);
            self.job.expect(world_size);
        }
    }

    /// The rank of a trainer, made at its first report. Of one too many it is nobody's, and keeps nothing.
    pub(crate) fn trainer(&mut self, pid: u32) -> &mut Rank {
        let started_ns = self.root.map_or(0, |(_, started_ns)| started_ns);
        let process = self.touch(pid, 0);
        let (named, number) = (process.greeted || process.facts.world_size > 0, process.facts.rank);
        let nth = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let new = || Rank::new(pid, if named { number } else { nth }, started_ns);
        if self.ranks.len() >= MAX_RANKS && !self.ranks.contains_key(&pid) {
            self.lost.trainers += 1;
            return self.nobody.insert(Box::new(new()));
        }
        self.job.member(pid);
        self.ranks.entry(pid).or_insert_with(new)
    }

    pub(crate) fn trainer_pieces(&mut self, pid: u32, event: impl FnOnce(&mut Rank, &mut Vec<Piece>)) {
        let rank = self.trainer(pid);
        let mut pieces = Vec::new();
        event(rank, &mut pieces);
        rank.pending.extend(pieces);
        if rank.pending.len() > MAX_PENDING {
            self.close_rank(pid, 0);
        }
    }
}
