//! Policies and samplers without data: what would be read, and how often.

use crate::draws::{DrawKind, Selection};
use crate::lcache::{Fetched, LCache};
use crate::planner::{Planned, Planner};
use crate::policy::{Policy, PolicyKind, Use};
use crate::random::Random;
use crate::substitute::Substitutes;
use crate::trace::{Trace, TraceUse};
use std::collections::{HashMap, HashSet};

/// What an epoch, or all of them, came to. A hit is a hit of the sample that was drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochFigures {
    pub uses: u64,
    pub hits: u64,
    /// Uses that were given another sample; no hits.
    pub substitutions: u64,
    /// Of storage: a sample by itself or a package of many.
    pub requests: u64,
    /// Bytes that had to be read.
    pub read_bytes: u64,
    /// Packages that were written.
    pub writes: u64,
    pub written_bytes: u64,
    pub evictions: u64,
    /// Samples that were used at all.
    pub unique: u64,
}

impl EpochFigures {
    /// Uses whose own sample was read.
    pub fn reads(&self) -> u64 {
        self.uses - self.hits - self.substitutions
    }

    pub fn hit_ratio(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub epochs: Vec<EpochFigures>,
}

impl Figures {
    /// The sum over the epochs from `first` on; `unique` is the mean.
    pub fn since(&self, first: usize) -> EpochFigures {
        let late = self.epochs.get(first..).unwrap_or_default();
        let mut sum = EpochFigures::default();
        for epoch in late {
            sum.uses += epoch.uses;
            sum.hits += epoch.hits;
            sum.substitutions += epoch.substitutions;
            sum.requests += epoch.requests;
            sum.read_bytes += epoch.read_bytes;
            sum.writes += epoch.writes;
            sum.written_bytes += epoch.written_bytes;
            sum.evictions += epoch.evictions;
            sum.unique += epoch.unique;
        }
        sum.unique /= late.len().max(1) as u64;
        sum
    }
}

/// A job that is made up: samples of a size, some harder than others, whose loss falls each time they are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generated {
    pub samples: u32,
    pub sample_bytes: u32,
    pub epochs: u32,
    pub batch: u32,
    pub seed: u64,
    /// Of an epoch's draws, how many may be given another sample of their class. There are ten classes.
    pub substitute: f64,
}

const CLASSES: u32 = 10;

/// What has the cache's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    Policy(PolicyKind),
    /// iCACHE's H-cache and, for samples of low importance, its L-cache.
    Packed(Selection),
}

impl Caching {
    pub const fn name(self) -> &'static str {
        match self {
            Caching::Policy(kind) => kind.name(),
            Caching::Packed(Selection::AsPublished) => "icache-packed-published",
            Caching::Packed(Selection::Corrected) => "icache-packed",
        }
    }
}

impl From<PolicyKind> for Caching {
    fn from(kind: PolicyKind) -> Caching {
        Caching::Policy(kind)
    }
}

/// Runs a made-up job with this sampler and cache, the sampler hearing of losses and of what is kept. Gives the figures
/// and, where asked for, what was used.
///
/// Losses are log-normal by sample, fall with the square root of the uses so far, and vary by a fifth from use to use.
/// What real losses do to a real network's accuracy is not simulated.
pub fn train(
    job: &Generated,
    draws: DrawKind,
    caching: impl Into<Caching>,
    cache_bytes: u64,
    record: bool,
) -> (Figures, Trace) {
    let mut random = Random::new(job.seed, "losses");
    let hardness: Vec<f64> = (0..job.samples).map(|_| (random.normal() * 0.8).exp()).collect();
    let mut uses = vec![0u32; job.samples as usize];
    let mut planner = Planner::new(draws, job.samples, job.seed);
    let mut cache = Counted::of_job(job, caching.into(), cache_bytes);
    let mut trace = Trace::default();
    let (mut ids, mut losses, mut place) = (Vec::new(), Vec::new(), 0);
    for epoch in 0..job.epochs {
        let mut planned = planner.next(cache.policy.as_mut());
        cache.begin_epoch(&planner, &planned, &uses);
        loop {
            let (at, next_at) = (planned.at, planned.next_at);
            let id = cache.use_one(&Use { id: planned.draw.id, bytes: job.sample_bytes, at, next_at });
            let times = &mut uses[id as usize];
            let loss = hardness[id as usize] / f64::from(1 + *times).sqrt() * (0.2 * random.normal()).exp();
            *times += 1;
            if record {
                // As the loader records it: what was drawn.
                let id = planned.draw.id;
                let used = TraceUse { epoch, id, bytes: job.sample_bytes, score: loss as f32 };
                trace.uses.push(used);
            }
            ids.push(id);
            losses.push(loss as f32);
            if ids.len() == job.batch as usize || planned.ends_epoch {
                planner.trained(place, &ids, &losses, cache.policy.as_mut());
                place += ids.len();
                ids.clear();
                losses.clear();
            }
            if planned.ends_epoch {
                cache.end_epoch(planned.at);
                break;
            }
            planned = planner.next(cache.policy.as_mut());
        }
        place = 0;
    }
    (cache.figures, trace)
}

/// Runs the uses of `trace`, all of them known ahead for policies that look ahead, through a policy.
pub fn replay(trace: &Trace, policy: PolicyKind, cache_bytes: u64) -> Figures {
    let mut next_at = vec![Use::UNKNOWN; trace.uses.len()];
    let mut later: HashMap<u32, u64> = HashMap::new();
    for (at, used) in trace.uses.iter().enumerate().rev() {
        next_at[at] = later.insert(used.id, at as u64).unwrap_or(Use::UNKNOWN);
    }
    let mut cache = Counted::new(policy.make(cache_bytes));
    let mut epoch = trace.uses.first().map_or(0, |used| used.epoch);
    for (at, used) in trace.uses.iter().enumerate() {
        if used.epoch != epoch {
            cache.end_epoch(at as u64 - 1);
            epoch = used.epoch;
        }
        cache.use_one(&Use { id: used.id, bytes: used.bytes, at: at as u64, next_at: next_at[at] });
        cache.policy.scored(used.id, f64::from(used.score));
    }
    cache.end_epoch(trace.uses.len() as u64);
    cache.figures
}

/// A cache, and what it comes to.
#[derive(Debug)]
struct Counted {
    policy: Box<dyn Policy>,
    lcache: Option<LCache>,
    substitutes: Option<Substitutes>,
    figures: Figures,
    now: EpochFigures,
    seen: HashSet<u32>,
    evicted: Vec<u32>,
}

impl Counted {
    fn new(policy: Box<dyn Policy>) -> Counted {
        Counted {
            policy,
            lcache: None,
            substitutes: None,
            figures: Figures::default(),
            now: EpochFigures::default(),
            seen: HashSet::new(),
            evicted: Vec::new(),
        }
    }

    fn of_job(job: &Generated, caching: Caching, cache_bytes: u64) -> Counted {
        let (kind, lcache) = match caching {
            Caching::Policy(kind) => (kind, None),
            Caching::Packed(selection) => {
                (PolicyKind::Icache, Some(LCache::new(selection, cache_bytes, job.samples, job.seed)))
            }
        };
        let rest = cache_bytes - lcache.as_ref().map_or(0, LCache::bytes);
        let substitutes = (job.substitute > 0.0).then(|| {
            let classes = (0..job.samples).map(|id| id % CLASSES).collect();
            Substitutes::new(classes, job.substitute, job.seed, 0, 1)
        });
        Counted { lcache, substitutes, ..Counted::new(kind.make(rest)) }
    }

    /// An epoch begins with the draw that is `first`.
    fn begin_epoch(&mut self, planner: &Planner, first: &Planned, uses: &[u32]) {
        let Some(lcache) = &mut self.lcache else { return };
        let mut draws = vec![first.draw.id];
        if !first.ends_epoch {
            draws.extend(planner.rest_of_epoch(first.at + 1));
        }
        let is_known = |id: u32| uses.get(id as usize).is_some_and(|uses| *uses > 0);
        lcache.begin(&draws, &|id| planner.score(id).filter(|_| is_known(id)));
    }

    /// Gives the sample that is trained on.
    fn use_one(&mut self, used: &Use) -> u32 {
        self.now.uses += 1;
        let id = match self.other(used) {
            // The policy, which goes by what is drawn, does not hear of it.
            Some(other) => other,
            None => self.fetch(used),
        };
        self.now.substitutions += u64::from(id != used.id);
        self.seen.insert(id);
        id
    }

    /// A kept sample that is given for the one that was drawn.
    fn other(&mut self, used: &Use) -> Option<u32> {
        let substitutes = self.substitutes.as_mut()?;
        let is_kept = |id: u32| match &self.lcache {
            None => self.policy.contains(id),
            Some(lcache) if id == used.id => !lcache.may_be_replaced(id, self.policy.contains(id)),
            Some(lcache) => lcache.may_be_given(id),
        };
        let given = substitutes.batch(used.at, &[used.id], 0..1, used.at, &is_kept);
        substitutes.handed_over(used.at + 1);
        given.first().map(|(_, other)| *other)
    }

    /// The sample that was drawn, or what an L-cache has in its place.
    fn fetch(&mut self, used: &Use) -> u32 {
        let is_kept = self.policy.contains(used.id);
        let fetched = match &mut self.lcache {
            Some(lcache) => lcache.fetch(used, is_kept),
            None => (!is_kept).then(|| Fetched::alone(used)),
        };
        let Some(fetched) = fetched else {
            self.now.hits += 1;
            self.policy.hit(used);
            return used.id;
        };
        self.now.requests += fetched.requests;
        self.now.read_bytes += fetched.bytes;
        if !self.lcache.as_ref().is_some_and(|lcache| lcache.is_low(used.id)) {
            self.policy.miss(used, &mut self.evicted);
            self.now.evictions += self.evicted.len() as u64;
            self.evicted.clear();
        }
        fetched.id
    }

    /// The epoch is over, the last of whose uses was `at`.
    fn end_epoch(&mut self, at: u64) {
        let written = self.lcache.as_mut().map(|lcache| lcache.end(at)).unwrap_or_default();
        self.now.writes = written.len() as u64;
        self.now.written_bytes = written.iter().sum();
        self.now.unique = self.seen.len() as u64;
        self.seen.clear();
        self.figures.epochs.push(std::mem::take(&mut self.now));
        self.policy.epoch();
        if let Some(substitutes) = &mut self.substitutes {
            substitutes.begin(at + 1);
        }
    }
}

#[cfg(test)]
mod tests;
