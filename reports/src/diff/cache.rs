//! What the caches gave in training in both runs, and whether that changed.

use super::noise::{self, Spread};
use super::{Judgement, judged};
use crate::Run;
use crate::style::{Line, Style, left, right};
use serde::Serialize;
use stallscope_model::{CacheUses, JobCache, Phase};
use stallscope_units as units;
use std::collections::BTreeMap;

/// A share of the draws, or a sum by draws.
type Ratio = fn(&CacheUses) -> u64;

/// By their names in JSON, how they are called, and whether they are shares.
const FIGURES: [(&str, &str, bool, Ratio); 7] = [
    ("hit_share", "hits", true, |uses| uses.hits),
    ("reuse_share", "  reused", true, |uses| uses.reuses()),
    ("prefetched_share", "  fetched ahead", true, |uses| uses.prefetched),
    ("late_share", "  late", true, |uses| uses.late),
    ("substitution_share", "substituted", true, |uses| uses.substitutions),
    ("miss_share", "missed", true, |uses| uses.misses),
    ("source_bytes_per_draw", "read a draw", false, |uses| uses.source_bytes),
];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheDiff {
    /// `None`: that run has no cache.
    pub a: Option<CacheSide>,
    pub b: Option<CacheSide>,
    pub figures: Vec<CacheChange>,
}

/// The caches of one of the runs; uses are those of training, all ranks and loaders together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheSide {
    pub draws: u64,
    pub hits: u64,
    pub substitutions: u64,
    pub misses: u64,
    pub reuses: u64,
    pub prefetched: u64,
    pub late: u64,
    pub pool_bytes: u64,
    pub source_bytes: u64,
    /// State of the pool at the end; `None` where it is not known.
    pub kept_bytes: Option<u64>,
    pub capacity_bytes: Option<u64>,
    pub evictions: Option<u64>,
}

/// One figure by draws in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheChange {
    pub figure: &'static str,
    /// `None` where there was no draw, in all of these.
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// `b - a`.
    pub change: Option<f64>,
    /// The change is known up to this, more or less.
    pub noise: Option<f64>,
    pub judgement: Judgement,
}

/// `None` where neither run has a cache.
pub(super) fn between(a: &Run, b: &Run) -> Option<CacheDiff> {
    let jobs = [a, b].map(|run| run.summary.cache());
    if jobs.iter().all(Option::is_none) {
        return None;
    }
    let windows = [a, b].map(windows);
    let figures = FIGURES.map(|(figure, _, _, of)| {
        let value = |job: &Option<JobCache>| {
            let uses = job.as_ref().map(|job| job.training).filter(|uses| uses.draws() > 0)?;
            Some(of(&uses) as f64 / uses.draws() as f64)
        };
        let (a, b) = (value(&jobs[0]), value(&jobs[1]));
        let change = a.zip(b).map(|(a, b)| b - a);
        let spreads = [0, 1].map(|side| spread(&windows[side], of));
        let (noise, judgement) = judged(change, spreads);
        CacheChange { figure, a, b, change, noise, judgement }
    });
    let [a, b] = jobs.map(|job| job.as_ref().map(CacheSide::of));
    Some(CacheDiff { a, b, figures: figures.into() })
}

/// Draws in training by time, all ranks together.
fn windows(run: &Run) -> Vec<CacheUses> {
    let mut windows: BTreeMap<u64, CacheUses> = BTreeMap::new();
    for period in run.caches.iter().filter(|period| period.phase == Phase::Training) {
        *windows.entry(period.start_ns).or_default() += &period.uses;
    }
    windows.into_values().filter(|uses| uses.draws() > 0).collect()
}

fn spread(windows: &[CacheUses], of: Ratio) -> Option<Spread> {
    let ratios: Vec<(f64, f64)> = windows.iter().map(|uses| (of(uses) as f64, uses.draws() as f64)).collect();
    noise::spread(&ratios)
}

impl CacheSide {
    fn of(job: &JobCache) -> CacheSide {
        let uses = &job.training;
        CacheSide {
            draws: uses.draws(),
            hits: uses.hits,
            substitutions: uses.substitutions,
            misses: uses.misses,
            reuses: uses.reuses(),
            prefetched: uses.prefetched,
            late: uses.late,
            pool_bytes: uses.pool_bytes,
            source_bytes: uses.source_bytes,
            kept_bytes: job.state.map(|state| state.kept_bytes),
            capacity_bytes: job.state.map(|state| state.capacity_bytes),
            evictions: job.state.map(|state| state.evictions),
        }
    }
}

/// Below the phases: what either run has of it.
pub(super) fn render(cache: &CacheDiff, style: &Style, text: &mut String) {
    text.push('\n');
    Line::default()
        .bold(left("Cache", 18))
        .dim(right("A", 10))
        .dim(right("B", 10))
        .dim(right("change", 14))
        .render(style, text);
    let sides = [&cache.a, &cache.b];
    let counted = |name: &str, of: fn(&CacheSide) -> Option<String>| {
        let [a, b] = sides.map(|side| side.as_ref().and_then(of).unwrap_or_else(|| "-".to_owned()));
        Line::new(format!("  {}", left(name, 16))).plain(right(&a, 10)).plain(right(&b, 10))
    };
    counted("size", |side| side.capacity_bytes.map(units::memory)).render(style, text);
    counted("kept", |side| side.kept_bytes.map(units::memory)).render(style, text);
    counted("evictions", |side| side.evictions.map(units::count)).render(style, text);
    counted("drawn", |side| Some(units::count(side.draws))).render(style, text);
    for (change, (_, name, is_share, _)) in cache.figures.iter().zip(FIGURES) {
        // What neither run ever had.
        if [change.a, change.b].into_iter().flatten().all(|value| value == 0.0) {
            continue;
        }
        row(change, name, is_share, style).render(style, text);
    }
    counted("from memory", |side| Some(units::bytes(side.pool_bytes))).render(style, text);
    counted("read", |side| Some(units::bytes(side.source_bytes))).render(style, text);
}

fn row(change: &CacheChange, name: &str, is_share: bool, style: &Style) -> Line {
    let bytes = |value: f64| units::bytes(value.round() as u64);
    let value = |value: f64| if is_share { units::percent_exact(value) } else { bytes(value) };
    let known = |found: Option<f64>| found.map_or_else(|| "-".to_owned(), value);
    let margin = |noise: f64| if is_share { format!("{:.1}", noise * 100.0) } else { bytes(noise) };
    let changed = change.change.map_or_else(
        || "-".to_owned(),
        |changed| match is_share {
            true => format!("{:+.1} points", changed * 100.0),
            false => format!("{}{}", if changed < 0.0 { '-' } else { '+' }, bytes(changed.abs())),
        },
    );
    let line = Line::new(format!("  {}", left(name, 16)))
        .plain(right(&known(change.a), 10))
        .plain(right(&known(change.b), 10));
    super::text::judged(line, &changed, change.judgement, change.noise.map(margin), style)
}
