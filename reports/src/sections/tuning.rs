//! What could be turned while the job ran, what was, and whether that helped.

use super::axis;
use super::clock;
use super::columns::{Column, Columns};
use super::fill::Fill;
use super::section::{Block, Chart, Legend, Section};
use super::svg::{Anchor, COVERED, Svg};
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use crate::tuning::Tuning;
use stallscope_look::tuning::{
    Mark, PARTS, amount, change, gain, gain_with_interval, narrowest, rate_with_interval, unit_of,
};
use stallscope_model::{Act, AuditEvent, Cause, Estimate};
use stallscope_units as units;

/// Lines of each table that are shown; the JSON report has all.
const LISTED: usize = 200;
/// Sentences on what is not known.
const REMARKS: usize = 4;
const TOP: f64 = 18.0;
const HEIGHT: f64 = 110.0;
const BOTTOM: f64 = TOP + HEIGHT;

pub(super) fn section(run: &Run, columns: Option<&Columns>) -> Section {
    let summary = &run.summary;
    let mut blocks = Vec::new();
    let tuning = Tuning::of(summary, &run.audit);
    let lead = match &tuning {
        Some(tuning) => {
            let rates = tuning.rates.iter().map(|rates| format!(" Rates: {rates}."));
            format!("{}.{}", capital(&tuning.facts), rates.collect::<String>())
        }
        None => String::new(),
    };
    if let Some(columns) = columns.filter(|_| run.audit.iter().any(|event| Mark::of(event).is_some())) {
        blocks.push(Block::Chart(chart(run, columns)));
    }
    let tables = [advice(run), knobs(run), rates(run), audit(run)];
    blocks.extend(tables.into_iter().filter(|table| !table.rows.is_empty()).map(Block::Table));
    let unknown =
        summary.rates.iter().flat_map(|rates| rates.unknown.iter().map(move |what| (rates.rank, what)));
    blocks.extend(unknown.take(REMARKS).map(|(rank, what)| Block::Note(format!("Rank {rank}: {what}."))));
    if blocks.is_empty() {
        let missing = "Nothing could be turned, and nothing was: prefetch and workers of loaders with workers can be in \
             jobs that were started by stallscope run. What would help, stallscope tune says.";
        blocks.push(Block::Note(missing.to_owned()));
    }
    Section { id: "tuning", heading: "Tuning", lead, blocks }
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect()
}

/// The share of time that waits, each column in the colour of what it waits for most, and marks where knobs were
/// turned.
fn chart(run: &Run, columns: &Columns) -> Chart {
    let marked: Vec<(&AuditEvent, Mark)> =
        run.audit.iter().filter_map(|event| Some((event, Mark::of(event)?))).take(LISTED).collect();
    let turned = units::counted(marked.len() as u64, "mark");
    let desc = format!(
        "The share of time that is not the job's own work, with {turned} where knobs were turned; the audit below has \
         them all."
    );
    let mut svg =
        Svg::new("tuning-chart", BOTTOM + 22.0, "Share of stall, and when knobs were turned", &desc);
    let mut legend: Vec<Fill> = Vec::new();
    for (place, column) in columns.columns.iter().enumerate().filter(|(_, column)| column.total_ns() > 0.0) {
        let (x, width) = columns.place(place);
        let share = stall(column);
        let fill = Fill::Cause(worst(column));
        let height = (share * HEIGHT).round();
        let hint = format!(
            "{}: {} waits, most of it {}",
            clock::time(columns.start_ns(place)),
            units::percent(share),
            fill.name()
        );
        svg.rect(x, BOTTOM - height, (width + COVERED).min(1.0 - x), height, fill, &hint);
        if share >= 0.005 && !legend.contains(&fill) {
            legend.push(fill);
        }
    }
    for (share, label) in [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")] {
        let y = BOTTOM - share * HEIGHT;
        svg.line((0.0, y), (1.0, y), "grid");
        svg.text(0.0, -8.0, y + 4.0, Anchor::End, "label", label);
    }
    for (event, mark) in &marked {
        let x = columns.span.at(event.time_ns).clamp(0.0, 1.0);
        svg.line((x, TOP - 4.0), (x, BOTTOM), "mark");
        svg.text(x, 0.0, TOP - 7.0, Anchor::Middle, "mark-name", &mark.sign(true).to_string());
        let hint = format!(
            "{}: {} {}",
            clock::time(event.time_ns),
            event.act.name(),
            change(event, &run.summary.knobs)
        );
        svg.plain_rect((x - 0.006).max(0.0), 0.0, 0.012, BOTTOM, "over", &hint);
    }
    axis::wall_clock(&mut svg, columns.span, BOTTOM, BOTTOM);
    let marks = Mark::ALL.map(|mark| format!("{} {}", mark.sign(true), mark.name())).join(", ");
    Chart {
        svg: svg.finish(),
        legends: Legend::only(legend),
        margin: "figures",
        caption: format!("The colour is of what was waited for most. {marks}. Wall clock, UTC."),
    }
}

fn stall(column: &Column) -> f64 {
    (1.0 - column.share(Cause::Compute)).clamp(0.0, 1.0)
}

fn worst(column: &Column) -> Cause {
    let stalls = Cause::ALL.into_iter().filter(|cause| *cause != Cause::Compute);
    stalls.max_by(|a, b| column.share(*a).total_cmp(&column.share(*b))).unwrap_or(Cause::Unknown)
}

/// A share by which samples a second rise or fall, with its interval as a remark would have it.
fn gained(estimate: &Option<Estimate>) -> Cell {
    estimate.map_or_else(Cell::nothing, |estimate| Cell {
        exact: format!("{:.6}", if estimate.value.is_finite() { estimate.value } else { 0.0 }),
        ..Cell::words(&gain_with_interval(&estimate))
    })
}

fn loader(loader: Option<u16>) -> Cell {
    loader.map_or_else(Cell::nothing, |loader| Cell::number(loader.into()))
}

/// A value of a knob, with where it stands in the JSON report.
fn valued(value: u64, unit: &str, source: String) -> Cell {
    Cell { exact: value.to_string(), ..Cell::words(&amount(value, unit)) }.of(source)
}

fn advice(run: &Run) -> Table {
    let columns = vec![
        words("Knob"),
        figures("Rank"),
        figures("Loader"),
        figures("Now"),
        figures("To"),
        figures("Expected"),
        words("Why"),
    ];
    let rows = run.summary.advice.iter().enumerate().take(LISTED).map(|(place, advice)| {
        let unit = unit_of(&advice.knob, &run.summary.knobs);
        let source = |field: &str| format!("/advice/{place}/{field}");
        vec![
            Cell::words(&advice.knob),
            Cell::number(advice.rank.into()).of(source("rank")),
            loader(advice.loader),
            valued(advice.now, unit, source("value")),
            valued(advice.to, unit, source("to_value")),
            gained(&Some(advice.gain)),
            Cell::words(&advice.why),
        ]
    });
    Table::new(
        "What is expected to help, best first: by how much samples a second rise",
        columns,
        rows.collect(),
    )
}

fn knobs(run: &Run) -> Table {
    let columns = vec![
        words("Knob"),
        figures("Rank"),
        figures("Loader"),
        figures(if run.summary.job.ended_wall_ns.is_some() { "At the end" } else { "Now" }),
        figures("Script"),
        figures("Bounds"),
        figures("Asked for"),
        words("State"),
    ];
    let all = run.summary.knobs.len();
    let rows = run.summary.knobs.iter().enumerate().take(LISTED).map(|(place, knob)| {
        let source = |field: &str| format!("/knobs/{place}/{field}");
        let by = if knob.set_by.is_empty() { String::new() } else { format!(" by {}", knob.set_by) };
        let why = if knob.reason.is_empty() { String::new() } else { format!(": {}", knob.reason) };
        vec![
            Cell::words(&knob.name),
            Cell::number(knob.rank.into()).of(source("rank")),
            loader(knob.loader),
            valued(knob.value, &knob.unit, source("value")).marked_if(knob.value != knob.initial),
            valued(knob.initial, &knob.unit, source("initial")),
            Cell::words(&format!("{} to {}", amount(knob.min, &knob.unit), amount(knob.max, &knob.unit))),
            match knob.requested {
                Some(asked) => valued(asked, &knob.unit, source("requested")),
                None => Cell::nothing(),
            },
            Cell::words(&match knob.requested {
                Some(_) => format!("{}, asked for{by}{why}", knob.state.name()),
                None => format!("{}{why}", knob.state.name()),
            }),
        ]
    });
    Table::new(capped("Knobs", all), columns, rows.collect())
}

/// A row a part that is known; of very many ranks the first.
fn rates(run: &Run) -> Table {
    let columns = vec![
        words("Part"),
        figures("Rank"),
        figures("Loader"),
        figures("Samples/s"),
        words("If everything else were free"),
    ];
    let mut rows = Vec::new();
    for (place, rates) in run.summary.rates.iter().enumerate() {
        let narrowest = narrowest(rates).map(|part| part.name);
        let mut row = |name: &str, estimate: Option<Estimate>, meaning: &str| {
            let Some(estimate) = estimate else { return };
            let exact = if estimate.value.is_finite() { estimate.value } else { 0.0 };
            let narrow = narrowest == Some(name);
            let meaning = if narrow { format!("{meaning}: the narrowest") } else { meaning.to_owned() };
            rows.push(vec![
                Cell::words(name).marked_if(narrow),
                Cell::number(rates.rank.into()).of(format!("/rates/{place}/rank")),
                Cell::number(rates.loader.into()).of(format!("/rates/{place}/loader")),
                Cell { exact: format!("{exact:.3}"), ..Cell::words(&rate_with_interval(&estimate)) }
                    .marked_if(narrow),
                Cell::words(&meaning),
            ]);
        };
        row("reached", rates.actual, "");
        PARTS.iter().for_each(|part| row(part.name, (part.of)(rates), part.meaning));
    }
    let all = rows.len();
    rows.truncate(LISTED);
    Table::new(capped("How fast each part could go by itself", all), columns, rows)
}

fn audit(run: &Run) -> Table {
    let columns = vec![
        words("At (UTC)"),
        figures("Decision"),
        words("Done"),
        figures("Rank"),
        words("Knob"),
        figures("Expected"),
        figures("Measured"),
        words("Seen, and why"),
    ];
    let all = run.audit.len();
    let rows = run.audit.iter().enumerate().skip(all.saturating_sub(LISTED)).map(|(place, event)| {
        let source = |field: &str| format!("/audit/{place}/{field}");
        let by = match event.by.as_str() {
            "" | "controller" => String::new(),
            user => format!(" by {user}"),
        };
        let texts: Vec<&str> =
            [event.saw.as_str(), &event.why].into_iter().filter(|text| !text.is_empty()).collect();
        vec![
            Cell { exact: event.time_ns.to_string(), ..Cell::words(&clock::time(event.time_ns)) }
                .of(source("time_wall_ns")),
            Cell::number(event.decision).of(source("decision")),
            Cell::words(&format!("{}{by}", event.act.name()))
                .marked_if(matches!(event.act, Act::Keep | Act::Undo | Act::Release)),
            event.rank.map_or_else(Cell::nothing, |rank| Cell::number(rank.into()).of(source("rank"))),
            Cell::words(&change(event, &run.summary.knobs)),
            event.predicted.map_or_else(Cell::nothing, |predicted| Cell::words(&gain(predicted.value))),
            gained(&event.measured),
            Cell::words(&texts.join("; ")),
        ]
    });
    let caption = match all > LISTED {
        true => format!("Audit: the newest {LISTED} of {} lines", units::count(all as u64)),
        false => "Audit: every decision, what it was to bring, and what came of it".to_owned(),
    };
    Table { folded: all > 24, ..Table::new(caption, columns, rows.collect()) }
}

fn capped(caption: &str, all: usize) -> String {
    match all > LISTED {
        true => format!("{caption}, the first {LISTED} of {}", units::count(all as u64)),
        false => caption.to_owned(),
    }
}
