//! What caches of other sizes would miss: a loader's miss-ratio curve, and its figures.

use super::axis;
use super::section::{Block, Chart};
use super::svg::{Anchor, Svg};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use stallscope_look::cache;
use stallscope_model::CacheSummary;
use stallscope_units as units;
use std::collections::HashMap;

/// Charts on a page; the table has the sizes of all.
const DRAWN: usize = 4;
const TOP: f64 = 22.0;
const HEIGHT: f64 = 130.0;
const BOTTOM: f64 = TOP + HEIGHT;
/// Of a point.
const RADIUS: f64 = 3.5;

/// Nothing where no curve is known; a remark where there will never be one.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let curves: Vec<(&CacheSummary, cache::LoaderCurve)> =
        run.summary.cache_curves().into_iter().zip(cache::curves(&run.summary)).collect();
    if curves.is_empty() {
        return cache::no_curve(&run.summary).map(|why| Block::Note(format!("{why}."))).into_iter().collect();
    }
    let mut blocks = vec![Block::Heading("What other sizes would miss".to_owned())];
    let charts = curves.iter().take(DRAWN).enumerate().map(|(nth, (of, curve))| chart(nth, of, &curve.whose));
    blocks.extend(charts.map(Block::Chart));
    blocks.push(Block::Table(table(run, &curves)));
    blocks
}

fn chart(nth: usize, of: &CacheSummary, whose: &str) -> Chart {
    let points = of.curve.points();
    let most = points.last().map_or(1, |last| last.capacity_bytes).max(1);
    let place = |bytes: u64| bytes as f64 / most as f64;
    let height = |ratio: f64| BOTTOM - ratio * HEIGHT;
    let title = match whose {
        "" => "Share of the uses that a cache of each size would miss".to_owned(),
        whose => format!("Share of the uses that a cache of each size would miss: {whose}"),
    };
    let hints: Vec<String> = points
        .iter()
        .map(|point| {
            format!("{} {}", units::memory(point.capacity_bytes), units::percent(point.miss_ratio()))
        })
        .collect();
    let desc = format!("Missed with {}. The table below has the figures.", hints.join(", "));
    let mut svg = Svg::new(&format!("curve-chart-{nth}"), BOTTOM + 22.0, &title, &desc);
    for (share, label) in [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")] {
        svg.line((0.0, height(share)), (1.0, height(share)), "grid");
        svg.text(0.0, -8.0, height(share) + 4.0, Anchor::End, "label", label);
    }
    axis::memory(&mut svg, most, BOTTOM, BOTTOM);
    // A cache of no size misses every use.
    let mut before = (0.0, height(1.0));
    for point in points {
        let here = (place(point.capacity_bytes), height(point.miss_ratio()));
        svg.line(before, here, "curve");
        before = here;
    }
    for (point, hint) in points.iter().zip(&hints) {
        svg.dot(place(point.capacity_bytes), height(point.miss_ratio()), RADIUS, "curve-point", hint);
    }
    let now_bytes = of.state.map_or(0, |state| state.capacity_bytes);
    if let Some(ratio) = of.curve.miss_ratio(now_bytes).filter(|_| now_bytes > 0) {
        // A cache that is larger than the data set is marked at the end of the axis.
        let x = place(now_bytes.min(most));
        svg.line((x, TOP - 16.0), (x, BOTTOM), "mark");
        let (anchor, aside) = if x > 0.6 { (Anchor::End, -4.0) } else { (Anchor::Start, 4.0) };
        let now = format!("now {}: {} missed", units::memory(now_bytes), units::percent(ratio));
        svg.text(x, aside, TOP - 7.0, anchor, "label mark-name", &now);
    }
    let whose = if whose.is_empty() { String::new() } else { format!(" Of {whose}.") };
    Chart {
        svg: svg.finish(),
        legends: Vec::new(),
        margin: "figures",
        caption: format!(
            "Size of the cache; misses of the same uses, by its own policy, in the last epoch.{whose}"
        ),
    }
}

fn table(run: &Run, curves: &[(&CacheSummary, cache::LoaderCurve)]) -> Table {
    let columns = vec![
        figures("Rank"),
        figures("Loader"),
        figures("Cache of"),
        words("Is"),
        figures("Missed"),
        figures("Uses counted"),
        figures("Misses"),
    ];
    // Numbered as in the JSON report, which has the caches of all loaders.
    let mut place = 0;
    let mut rows = Vec::new();
    // Of those of one rank and loader the first counts.
    let shown: HashMap<(u32, u16), &cache::LoaderCurve> =
        curves.iter().rev().map(|(of, curve)| ((of.rank, of.loader), curve)).collect();
    for cache in &run.summary.caches {
        let shown = shown.get(&(cache.rank, cache.loader));
        for (nth, point) in cache.curve.points().iter().enumerate() {
            let row = place;
            let source = |field: &str| format!("/cache_curve/{row}/{field}");
            place += 1;
            let Some(curve) = shown else { continue };
            let is_now = curve.sizes.get(nth).is_some_and(|size| size.is_now);
            let size = Cell {
                exact: point.capacity_bytes.to_string(),
                ..Cell::words(&units::memory(point.capacity_bytes))
            };
            rows.push(vec![
                Cell::number(cache.rank.into()).of(source("rank")),
                Cell::number(cache.loader.into()).of(source("loader")),
                size.of(source("capacity_bytes")),
                Cell::words(if is_now { "now" } else { "" }),
                Cell::share(point.miss_ratio()),
                Cell::count(point.uses).of(source("uses")),
                Cell::count(point.misses).of(source("misses")),
            ]);
        }
    }
    super::cache::capped("What caches of other sizes would miss of the same uses", columns, rows)
}
