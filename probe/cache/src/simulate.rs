//! Policies and samplers without data: what would be read, and how often.

use crate::draws::DrawKind;
use crate::planner::Planner;
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
    /// Uses that were given another sample, which was kept; no hits.
    pub substitutions: u64,
    /// Bytes that had to be read.
    pub read_bytes: u64,
    pub evictions: u64,
    /// Samples that were used at all.
    pub unique: u64,
}

impl EpochFigures {
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
            sum.read_bytes += epoch.read_bytes;
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

/// Runs a made-up job with this sampler and policy, the sampler hearing of losses and of what is kept. Gives the figures
/// and, where asked for, what was used.
///
/// Losses are log-normal by sample, fall with the square root of the uses so far, and vary by a fifth from use to use.
/// What real losses do to a real network's accuracy is not simulated.
pub fn train(
    job: &Generated,
    draws: DrawKind,
    policy: PolicyKind,
    cache_bytes: u64,
    record: bool,
) -> (Figures, Trace) {
    let mut random = Random::new(job.seed, "losses");
    let hardness: Vec<f64> = (0..job.samples).map(|_| (random.normal() * 0.8).exp()).collect();
    let mut uses = vec![0u32; job.samples as usize];
    let mut planner = Planner::new(draws, job.samples, job.seed);
    let mut cache = Counted::new(policy.make(cache_bytes));
    let mut substitutes = (job.substitute > 0.0).then(|| {
        let classes = (0..job.samples).map(|id| id % CLASSES).collect();
        Substitutes::new(classes, job.substitute, job.seed, 0, 1)
    });
    let mut trace = Trace::default();
    let (mut ids, mut losses, mut place) = (Vec::new(), Vec::new(), 0);
    for epoch in 0..job.epochs {
        loop {
            let planned = planner.next(cache.policy.as_mut());
            let other = substitutes.as_mut().and_then(|substitutes| {
                let is_kept = |id| cache.policy.contains(id);
                let given = substitutes.batch(planned.at, &[planned.draw.id], 0..1, planned.at, &is_kept);
                substitutes.handed_over(planned.at + 1);
                given.first().map(|(_, other)| *other)
            });
            let id = other.unwrap_or(planned.draw.id);
            match other {
                Some(other) => cache.use_other(other),
                None => {
                    let (at, next_at) = (planned.at, planned.next_at);
                    cache.use_one(&Use { id, bytes: job.sample_bytes, at, next_at });
                }
            }
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
                if let Some(substitutes) = &mut substitutes {
                    substitutes.begin(planned.at + 1);
                }
                break;
            }
        }
        place = 0;
        cache.end_epoch();
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
            cache.end_epoch();
            epoch = used.epoch;
        }
        cache.use_one(&Use { id: used.id, bytes: used.bytes, at: at as u64, next_at: next_at[at] });
        cache.policy.scored(used.id, f64::from(used.score));
    }
    cache.end_epoch();
    cache.figures
}

/// A policy, and what it comes to.
#[derive(Debug)]
struct Counted {
    policy: Box<dyn Policy>,
    figures: Figures,
    now: EpochFigures,
    seen: HashSet<u32>,
    evicted: Vec<u32>,
}

impl Counted {
    fn new(policy: Box<dyn Policy>) -> Counted {
        Counted {
            policy,
            figures: Figures::default(),
            now: EpochFigures::default(),
            seen: HashSet::new(),
            evicted: Vec::new(),
        }
    }

    fn use_one(&mut self, used: &Use) {
        self.now.uses += 1;
        self.seen.insert(used.id);
        if self.policy.contains(used.id) {
            self.now.hits += 1;
            self.policy.hit(used);
        } else {
            self.now.read_bytes += u64::from(used.bytes);
            self.policy.miss(used, &mut self.evicted);
            self.now.evictions += self.evicted.len() as u64;
            self.evicted.clear();
        }
    }

    /// A kept sample is given for another. The policy, which goes by what is drawn, does not hear of it.
    fn use_other(&mut self, id: u32) {
        self.now.uses += 1;
        self.now.substitutions += 1;
        self.seen.insert(id);
    }

    fn end_epoch(&mut self) {
        self.now.unique = self.seen.len() as u64;
        self.seen.clear();
        self.figures.epochs.push(std::mem::take(&mut self.now));
        self.policy.epoch();
    }
}

#[cfg(test)]
mod tests;
