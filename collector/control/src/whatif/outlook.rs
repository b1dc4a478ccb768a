//! How far each single change can go: where more of it brings nothing any more.

use super::{Change, Model, Setting};
use crate::profile::Profile;
use stallscope_model::Estimate;

/// Steps that are no longer than this share of the best are as good.
const AS_GOOD: f64 = 1.02;
const MAX_WORKERS: u32 = 64;
const CORES: [f64; 12] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0];

/// How far single changes can go, and what an ideal loader would bring.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    /// `None` where the model does not fit the job.
    pub smallest: Option<Smallest>,
    /// Share of training time that waits for batches: the first meaning of a data stall.
    pub direct_share: f64,
    /// Share by which steps were shorter with an ideal loader, whose batches are in memory and take nobody's cores:
    /// the second meaning.
    pub difference_share: Estimate,
}

/// The smallest values that are as good as any larger one, each with everything else as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Smallest {
    /// x*: share of all samples, with what a cache has of them now; `None` where more of a cache brings nothing.
    pub cached_share: Option<f64>,
    /// c*, in workers.
    pub workers: u32,
    /// c*, in cores, with the workers of now; `None` where the number of cores now is not known.
    pub cores: Option<f64>,
}

/// # Errors
/// A sentence when too little is known.
pub fn outlook(profile: &Profile) -> Result<Outlook, String> {
    if let Some(why) = profile.too_little() {
        return Err(why);
    }
    let model = Model::new(profile);
    Ok(look(&model))
}

pub(crate) fn look(model: &Model<'_>) -> Outlook {
    let profile = model.profile;
    let by_others = model.preempted_by_others();
    let ideal = crate::rates::per_second(
        &profile.steps.iter().collect::<Vec<_>>(),
        &mut crate::random::Random::new(11),
        |step| {
            let own_ns = step.compute_ns() + step.elsewhere_ns() + by_others * step.preempted_ns();
            (own_ns / 1e9, step.wall_ns)
        },
    );
    let ideal = ideal.unwrap_or_default();
    Outlook {
        smallest: model.misfit().is_none().then(|| smallest(model)),
        direct_share: profile.stall_share(),
        difference_share: Estimate { value: 1.0 - ideal.value, low: 1.0 - ideal.high, high: 1.0 - ideal.low },
    }
}

fn smallest(model: &Model<'_>) -> Smallest {
    let (profile, now) = (model.profile, model.now());
    let cached = |share: f64| {
        let change = Change { cached_share: Some(share), ..Change::default() };
        model.share_of_now(now, &change)
    };
    Smallest {
        cached_share: smallest_share(profile.cached_share(), cached),
        workers: smallest_workers(model),
        cores: profile.cores.is_finite().then(|| smallest_cores(model, now)),
    }
}

/// Of all samples, with those that the cache has `now`.
fn smallest_share(now: f64, cached: impl Fn(f64) -> f64) -> Option<f64> {
    let best = cached(1.0) * AS_GOOD;
    if cached(now) <= best {
        return None;
    }
    let (mut too_little, mut enough) = (now, 1.0);
    while enough - too_little > 0.02 {
        let middle = (too_little + enough) / 2.0;
        if cached(middle) <= best { enough = middle } else { too_little = middle }
    }
    Some(enough)
}

fn smallest_workers(model: &Model<'_>) -> u32 {
    let profile = model.profile;
    let each = if profile.workers == 0 { 2 } else { profile.prefetch.div_ceil(profile.workers) };
    let candidates: Vec<u32> =
        (u32::from(profile.workers > 0)..=12).chain([14, 16, 20, 24, 32, 48, MAX_WORKERS]).collect();
    let mut shares = Vec::new();
    for workers in candidates {
        let setting = Setting { workers, prefetch: (workers * each).max(1) };
        shares.push((workers, model.share_of_now(setting, &Change::default())));
        // Three in a row that are no better: more would not be either.
        let tail: Vec<f64> = shares.iter().rev().take(4).map(|(_, share)| *share).collect();
        if workers > profile.workers
            && tail.len() == 4
            && tail[..3].iter().all(|share| *share > tail[3] * 0.99)
        {
            break;
        }
    }
    let best = shares.iter().map(|(_, share)| *share).fold(f64::INFINITY, f64::min);
    shares.iter().find(|(_, share)| *share <= best * AS_GOOD).map_or(profile.workers, |(workers, _)| *workers)
}

fn smallest_cores(model: &Model<'_>, now: Setting) -> f64 {
    let with = |cores: f64| {
        let change = Change { cores: Some(cores), ..Change::default() };
        model.share_of_now(now, &change)
    };
    let best = with(1e6) * AS_GOOD;
    CORES.into_iter().find(|cores| with(*cores) <= best).unwrap_or(CORES[CORES.len() - 1])
}
