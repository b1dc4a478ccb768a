//! What each whole epoch of a loader in training read from storage: whether a job reads the same again and again.

use crate::process::ProcessKind;
use crate::rank::{Processes, Rank, owner};
use stallscope_model::LoaderEpochs;
use std::collections::BTreeMap;

/// Loaders of all ranks.
const MAX_LOADERS: usize = 16_384;

#[derive(Clone, Copy, Debug, Default)]
struct OfLoader {
    /// Bytes that its rank had read when the epoch under way began.
    begun_at: Option<u64>,
    whole: u64,
    first_read_bytes: u64,
    last_read_bytes: u64,
}

/// By the trainer's pid and the loader.
#[derive(Debug, Default)]
pub(crate) struct Epochs(BTreeMap<(u32, u16), OfLoader>);

impl Epochs {
    pub(crate) fn begin(&mut self, pid: u32, loader: u16, rank_read_bytes: u64) {
        if self.0.len() < MAX_LOADERS || self.0.contains_key(&(pid, loader)) {
            self.0.entry((pid, loader)).or_default().begun_at = Some(rank_read_bytes);
        }
    }

    /// `whole`: it came to its end.
    pub(crate) fn end(&mut self, pid: u32, loader: u16, whole: bool, rank_read_bytes: u64) {
        let Some(of) = self.0.get_mut(&(pid, loader)) else { return };
        let Some(begun_at) = of.begun_at.take().filter(|_| whole) else { return };
        of.last_read_bytes = rank_read_bytes.saturating_sub(begun_at);
        if of.whole == 0 {
            of.first_read_bytes = of.last_read_bytes;
        }
        of.whole += 1;
    }

    /// By rank and loader; of a trainer that was started again what its last process saw.
    pub(crate) fn summaries(&self, ranks: &BTreeMap<u32, Rank>) -> Vec<LoaderEpochs> {
        let mut by_rank: BTreeMap<(u32, u16), (bool, LoaderEpochs)> = BTreeMap::new();
        for ((pid, loader), of) in &self.0 {
            let Some(rank) = ranks.get(pid) else { continue };
            let epochs = LoaderEpochs {
                rank: rank.number,
                loader: *loader,
                whole: of.whole,
                first_read_bytes: of.first_read_bytes,
                last_read_bytes: of.last_read_bytes,
            };
            let known = by_rank.entry((rank.number, *loader)).or_insert((true, epochs));
            if known.0 {
                *known = (rank.ended, epochs);
            }
        }
        by_rank.into_values().map(|(_, epochs)| epochs).collect()
    }
}

/// Bytes that came from storage for a rank so far: in its own process, in its workers, and in those that are gone.
pub(crate) fn read_bytes(rank: &Rank, processes: &Processes) -> u64 {
    let gone = rank.retired.values().map(|load| load.read_bytes);
    let workers = processes
        .iter()
        .filter(|(pid, process)| {
            process.facts.kind == ProcessKind::Worker
                && owner(**pid, processes, |pid| pid == rank.pid).is_some()
        })
        .map(|(_, process)| process.load().read_bytes);
    let own = processes.get(&rank.pid).map(|process| process.load().read_bytes);
    gone.chain(workers).chain(own).fold(0, u64::saturating_add)
}
