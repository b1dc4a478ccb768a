//! What the caches of loaders gave: one line, and true hits over time.

use super::job::SCALE;
use crate::snapshot::RunView;
use crate::text::{clip, ink, left, plain};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_look::cache;
use stallscope_model::{CachePeriod, CacheSummary, CacheUses, JobCache, Phase, WorkerPeriod};
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

/// In the time shown; of the whole run where that is not known by time, or nothing was drawn in it.
fn shown(run: &RunView) -> Option<JobCache> {
    let within = JobCache::of(&CacheSummary::of_periods(&run.caches), &run.summary.ranks);
    let drew = |job: &JobCache| job.training.draws() > 0 || job.other.draws() > 0;
    within.filter(drew).or_else(|| run.summary.cache())
}

/// As many facts as fit; nothing where no loader has a cache.
pub(super) fn line(run: &RunView, theme: &Theme, width: usize) -> Option<Line<'static>> {
    let mut facts = cache::facts(&shown(run)?);
    let room = width.saturating_sub(7);
    while facts.len() > 1 && facts.join(theme.dot()).width() > room {
        facts.pop();
    }
    Some(Line::from(vec![ink("cache  ", theme.dim()), plain(clip(&facts.join(theme.dot()), room, theme))]))
}

/// The share of true hits in training below the ledger's time, as heights; nothing where it is not known by time.
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
