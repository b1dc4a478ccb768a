//! The ledger over time: the share of each cause in each interval, and the phase of the interval.

use super::axis;
use super::clock;
use super::columns::{Column, Columns};
use super::fill::Fill;
use super::section::{Block, Chart, Legend, Section};
use super::svg::{Anchor, COVERED, Svg};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use stallscope_model::{Cause, Phase};
use stallscope_units as units;

const TOP: f64 = 22.0;
const HEIGHT: f64 = 200.0;
const BOTTOM: f64 = TOP + HEIGHT;

pub(super) fn section(run: &Run, columns: Option<&Columns>) -> Section {
    let (lead, blocks) = match columns {
        Some(columns) => {
            let whose = match run.summary.ranks.len() {
                0 | 1 => String::new(),
                ranks => format!(" of all {} ranks together", units::count(ranks as u64)),
            };
            let lead = format!(
                "The share of each cause in the time{whose}, in intervals of {} from {}. The strip above names the \
                 phase.",
                units::duration(columns.width_ns),
                clock::moment(columns.span.start_ns),
            );
            (lead, vec![Block::Chart(chart(columns)), Block::Table(table(columns))])
        }
        None => {
            let missing = "Not shown: nothing is known of when steps were. A recording has it: stallscope report FILE.stall";
            (String::new(), vec![Block::Note(missing.to_owned())])
        }
    };
    Section { id: "over-time", heading: "Over time", lead, blocks }
}

fn chart(columns: &Columns) -> Chart {
    let shown = causes(columns);
    let names: Vec<&str> = shown.iter().map(|cause| cause.name()).collect();
    let desc = format!("Stacked shares of {}; the table below has the figures.", names.join(", "));
    let mut svg = Svg::new("over-time-chart", BOTTOM + 22.0, "Shares of the causes over time", &desc);
    let phases = phases(&mut svg, columns);
    for (place, column) in columns.columns.iter().enumerate() {
        let (x, width) = columns.place(place);
        let covered = (width + COVERED).min(1.0 - x);
        let (mut share, mut y) = (0.0, BOTTOM);
        for cause in &shown {
            share += column.share(*cause);
            // Whole pixels: between fractions of them the ground would shine through.
            let top = (BOTTOM - share * HEIGHT).round();
            if top < y {
                svg.rect(x, top, covered, y - top, Fill::Cause(*cause), "");
                y = top;
            }
        }
        if column.total_ns() > 0.0 {
            svg.plain_rect(x, TOP, width, HEIGHT, "over", &hint(columns, place, column));
        }
    }
    for (share, label) in [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")] {
        let y = BOTTOM - share * HEIGHT;
        svg.line((0.0, y), (1.0, y), "grid");
        svg.text(0.0, -8.0, y + 4.0, Anchor::End, "label", label);
    }
    axis::wall_clock(&mut svg, columns.span, BOTTOM, BOTTOM);
    Chart {
        svg: svg.finish(),
        legends: vec![
            Legend { name: "Phases", fills: phases.into_iter().map(Fill::Phase).collect() },
            Legend { name: "Causes", fills: shown.into_iter().map(Fill::Cause).collect() },
        ],
        margin: "figures",
        caption: "Wall clock, UTC. Where nothing is drawn, no step was under way or none had ended yet."
            .to_owned(),
    }
}

/// Causes that are large enough somewhere to be seen, in the order they are stacked.
fn causes(columns: &Columns) -> Vec<Cause> {
    let seen = |cause: &Cause| columns.columns.iter().any(|column| column.share(*cause) >= 0.005);
    Cause::ALL.into_iter().filter(seen).collect()
}

/// Draws a strip above the plot, a piece for each run of columns of the same phase; the phases, each once.
fn phases(svg: &mut Svg, columns: &Columns) -> Vec<Phase> {
    let mut seen = [false; Phase::ALL.len()];
    let mut from = 0;
    for pieces in columns.columns.chunk_by(|a, b| a.phase() == b.phase()) {
        let last = from + pieces.len() - 1;
        if let Some(phase) = pieces[0].phase() {
            let ((x, _), (end, width)) = (columns.place(from), columns.place(last));
            let width = end + width - x;
            seen[phase as usize] = true;
            svg.rect(x, 0.0, width, 16.0, Fill::Phase(phase), phase.name());
            // About what a letter takes of a plot on a narrow page.
            if phase.name().len() as f64 * 0.022 < width {
                svg.text(x, 5.0, 12.0, Anchor::Start, "phase-name", phase.name());
            }
        }
        from = last + 1;
    }
    Phase::ALL.into_iter().filter(|phase| seen[*phase as usize]).collect()
}

fn hint(columns: &Columns, place: usize, column: &Column) -> String {
    let start_ns = columns.start_ns(place);
    let mut parts: Vec<(Cause, f64)> = Cause::ALL.map(|cause| (cause, column.share(cause))).into();
    parts.retain(|(_, share)| *share >= 0.005);
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let parts: Vec<String> =
        parts.iter().map(|(cause, share)| format!("{} {}", cause.name(), units::percent(*share))).collect();
    let phase = column.phase().map(|phase| phase.name()).unwrap_or_default();
    format!("{}, {phase}: {}", clock::time(start_ns), parts.join(", "))
}

fn table(columns: &Columns) -> Table {
    let shown = causes(columns);
    let mut heads = vec![words("From (UTC)"), words("Phase")];
    heads.extend(shown.iter().map(|cause| {
        let mut column = figures(cause.name());
        column.fill = Some(Fill::Cause(*cause));
        column
    }));
    let rows = columns.columns.iter().enumerate().filter(|(_, column)| column.total_ns() > 0.0);
    let rows = rows.map(|(place, column)| {
        let phase = column.phase().map(|phase| phase.name()).unwrap_or_default();
        let mut row = vec![Cell::words(&clock::time(columns.start_ns(place))), Cell::words(phase)];
        row.extend(shown.iter().map(|cause| Cell::share(column.share(*cause))));
        row
    });
    Table { folded: true, ..Table::new("The figures of this chart", heads, rows.collect()) }
}
