//! What share of the uses a larger cache would miss, or a smaller one: the miss-ratio curve of a running job.
//!
//! Miniature simulation (Waldspurger et al., USENIX ATC 2017): some samples stand for all, chosen by a hash of their id
//! (SHARDS, FAST 2015), and their uses go through the policy that the cache has, at several sizes, each smaller by the
//! share that was chosen. Nothing is kept but ids.

mod tracked;

use crate::policy::{Policy, PolicyKind, Use};

pub use tracked::Tracked;

/// Sizes, in quarters of the present one.
const QUARTERS: [u64; 5] = [1, 2, 4, 8, 16];
/// Of the samples that stand for all, so many uses have to be counted before a curve is given.
const LEAST_USES: u64 = 64;
/// A size of samples that differs by less is the same.
const SAME_SIZE: f64 = 0.02;

/// What a cache of one size would have missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurvePoint {
    pub capacity_bytes: u64,
    /// Uses of the samples that stand for all.
    pub uses: u64,
    pub misses: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    uses: u64,
    misses: u64,
}

/// A cache scaled down, in which each sample takes one byte.
#[derive(Debug)]
struct Mini {
    quarters: u64,
    policy: Box<dyn Policy>,
    now: Counts,
    before: Counts,
}

/// Uses of one loader, or of those of several ranks, run through caches of several sizes.
#[derive(Debug)]
pub struct Ghost {
    kind: PolicyKind,
    samples: u64,
    /// Uses of an epoch.
    epoch_uses: u64,
    tracked: Tracked,
    capacity_bytes: u64,
    sample_bytes: f64,
    minis: Vec<Mini>,
    /// Uses of all samples since counting began anew.
    uses: u64,
    /// Place of a use that has none.
    at: u64,
    /// Whether caches have had the time to fill, and whether `before` was counted since.
    is_warm: bool,
    has_before: bool,
    /// Next uses that are to be passed on after the uses that they follow.
    planned: Vec<(u32, u64)>,
    evicted: Vec<u32>,
}

impl Ghost {
    /// Of ids below `samples`.
    pub fn new(kind: PolicyKind, samples: u64) -> Ghost {
        Ghost::with(kind, samples, Tracked::of(samples))
    }

    /// With what [`Tracked::of`] these samples is.
    pub(crate) fn with(kind: PolicyKind, samples: u64, tracked: Tracked) -> Ghost {
        Ghost {
            kind,
            samples,
            epoch_uses: samples,
            tracked,
            capacity_bytes: 0,
            sample_bytes: 0.0,
            minis: Vec::new(),
            uses: 0,
            at: 0,
            is_warm: false,
            has_before: false,
            planned: Vec::new(),
            evicted: Vec::new(),
        }
    }

    /// How many uses an epoch has, where these are not as many as samples.
    pub(crate) fn expect(&mut self, epoch_uses: u64) {
        self.epoch_uses = epoch_uses.max(1);
    }

    /// How large the cache is, and a sample on average. What was counted of another cache is thrown away.
    pub fn size(&mut self, capacity_bytes: u64, sample_bytes: f64) {
        let sound = sample_bytes.is_finite() && sample_bytes > 0.0 && capacity_bytes > 0;
        let same_size = (sample_bytes - self.sample_bytes).abs() <= SAME_SIZE * self.sample_bytes;
        if !sound || capacity_bytes == self.capacity_bytes && same_size {
            return;
        }
        let is_other = capacity_bytes != self.capacity_bytes;
        (self.capacity_bytes, self.sample_bytes) = (capacity_bytes, sample_bytes);
        let whole = self.dataset_bytes();
        // The first one that holds everything is the last that tells anything.
        let all = QUARTERS.iter().position(|quarters| self.bytes_of(*quarters) >= whole);
        let sizes = &QUARTERS[..all.map_or(QUARTERS.len(), |all| all + 1)];
        self.minis.truncate(sizes.len());
        for (nth, quarters) in sizes.iter().enumerate() {
            let capacity = self.scaled_capacity(*quarters);
            match self.minis.get_mut(nth) {
                Some(mini) => mini.policy.resize(capacity, &mut self.evicted),
                None => self.minis.push(Mini {
                    quarters: *quarters,
                    policy: self.kind.make(capacity),
                    now: Counts::default(),
                    before: Counts::default(),
                }),
            }
        }
        self.evicted.clear();
        if is_other {
            self.minis.iter_mut().for_each(|mini| (mini.now, mini.before) = Default::default());
            (self.uses, self.is_warm, self.has_before) = (0, false, false);
        }
    }

    fn bytes_of(&self, quarters: u64) -> u64 {
        (u128::from(self.capacity_bytes) * u128::from(quarters) / 4).min(u64::MAX.into()) as u64
    }

    /// Samples that a cache scaled down holds.
    fn scaled_capacity(&self, quarters: u64) -> u64 {
        let kept = self.bytes_of(quarters) as f64 / self.sample_bytes;
        let share = (kept / self.samples.max(1) as f64).min(1.0);
        (share * self.tracked.count as f64).round() as u64
    }

    /// All samples together, from their size on average.
    pub fn dataset_bytes(&self) -> u64 {
        (self.samples as f64 * self.sample_bytes) as u64
    }

    /// Whether a sample is one of those that stand for all.
    pub fn is_tracked(&self, id: u32) -> bool {
        self.tracked.has(id)
    }

    /// Which samples stand for all.
    pub fn tracked(&self) -> Tracked {
        self.tracked
    }

    /// So many samples were used, of which [`Ghost::used`] hears of those that are tracked.
    pub fn handed(&mut self, uses: u64) {
        self.uses = self.uses.saturating_add(uses);
        if self.uses >= self.epoch_uses.saturating_mul(2) {
            self.turn();
        }
    }

    /// A tracked sample was used, at a place in the order of all uses and again at another, where these are known.
    pub fn used(&mut self, id: u32, at: u64, next_at: u64) {
        let at = if at == Use::UNKNOWN { self.at } else { at };
        self.at = at.saturating_add(1);
        let used = Use { id, bytes: 1, at, next_at };
        for mini in &mut self.minis {
            mini.now.uses += 1;
            if mini.policy.contains(id) {
                mini.policy.hit(&used);
            } else {
                mini.now.misses += 1;
                mini.policy.miss(&used, &mut self.evicted);
            }
        }
        self.evicted.clear();
    }

    /// See [`Policy::planned`]; heard from [`Ghost::settle`] on.
    pub fn planned(&mut self, id: u32, next_at: u64) {
        if self.is_tracked(id) && !self.minis.is_empty() {
            self.planned.push((id, next_at));
        }
    }

    /// All uses have been counted that the next uses given to [`Ghost::planned`] follow.
    pub fn settle(&mut self) {
        for (id, next_at) in self.planned.drain(..) {
            self.minis.iter_mut().for_each(|mini| mini.policy.planned(id, next_at));
        }
    }

    /// See [`Policy::scored`].
    pub fn scored(&mut self, id: u32, score: f64) {
        if self.is_tracked(id) {
            self.minis.iter_mut().for_each(|mini| mini.policy.scored(id, score));
        }
    }

    /// An epoch begins.
    pub fn epoch(&mut self) {
        self.minis.iter_mut().for_each(|mini| mini.policy.epoch());
        // Some epochs are left early.
        if self.uses >= self.epoch_uses.div_ceil(2) {
            self.turn();
        }
    }

    /// The curve is given from now on. What was counted while caches filled is thrown away.
    fn turn(&mut self) {
        for mini in &mut self.minis {
            mini.before = std::mem::take(&mut mini.now);
        }
        (self.has_before, self.is_warm) = (self.is_warm, true);
        self.uses = 0;
    }

    /// By size, the smallest first: counts of the last whole epoch, or of the present one before there is one. Empty until
    /// caches have had an epoch to fill.
    pub fn curve(&self) -> Vec<CurvePoint> {
        let whole = self.dataset_bytes();
        let point = |mini: &Mini| {
            let counts = if self.has_before { mini.before } else { mini.now };
            let capacity_bytes = self.bytes_of(mini.quarters).min(whole);
            CurvePoint { capacity_bytes, uses: counts.uses, misses: counts.misses }
        };
        // One that came lately has seen nothing yet.
        let points: Vec<CurvePoint> = self.minis.iter().map(point).filter(|point| point.uses > 0).collect();
        let enough = points.first().is_some_and(|first| first.uses >= LEAST_USES.min(self.tracked.count));
        if self.is_warm && enough { points } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests;
