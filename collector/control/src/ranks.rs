//! What is known of each rank, and of the job that they are together.

use crate::growth::Workers;
use crate::observation::RankObservation;
use crate::saves::Saves;
use crate::window::{Pace, StepGroup, Sums, newest, pieces};
use crate::{observation::Observation, stats};
use stallscope_model::{BatchService, CacheSummary, CacheUses, Knob, Phase, StepLedger};
use std::collections::{BTreeMap, VecDeque};

/// More ranks of one job on one node than anybody has; what claims more is not listened to.
const MOST_RANKS: usize = 4096;
const MOST_SERVICES: usize = 256;
/// CPU use is averaged over this long.
const CPU_SPAN_NS: u64 = 10_000_000_000;
/// A rank that is no longer spoken of is gone after this.
const GONE_AFTER_NS: u64 = 10_000_000_000;

/// One rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) pace: Pace,
    /// The loader that training takes its batches from.
    pub(crate) loader: Option<u16>,
    pub(crate) phase: Option<Phase>,
    pub(crate) knobs: Vec<Knob>,
    caches: Vec<CacheSummary>,
    pub(crate) saves: Saves,
    pub(crate) services: VecDeque<BatchService>,
    /// How many have come so far.
    pub(crate) services_taken: u64,
    pub(crate) seen_until_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) workers: Workers,
    pub(crate) descriptors: u64,
    cpu: VecDeque<(u64, u64)>,
    observed_ns: u64,
    /// Training steps of each loader since it was last decided which is the one that trains.
    votes: BTreeMap<u16, u64>,
}

impl Rank {
    /// The knob of the loader that trains.
    pub(crate) fn knob(&self, name: &str) -> Option<&Knob> {
        self.knobs
            .iter()
            .find(|knob| knob.name == name && (knob.loader.is_none() || knob.loader == self.loader))
    }

    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        self.knob(name).map(|knob| knob.value)
    }

    /// The cache of the loader that trains.
    pub(crate) fn cache(&self) -> Option<&CacheSummary> {
        self.caches.iter().find(|cache| Some(cache.loader) == self.loader)
    }

    /// CPU time a second of the last ten seconds; `None` while that is not known.
    pub(crate) fn cores(&self) -> Option<f64> {
        let (from, to) = (self.cpu.front()?, self.cpu.back()?);
        let wall = to.0.checked_sub(from.0).filter(|ns| *ns >= CPU_SPAN_NS / 4)?;
        Some(to.1.saturating_sub(from.1) as f64 / wall as f64)
    }

    fn take(&mut self, observed: &RankObservation, now_ns: u64) {
        self.rank = observed.rank;
        self.observed_ns = now_ns;
        self.seen_until_ns = observed.seen_until_ns.min(now_ns);
        self.phase = Some(observed.phase);
        self.knobs.clone_from(&observed.knobs);
        self.caches.clone_from(&observed.caches);
        observed.checkpoints.into_iter().for_each(|account| self.saves.take(now_ns, account));
        self.memory_bytes = observed.memory_bytes;
        self.workers.take(&observed.worker_bytes);
        self.descriptors = observed.descriptors;
        if observed.cpu_ns > 0 {
            if self.cpu.back().is_some_and(|(_, cpu)| *cpu > observed.cpu_ns) {
                self.cpu.clear();
            }
            self.cpu.push_back((now_ns, observed.cpu_ns));
            while self.cpu.front().is_some_and(|(ns, _)| ns + CPU_SPAN_NS < now_ns) {
                self.cpu.pop_front();
            }
        }
        self.elect(observed);
        for step in &observed.steps {
            // Another loader's steps (evaluation) end a run of training steps as any other phase does.
            if step.phase != Phase::Training || Some(step.loader) == self.loader {
                self.pace.add(step);
            }
        }
        for service in &observed.services {
            if Some(service.loader) == self.loader && service.ready_ns > service.start_ns {
                if self.services.len() == MOST_SERVICES {
                    self.services.pop_front();
                }
                self.services.push_back(service.clone());
                self.services_taken += 1;
            }
        }
    }

    /// The loader that training takes most of its batches from; it changes only for one that has clearly taken over.
    fn elect(&mut self, observed: &RankObservation) {
        let of_loader =
            |step: &&StepLedger| step.phase == Phase::Training && step.loader != StepLedger::NO_LOADER;
        for step in observed.steps.iter().filter(of_loader) {
            if self.votes.len() < 64 || self.votes.contains_key(&step.loader) {
                *self.votes.entry(step.loader).or_default() += 1;
            }
        }
        let Some((loader, most)) = self.votes.iter().max_by_key(|(_, votes)| **votes) else { return };
        let mine = self.loader.and_then(|loader| self.votes.get(&loader)).copied().unwrap_or(0);
        if self.loader != Some(*loader) && (self.loader.is_none() || *most > 100 + 2 * mine) {
            self.loader = Some(*loader);
            self.pace.forget();
            self.services.clear();
        }
        if self.votes.values().sum::<u64>() > 100_000 {
            self.votes.values_mut().for_each(|votes| *votes /= 2);
        }
    }

    /// The training of about the last `ns`, without the first `settle` steps after `from_ns`.
    pub(crate) fn recent(&self, from_ns: u64, settle: u32, ns: u64) -> Sums {
        Sums::of(&self.recent_groups(from_ns, settle, ns))
    }

    /// The same, step by step.
    pub(crate) fn recent_groups(&self, from_ns: u64, settle: u32, ns: u64) -> Vec<StepGroup> {
        let from_ns = from_ns.max(self.pace.last_end_ns().saturating_sub(ns));
        self.pace.since(from_ns, settle)
    }
}

/// The ranks of a job on this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) ranks: BTreeMap<u32, Rank>,
    now_ns: u64,
}

impl Job {
    /// Takes in what is new. False when the clock ran backwards: then nothing of before is believed any more.
    pub(crate) fn take(&mut self, observed: &Observation) -> bool {
        let forward = observed.now_ns >= self.now_ns;
        if !forward {
            self.ranks.clear();
        }
        self.now_ns = observed.now_ns;
        for rank in &observed.ranks {
            if self.ranks.len() < MOST_RANKS || self.ranks.contains_key(&rank.rank) {
                self.ranks.entry(rank.rank).or_default().take(rank, observed.now_ns);
            }
        }
        self.ranks.retain(|_, rank| rank.observed_ns + GONE_AFTER_NS >= observed.now_ns);
        forward
    }

    /// CPU time a second of all ranks, as far as known.
    pub(crate) fn cores(&self) -> Option<f64> {
        let known: Vec<f64> = self.ranks.values().filter_map(Rank::cores).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.ranks.values().fold(0, |sum, rank| sum.saturating_add(rank.memory_bytes))
    }

    /// What the caches of the ranks that train keep. Ranks share what they keep of one data set.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let kept = self.training().filter_map(|rank| Some(rank.cache()?.state?.kept_bytes));
        kept.max().unwrap_or(0)
    }

    /// Memory of trainers, workers and batches: all but what caches keep.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.memory_bytes().saturating_sub(self.kept_bytes())
    }

    /// What training has drawn from its caches so far.
    pub(crate) fn cache_uses(&self) -> CacheUses {
        let mut sum = CacheUses::default();
        self.training().filter_map(Rank::cache).for_each(|cache| sum += &cache.training);
        sum
    }

    /// Bytes by which caches were raised and which they have yet to fill. Ranks share what they keep of one data set.
    pub(crate) fn promised_bytes(&self) -> u64 {
        let (mut raised, mut unfilled) = (0_u64, 0);
        for rank in self.training() {
            let knob = rank.knob("cache.bytes").map_or(0, |knob| knob.value.saturating_sub(knob.initial));
            let state = rank.cache().and_then(|cache| cache.state).unwrap_or_default();
            raised = raised.saturating_add(knob);
            unfilled = state.capacity_bytes.saturating_sub(state.kept_bytes).max(unfilled);
        }
        raised.min(unfilled)
    }

    /// What the caches of the ranks that train may hold.
    pub(crate) fn caches_bytes(&self) -> u64 {
        self.training().filter_map(|rank| rank.value("cache.bytes")).fold(0, u64::saturating_add)
    }

    /// What the workers that there are may grow by yet.
    pub(crate) fn growth_bytes(&self) -> u64 {
        self.ranks.values().fold(0, |sum, rank| sum.saturating_add(rank.workers.growth_bytes()))
    }

    /// Most batches that are outstanding in a rank: what has to pass before a change shows in its steps.
    pub(crate) fn drain(&self) -> u32 {
        let depth = |rank: &Rank| rank.value("prefetch").or_else(|| rank.value("workers").map(|w| 2 * w));
        let most = self.ranks.values().filter_map(depth).max().unwrap_or(2);
        most.clamp(1, 4096) as u32
    }

    /// The ranks that train, by what they did since `from_ns`; those of which nothing is known yet are `None`.
    pub(crate) fn groups(&self, from_ns: u64, settle: u32) -> Vec<Vec<StepGroup>> {
        self.training().map(|rank| rank.pace.since(from_ns, settle)).collect()
    }

    pub(crate) fn training(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.values().filter(|rank| rank.loader.is_some())
    }

    /// Mean length of a step over the last half minute, in nanoseconds; 0 when unknown.
    pub(crate) fn step_ns(&self) -> f64 {
        let means: Vec<f64> = self
            .training()
            .map(|rank| rank.recent(0, 0, 30_000_000_000).step_ns())
            .filter(|ns| *ns > 0.0)
            .collect();
        stats::mean(&means).unwrap_or(0.0)
    }
}

/// The pace of all ranks together in a window, from the last `steps` of each.
pub(crate) fn figure(groups: &[Vec<StepGroup>], steps: u32) -> Option<stats::Figure> {
    let ranks: Vec<_> = groups.iter().map(|rank| pieces(newest(rank, steps))).collect();
    stats::figure(&ranks)
}

/// Stall share of the rank that waits most, in a window.
pub(crate) fn worst_stall(groups: &[Vec<StepGroup>]) -> f64 {
    groups.iter().map(|rank| Sums::of(rank).stall_share()).fold(0.0, f64::max)
}
