//! What each whole epoch of a loader in training read from storage: whether a job reads the same again and again. What other
//! loaders read meanwhile, or between two epochs, is none of it.

use crate::handover::Handover;
use crate::ledger::Ledger;
use crate::process::ProcessKind;
use crate::rank::{Processes, Rank, owner, producer_pid};
use stallscope_abi::lane::wait_flags;
use stallscope_model::LoaderEpochs;
use std::collections::BTreeMap;

/// Loaders of all ranks.
const MAX_LOADERS: usize = 16_384;

/// Bytes that came from storage by some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    /// Where the trainer makes the loader's batches itself: what it has read, the loader's or not.
    pub(crate) own: u64,
    /// What workers of the loader have read.
    pub(crate) workers: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfLoader {
    /// As of the beginning of the epoch under way.
    begun_at: Option<Begun>,
    /// A whole epoch that is over, and whose workers' last bytes may still be reported: they count until the loader is
    /// iterated again.
    over: Option<Over>,
    whole: u64,
    first_read_bytes: u64,
    last_read_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    in_process: bool,
    read: Read,
}

#[derive(Clone, Copy, Debug)]
struct Over {
    /// Read in it by the trainer itself.
    own: u64,
    /// Read before it by workers.
    workers_before: u64,
}

impl OfLoader {
    /// With the epoch that is over, where so much was read by workers since.
    fn settled(mut self, workers: u64) -> OfLoader {
        if let Some(over) = self.over.take() {
            self.last_read_bytes = over.own.saturating_add(workers.saturating_sub(over.workers_before));
            if self.whole == 0 {
                self.first_read_bytes = self.last_read_bytes;
            }
            self.whole += 1;
        }
        self
    }
}

/// By the trainer's pid and the loader.
#[derive(Debug, Default)]
pub(crate) struct Epochs(BTreeMap<(u32, u16), OfLoader>);

impl Epochs {
    /// The loader is iterated; `flags` of that.
    pub(crate) fn begin(&mut self, pid: u32, loader: u16, flags: u64, read: Read) {
        let trains = flags & wait_flags::NO_GRAD == 0;
        if !self.0.contains_key(&(pid, loader)) && (!trains || self.0.len() >= MAX_LOADERS) {
            return;
        }
        let of = self.0.entry((pid, loader)).or_default();
        *of = of.settled(read.workers);
        of.begun_at = trains.then_some(Begun { in_process: flags & wait_flags::IN_PROCESS != 0, read });
    }

    /// `whole`: it came to its end.
    pub(crate) fn end(&mut self, pid: u32, loader: u16, whole: bool, read: Read) {
        let Some(of) = self.0.get_mut(&(pid, loader)) else { return };
        let Some(begun) = of.begun_at.take().filter(|_| whole) else { return };
        let own = if begun.in_process { read.own.saturating_sub(begun.read.own) } else { 0 };
        of.over = Some(Over { own, workers_before: begun.read.workers });
    }

    /// By rank and loader; of a trainer that was started again what its last process saw.
    pub(crate) fn summaries(&self, ranks: &BTreeMap<u32, Rank>, processes: &Processes) -> Vec<LoaderEpochs> {
        let mut by_rank: BTreeMap<(u32, u16), (bool, LoaderEpochs)> = BTreeMap::new();
        for ((pid, loader), of) in &self.0 {
            let Some(rank) = ranks.get(pid) else { continue };
            let of = match of.over {
                Some(_) => of.settled(read_by(rank, *loader, processes, u64::MAX).workers),
                None => *of,
            };
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

/// What was read by `at_ns` in the rank's own process, and in workers of this loader, of which some are gone. A worker
/// of which nobody has had a batch has read for no epoch that is over.
fn read_by(rank: &Rank, loader: u16, processes: &Processes, at_ns: u64) -> Read {
    let gone = rank.retired.range((loader, 0)..=(loader, u32::MAX)).map(|(_, load)| load.read_bytes);
    let workers = processes
        .iter()
        .filter(|(pid, process)| {
            process.facts.kind == ProcessKind::Worker
                && process.serves == Some(loader)
                && owner(**pid, processes, |pid| pid == rank.pid).is_some()
        })
        .map(|(_, process)| process.read_by(at_ns));
    Read {
        own: processes.get(&rank.pid).map_or(0, |process| process.read_by(at_ns)),
        workers: gone.chain(workers).fold(0, u64::saturating_add),
    }
}

impl Ledger {
    /// A loader gave a batch: its maker is one of the loader's workers.
    pub(crate) fn serves(&mut self, wait: &Handover) {
        if let Some(maker) = producer_pid(wait, &self.processes).filter(|maker| *maker != wait.pid)
            && let Some(worker) = self.processes.get_mut(&maker)
        {
            worker.serves.get_or_insert(wait.loader);
        }
    }

    /// What a trainer and the workers of its loader had read from storage by then.
    pub(crate) fn read_by(&self, pid: u32, loader: u16, at_ns: u64) -> Read {
        let rank = self.ranks.get(&pid);
        rank.map(|rank| read_by(rank, loader, &self.processes, at_ns)).unwrap_or_default()
    }
}
