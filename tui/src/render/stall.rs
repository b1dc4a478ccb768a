//! The share of training time that waits, over time, and when knobs were turned: whether turning them helped.

use super::bars::spans;
use super::job::SCALE;
use super::{Page, clock};
use crate::app::App;
use crate::rows;
use crate::snapshot::{RunView, waiting_share};
use crate::text::{heading, ink, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_look::tuning::Mark;
use stallscope_model::Causes;
use stallscope_units as units;

/// Lines that it needs, and that it makes use of.
pub(super) const LEAST: usize = 4;
pub(super) const MOST: usize = 9;

pub(super) fn strip(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut page = Page::default();
    let window = &run.window;
    let at = |ns: u64| clock(ns.saturating_sub(run.begin_ns));
    let (from, to) = (at(window.from_ns.max(run.begin_ns)), at(window.to_ns));
    if window.job.causes.total_ns() == 0 {
        page.push(heading("Stall", &format!("no training step ended from {from} to {to}"), width, theme));
        return page;
    }
    let columns: Vec<Causes> =
        window.columns(width.saturating_sub(SCALE)).into_iter().map(|sum| sum.causes).collect();
    let share = units::percent(waiting_share(&window.job.causes));
    let marks = Mark::ALL.map(|mark| format!("{} {}", mark.sign(theme.unicode), mark.name()));
    let facts = format!("{share} of training time from {from} to {to}; {}", marks.join(", "));
    page.push(heading("Stall", &facts, width, theme));
    let tall = height.saturating_sub(2).max(1);
    for level in (0..tall).rev() {
        let scale = match level {
            level if level == tall - 1 => "100%",
            0 => "0%",
            _ => "",
        };
        let mut line = vec![ink(format!("{} ", right(scale, SCALE - 1, theme)), theme.dim())];
        line.extend(spans(columns.iter().map(|causes| cell(causes, level, tall, theme))));
        page.push(Line::from(line));
    }
    page.push(marked(app, run, theme, columns.len()));
    page
}

/// One cell of a column, in the colour of what was waited for most.
fn cell(causes: &Causes, level: usize, tall: usize, theme: &Theme) -> (char, Style) {
    let heights = theme.heights();
    let steps = heights.len();
    let filled = (waiting_share(causes).clamp(0.0, 1.0) * (tall * steps) as f64).round() as usize;
    let here = filled.saturating_sub(level * steps).min(steps);
    let style = rows::worst_cause(causes).map_or(Style::new(), |cause| theme.cause(cause));
    match here.checked_sub(1) {
        Some(height) => (heights[height], style),
        // A low mark keeps time without a stall apart from a gap in the recording.
        None if level == 0 && causes.total_ns() > 0 => (heights[0], theme.dim()),
        None => (' ', Style::new()),
    }
}

/// When knobs were turned, below the columns.
fn marked(app: &App, run: &RunView, theme: &Theme, columns: usize) -> Line<'static> {
    let window = &run.window;
    let length_ns = u128::from(window.to_ns.saturating_sub(window.from_ns).max(1));
    let mut marks: Vec<Option<Mark>> = vec![None; columns];
    for event in rows::audit_to_date(app).iter().filter(|event| event.time_ns >= window.from_ns) {
        let since_ns = u128::from(event.time_ns - window.from_ns);
        let place = (since_ns * columns as u128 / length_ns) as usize;
        // A knob turned after the last step is marked in the last column.
        let place = place.min(columns.saturating_sub(1));
        if let Some(slot) = marks.get_mut(place) {
            *slot = (*slot).max(Mark::of(event));
        }
    }
    let mut line = vec![ink(format!("{} ", right("set", SCALE - 1, theme)), theme.dim())];
    line.extend(spans(marks.into_iter().map(|mark| match mark {
        Some(Mark::Undone) => (Mark::Undone.sign(theme.unicode), theme.alarm()),
        Some(Mark::Kept) => (Mark::Kept.sign(theme.unicode), theme.good()),
        Some(mark) => (mark.sign(theme.unicode), theme.bold()),
        None => (' ', Style::new()),
    })));
    Line::from(line)
}
