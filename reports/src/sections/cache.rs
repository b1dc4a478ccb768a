//! What the caches of loaders gave, over time and for each loader.

use super::axis::{self, Span};
use super::clock;
use super::curve;
use super::fill::{Fill, Found};
use super::section::{Block, Chart, Legend, Section};
use super::svg::{Anchor, COVERED, Svg};
use super::table::{Cell, Column, Table, figures, words};
use crate::run::Run;
use crate::text::held_in_words;
use stallscope_look::cache;
use stallscope_model::{CacheState, CacheUses, Phase};
use stallscope_units as units;
use std::collections::BTreeMap;

/// Rows of the table; the JSON report has all.
const LISTED: usize = 200;
/// The most columns in a chart.
const COLUMNS: usize = 160;
const TOP: f64 = 6.0;
const HEIGHT: f64 = 110.0;
const BOTTOM: f64 = TOP + HEIGHT;

pub(super) fn section(run: &Run) -> Section {
    let mut blocks = Vec::new();
    let lead = match run.summary.cache() {
        Some(job) => format!("{}.", cache::facts(&job).join(" · ")),
        None if run.summary.held.is_some() => String::new(),
        None => {
            let missing = "No loader has a cache. stallscope run --cache 8GiB keeps the files of its samples in memory, \
                 stallscope.DataLoader(..., cache=\"8GiB\") samples of any kind; stallscope tune says whether that would help.";
            blocks.push(Block::Note(missing.to_owned()));
            String::new()
        }
    };
    let held = run.summary.held.as_ref().map(held_in_words);
    blocks.extend(held.map(|words| Block::Note(format!("Files held in the page cache: {words}."))));
    blocks.extend(chart(run).map(Block::Chart));
    if !run.summary.caches.is_empty() {
        blocks.extend(tables(run).map(Block::Table));
        blocks.extend(curve::blocks(run));
    }
    Section { id: "cache", heading: "Cache", lead, blocks }
}

/// Kinds of uses in each period of training, all loaders together.
fn chart(run: &Run) -> Option<Chart> {
    let mut periods: BTreeMap<u64, CacheUses> = BTreeMap::new();
    for period in run.caches.iter().filter(|period| period.phase == Phase::Training) {
        *periods.entry(period.start_ns).or_default() += &period.uses;
    }
    periods.retain(|_, uses| uses.draws() > 0);
    let (first_ns, last_ns) = (*periods.keys().next()?, *periods.keys().next_back()?);
    let length_ns = run.period.ns();
    let span = Span::new(first_ns, last_ns.saturating_add(length_ns));
    let all = span.length_ns().div_ceil(length_ns);
    let width_ns = length_ns.saturating_mul(all.div_ceil(COLUMNS as u64).max(1));
    let mut columns: BTreeMap<u64, CacheUses> = BTreeMap::new();
    for (start_ns, uses) in &periods {
        *columns.entry((start_ns - first_ns) / width_ns).or_default() += uses;
    }
    let desc = "Draws in training by what they were found as; the table below has the sums.";
    let mut svg = Svg::new("cache-chart", BOTTOM + 22.0, "What draws were found as, over time", desc);
    let mut legend = Vec::new();
    for (place, uses) in &columns {
        let start_ns = first_ns.saturating_add(place.saturating_mul(width_ns));
        let Some((x, width)) = span.part(start_ns, start_ns.saturating_add(width_ns)) else { continue };
        let mut from = 0.0;
        for found in Found::ALL {
            let share = uses.share(found.of(uses)).unwrap_or(0.0).min(1.0 - from);
            if share <= 0.0 {
                continue;
            }
            let fill = Fill::Found(found);
            let hint = format!("{}: {} {}", clock::time(start_ns), units::percent(share), fill.name());
            let (y, height) = (BOTTOM - (from + share) * HEIGHT, share * HEIGHT);
            svg.rect(x, y, (width + COVERED).min(1.0 - x), height, fill, &hint);
            from += share;
            if !legend.contains(&fill) {
                legend.push(fill);
            }
        }
    }
    for (share, label) in [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")] {
        let y = BOTTOM - share * HEIGHT;
        svg.line((0.0, y), (1.0, y), "grid");
        svg.text(0.0, -8.0, y + 4.0, Anchor::End, "label", label);
    }
    axis::wall_clock(&mut svg, span, BOTTOM, BOTTOM);
    let caption = format!(
        "In intervals of {}. Reused and fetched ahead are true hits. Wall clock, UTC.",
        units::duration(width_ns)
    );
    Some(Chart { svg: svg.finish(), legends: Legend::only(legend), margin: "figures", caption })
}

/// What draws were found as, and what that moved and keeps: apart, as together they would be too wide to print.
fn tables(run: &Run) -> [Table; 2] {
    let found = vec![
        figures("Rank"),
        figures("Loader"),
        words("For"),
        figures("Drawn"),
        figures("Hits"),
        figures("Reused"),
        figures("Fetched ahead"),
        figures("Late"),
        figures("Substituted"),
        figures("Missed"),
    ];
    let moved = vec![
        figures("Rank"),
        figures("Loader"),
        words("For"),
        figures("From memory"),
        figures("Read"),
        figures("Kept"),
        figures("Of"),
        figures("Evictions"),
    ];
    let mut rows = [Vec::new(), Vec::new()];
    // Numbered as in the JSON report.
    let mut place = 0;
    for cache in &run.summary.caches {
        let mut state = cache.state;
        for (phase, uses) in [(Phase::Training, &cache.training), (Phase::Evaluation, &cache.other)] {
            if phase != Phase::Training && uses.draws() == 0 {
                continue;
            }
            let source = |field: &str| format!("/cache/{place}/{field}");
            let count = |count: u64, field: &str| Cell::count(count).of(source(field));
            let stated = state.take();
            let of_state = |of: fn(&CacheState) -> u64, cell: fn(u64) -> Cell, field: &str| {
                stated.as_ref().map_or_else(Cell::nothing, |state| cell(of(state)).of(source(field)))
            };
            let whose = || {
                vec![
                    Cell::number(cache.rank.into()).of(source("rank")),
                    Cell::number(cache.loader.into()).of(source("loader")),
                    Cell::words(phase.name()),
                ]
            };
            let (mut draws, mut bytes) = (whose(), whose());
            draws.extend([
                Cell::count(uses.draws()).of(["hits", "substitutions", "misses"].map(source).join(" ")),
                uses.hit_share().map_or_else(Cell::nothing, Cell::share),
                count(uses.reuses(), "reuses"),
                count(uses.prefetched, "prefetched"),
                count(uses.late, "late"),
                count(uses.substitutions, "substitutions"),
                count(uses.misses, "misses"),
            ]);
            bytes.extend([
                Cell::bytes(uses.pool_bytes).of(source("pool_bytes")),
                Cell::bytes(uses.source_bytes).of(source("source_bytes")),
                of_state(|state| state.kept_bytes, memory, "kept_bytes"),
                of_state(|state| state.capacity_bytes, memory, "capacity_bytes"),
                of_state(|state| state.evictions, Cell::count, "evictions"),
            ]);
            rows[0].push(draws);
            rows[1].push(bytes);
            place += 1;
        }
    }
    let [draws, bytes] = rows;
    [
        capped("What samples were found as, by loader", found, draws),
        capped("What that moved, and what is kept: ranks of one machine share it", moved, bytes),
    ]
}

pub(super) fn capped(caption: &str, columns: Vec<Column>, mut rows: Vec<Vec<Cell>>) -> Table {
    let all = rows.len();
    rows.truncate(LISTED);
    let caption = match all > LISTED {
        true => format!("{caption}; the first {LISTED} of {}", units::count(all as u64)),
        false => caption.to_owned(),
    };
    Table::new(caption, columns, rows)
}

fn memory(bytes: u64) -> Cell {
    Cell { exact: bytes.to_string(), ..Cell::words(&units::memory(bytes)) }
}
