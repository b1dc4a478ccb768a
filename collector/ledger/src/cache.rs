//! What the caches of loaders gave, from the records of the processes that made the batches.
//!
//! Whether a batch was for training is known to the trainer alone, and which loader a worker serves is clear once one of
//! its batches was handed over. So uses wait until both are known, or nobody can be expected to tell any more.

use crate::Config;
use crate::process::{Process, ProcessKind};
use crate::rank::{Processes, Rank, owner};
use stallscope_abi::lane;
use stallscope_model::{
    CacheCurve, CachePeriod, CachePoint, CacheState, CacheSummary, CacheUses, Phase, WorkerPeriod,
};
use std::collections::{BTreeMap, VecDeque};

/// How long uses wait to be assigned to a phase.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Batches whose uses wait; of more, the oldest are counted with what is known.
const MAX_DUE: usize = 65_536;
/// Loaders of all ranks.
const MAX_LOADERS: usize = 16_384;
/// Changes between training and evaluation that are remembered of a loader.
const MAX_TURNS: usize = 64;
/// Periods that nobody took yet.
const MAX_PERIODS: usize = 16_384;

/// The uses of one batch.
#[derive(Clone, Copy, Debug)]
struct Due {
    pid: u32,
    time_ns: u64,
    loader: u16,
    uses: CacheUses,
}

/// From when on a loader is iterated for what.
#[derive(Clone, Copy, Debug)]
struct Turn {
    from_ns: u64,
    phase: Phase,
    /// A batch was handed over in it: until then nobody knows better than how the iterator was made.
    handed: bool,
}

#[derive(Debug, Default)]
struct OfLoader {
    turns: VecDeque<Turn>,
    training: CacheUses,
    other: CacheUses,
    state: Option<CacheState>,
    curve: CacheCurve,
    /// Of the next one, what has come so far.
    coming: CacheCurve,
}

#[derive(Debug, Default)]
pub(crate) struct Caches {
    due: VecDeque<Due>,
    /// By the trainer's pid.
    loaders: BTreeMap<(u32, u16), OfLoader>,
    periods: BTreeMap<(u64, u32, u16, Phase), CachePeriod>,
    /// Batches whose maker belongs to no rank, or to one loader too many.
    pub(crate) unplaced: u64,
    /// Periods that were dropped because nobody took them.
    pub(crate) periods_dropped: u64,
}

impl Caches {
    /// The uses of a batch that `pid` made; false when they contradict themselves.
    pub(crate) fn uses(&mut self, pid: u32, time_ns: u64, event: &lane::CacheUses) -> bool {
        let uses = CacheUses {
            hits: event.hits.into(),
            substitutions: event.substitutions.into(),
            misses: event.misses.into(),
            prefetched: event.prefetched.into(),
            late: event.late.into(),
            pool_bytes: event.pool_bytes,
            source_bytes: event.source_bytes,
        };
        if uses.prefetched > uses.hits || uses.late > uses.hits {
            return false;
        }
        self.due.push_back(Due { pid, time_ns, loader: event.loader, uses });
        true
    }

    /// How a loader's part of the pool stands, by the trainer `pid`, rank `number`.
    pub(crate) fn state(&mut self, pid: u32, number: u32, time_ns: u64, event: &lane::CacheState) {
        let lane::CacheState { loader, kept_bytes, capacity_bytes, evictions, kept_samples } = *event;
        let state = CacheState { kept_bytes, capacity_bytes, evictions, kept_samples };
        let Some(of) = self.loader(pid, loader) else {
            self.unplaced += 1;
            return;
        };
        of.state = Some(state);
        let phase = of.turns.back().map_or(Phase::Evaluation, |turn| turn.phase);
        self.period(number, loader, phase, time_ns, &CacheUses::default(), Some(state));
    }

    /// One point of the curve of a loader's cache, by the trainer `pid`; false where it is none.
    pub(crate) fn curve(&mut self, pid: u32, time_ns: u64, event: &lane::CacheCurve) -> bool {
        let lane::CacheCurve { loader, capacity_bytes, uses, misses, .. } = *event;
        let (number, count) = (usize::from(event.point), usize::from(event.points));
        let point = CachePoint { capacity_bytes, uses, misses };
        if count == 0 && event.ranks > 1 {
            match self.loader(pid, loader) {
                Some(of) => of.curve = CacheCurve::mixed(),
                None => self.unplaced += 1,
            }
            return true;
        }
        if number >= count || count > CacheCurve::MOST || point.uses == 0 || point.misses > point.uses {
            return false;
        }
        let Some(of) = self.loader(pid, loader) else {
            self.unplaced += 1;
            return true;
        };
        if number == 0 {
            let new = CacheCurve::new(event.dataset_bytes);
            of.coming = new.of_ranks(event.ranks.into()).reported_at(time_ns);
        }
        // Where one was lost the others say nothing: the next curve follows soon.
        if of.coming.points().len() == number {
            of.coming.push(point);
            if number + 1 == count {
                of.curve = of.coming;
            }
        }
        true
    }

    /// The trainer `pid` begins to iterate a loader.
    pub(crate) fn iterated(&mut self, pid: u32, loader: u16, training: bool, time_ns: u64) {
        let phase = phase_of(training);
        if let Some(of) = self.loader(pid, loader) {
            of.turn(Turn { from_ns: time_ns, phase, handed: false });
        }
    }

    /// A batch of a loader was handed to the trainer `pid`.
    pub(crate) fn handed(&mut self, pid: u32, loader: u16, training: bool, entered_ns: u64) {
        let phase = phase_of(training);
        let Some(of) = self.loader(pid, loader) else { return };
        match of.turns.back_mut() {
            // Made outside `no_grad` and iterated within it, or the other way round.
            Some(turn) if !turn.handed => (turn.phase, turn.handed) = (phase, true),
            Some(turn) if turn.phase == phase => {}
            Some(_) => of.turn(Turn { from_ns: entered_ns, phase, handed: true }),
            None => of.turn(Turn { from_ns: 0, phase, handed: true }),
        }
    }

    /// Counts the uses of which all is known, or has been waited for long enough.
    pub(crate) fn advance(
        &mut self,
        processes: &Processes,
        ranks: &BTreeMap<u32, Rank>,
        config: &Config,
        now_ns: u64,
    ) {
        let too_many = self.due.len().saturating_sub(MAX_DUE);
        for (nth, due) in std::mem::take(&mut self.due).into_iter().enumerate() {
            let waited_ns = now_ns.saturating_sub(due.time_ns);
            let no_longer = waited_ns >= PATIENCE_NS || nth < too_many;
            let placed = is_placed(&due, processes, now_ns, config.patience_ns);
            let known = waited_ns >= config.patience_ns && placed && self.is_known(&due, processes, ranks);
            match known || no_longer {
                true => self.count(&due, processes, ranks),
                false => self.due.push_back(due),
            }
        }
    }

    /// Counts what waits of a process that is about to be forgotten.
    pub(crate) fn last_of(&mut self, pid: u32, processes: &Processes, ranks: &BTreeMap<u32, Rank>) {
        for due in std::mem::take(&mut self.due) {
            match due.pid == pid {
                true => self.count(&due, processes, ranks),
                false => self.due.push_back(due),
            }
        }
    }

    fn is_known(&self, due: &Due, processes: &Processes, ranks: &BTreeMap<u32, Rank>) -> bool {
        let place = place(due, processes, ranks);
        let turn = place.and_then(|(pid, loader)| self.loaders.get(&(pid, loader))?.at(due.time_ns));
        turn.is_some_and(|turn| turn.handed)
    }

    fn count(&mut self, due: &Due, processes: &Processes, ranks: &BTreeMap<u32, Rank>) {
        let place = place(due, processes, ranks);
        let Some((pid, loader, number)) =
            place.and_then(|(pid, loader)| Some((pid, loader, ranks.get(&pid)?.number)))
        else {
            self.unplaced += 1;
            return;
        };
        let Some(of) = self.loader(pid, loader) else {
            self.unplaced += 1;
            return;
        };
        let phase = of.at(due.time_ns).map_or(Phase::Evaluation, |turn| turn.phase);
        match phase {
            Phase::Training => of.training += &due.uses,
            _ => of.other += &due.uses,
        }
        self.period(number, loader, phase, due.time_ns, &due.uses, None);
    }

    fn loader(&mut self, pid: u32, loader: u16) -> Option<&mut OfLoader> {
        let has_capacity = self.loaders.len() < MAX_LOADERS || self.loaders.contains_key(&(pid, loader));
        has_capacity.then(|| self.loaders.entry((pid, loader)).or_default())
    }

    fn period(
        &mut self,
        rank: u32,
        loader: u16,
        phase: Phase,
        time_ns: u64,
        uses: &CacheUses,
        state: Option<CacheState>,
    ) {
        let start_ns = time_ns - time_ns % WorkerPeriod::LENGTH_NS;
        let period = CachePeriod { start_ns, rank, loader, phase, uses: *uses, state };
        let full = self.periods.len() >= MAX_PERIODS;
        match self.periods.get_mut(&(start_ns, rank, loader, phase)) {
            Some(known) => known.add(&period),
            None if full => self.periods_dropped += 1,
            None => drop(self.periods.insert((start_ns, rank, loader, phase), period)),
        }
    }

    /// What was reported since the last call: to be added to what was reported of the same periods before.
    pub(crate) fn take_periods(&mut self) -> Vec<CachePeriod> {
        std::mem::take(&mut self.periods).into_values().collect()
    }

    /// By rank and loader, of those that have a cache. A trainer that was started again goes on as the same rank.
    pub(crate) fn summaries(&self, ranks: &BTreeMap<u32, Rank>) -> Vec<CacheSummary> {
        let mut by_rank: BTreeMap<(u32, u16), CacheSummary> = BTreeMap::new();
        for ((pid, loader), of) in &self.loaders {
            let Some(rank) = ranks.get(pid) else { continue };
            if of.state.is_none() && of.training.draws() == 0 && of.other.draws() == 0 {
                continue;
            }
            let sum = by_rank.entry((rank.number, *loader)).or_insert_with(|| CacheSummary {
                rank: rank.number,
                loader: *loader,
                ..CacheSummary::default()
            });
            sum.training += &of.training;
            sum.other += &of.other;
            let is_known = |curve: &CacheCurve| curve.is_mixed() || !curve.points().is_empty();
            if is_known(&of.curve) && (!is_known(&sum.curve) || !rank.ended) {
                sum.curve = of.curve;
            }
            sum.state = of.state.filter(|_| sum.state.is_none() || !rank.ended).or(sum.state);
        }
        by_rank.into_values().collect()
    }
}

impl OfLoader {
    fn turn(&mut self, turn: Turn) {
        self.turns.push_back(turn);
        if self.turns.len() > MAX_TURNS {
            self.turns.pop_front();
        }
    }

    /// What it was iterated for at this moment; batches that were begun before the first turn are of it too.
    fn at(&self, time_ns: u64) -> Option<Turn> {
        let before = self.turns.iter().rev().find(|turn| turn.from_ns <= time_ns);
        before.or(self.turns.front()).copied()
    }
}

fn phase_of(training: bool) -> Phase {
    if training { Phase::Training } else { Phase::Evaluation }
}

/// Whether it is known, or will not be known better, for which loader it was made.
fn is_placed(due: &Due, processes: &Processes, now_ns: u64, patience_ns: u64) -> bool {
    processes.get(&due.pid).is_some_and(|process| {
        process.facts.kind != ProcessKind::Worker || process.is_placed(now_ns, patience_ns)
    })
}

/// The trainer and the loader that a batch was made for.
fn place(due: &Due, processes: &Processes, ranks: &BTreeMap<u32, Rank>) -> Option<(u32, u16)> {
    if ranks.contains_key(&due.pid) {
        return Some((due.pid, due.loader));
    }
    let of = owner(due.pid, processes, |pid| ranks.contains_key(&pid))?;
    let loader = processes.get(&due.pid).and_then(Process::loader);
    Some((of, loader.unwrap_or(due.loader)))
}
