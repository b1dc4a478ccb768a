//! What a cache, or a larger one, would have of a job's samples, and what that would bring.

use stallscope_control::{Change, Missed, NodeState, Profile, larger_cache, what_if};
use stallscope_ledger::{Reread, by_cache, reread};
use stallscope_model::{
    Budgets, CacheCurve, CacheState, CacheSummary, Estimate, Expected, Knob, KnobState, LoaderEpochs,
    RankSummary, RemedyKind, RunSummary,
};

/// Of the memory that is left, what a cache may take.
const OF_FREE: f64 = 0.8;
/// A cache that would have less of the samples is not advised.
const LEAST_SHARE: f64 = 0.05;
/// What of a job says how much it reads again and again, and what its caches give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) ranks: &'a [RankSummary],
    pub(crate) caches: &'a [CacheSummary],
    pub(crate) epochs: &'a [LoaderEpochs],
}

impl<'a> Reading<'a> {
    pub(crate) fn of(summary: &'a RunSummary) -> Reading<'a> {
        Reading { ranks: &summary.ranks, caches: &summary.caches, epochs: &summary.epochs }
    }

    fn cache(&self, profile: &Profile) -> Option<&'a CacheSummary> {
        self.caches.iter().find(|cache| (cache.rank, cache.loader) == (profile.rank, profile.loader))
    }

    fn state(&self, profile: &Profile) -> Option<&'a CacheState> {
        self.cache(profile)?.state.as_ref()
    }

    /// How a cache stands, and what others would miss, where both are known.
    fn curve(&self, profile: &Profile) -> Option<(&'a CacheState, &'a CacheCurve)> {
        let cache = self.cache(profile)?;
        let state = cache.state.as_ref().filter(|state| state.capacity_bytes > 0)?;
        Some((state, RunSummary::curve_of(self.caches, self.ranks, cache)?))
    }

    fn reread(&self, profile: &Profile) -> Option<Reread> {
        let epochs: Vec<LoaderEpochs> =
            self.epochs.iter().filter(|epochs| epochs.loader == profile.loader).copied().collect();
        reread(&epochs, self.ranks)
    }
}

/// How large a cache somebody asks about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Of all samples, 0 to 1.
    Share(f64),
    /// Times the one that there is.
    Times(f64),
    Bytes(u64),
}

/// What a cache of some size would have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cached {
    /// Of the samples, 0 to 1.
    pub share: f64,
    /// What its miss-ratio curve says, where there is one.
    pub curve: Option<Missed>,
}

/// What a cache of this size would have: from the cache's miss-ratio curve, where there is one. Without, and of a data set
/// that is drawn as torch draws it, what is kept is a sample of it like any other, so that the hits that save a read grow
/// as the cache does.
///
/// # Errors
/// A sentence where there is nothing to start from, or the size is beyond what the curve knows.
pub fn cached(size: CacheSize, profile: &Profile, summary: &RunSummary) -> Result<Cached, String> {
    let reading = Reading::of(summary);
    if let Some((state, curve)) = reading.curve(profile) {
        let now_bytes = state.capacity_bytes;
        let then_bytes = match size {
            CacheSize::Share(share) => (share * curve.dataset_bytes() as f64) as u64,
            CacheSize::Times(times) => (times * now_bytes as f64) as u64,
            CacheSize::Bytes(bytes) => bytes,
        };
        let Some(then) = curve.miss_ratio(then_bytes) else {
            let most = curve.points().last().map_or(0, |last| last.capacity_bytes);
            return Err(format!(
                "what a cache of {} would have is not known: the miss-ratio curve of this one, of {}, ends at {}; ask for \
                 no more, or ask again when the cache is larger",
                mebibytes(then_bytes),
                mebibytes(now_bytes),
                mebibytes(most)
            ));
        };
        let missed = Missed { now_bytes, now: curve.miss_ratio(now_bytes).unwrap_or(then), then_bytes, then };
        return Ok(Cached { share: missed.share(profile.cached_share()), curve: Some(missed) });
    }
    let share = linear_share(size, profile, &reading)?;
    Ok(Cached { share, curve: None })
}

fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        1..100 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        mib => format!("{mib} MiB"),
    }
}

fn linear_share(size: CacheSize, profile: &Profile, reading: &Reading<'_>) -> Result<f64, String> {
    let (hits, reuses) = (profile.cached_share(), profile.reused_share());
    let times = match size {
        CacheSize::Share(share) => return Ok(share),
        CacheSize::Times(times) if reuses > 0.0 => times,
        CacheSize::Times(_) => {
            return Err("no cache has saved a read of late, so that nobody knows what a larger one would have; give a \
                        share of the samples: --cache 40%"
                .to_owned());
        }
        CacheSize::Bytes(bytes) => match (reading.state(profile), reading.reread(profile)) {
            (Some(state), _) if reuses > 0.0 && state.capacity_bytes > 0 => {
                bytes as f64 / state.capacity_bytes as f64
            }
            (_, Some(found)) => return Ok((bytes as f64 / found.bytes as f64).min(1.0)),
            _ => {
                return Err("how large the data set is is not known: that takes two whole epochs with kernel evidence, or a \
                            cache; give a share of the samples: --cache 40%"
                    .to_owned());
            }
        },
    };
    Ok((hits + (times - 1.0) * reuses).clamp(0.0, 1.0))
}

/// What a cache, or a larger one, would bring within `budgets` and what `node` has left; `None` where nobody knows what it
/// would have. What ranks of a machine would share is advised for the first of them.
pub(crate) fn expect_cache(
    profile: &Profile,
    reading: &Reading<'_>,
    knobs: &[Knob],
    budgets: &Budgets,
    node: &NodeState,
) -> Option<Expected> {
    let free = budgets
        .memory_bytes
        .map_or(node.memory_available_bytes, |budget| budget.min(node.memory_available_bytes));
    let free = (free as f64 * OF_FREE) as u64;
    let refused = refusal(profile, knobs);
    let (now, to, share, mut why) = match reading.state(profile) {
        Some(state) => larger(profile, state, reading.curve(profile).map(|(_, curve)| curve), knobs, free)?,
        None => first(profile, &reading.reread(profile)?, free, refused.is_some())?,
    };
    let gain = match share > profile.cached_share() {
        true => what_if(profile, &Change { cached_share: Some(share), ..Change::default() }).ok()?.gain,
        false => Estimate::default(),
    };
    if let Some(reason) = refused.filter(|_| to > 0) {
        why = format!("{why}. {}", reason.trim_end_matches('.'));
    }
    let (rank, loader, kind) = (profile.rank, profile.loader, RemedyKind::Cache);
    Some(Expected { rank, loader, kind, now, to, gain, either: None, by_script: refused.is_some(), why })
}

/// Why the cache of an unmodified job can keep nothing of the loader's data set.
fn refusal<'a>(profile: &Profile, knobs: &'a [Knob]) -> Option<&'a str> {
    let at = (profile.rank, Some(profile.loader));
    let knob = knobs.iter().find(|knob| knob.name == "cache.bytes" && (knob.rank, knob.loader) == at)?;
    (knob.state == KnobState::Unavailable).then_some(knob.reason.as_str())
}

type Size = (u64, u64, f64, String);

/// A cache where there is none.
fn first(profile: &Profile, found: &Reread, free: u64, by_script: bool) -> Option<Size> {
    // A twentieth more, for what keeps account of samples.
    let whole = found.bytes.saturating_add(found.bytes / 20);
    let whole_mib = whole.div_ceil(1 << 20) << 20;
    let to = if whole_mib <= free { whole_mib } else { free >> 20 << 20 };
    let share = (to as f64 / whole as f64).min(1.0);
    if profile.cached_share() > 0.0 {
        return None;
    }
    if share < LEAST_SHARE {
        return Some((
            0,
            0,
            0.0,
            "there is no memory for a cache that would have a share worth having".to_owned(),
        ));
    }
    let mib = to >> 20;
    let mut why = format!(
        "each epoch reads the same {} MiB from storage again; {} would have {:.0}% of the samples from the second epoch on, with the same draws",
        found.bytes >> 20,
        by_cache(&format!("{mib}MiB"), by_script),
        100.0 * share
    );
    if share < 0.95 {
        why.push_str(REMARK);
    }
    Some((0, to, share, why))
}

/// More of a cache that is full.
fn larger(
    profile: &Profile,
    state: &CacheState,
    curve: Option<&CacheCurve>,
    knobs: &[Knob],
    free: u64,
) -> Option<Size> {
    let at = (profile.rank, profile.loader);
    let larger = larger_cache(at, &profile.cached(), state, curve, knobs, free)?;
    let mut why = larger.why();
    if larger.share < 0.95 {
        why.push_str(REMARK);
    }
    Some((larger.now_bytes, larger.to_bytes, larger.share, why))
}

/// Nothing but the user's word changes which samples are drawn.
const REMARK: &str = ". With that much memory sampling=\"reuse\" would read less still; it draws samples again while they are \
     there, which changes what training sees, so that it is yours to choose";

#[cfg(test)]
mod tests;
