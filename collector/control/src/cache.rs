//! How large a job's cache is worth being, from what it has given so far.

use stallscope_model::{CacheCurve, CacheState, CacheUses, Knob, KnobState};

/// A cache that would have less of the samples than this beyond what it has is not advised.
const LEAST_SHARE: f64 = 0.05;
/// A loader's staging space, as the loader makes it.
const STAGING_PART: u64 = 32;
const MOST_STAGING_BYTES: u64 = 256 << 20;

/// Two points of a miss-ratio curve: shares of the uses that are missed with so many bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Missed {
    pub now_bytes: u64,
    pub now: f64,
    pub then_bytes: u64,
    pub then: f64,
}

impl Missed {
    /// The share of the samples that the other cache would have, where this one has had `hits` of late: of what is
    /// missed now, as much less as the curve says.
    pub fn share(&self, hits: f64) -> f64 {
        let still = if self.now > 0.0 { self.then / self.now } else { 1.0 };
        (1.0 - (1.0 - hits) * still).clamp(0.0, 1.0)
    }
}

/// A size that a full cache could have in place of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LargerCache {
    /// Of the knob `cache.bytes`.
    pub now_bytes: u64,
    /// Of the whole cache, which ranks may share: now, and then.
    pub capacity_bytes: u64,
    pub to_bytes: u64,
    /// Of the samples, 0 to 1: what it has now, and what the larger one would have.
    pub share_now: f64,
    pub share: f64,
}

/// More of the cache of the loader `at` that is full, within `free` bytes: as much as it takes to have all samples, if there is
/// that much. `uses`: of late. `None` where the cache is not full, saves no reads yet, or more of it would save hardly more.
/// Beyond its miss-ratio curve, and without one, hits are taken to grow with the bytes, which holds where each sample is drawn
/// once an epoch.
pub fn larger_cache(
    at: (u32, u16),
    uses: &CacheUses,
    state: &CacheState,
    curve: Option<&CacheCurve>,
    knobs: &[Knob],
    free: u64,
) -> Option<LargerCache> {
    let of_loader = |name: &str| {
        let is = |knob: &&Knob| knob.name == name && (knob.rank, knob.loader) == (at.0, Some(at.1));
        knobs.iter().find(is)
    };
    let knob = of_loader("cache.bytes").filter(|knob| knob.state != KnobState::Unavailable)?;
    let (hits, reuses) = (uses.hit_share()?, uses.share(uses.reuses())?);
    // What of a cache is a staging space need not be full where the rest is.
    let staging_bytes = match of_loader("cache.fetchers") {
        Some(_) => (state.capacity_bytes / STAGING_PART).min(MOST_STAGING_BYTES),
        None => 0,
    };
    let own_bytes = state.capacity_bytes - staging_bytes;
    let full = state.kept_bytes >= own_bytes - own_bytes / 20;
    if !full || reuses <= 0.0 || hits >= 0.95 {
        return None;
    }
    let wanted = state.capacity_bytes as f64 * (1.0 + 1.05 * (1.0 - hits) / reuses);
    let dataset_bytes = curve.map(CacheCurve::dataset_bytes).filter(|bytes| *bytes > 0);
    let all_bytes = dataset_bytes.map_or(f64::INFINITY, |bytes| 1.05 * bytes as f64 + staging_bytes as f64);
    let to = (wanted.min(all_bytes) as u64).min(state.capacity_bytes.saturating_add(free)).min(knob.max)
        >> 20
        << 20;
    let times = to as f64 / state.capacity_bytes as f64;
    let missed = curve.and_then(|curve| {
        let [now, then] = [state.capacity_bytes, to].map(|bytes| curve.miss_ratio(bytes));
        Some(Missed { now_bytes: state.capacity_bytes, now: now?, then_bytes: to, then: then? })
    });
    let share = match missed {
        Some(missed) => missed.share(hits),
        None => (hits + (times - 1.0) * reuses).min(1.0),
    };
    let larger = LargerCache {
        now_bytes: knob.value,
        capacity_bytes: state.capacity_bytes,
        to_bytes: to,
        share_now: hits,
        share,
    };
    (share >= hits + LEAST_SHARE).then_some(larger)
}

impl LargerCache {
    /// In a sentence.
    pub fn why(&self) -> String {
        format!(
            "the cache is full and has {:.0}% of the samples; with {} MiB it would have about {:.0}%",
            100.0 * self.share_now,
            self.to_bytes >> 20,
            100.0 * self.share
        )
    }
}
