//! What the model learns from while a cache is filled, and after.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::toy::step;
use stallscope_control::{Profile, Profiles, outlook};
use stallscope_model::{BatchService, CachePeriod, CacheUses, Cause, Causes, LoaderFacts, Phase};

const MS: u64 = 1_000_000;
/// Of a cache.
const PERIOD_MS: u64 = 10_000;
const STEP_MS: u64 = 100;

/// A job whose cache has such a share of the samples in each period, one after the other. Each step waits 60 of its 100 ms for storage,
/// as far as the cache does not have its samples.
fn job(shares: &[f64]) -> Profile {
    let mut profiles = Profiles::new(4.0);
    profiles.loader(0, &LoaderFacts { workers: 2, prefetch_factor: Some(2), ..Default::default() });
    for (nth, share) in shares.iter().enumerate() {
        let fetch_ns = (60.0 * (1.0 - share)) as u64 * MS;
        for index in 0..PERIOD_MS / STEP_MS {
            let at = nth as u64 * PERIOD_MS / STEP_MS + index;
            let start_ns = at * STEP_MS * MS;
            let mut causes = Causes::default();
            causes[Cause::Fetch] = fetch_ns;
            causes[Cause::Compute] = STEP_MS * MS - fetch_ns;
            profiles.step(&step(at, start_ns, start_ns + STEP_MS * MS, causes));
            profiles.service(&BatchService {
                start_ns,
                ready_ns: start_ns + fetch_ns + MS,
                samples: 16,
                fetch_ns,
                cpu_ns: MS,
                readers: 1.0,
                makers: 1.0,
                weight: 1.0,
                ..BatchService::default()
            });
        }
        let hits = (1600.0 * share) as u64;
        profiles.cache(&CachePeriod {
            start_ns: nth as u64 * PERIOD_MS * MS,
            rank: 0,
            loader: 0,
            phase: Phase::Training,
            uses: CacheUses { hits, misses: 1600 - hits, ..CacheUses::default() },
            state: None,
        });
    }
    profiles.training()[0].clone()
}

fn stall_share(shares: &[f64]) -> f64 {
    outlook(&job(shares)).unwrap().direct_share
}

/// Seen: three epochs of which the last two had all samples in memory; +37% was expected of faster storage, and none came.
#[test]
fn a_pass_that_filled_the_cache_is_not_learnt_from() {
    assert!(stall_share(&[0.0, 0.0, 0.8, 1.0, 1.0]) < 0.01);
    assert!(stall_share(&[0.0, 0.0, 0.5, 0.5]) < 0.31);
    assert_eq!(job(&[0.0, 0.0, 1.0]).cached_share(), 1.0);
}

/// As of one that keeps what comes first in an order that is always the same.
#[test]
fn a_cache_that_is_full_may_have_more_and_less() {
    let shares = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let stalls = stall_share(&shares);
    assert!((0.25..0.35).contains(&stalls), "{stalls}");
}

#[test]
fn a_cache_that_never_fills_is_as_it_is() {
    let stalls = stall_share(&[0.3, 0.35, 0.28, 0.31]);
    assert!((0.38..0.45).contains(&stalls), "{stalls}");
}
