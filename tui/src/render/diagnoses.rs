//! What is wrong, by what it costs; of the chosen finding everything.

use super::{Page, first_shown};
use crate::app::{App, View};
use crate::rows;
use crate::snapshot::RunView;
use crate::text::{clip, heading, ink, labelled, plain, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_model::{Cause, Diagnosis};
use stallscope_units as units;

pub(super) fn page(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let rows = rows::diagnoses(app);
    let mut page = Page::default();
    if rows.is_empty() {
        page.push("");
        let sentence = match (app.filter().is_empty(), run.summary.phases.is_empty()) {
            (false, _) => format!("no finding matches /{}", app.filter()),
            (_, true) => "no step was seen so far, so there is nothing to judge".to_owned(),
            _ => format!("no finding: {}", run.summary.verdict.sentence),
        };
        page.lines.extend(labelled("  ", &sentence, theme.bold(), width, theme));
        return page;
    }
    page.push(heading("Diagnoses", "of the whole run, by share of training time at stake", width, theme));
    let cursor = app.line_at[View::Diagnoses as usize].min(rows.len() - 1);
    let capacity = rows.len().min((height / 3).max(2));
    let first = first_shown(rows.len(), cursor, capacity);
    for (place, diagnosis) in rows.iter().enumerate().skip(first).take(capacity) {
        let chosen = if place == cursor { theme.chosen() } else { Style::new() };
        let cause = diagnosis.cause.unwrap_or(Cause::Unknown);
        let name = clip(&diagnosis.name, 24, theme);
        let used = 8 + 24 + 2;
        page.row(
            Line::from(vec![
                ink(right(&units::percent(diagnosis.share), 5, theme), theme.bold()),
                plain(" "),
                ink(theme.fill(cause).to_string(), theme.cause(cause)),
                plain(" "),
                ink(format!("{name:<24}"), chosen),
                plain(format!("  {}", clip(&diagnosis.finding, width.saturating_sub(used), theme))),
            ]),
            place,
        );
    }
    page.push("");
    if let Some(diagnosis) = rows.get(cursor) {
        page.lines.extend(in_full(diagnosis, theme, width));
    }
    page.page = capacity;
    page
}

fn in_full(diagnosis: &Diagnosis, theme: &Theme, width: usize) -> Vec<Line<'static>> {
    let width = width.min(110);
    let mut lines = labelled("finding   ", &diagnosis.finding, theme.bold(), width, theme);
    if !diagnosis.evidence.is_empty() {
        lines.extend(labelled("evidence  ", &diagnosis.evidence, Style::new(), width, theme));
    }
    if !diagnosis.advice.is_empty() {
        lines.extend(labelled("do        ", &diagnosis.advice, theme.bold(), width, theme));
    }
    let share = diagnosis.share.clamp(0.0, 0.999);
    if share >= 0.005 {
        let gain = format!(
            "{} of training time is at stake: at most {:.1} times as fast, if all of it went away",
            units::percent(share),
            1.0 / (1.0 - share)
        );
        lines.extend(labelled("gain      ", &gain, Style::new(), width, theme));
    }
    lines
}
