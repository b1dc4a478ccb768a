//! What can be changed while the job runs: the knobs; below them what is expected to help, and what came of it.

use super::{Page, first_shown, rates, stall};
use crate::app::{App, View};
use crate::rows;
use crate::snapshot::{JobState, RunView};
use crate::text::{clip, heading, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use stallscope_look::tuning;
use stallscope_model::{EvidenceState, Knob, KnobState, LoaderFacts, TuneMode};
use unicode_width::UnicodeWidthStr;

pub(super) fn page(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut page = Page::default();
    let knobs = rows::knobs(app);
    let when = if run.state == JobState::Running { "as they are now" } else { "as they were at the end" };
    page.push(heading("Knobs", &format!("{when}; {}", mode(run)), width, theme));
    let chosen = match knobs.is_empty() {
        true => {
            page.lines.extend(nothing(app, run, theme, width));
            None
        }
        false => {
            let cursor = app.line_at[View::Knobs as usize].min(knobs.len() - 1);
            page.append(table(&knobs, cursor, run, theme, width, (height / 3).max(3)));
            Some(knobs[cursor])
        }
    };
    if let Some(knob) = chosen {
        page.lines.extend(in_full(knob, theme, width));
    }
    // A tall screen has an empty line between the parts.
    let gap = || (height >= 30).then(Line::default);
    page.lines.extend(gap());
    page.lines.extend(rates::advice(run, theme, width, (height / 5).max(2)));
    page.lines.extend(gap());
    page.lines.extend(rates::rates(run, chosen, theme, width));
    page.lines.extend(gap());
    let left = height.saturating_sub(page.lines.len());
    if left >= stall::LEAST {
        page.append(stall::strip(app, run, theme, width, left.min(stall::MOST)));
    }
    page.cut(height)
}

/// What a controller may do, in words.
pub(super) fn mode(run: &RunView) -> &'static str {
    let over = run.state != JobState::Running;
    match (run.summary.tune, over) {
        (Some(TuneMode::Act), false) => "a controller acts",
        (Some(TuneMode::Advise), false) => "a controller advises",
        (Some(TuneMode::Observe), false) => "a controller observes",
        (None, false) if run.audit.is_empty() => "no controller runs",
        (None, false) => "no controller runs now",
        (Some(TuneMode::Act), true) => "a controller acted",
        (Some(_), true) => "a controller ran, and changed nothing",
        (None, true) if run.audit.is_empty() => "no controller ran",
        (None, true) => "no controller ran any more",
    }
}

/// Why there is no knob; where the loaders are known, what the script has set.
fn nothing(app: &App, run: &RunView, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    if !app.filter().is_empty() && !run.summary.knobs.is_empty() {
        let sentence = format!("no knob matches /{}", app.filter());
        return labelled("  ", &sentence, theme.bold(), width, theme);
    }
    let mut lines = Vec::new();
    for rank in run.summary.ranks.iter().take(4) {
        for loader in &rank.facts.loaders {
            let settings = settings(loader);
            let whose = format!("  rank {}, loader {}  ", rank.facts.rank, loader.loader);
            lines.extend(labelled(&whose, &settings, Style::new(), width, theme));
        }
    }
    let why = match (lines.is_empty(), needs_shim(run)) {
        (_, Some(why)) => why,
        (true, None) => "no loader was seen from inside, so there is nothing to turn".to_owned(),
        (false, None) => {
            "nothing can be turned here: prefetch and workers can be in loaders with workers, in jobs that were \
             started by `stallscope run`"
                .to_owned()
        }
    };
    lines.extend(labelled("  ", &why, theme.dim(), width, theme));
    lines
}

/// Why nothing is known of a job's loaders, where that is because the shim is not in it.
fn needs_shim(run: &RunView) -> Option<String> {
    let why = match &run.summary.shim {
        EvidenceState::On | EvidenceState::Partial(_) => return None,
        EvidenceState::Off => "only `stallscope run` puts the loader shim into a job",
        EvidenceState::Missing(reason) => reason,
    };
    Some(format!("nothing can be turned here: {why}"))
}

fn settings(loader: &LoaderFacts) -> String {
    let mut settings = vec![format!("num_workers {}", loader.workers)];
    settings.extend(loader.prefetch_factor.map(|factor| format!("prefetch_factor {factor}")));
    settings.extend(loader.batch_size.map(|size| format!("batch_size {size}")));
    settings.push(format!("pin_memory {}", loader.pin_memory));
    settings.push(format!("persistent_workers {}", loader.persistent_workers));
    settings.join(", ")
}

/// A column of the table, and what a knob has there.
struct Column {
    title: &'static str,
    width: usize,
    figures: bool,
    text: fn(&Knob) -> String,
}

/// The columns that fit, in the order they are shown. The lines on the chosen knob have everything that is left out.
fn columns(several: bool, width: usize) -> Vec<Column> {
    let wide = width >= 100;
    let column = |title, narrow, wide_columns, figures, text| Column {
        title,
        width: if wide { wide_columns } else { narrow },
        figures,
        text,
    };
    let whose = column("RANK, LOADER", 13, 14, false, |knob: &Knob| match knob.loader {
        Some(loader) => format!("{}, {loader}", knob.rank),
        None => knob.rank.to_string(),
    });
    // Each column has a priority: of those that do not fit, the one with the highest number goes first.
    let mut all = vec![
        (0, column("KNOB", 12, 20, false, |knob| knob.name.clone())),
        (1, column("NOW", 8, 10, true, |knob| tuning::amount(knob.value, &knob.unit))),
        (5, column("SCRIPT", 8, 10, true, |knob| tuning::amount(knob.initial, &knob.unit))),
        (
            6,
            column("BOUNDS", 14, 18, true, |knob| {
                format!("{}-{}", tuning::amount(knob.min, &knob.unit), tuning::amount(knob.max, &knob.unit))
            }),
        ),
        (
            3,
            column("ASKED", 8, 10, true, |knob| {
                knob.requested.map_or_else(|| "-".to_owned(), |asked| tuning::amount(asked, &knob.unit))
            }),
        ),
        (2, column("  STATE", 14, 16, false, |knob| format!("  {}", knob.state.name()))),
        (
            4,
            column("SET BY", 11, 20, false, |knob| match knob.set_by.as_str() {
                "" => "the script".to_owned(),
                by => by.to_owned(),
            }),
        ),
    ];
    if several {
        all.insert(0, (0, whose));
    }
    while all.iter().map(|(_, column)| column.width).sum::<usize>() > width {
        let Some(last) = all.iter().map(|(order, _)| *order).max().filter(|last| *last > 0) else { break };
        all.retain(|(order, _)| *order != last);
    }
    all.into_iter().map(|(_, column)| column).collect()
}

fn table(knobs: &[&Knob], cursor: usize, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let whose = |knob: &Knob| (knob.rank, knob.loader);
    let several = run.summary.knobs.windows(2).any(|two| whose(&two[0]) != whose(&two[1]));
    let columns = columns(several, width);
    let cell = |column: &Column, text: &str| match column.figures {
        true => right(text, column.width, theme),
        // The gap keeps a text apart from the next column's.
        false => left(&clip(text, column.width - 1, theme), column.width, theme),
    };
    let mut page = Page::default();
    let title: String = columns.iter().map(|column| cell(column, column.title)).collect();
    page.push(Line::from(ink(title, theme.dim())));
    let capacity = knobs.len().min(height);
    let first = first_shown(knobs.len(), cursor, capacity);
    for (place, knob) in knobs.iter().enumerate().skip(first).take(capacity) {
        let spans: Vec<Span<'static>> = columns
            .iter()
            .map(|column| {
                let text = cell(column, &(column.text)(knob));
                match column.title {
                    "KNOB" if place == cursor => ink(text, theme.chosen()),
                    "NOW" => ink(text, theme.bold()),
                    "  STATE" => ink(text, state(knob.state, theme)),
                    _ => plain(text),
                }
            })
            .collect();
        page.row(Line::from(spans), place);
    }
    page.page = capacity;
    page
}

fn state(state: KnobState, theme: &Theme) -> Style {
    match state {
        KnobState::Applied => theme.good(),
        KnobState::Pending => theme.bold(),
        KnobState::Refused => theme.alarm(),
        KnobState::Unavailable => theme.dim(),
    }
}

/// The chosen knob in words.
fn in_full(knob: &Knob, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let shown = |value: u64| tuning::amount(value, &knob.unit);
    let mut facts = vec![tuning::amount_in_full(knob.value, &knob.unit)];
    facts.push(format!("the script had {}", shown(knob.initial)));
    facts.push(format!("bounds {} to {}", shown(knob.min), shown(knob.max)));
    if let Some(asked) = knob.requested {
        let by = if knob.set_by.is_empty() { "somebody" } else { &knob.set_by };
        facts.push(format!("{by} asked for {}: {}", shown(asked), knob.state.name()));
    }
    let name = clip(&knob.name, 20, theme);
    let mut lines = labelled(&format!("  {name}  "), &facts.join("; "), Style::new(), width, theme);
    if !knob.reason.is_empty() {
        let label = format!("  {}", left("why", name.width() + 2, theme));
        lines.extend(labelled(&label, &knob.reason, theme.bold(), width, theme));
    }
    lines
}
