//! Where training time went: one bar, a table by cause, and the other phases.

use super::fill::Fill;
use super::pointer;
use super::rows;
use super::section::{Block, Chart, Section};
use super::svg::Svg;
use super::table::{Cell, Table, figures, words};
use crate::run::Run;
use crate::text::{causes_in_words, loader_in_words, training};
use stallscope_look::{meaning, steps_from_outside};
use stallscope_model::{Cause, PhaseSummary, RunSummary};
use stallscope_units as units;

pub(super) fn section(run: &Run) -> Section {
    let summary = &run.summary;
    let (mut lead, mut blocks) = (String::new(), Vec::new());
    match training(&summary.phases) {
        Some(total) => {
            lead = in_words(&total, summary);
            blocks.push(Block::Chart(bar(&total)));
            blocks.push(Block::Table(by_cause(&total, summary)));
            if let Some(hidden_ns) = total.hidden_ns.filter(|ns| *ns > 0) {
                blocks.push(Block::Note(format!(
                    "Of the waits, {} ({}) were hidden: the device still had work.",
                    units::duration(hidden_ns),
                    units::percent_exact(units::share(hidden_ns, total.wall_ns))
                )));
            }
        }
        None => blocks.push(Block::Note(
            "Not shown: no training step was seen, so there is no time to account for. stallscope doctor says what \
             can be seen on this machine."
                .to_owned(),
        )),
    }
    if summary.phases.iter().any(|phase| phase.wall_ns > 0) {
        blocks.push(Block::Table(phases(summary)));
    }
    Section { id: "ledger", heading: "Ledger", lead, blocks }
}

fn in_words(total: &PhaseSummary, summary: &RunSummary) -> String {
    let mut text = format!(
        "{} of training in {} of {} in the mean",
        units::duration(total.wall_ns),
        units::counted(total.steps, "step"),
        units::duration(total.wall_ns / total.steps.max(1))
    );
    if summary.ranks.len() > 1 {
        text.push_str(&format!(
            ", on {}: each step is that of its slowest rank",
            units::counted(summary.ranks.len() as u64, "rank")
        ));
    }
    text.push('.');
    if let Some(words) = steps_from_outside(summary) {
        text.push_str(&format!(" {}{}.", words[..1].to_uppercase(), &words[1..]));
    }
    if let Some(rank) = summary.ranks.first() {
        let several = rank.facts.loaders.len() > 1;
        for loader in &rank.facts.loaders {
            let mut words = loader_in_words(loader, several);
            if let Some(first) = words.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            text.push_str(&format!(" {words}."));
        }
    }
    text
}

fn bar(total: &PhaseSummary) -> Chart {
    let part = |(cause, ns): (Cause, u64)| {
        let share = units::share(ns, total.wall_ns);
        let hint = format!("{}: {}, {}", cause.name(), units::duration(ns), units::percent_exact(share));
        (Fill::Cause(cause), share, hint)
    };
    let parts: Vec<_> = total.causes.iter().map(part).collect();
    let mut svg = Svg::new(
        "ledger-chart",
        36.0,
        "Training time by cause",
        &format!("One bar: {}.", causes_in_words(&total.causes)),
    );
    rows::parts(&mut svg, &parts, 0.0, 36.0);
    Chart { svg: svg.finish(), legends: Vec::new(), margin: "", caption: String::new() }
}

fn by_cause(total: &PhaseSummary, summary: &RunSummary) -> Table {
    let trained = pointer::training("", &summary.phases);
    let columns =
        vec![words("Cause"), words("Meaning"), figures("Time"), figures("Share"), figures("A step")];
    let rows = total.causes.iter().filter(|(_, ns)| *ns > 0).map(|(cause, ns)| {
        vec![
            Cell::words(cause.name()).with(Fill::Cause(cause)),
            Cell::words(meaning(cause)),
            Cell::duration(ns).of(pointer::each(&trained, &pointer::cause(cause))),
            Cell::share(units::share(ns, total.wall_ns)),
            Cell::duration(ns / total.steps.max(1)),
        ]
    });
    let foot = vec![
        Cell::words("all"),
        Cell::default(),
        Cell::duration(total.wall_ns).of(pointer::each(&trained, "wall_ns")),
        Cell::default(),
        Cell::duration(total.wall_ns / total.steps.max(1)),
    ];
    Table { foot, ..Table::new("Training time by cause", columns, rows.collect()) }
}

fn phases(summary: &RunSummary) -> Table {
    let columns = vec![
        words("Phase"),
        figures("Loader"),
        figures("Time"),
        figures("Steps"),
        figures("Samples"),
        figures("Median"),
        figures("p95"),
        figures("Longest"),
        words("Mostly"),
    ];
    let rows =
        summary.phases.iter().enumerate().filter(|(_, phase)| phase.wall_ns > 0).map(|(place, phase)| {
            let source = |field: &str| format!("/phases/{place}/{field}");
            vec![
                Cell::words(phase.phase.name()),
                phase
                    .loader
                    .map_or_else(Cell::nothing, |loader| Cell::number(loader.into()).of(source("loader"))),
                Cell::duration(phase.wall_ns).of(source("wall_ns")),
                Cell::count(phase.steps).of(source("steps")),
                Cell::count(phase.samples).of(source("samples")),
                Cell::duration(phase.step_p50_ns).of(source("step_p50_ns")),
                Cell::duration(phase.step_p95_ns).of(source("step_p95_ns")),
                Cell::duration(phase.step_max_ns).of(source("step_max_ns")),
                Cell::words(&causes_in_words(&phase.causes)),
            ]
        });
    Table::new("Phases of the job", columns, rows.collect())
}
