//! The caches of loaders, and what a holder has of the job's files: a line of facts, their uses, the miss-ratio curve, and true hits over time.

use super::job::SCALE;
use crate::snapshot::RunView;
use crate::text::{clip, ink, labelled, left, plain};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_look::cache;
use stallscope_model::{CachePeriod, CacheSummary, CacheUses, JobCache, Phase, WorkerPeriod};
use stallscope_units as units;
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

/// Columns of a line's label.
const NAME: usize = 7;

/// Uses in the time shown; those of the whole run where uses are not known by time, or nothing was drawn in that time.
fn shown(run: &RunView) -> Option<JobCache> {
    let within = JobCache::of(&CacheSummary::of_periods(&run.caches), &run.summary.ranks);
    let drew = |job: &JobCache| job.training.draws() > 0 || job.other.draws() > 0;
    within.filter(drew).or_else(|| run.summary.cache())
}

/// As many facts as fit; `None` where no loader has a cache.
pub(super) fn line(run: &RunView, theme: &Theme, width: usize) -> Option<Line<'static>> {
    let mut facts = cache::facts(&shown(run)?);
    let columns = width.saturating_sub(NAME);
    while facts.len() > 1 && facts.join(theme.dot()).width() > columns {
        facts.pop();
    }
    Some(Line::from(vec![ink("cache  ", theme.dim()), plain(clip(&facts.join(theme.dot()), columns, theme))]))
}

/// What is held of the job's files in the page cache; `None` where nobody asked for it.
pub(super) fn held(run: &RunView, theme: &Theme, width: usize) -> Option<Line<'static>> {
    let held = run.summary.held.as_ref()?;
    let mut facts = vec![
        units::memory_of(held.bytes, held.budget_bytes),
        units::counted(held.files, "file"),
        format!("{} seen", units::count(held.known_files)),
        format!("{} read for it", units::bytes(held.brought_bytes)),
    ];
    if !held.limit.is_empty() {
        facts.insert(2, held.limit.clone());
    }
    let columns = width.saturating_sub(NAME);
    while facts.len() > 1 && facts.join(theme.dot()).width() > columns {
        facts.pop();
    }
    Some(Line::from(vec![ink("held   ", theme.dim()), plain(clip(&facts.join(theme.dot()), columns, theme))]))
}

/// Miss ratios of caches of other sizes, as many as fit, or why they are unknown; `None` where no loader has a cache.
pub(super) fn curve(run: &RunView, theme: &Theme, width: usize) -> Option<Line<'static>> {
    let curves = cache::curves(&run.summary);
    let columns = width.saturating_sub(NAME);
    let text = match &curves[..] {
        [] => cache::no_curve_briefly(&run.summary)?.to_owned(),
        [only] if only.whose.is_empty() => {
            let mut sizes = only.sizes.clone();
            let joined = |sizes: &[cache::Size]| {
                let one = |size: &cache::Size| {
                    format!("{}{} {}", size.size, if size.is_now { " now" } else { "" }, size.missed)
                };
                sizes.iter().map(one).collect::<Vec<_>>().join(theme.dot())
            };
            while sizes.len() > 1 && joined(&sizes).width() > columns {
                // The present size stays for comparison; of the others the smallest goes first.
                let goes = if sizes[0].is_now { sizes.len() - 1 } else { 0 };
                sizes.remove(goes);
            }
            joined(&sizes)
        }
        several => format!(
            "with other sizes: stallscope report tells, for {}",
            units::counted(several.len() as u64, "cache")
        ),
    };
    Some(Line::from(vec![ink("misses ", theme.dim()), plain(clip(&text, columns, theme))]))
}

/// The number of uses of each kind in the time shown; empty without any.
pub(super) fn uses(run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let Some(job) = shown(run) else { return Vec::new() };
    let uses = if job.training.draws() > 0 { &job.training } else { &job.other };
    if uses.draws() == 0 {
        return Vec::new();
    }
    let counted = [
        (uses.reuses(), "reused"),
        (uses.prefetched, "fetched ahead"),
        (uses.substitutions, "substituted"),
        (uses.misses, "missed"),
        (uses.late, "late"),
    ];
    let mut facts: Vec<String> =
        counted.into_iter().map(|(count, name)| format!("{} {name}", units::count(count))).collect();
    facts.push(format!("{} from memory", units::bytes(uses.pool_bytes)));
    facts.push(format!("{} read", units::bytes(uses.source_bytes)));
    labelled("uses   ", &facts.join(", "), Style::new(), width, theme)
}

/// The share of true hits in training as heights below the ledger's columns; `None` where it is not known by time.
pub(super) fn hits(run: &RunView, theme: &Theme, width: usize) -> Option<Line<'static>> {
    let mut by_time: BTreeMap<u64, CacheUses> = BTreeMap::new();
    for period in run.caches.iter().filter(|period: &&CachePeriod| period.phase == Phase::Training) {
        *by_time.entry(period.start_ns).or_default() += &period.uses;
    }
    by_time.retain(|_, uses| uses.draws() > 0);
    if by_time.is_empty() {
        return None;
    }
    let columns = width.saturating_sub(SCALE).max(1);
    let (from_ns, to_ns) = (run.window.from_ns, run.window.to_ns);
    let length_ns = to_ns.saturating_sub(from_ns).max(1);
    let edge = |column: usize| {
        from_ns.saturating_add((u128::from(length_ns) * column as u128 / columns as u128) as u64)
    };
    let heights = theme.heights();
    let cells = (0..columns).map(|column| {
        let mut uses = CacheUses::default();
        let first_ns = edge(column).saturating_sub(WorkerPeriod::LENGTH_NS - 1);
        let last_ns = edge(column + 1).max(edge(column).saturating_add(1));
        by_time.range(first_ns..last_ns).for_each(|(_, within)| uses += within);
        uses.hit_share().map_or((' ', Style::new()), |share| {
            let height = ((share * heights.len() as f64) as usize).min(heights.len() - 1);
            (heights[height], theme.good())
        })
    });
    let mut spans = vec![ink(left("hits", SCALE, theme), theme.dim())];
    spans.extend(super::bars::spans(cells.collect::<Vec<_>>()));
    Some(Line::from(spans))
}
