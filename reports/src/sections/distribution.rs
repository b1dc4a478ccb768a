//! How step times are distributed.

use super::axis;
use super::section::{Block, Chart, Section};
use super::svg::{Anchor, Svg};
use super::table::{Cell, Table, figures};
use crate::run::Run;
use crate::text::training;
use stallscope_units as units;
use std::collections::BTreeMap;

const HEIGHT: f64 = 130.0;
/// Below the names of two marks.
const TOP: f64 = 34.0;
const BOTTOM: f64 = TOP + HEIGHT;

pub(super) fn section(run: &Run) -> Section {
    let buckets = buckets(run);
    let steps = buckets.values().fold(0u64, |sum, steps| sum.saturating_add(*steps));
    let (mut lead, mut blocks) = (String::new(), Vec::new());
    if steps == 0 {
        let missing =
            "Not shown: no single training step is known. A recording has them: stallscope report FILE.stall";
        blocks.push(Block::Note(missing.to_owned()));
    } else {
        let [median_ns, p95_ns] = quantiles(run, &buckets, steps);
        let whose = if run.summary.ranks.len() > 1 { " of all ranks" } else { "" };
        lead = format!(
            "{}{whose}: half of them took less than {}, one in twenty more than {}.",
            units::counted(steps, "training step"),
            units::duration(median_ns),
            units::duration(p95_ns)
        );
        blocks.push(Block::Chart(chart(&buckets, [("median", median_ns), ("p95", p95_ns)])));
        blocks.push(Block::Table(table(&buckets, steps)));
    }
    Section { id: "steps", heading: "Step times", lead, blocks }
}

type Bucket = (u64, u64);

/// Steps of all ranks by the bounds of their bucket.
fn buckets(run: &Run) -> BTreeMap<Bucket, u64> {
    let mut buckets = BTreeMap::new();
    for walls in run.step_walls.iter().filter(|walls| walls.steps > 0) {
        // No logarithm of nothing.
        let low_ns = walls.low_ns.clamp(1, u64::MAX - 1);
        let steps: &mut u64 = buckets.entry((low_ns, walls.high_ns.max(low_ns + 1))).or_default();
        *steps = steps.saturating_add(walls.steps);
    }
    buckets
}

/// Median and p95: the summary's where it has those of all these steps, else as exact as the buckets are.
fn quantiles(run: &Run, buckets: &BTreeMap<Bucket, u64>, steps: u64) -> [u64; 2] {
    if let ([_], Some(total)) = (run.summary.ranks.as_slice(), training(&run.summary.phases))
        && total.step_p50_ns > 0
    {
        return [total.step_p50_ns, total.step_p95_ns];
    }
    [0.5, 0.95].map(|share| {
        let wanted = share * steps as f64;
        let mut before = 0.0;
        for ((low_ns, high_ns), count) in buckets {
            let count = *count as f64;
            if before + count >= wanted {
                let within = (wanted - before) / count;
                return low_ns + (within * (high_ns - low_ns) as f64) as u64;
            }
            before += count;
        }
        buckets.last_key_value().map_or(0, |((_, high_ns), _)| *high_ns)
    })
}

fn chart(buckets: &BTreeMap<Bucket, u64>, marks: [(&str, u64); 2]) -> Chart {
    let low_ns = buckets.keys().map(|(low_ns, _)| *low_ns).min().unwrap_or(1) as f64 / 1.1;
    let high_ns = buckets.keys().map(|(_, high_ns)| *high_ns).max().unwrap_or(2) as f64 * 1.1;
    let place = |ns: u64| (ns as f64 / low_ns).ln() / (high_ns / low_ns).ln();
    let density =
        |low_ns: u64, high_ns: u64, steps: u64| steps as f64 / (place(high_ns) - place(low_ns)).max(1e-6);
    let densest = buckets
        .iter()
        .map(|((low_ns, high_ns), steps)| density(*low_ns, *high_ns, *steps))
        .fold(0.0, f64::max);
    let marked: Vec<String> =
        marks.iter().map(|(name, ns)| format!("{name} {}", units::duration(*ns))).collect();
    let desc = format!("Histogram on a logarithmic axis; {}.", marked.join(", "));
    let mut svg = Svg::new("steps-chart", BOTTOM + 22.0, "Training steps by the time they took", &desc);
    axis::logarithmic(&mut svg, low_ns, high_ns, TOP, BOTTOM);
    for ((low_ns, high_ns), steps) in buckets {
        // A single step among thousands is to be seen too.
        let height = (density(*low_ns, *high_ns, *steps) / densest * HEIGHT).max(1.5);
        let hint = format!(
            "{} to {}: {}",
            units::duration(*low_ns),
            units::duration(*high_ns),
            units::counted(*steps, "step")
        );
        let (x, end) = (place(*low_ns), place(*high_ns));
        svg.plain_rect(x, BOTTOM - height, end - x, height, "steps", &hint);
    }
    svg.line((0.0, BOTTOM), (1.0, BOTTOM), "base");
    for (line, ((_, ns), label)) in marks.iter().zip(marked).enumerate() {
        let (x, y) = (place(*ns), 11.0 + 15.0 * line as f64);
        svg.line((x, y - 9.0), (x, BOTTOM), "mark");
        let (anchor, aside) = if x > 0.7 { (Anchor::End, -4.0) } else { (Anchor::Start, 4.0) };
        svg.text(x, aside, y, anchor, "label mark-name", &label);
    }
    Chart {
        svg: svg.finish(),
        legends: Vec::new(),
        margin: "",
        caption: "Time of a step, logarithmic; the area of a bar is its share of the steps.".to_owned(),
    }
}

fn table(buckets: &BTreeMap<Bucket, u64>, all: u64) -> Table {
    let columns = vec![figures("From"), figures("Up to"), figures("Steps"), figures("Share")];
    let row = |((low_ns, high_ns), steps): (&Bucket, &u64)| {
        vec![
            Cell::duration(*low_ns),
            Cell::duration(*high_ns),
            Cell::count(*steps),
            Cell::share(units::share(*steps, all)),
        ]
    };
    Table {
        folded: true,
        ..Table::new("The figures of this chart", columns, buckets.iter().map(row).collect())
    }
}
