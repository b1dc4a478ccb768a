//! What the caches of loaders gave, how they stand, and what other sizes would miss.

use super::Label;
use super::page::{Kind, Page};
use stallscope_model::{CachePoint, CacheState, CacheSummary, CacheUses, RunSummary};
use std::collections::HashSet;

/// A figure of the uses of a cache: its name and unit, what it is, and where it stands.
type OfUses = (&'static str, &'static str, &'static str, fn(&CacheUses) -> u64);
/// The same of how its part of the pool stands.
type OfState = (Kind, &'static str, &'static str, &'static str, fn(&CacheState) -> u64);

const OF_TRAINING: [OfUses; 8] = [
    ("cache_hits", "", "Draws in training whose own sample was in the cache.", |uses| uses.hits),
    ("cache_substitutions", "", "Draws in training that got another sample; no hits.", |uses| {
        uses.substitutions
    }),
    ("cache_misses", "", "Draws in training whose sample was read from its source.", |uses| uses.misses),
    ("cache_reuses", "", "Hits that saved a read: those that were not prefetched.", |uses| uses.reuses()),
    ("cache_prefetched", "", "Hits whose sample was fetched ahead and used for the first time.", |uses| {
        uses.prefetched
    }),
    ("cache_late", "", "Hits that waited for a read under way.", |uses| uses.late),
    ("cache_pool", "bytes", "What training took from memory.", |uses| uses.pool_bytes),
    ("cache_source", "bytes", "What training read from the source.", |uses| uses.source_bytes),
];
const OF_OTHERS: [OfUses; 3] = [
    ("cache_other_hits", "", "Draws outside training whose own sample was in the cache.", |uses| uses.hits),
    ("cache_other_substitutions", "", "Draws outside training that got another sample.", |uses| {
        uses.substitutions
    }),
    ("cache_other_misses", "", "Draws outside training whose sample was read from its source.", |uses| {
        uses.misses
    }),
];
const OF_STATE: [OfState; 4] = [
    (Kind::Gauge, "cache_kept", "bytes", "What the pool keeps; ranks of a machine share it.", |state| {
        state.kept_bytes
    }),
    (Kind::Gauge, "cache_capacity", "bytes", "What the pool may keep.", |state| state.capacity_bytes),
    (Kind::Gauge, "cache_kept_samples", "", "Samples in the pool.", |state| state.kept_samples),
    (Kind::Counter, "cache_evictions", "", "Samples evicted from the pool.", |state| state.evictions),
];

pub(super) fn write(page: &mut Page, job: Label<'_>, summary: &RunSummary) {
    let caches = &summary.caches;
    let mut family = |kind, name: &str, unit: &str, help: &str, of: &dyn Fn(&CacheSummary) -> Option<u64>| {
        page.family(kind, name, unit, help, |family| {
            for cache in caches {
                let (rank, loader) = (cache.rank.to_string(), cache.loader.to_string());
                let labels = [job, ("rank", &*rank), ("loader", &*loader)];
                of(cache).into_iter().for_each(|value| family.add(&labels, value));
            }
        });
    };
    for (name, unit, help, of) in OF_TRAINING {
        family(Kind::Counter, name, unit, help, &|cache| Some(of(&cache.training)));
    }
    for (name, unit, help, of) in OF_OTHERS {
        family(Kind::Counter, name, unit, help, &|cache| Some(of(&cache.other)));
    }
    for (kind, name, unit, help, of) in OF_STATE {
        family(kind, name, unit, help, &|cache| cache.state.as_ref().map(of));
    }
    curves(page, job, summary);
}

/// By how many times the present size, so that a resized cache makes no new series.
fn curves(page: &mut Page, job: Label<'_>, summary: &RunSummary) {
    let mut family = |name: &str, unit: &str, help: &str, of: fn(&CachePoint) -> u64| {
        page.family(Kind::Gauge, name, unit, help, |family| {
            // Two trainers of one number would be added, and the sum of two shares is none.
            let mut seen = HashSet::new();
            let curves = summary.cache_curves().into_iter();
            for cache in curves.filter(|cache| seen.insert((cache.rank, cache.loader))) {
                let now_bytes = cache.state.map_or(0, |state| state.capacity_bytes);
                let (rank, loader) = (cache.rank.to_string(), cache.loader.to_string());
                for point in cache.curve.points() {
                    if let Some(times) = cache.curve.times(point, now_bytes) {
                        let labels = [job, ("rank", &*rank), ("loader", &*loader), ("times", times)];
                        family.add(&labels, of(point));
                    }
                }
            }
        });
    };
    let help = "Share of the uses that a cache of so many times the present size would miss; all: one that holds all.";
    family("cache_curve_miss", "ratio", help, |point| (point.miss_ratio() * 1e6).round() as u64);
    family("cache_curve_capacity", "bytes", "What so many times the present size is.", |point| {
        point.capacity_bytes
    });
}
