//! When checkpoints were saved, how long that took, and whether training stood still for it.

use super::axis::{self, Span};
use super::clock;
use super::fill::Fill;
use super::section::{Block, Chart, Legend, Section};
use super::svg::{Anchor, Svg};
use super::table::{Cell, Table, figures, words};
use crate::run::{Run, took_ns};
use crate::text::saved_in_words;
use stallscope_model::CheckpointEvent;
use stallscope_units as units;
use std::cmp::Reverse;

/// Saves in the table, the longest.
const LISTED: usize = 12;
/// Saves on the strip, again the longest.
const DRAWN: usize = 2000;

const LANE: f64 = 16.0;
const PITCH: f64 = 22.0;
const BOTTOM: f64 = 2.0 * PITCH;

pub(super) fn section(run: &Run) -> Section {
    let saved = saved_in_words(&run.summary);
    let mut blocks = Vec::new();
    let mut longest: Vec<Save<'_>> = run.checkpoints.iter().enumerate().collect();
    longest.sort_by_key(|(_, event)| Reverse(event.end_ns.saturating_sub(event.start_ns)));
    match (longest.as_slice(), &saved) {
        ([], None) => blocks.push(Block::Note("No checkpoint was saved.".to_owned())),
        ([], Some(_)) => blocks.push(Block::Note(
            "When each was saved is not shown: single saves are in recordings with the loader shim, from format 2 on."
                .to_owned(),
        )),
        (events, _) => {
            blocks.push(Block::Chart(chart(run, &events[..events.len().min(DRAWN)])));
            blocks.push(Block::Table(table(&events[..events.len().min(LISTED)], events.len())));
            blocks.extend(outside_calls(run).map(Block::Note));
        }
    }
    let lead = saved.map(|saved| format!("Saved: {saved}.")).unwrap_or_default();
    Section { id: "checkpoints", heading: "Checkpoints", lead, blocks }
}

/// Why the saves in which training stood still are shorter together than it stood still.
fn outside_calls(run: &Run) -> Option<String> {
    let stood_still = run.checkpoints.iter().filter(|event| !event.background);
    let in_calls = stood_still.map(|event| event.end_ns.saturating_sub(event.start_ns));
    let in_calls_ns = in_calls.fold(0, u64::saturating_add);
    let blocked = run.summary.ranks.iter().map(|rank| rank.checkpoints.blocked_ns);
    let blocked_ns = blocked.fold(0, u64::saturating_add);
    let outside_ns = blocked_ns.saturating_sub(in_calls_ns);
    (in_calls_ns > 0 && outside_ns > blocked_ns / 100).then(|| {
        format!(
            "Training stood still for {} more outside these calls, where the script itself writes, syncs or renames files.",
            units::duration(outside_ns)
        )
    })
}

/// With its place in the run's list.
type Save<'a> = (usize, &'a CheckpointEvent);

fn chart(run: &Run, events: &[Save<'_>]) -> Chart {
    let span = span(run, events);
    let desc = format!(
        "A strip of {} in the training loop, and one of those in the background.",
        units::counted(events.len() as u64, "save")
    );
    let mut svg = Svg::new("checkpoints-chart", BOTTOM + 22.0, "Checkpoints over time", &desc);
    axis::wall_clock(&mut svg, span, 0.0, BOTTOM);
    for (lane, name) in ["blocking", "background"].into_iter().enumerate() {
        let y = lane as f64 * PITCH;
        svg.text(0.0, -8.0, y + LANE - 2.0, Anchor::End, "name", name);
        svg.plain_rect(0.0, y + 2.0, 1.0, LANE, "track", "");
    }
    let mut legend = Vec::new();
    for (_, event) in events {
        let Some((x, width)) = span.part(event.start_ns, event.end_ns) else { continue };
        let fill = Fill::Cause(event.cause);
        let y = if event.background { PITCH } else { 0.0 };
        let took = units::duration(event.end_ns.saturating_sub(event.start_ns));
        let hint = format!(
            "{}, rank {}: {}, {} for {took}",
            clock::time(event.start_ns),
            event.rank,
            event.saver,
            event.cause.name()
        );
        // A save of a moment in a run of days is to be seen too.
        svg.rect(x, y + 2.0, width.max(0.003), LANE, fill, &hint);
        if !legend.contains(&fill) {
            legend.push(fill);
        }
    }
    Chart {
        svg: svg.finish(),
        legends: Legend::only(legend),
        margin: "names",
        caption: "Wall clock, UTC.".to_owned(),
    }
}

/// The whole run, as far as its ends are known.
fn span(run: &Run, events: &[Save<'_>]) -> Span {
    let first_ns = events.iter().map(|(_, event)| event.start_ns).min().unwrap_or(0);
    let last_ns = events.iter().map(|(_, event)| event.end_ns).max().unwrap_or(0);
    let job = &run.summary.job;
    let start_ns = match (run.rollups.first(), job.attached) {
        (Some(rollup), _) => rollup.start_ns,
        (None, false) if job.started_wall_ns > 0 => job.started_wall_ns,
        _ => first_ns,
    };
    let end_ns = start_ns.saturating_add(took_ns(&run.summary));
    Span::new(start_ns.min(first_ns), end_ns.max(last_ns))
}

fn table(longest: &[Save<'_>], all: usize) -> Table {
    let columns = vec![
        words("At (UTC)"),
        figures("Rank"),
        words("Saved by"),
        words("Doing"),
        words("Training"),
        figures("Took"),
        figures("Size"),
        figures("Rate"),
    ];
    let row = |(place, event): &Save<'_>| {
        let source = |field: &str| format!("/checkpoints/{place}/{field}");
        let took_ns = event.end_ns.saturating_sub(event.start_ns);
        let rate = match (event.bytes, took_ns) {
            (0, _) | (_, 0) => Cell::nothing(),
            (bytes, ns) => {
                let a_second = (bytes as f64 / (ns as f64 / 1e9)) as u64;
                Cell { text: format!("{}/s", units::bytes(a_second)), ..Cell::bytes(a_second) }
            }
        };
        vec![
            Cell { exact: event.start_ns.to_string(), ..Cell::words(&clock::time(event.start_ns)) }
                .of(source("start_wall_ns")),
            Cell::number(event.rank.into()).of(source("rank")),
            Cell::words(&event.saver),
            Cell::words(event.cause.name()).with(Fill::Cause(event.cause)),
            Cell::words(if event.background { "went on" } else { "stood still" }),
            Cell::duration(took_ns),
            match event.bytes {
                0 => Cell::nothing(),
                bytes => Cell::bytes(bytes).of(source("bytes")),
            },
            rate,
        ]
    };
    let caption = match all > longest.len() {
        true => format!("The {} longest of {}", longest.len(), units::counted(all as u64, "save")),
        false => "Saves, the longest first".to_owned(),
    };
    Table::new(caption, columns, longest.iter().map(row).collect())
}
