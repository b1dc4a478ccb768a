//! What the caches of loaders gave, and how they stand.

mod curve;

use crate::{Phase, RankSummary, RunSummary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;

pub use curve::{CacheCurve, CachePoint};

/// Uses of samples. Each is one of three: a true hit, a substitution, a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUses {
    /// The sample that was drawn was there.
    pub hits: u64,
    /// Another sample was given in its place, which is no hit.
    pub substitutions: u64,
    /// The sample was read from its source.
    pub misses: u64,
    /// The hits whose sample was fetched ahead of its draw and used for the first time: reads that were made in time,
    /// not saved.
    pub prefetched: u64,
    /// The hits that waited for a read under way.
    pub late: u64,
    pub pool_bytes: u64,
    pub source_bytes: u64,
}

impl CacheUses {
    pub fn draws(&self) -> u64 {
        self.hits.saturating_add(self.substitutions).saturating_add(self.misses)
    }

    /// The hits that saved a read.
    pub fn reuses(&self) -> u64 {
        self.hits.saturating_sub(self.prefetched)
    }

    /// What came since, where both are counts of the same uses.
    #[must_use]
    pub fn since(&self, before: &CacheUses) -> CacheUses {
        CacheUses {
            hits: self.hits.saturating_sub(before.hits),
            substitutions: self.substitutions.saturating_sub(before.substitutions),
            misses: self.misses.saturating_sub(before.misses),
            prefetched: self.prefetched.saturating_sub(before.prefetched),
            late: self.late.saturating_sub(before.late),
            pool_bytes: self.pool_bytes.saturating_sub(before.pool_bytes),
            source_bytes: self.source_bytes.saturating_sub(before.source_bytes),
        }
    }

    /// Share of the draws that were true hits, 0 to 1; `None` without any draw.
    pub fn hit_share(&self) -> Option<f64> {
        self.share(self.hits)
    }

    /// Share of the draws that `part` is, 0 to 1; `None` without any draw.
    pub fn share(&self, part: u64) -> Option<f64> {
        let draws = self.draws();
        (draws > 0).then(|| (part as f64 / draws as f64).min(1.0))
    }
}

impl AddAssign<&CacheUses> for CacheUses {
    fn add_assign(&mut self, other: &CacheUses) {
        for (sum, part) in [
            (&mut self.hits, other.hits),
            (&mut self.substitutions, other.substitutions),
            (&mut self.misses, other.misses),
            (&mut self.prefetched, other.prefetched),
            (&mut self.late, other.late),
            (&mut self.pool_bytes, other.pool_bytes),
            (&mut self.source_bytes, other.source_bytes),
        ] {
            *sum = sum.saturating_add(part);
        }
    }
}

/// A data set's part of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    pub kept_bytes: u64,
    pub capacity_bytes: u64,
    /// Since the data set came into the pool.
    pub evictions: u64,
    pub kept_samples: u64,
}

/// One loader of a rank that has a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSummary {
    pub rank: u32,
    pub loader: u16,
    /// Of batches for training.
    pub training: CacheUses,
    /// Uses of all other batches: evaluation, and batches of an unknown purpose.
    pub other: CacheUses,
    /// The last state reported. Ranks of one host share what they keep of one data set.
    pub state: Option<CacheState>,
    /// The last curve reported; older recordings have none.
    #[serde(default)]
    pub curve: CacheCurve,
}

/// What one loader's cache gave within ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePeriod {
    /// Of the period, a multiple of its length (as a worker's).
    pub start_ns: u64,
    pub rank: u32,
    pub loader: u16,
    /// [`Phase::Training`] or [`Phase::Evaluation`], which stands for all others.
    pub phase: Phase,
    /// Of batches that were made within it.
    pub uses: CacheUses,
    /// The last state reported within the period.
    pub state: Option<CacheState>,
}

impl CachePeriod {
    /// Adds a later report on the same period.
    pub fn add(&mut self, later: &CachePeriod) {
        self.uses += &later.uses;
        self.state = later.state.or(self.state);
    }
}

/// What the whole epochs of a loader in training read from storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderEpochs {
    pub rank: u32,
    pub loader: u16,
    /// Iterated from the start to the end.
    pub whole: u64,
    /// Bytes that came from storage in the first of them, and in the last; 0 where they are not counted.
    pub first_read_bytes: u64,
    pub last_read_bytes: u64,
}

/// The caches of all ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCache {
    pub training: CacheUses,
    pub other: CacheUses,
    /// Of the loaders in training, or of all where none trained; what ranks of one host share counts once.
    pub state: Option<CacheState>,
}

impl CacheSummary {
    /// Sums of some periods by rank and loader; the periods are in order of time.
    pub fn of_periods(periods: &[CachePeriod]) -> Vec<CacheSummary> {
        let mut sums: BTreeMap<(u32, u16), CacheSummary> = BTreeMap::new();
        for period in periods {
            let sum = sums.entry((period.rank, period.loader)).or_default();
            (sum.rank, sum.loader) = (period.rank, period.loader);
            match period.phase {
                Phase::Training => sum.training += &period.uses,
                _ => sum.other += &period.uses,
            }
            sum.state = period.state.or(sum.state);
        }
        sums.into_values().collect()
    }
}

impl JobCache {
    /// `None` where there is no cache; `ranks` name the hosts, whose ranks share a cache.
    pub fn of(caches: &[CacheSummary], ranks: &[RankSummary]) -> Option<JobCache> {
        if caches.is_empty() {
            return None;
        }
        let mut job = JobCache::default();
        for cache in caches {
            job.training += &cache.training;
            job.other += &cache.other;
        }
        let hosts = hosts_of(ranks);
        let trained = job.training.draws() > 0;
        let mut shared: BTreeMap<(&str, u16), CacheState> = BTreeMap::new();
        for cache in caches.iter().filter(|cache| !trained || cache.training.draws() > 0) {
            let Some(state) = &cache.state else { continue };
            let host = hosts.get(&cache.rank).copied().unwrap_or_default();
            let known = shared.entry((host, cache.loader)).or_default();
            *known = each(known, state, u64::max);
        }
        job.state = shared.into_values().reduce(|sum, state| each(&sum, &state, u64::saturating_add));
        Some(job)
    }
}

/// By rank. A look through all ranks for each cache would take the square of their number: hours, with a foreign recording's.
fn hosts_of(ranks: &[RankSummary]) -> BTreeMap<u32, &str> {
    // Of ranks of one number the first counts.
    ranks.iter().rev().map(|rank| (rank.facts.rank, rank.facts.host.as_str())).collect()
}

/// Empty where the host is not known.
fn host_of(ranks: &[RankSummary], rank: u32) -> &str {
    ranks.iter().find(|of| of.facts.rank == rank).map_or("", |of| of.facts.host.as_str())
}

/// Why a job that draws from caches has no miss-ratio curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCurve {
    /// None was reported so far: caches have to fill first.
    NotYet,
    /// Ranks of several jobs use one cache, whose counts do not separate them.
    Mixed,
}

impl RunSummary {
    /// `None` where no loader has a cache.
    pub fn cache(&self) -> Option<JobCache> {
        JobCache::of(&self.caches, &self.ranks)
    }

    /// The caches whose miss-ratio curves are to be shown, by rank and loader. They are never added up: a curve is of the
    /// uses of one loader, with all of its cache for them. Of ranks that share a cache, one reports the curve of all.
    pub fn cache_curves(&self) -> Vec<&CacheSummary> {
        let trained = self.caches.iter().any(|cache| cache.training.draws() > 0);
        let has_one = |cache: &&CacheSummary| {
            !cache.curve.points().is_empty() && (!trained || cache.training.draws() > 0)
        };
        let hosts = hosts_of(&self.ranks);
        let of = |cache: &CacheSummary| (hosts.get(&cache.rank).copied().unwrap_or_default(), cache.loader);
        let mut joint: BTreeMap<(&str, u16), &CacheSummary> = BTreeMap::new();
        for cache in self.caches.iter().filter(has_one).filter(|cache| cache.curve.is_joint()) {
            let newest = joint.entry(of(cache)).or_insert(cache);
            // Another rank reports the curve once the one that did is gone.
            if cache.curve.reported_ns > newest.curve.reported_ns {
                *newest = cache;
            }
        }
        let is_newest =
            |cache: &&CacheSummary| joint.get(&of(cache)).is_none_or(|newest| newest.rank == cache.rank);
        self.caches
            .iter()
            .filter(has_one)
            .filter(|cache| !cache.curve.is_joint() || is_newest(cache))
            .collect()
    }

    /// `None` where there is one, and where nothing is drawn from a cache in training.
    pub fn no_curve(&self) -> Option<NoCurve> {
        let mut trained = self.caches.iter().filter(|cache| cache.training.draws() > 0).peekable();
        if trained.peek().is_none() || !self.cache_curves().is_empty() {
            return None;
        }
        Some(if trained.any(|cache| cache.curve.is_mixed()) { NoCurve::Mixed } else { NoCurve::NotYet })
    }

    /// The curve of one loader's cache: its own, or the one that a rank of the same host tells for all.
    pub fn curve_of<'a>(
        caches: &'a [CacheSummary],
        ranks: &[RankSummary],
        of: &CacheSummary,
    ) -> Option<&'a CacheCurve> {
        let host = |rank| host_of(ranks, rank);
        let is_its = |other: &&CacheSummary| {
            other.rank == of.rank || other.curve.is_joint() && host(other.rank) == host(of.rank)
        };
        let same = caches.iter().filter(|other| other.loader == of.loader).filter(is_its);
        let curves = same.map(|other| &other.curve).filter(|curve| !curve.points().is_empty());
        // The first of those that are as new.
        curves.reduce(|newest, curve| if curve.reported_ns > newest.reported_ns { curve } else { newest })
    }
}

fn each(one: &CacheState, other: &CacheState, of: fn(u64, u64) -> u64) -> CacheState {
    CacheState {
        kept_bytes: of(one.kept_bytes, other.kept_bytes),
        capacity_bytes: of(one.capacity_bytes, other.capacity_bytes),
        evictions: of(one.evictions, other.evictions),
        kept_samples: of(one.kept_samples, other.kept_samples),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoints, RankFacts};

    fn rank(rank: u32, host: &str) -> RankSummary {
        RankSummary {
            facts: RankFacts { rank, host: host.into(), ..RankFacts::default() },
            phases: Vec::new(),
            workers: Vec::new(),
            checkpoints: Checkpoints::default(),
        }
    }

    fn cache(rank: u32, loader: u16, hits: u64, kept_bytes: u64) -> CacheSummary {
        CacheSummary {
            rank,
            loader,
            training: CacheUses { hits, misses: 10 - hits, ..CacheUses::default() },
            state: Some(CacheState { kept_bytes, capacity_bytes: 100, evictions: 1, kept_samples: 5 }),
            ..CacheSummary::default()
        }
    }

    #[test]
    fn ranks_of_one_host_share_what_they_keep() {
        let evaluation = CacheSummary { training: CacheUses::default(), ..cache(0, 1, 0, 77) };
        let summary = RunSummary {
            ranks: vec![rank(0, "a"), rank(1, "a"), rank(2, "b")],
            caches: vec![cache(0, 0, 4, 50), cache(1, 0, 6, 60), cache(2, 0, 8, 20), evaluation],
            ..RunSummary::default()
        };
        let job = summary.cache().unwrap();
        assert_eq!((job.training.hits, job.training.draws()), (18, 30));
        assert_eq!(job.training.hit_share(), Some(0.6));
        let state = job.state.unwrap();
        assert_eq!((state.kept_bytes, state.capacity_bytes, state.evictions), (80, 200, 2));
        assert_eq!(RunSummary::default().cache(), None);
    }

    #[test]
    fn periods_add_up_and_the_last_state_counts() {
        let period = |phase, hits, state| CachePeriod {
            start_ns: 0,
            rank: 1,
            loader: 2,
            phase,
            uses: CacheUses { hits, ..CacheUses::default() },
            state,
        };
        let state = |kept_bytes| Some(CacheState { kept_bytes, ..CacheState::default() });
        let periods = [
            period(Phase::Training, 3, state(5)),
            period(Phase::Evaluation, 4, None),
            period(Phase::Training, 6, state(7)),
        ];
        let [sum] = CacheSummary::of_periods(&periods)[..] else { panic!("one loader") };
        assert_eq!(
            (sum.rank, sum.loader, sum.training.hits, sum.other.hits, sum.state),
            (1, 2, 9, 4, state(7))
        );
    }

    #[test]
    fn a_substitution_is_no_hit() {
        let uses = CacheUses { hits: 2, substitutions: 2, misses: 4, prefetched: 1, ..CacheUses::default() };
        assert_eq!((uses.hit_share(), uses.reuses()), (Some(0.25), 1));
        assert_eq!(CacheUses::default().hit_share(), None);
    }

    #[test]
    fn curves_of_several_loaders_are_never_made_one() {
        let mut curve = CacheCurve::new(1000);
        curve.push(CachePoint { capacity_bytes: 100, uses: 10, misses: 9 });
        let with_curve = |rank, loader| CacheSummary { curve, ..cache(rank, loader, 5, 50) };
        let summary =
            |caches| RunSummary { ranks: vec![rank(0, "a"), rank(1, "b")], caches, ..RunSummary::default() };
        let one = summary(vec![
            with_curve(0, 0),
            CacheSummary { training: CacheUses::default(), ..with_curve(0, 1) },
        ]);
        assert_eq!((one.cache_curves().len(), one.no_curve()), (1, None));
        for several in [vec![with_curve(0, 0), with_curve(0, 1)], vec![with_curve(0, 0), with_curve(1, 0)]] {
            let several = summary(several);
            assert_eq!((several.cache_curves().len(), several.no_curve()), (2, None));
        }
        let mixed = CacheSummary { curve: CacheCurve::mixed(), ..cache(1, 0, 5, 50) };
        let silent = summary(vec![cache(0, 0, 5, 50), cache(1, 0, 5, 50)]);
        assert_eq!((silent.cache_curves().len(), silent.no_curve()), (0, Some(NoCurve::NotYet)));
        assert_eq!(summary(vec![cache(0, 0, 5, 50), mixed]).no_curve(), Some(NoCurve::Mixed));
        let evaluates = CacheSummary { training: CacheUses::default(), ..cache(0, 0, 5, 50) };
        assert_eq!(summary(vec![evaluates]).no_curve(), None, "nothing is trained");
    }

    #[test]
    fn what_one_rank_tells_for_its_host_is_the_curve_of_all_its_ranks_and_of_no_others() {
        let mut curve = CacheCurve::new(1000).of_ranks(2);
        curve.push(CachePoint { capacity_bytes: 100, uses: 10, misses: 9 });
        let silent = |rank| cache(rank, 0, 5, 50);
        let with_curve = |rank| CacheSummary { curve, ..silent(rank) };
        let ranks = vec![rank(0, "a"), rank(1, "a"), rank(2, "b"), rank(3, "b")];
        let caches = vec![with_curve(0), silent(1), silent(2), silent(3)];
        let summary = RunSummary { ranks: ranks.clone(), caches, ..RunSummary::default() };
        let whose =
            |summary: &RunSummary| summary.cache_curves().iter().map(|cache| cache.rank).collect::<Vec<_>>();
        assert_eq!(whose(&summary), [0]);
        let known = |of: u32| RunSummary::curve_of(&summary.caches, &ranks, &silent(of)).is_some();
        assert_eq!([0, 1, 2, 3].map(known), [true, true, false, false]);
        let later = vec![with_curve(0), with_curve(1), with_curve(2), silent(3)];
        assert_eq!(whose(&RunSummary { caches: later, ..summary.clone() }), [0, 2], "each host's once");
        let mut newer = with_curve(1);
        newer.curve = newer.curve.reported_at(7);
        newer.curve.push(CachePoint { capacity_bytes: 200, uses: 10, misses: 1 });
        let evaluates = |cache| CacheSummary { training: CacheUses::default(), ..cache };
        for caches in [
            vec![with_curve(0), newer],
            vec![evaluates(with_curve(0)), with_curve(1)],
            vec![evaluates(CacheSummary { rank: 0, ..newer }), with_curve(1)],
        ] {
            let summary = RunSummary { caches, ..summary.clone() };
            assert_eq!(whose(&summary), [1], "the newest of those that train");
        }
        let caches = vec![with_curve(0), newer];
        assert_eq!(RunSummary::curve_of(&caches, &ranks, &silent(0)), Some(&newer.curve));
    }

    #[test]
    fn a_curve_survives_a_recording_and_an_old_recording_has_none() {
        let mut summary = cache(0, 0, 5, 50);
        summary.curve = CacheCurve::new(1000);
        summary.curve.push(CachePoint { capacity_bytes: 100, uses: 10, misses: 9 });
        let mut written = serde_json::to_value(summary).unwrap();
        assert_eq!(serde_json::from_value::<CacheSummary>(written.clone()).unwrap(), summary);
        written.as_object_mut().unwrap().remove("curve");
        let old: CacheSummary = serde_json::from_value(written).unwrap();
        assert_eq!(old, CacheSummary { curve: CacheCurve::default(), ..summary });
    }
}
