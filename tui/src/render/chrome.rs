//! What is around every view: whose run, which views, what can be done, what is wrong.

use super::{Hits, clock, put};
use crate::app::{App, Columns, Part, Prompt, View};
use crate::command;
use crate::render::Page;
use crate::snapshot::{JobState, RunView};
use crate::text::{clip, ink, labelled, left, plain};
use crate::theme::Theme;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use stallscope_units as units;
use unicode_width::UnicodeWidthStr;

pub(super) fn draw(app: &App, theme: &Theme, area: Rect, buffer: &mut Buffer) -> Hits {
    let width = usize::from(area.width);
    let state = state(app, theme);
    let state_width: usize = state.iter().map(|span| span.content.width()).sum();
    let title = title(app, theme, width.saturating_sub(state_width + 2));
    let title_width: usize = title.iter().map(|span| span.content.width()).sum();
    let mut top = title;
    top.push(plain(" ".repeat(width.saturating_sub(title_width + state_width))));
    top.extend(state);
    put(&[Line::from(top)], Rect { height: 1, ..area }, buffer);

    let mut hits = Hits::default();
    let mut tabs = Vec::new();
    let full: usize = View::ALL.iter().map(|view| view.name().len() + 3).sum();
    let mut at = area.x;
    for (nth, view) in View::ALL.into_iter().enumerate() {
        // Where not all names fit, the numbers do.
        let name = if width >= full || view == app.view { view.name() } else { "" };
        let text = format!("{} {name}", nth + 1);
        let text = text.trim_end();
        let end = at + text.len() as u16;
        hits.tabs.push((at..end, view));
        tabs.push(ink(
            text.to_owned(),
            if view == app.view { theme.chosen().patch(theme.bold()) } else { theme.dim() },
        ));
        tabs.push(plain(" "));
        at = end + 1;
    }
    put(&[Line::from(tabs)], Rect { y: area.y + 1, height: 1, ..area }, buffer);
    let foot = Rect { y: area.bottom() - 1, height: 1, ..area };
    put(&[foot_line(app, theme, width)], foot, buffer);
    hits
}

fn title(app: &App, theme: &Theme, width: usize) -> Vec<Span<'static>> {
    let dot = theme.dot();
    let mut facts = String::new();
    let name = match (app.view, app.shown()) {
        (View::Jobs, _) | (_, None) => "stallscope".to_owned(),
        (_, Some(run)) => {
            let job = &run.summary.job;
            facts = format!("{dot}pid {}{dot}{}", job.pid, in_words(run));
            if !run.summary.host.host.is_empty() {
                facts.push_str(&format!("{dot}{}", run.summary.host.host));
            }
            if job.name.is_empty() { "run".to_owned() } else { job.name.clone() }
        }
    };
    let name = clip(&name, width.saturating_sub(8).max(8), theme);
    let columns = width.saturating_sub(name.width());
    vec![ink(name, theme.bold()), ink(clip(&facts, columns, theme), theme.dim())]
}

/// What became of the run.
fn in_words(run: &RunView) -> String {
    let job = &run.summary.job;
    let took = |until_ns: u64| units::duration(until_ns.saturating_sub(job.started_wall_ns));
    match (run.state, job.exit_code) {
        (JobState::Killed, _) => "its collector was killed".to_owned(),
        (JobState::Running, _) if job.attached => "attached to".to_owned(),
        (JobState::Running, _) => {
            format!("running for {}", units::duration(run.end_ns - run.begin_ns.min(run.end_ns)))
        }
        (_, None) if job.attached => format!("watched for {}", took(job.ended_wall_ns.unwrap_or(0))),
        (_, None) => "over".to_owned(),
        (_, Some(0)) => format!("finished after {}", took(job.ended_wall_ns.unwrap_or(0))),
        (_, Some(code)) => format!("ended with {code} after {}", took(job.ended_wall_ns.unwrap_or(0))),
    }
}

/// Live, paused, replayed: the right end of the first line.
fn state(app: &App, theme: &Theme) -> Vec<Span<'static>> {
    if app.lost.is_some() {
        return vec![ink(format!("{} lost", theme.either("✗", "!")), theme.alarm())];
    }
    let Some(run) = app.shown().filter(|_| !matches!(app.view, View::Jobs | View::Help)) else {
        return Vec::new();
    };
    let at = |ns: u64| clock(ns.saturating_sub(run.begin_ns));
    let speed = match app.time.speed {
        1.0 => String::new(),
        speed => format!("{speed}x "),
    };
    match (app.time.at_ns, app.time.playing, run.state) {
        (None, _, JobState::Running) => vec![ink(format!("{} live", theme.either("●", "*")), theme.good())],
        (None, ..) => vec![ink(format!("{} end {}", theme.either("■", "#"), at(run.end_ns)), theme.dim())],
        (Some(ns), true, _) => {
            vec![ink(format!("{} {speed}{}", theme.either("▶", ">"), at(ns)), theme.bold())]
        }
        (Some(ns), false, _) => vec![ink(format!("{} {}", theme.either("⏸", "="), at(ns)), theme.bold())],
    }
}

fn foot_line(app: &App, theme: &Theme, width: usize) -> Line<'static> {
    let cursor = theme.either("▏", "_");
    if let Some(Prompt::Filter { .. }) = &app.prompt {
        return Line::from(vec![
            ink("/", theme.bold()),
            plain(clip(app.filter(), width - 2, theme)),
            plain(cursor),
        ]);
    }
    if let Some(Prompt::Palette { text, .. }) = &app.prompt {
        return Line::from(vec![ink(":", theme.bold()), plain(clip(text, width - 2, theme)), plain(cursor)]);
    }
    if let Some(message) = &app.message {
        return Line::from(ink(clip(message, width, theme), theme.bold()));
    }
    if let Some(lost) = app.lost.as_ref().filter(|_| app.shown().is_some() && app.view != View::Jobs) {
        return Line::from(ink(clip(&format!("not read any more: {lost}"), width, theme), theme.alarm()));
    }
    let mut hints: Vec<(&str, &str)> = Vec::new();
    let filter = format!("/{}", app.filter());
    if !app.filter().is_empty() {
        hints.push((&filter, "Esc ends"));
    }
    hints.extend(match app.view {
        View::Jobs => &[("Enter", "open"), ("/", "filter"), ("s", "sort"), ("c", "columns")][..],
        View::Job => &[
            ("Space", "pause"),
            ("[ ]", "time"),
            ("+ -", "zoom"),
            ("w", "worst step"),
            ("p", "part"),
            ("s", "sort"),
            ("c", "columns"),
        ],
        View::Step => &[("j k", "step"), ("s", "sort"), ("w", "worst"), ("[ ]", "time"), ("+ -", "zoom")],
        View::Diagnoses => &[("j k", "finding"), ("Enter", "go to when"), ("/", "filter")],
        View::Help => &[("j k", "line"), ("Enter", "do it"), ("/", "filter")],
        View::Knobs => &[("j k", "knob"), ("Enter", "its audit"), ("t", "turn"), ("/", "filter")],
        View::Audit => {
            &[("j k", "line"), ("G", "newest"), ("Enter", "go to when"), ("/", "filter"), ("[ ]", "time")]
        }
        View::Health => &[("j k", "scroll")],
    });
    // The way out is never left out.
    let always = [(":", "commands"), ("?", "help"), ("q", "quit")];
    let columns = |(key, what): &(&str, &str)| key.width() + what.len() + 3;
    let mut left = (width + 2).saturating_sub(always.iter().map(columns).sum());
    hints.retain(|hint| {
        let fits = columns(hint) <= left;
        left = left.saturating_sub(columns(hint));
        fits
    });
    hints.extend(always);
    let mut spans = Vec::new();
    for (key, what) in hints {
        let key = theme.clean(key);
        spans.extend([ink(key, theme.bold()), ink(format!(" {what}  "), theme.dim())]);
    }
    Line::from(spans)
}

/// Commands that fit what is typed, above the line it is typed on.
pub(super) fn draw_palette(app: &App, theme: &Theme, body: Rect, buffer: &mut Buffer) {
    let Some(Prompt::Palette { text, picked }) = &app.prompt else { return };
    let found = command::matching(text);
    let height = found.len().min(12).min(usize::from(body.height)).max(1);
    let first = super::first_shown(found.len(), *picked, height);
    let width = usize::from(body.width);
    let lines: Vec<Line<'static>> = match found.is_empty() {
        true => vec![Line::from(left("no command is called so", width, theme))],
        false => found
            .iter()
            .enumerate()
            .skip(first)
            .take(height)
            .map(|(nth, entry)| {
                let text = format!("  {:<14}{:<9}{}", entry.name, entry.keys[0].to_string(), entry.help);
                let style = if nth == *picked { theme.chosen() } else { theme.bold() };
                Line::from(ink(left(&text, width, theme), style))
            })
            .collect(),
    };
    let place = Rect { y: body.bottom() - height as u16, height: height as u16, ..body };
    put(&lines, place, buffer);
}

/// A view of a run that is not there: still being read, lost, or none chosen.
pub(super) fn nothing_yet(app: &App, theme: &Theme, width: usize) -> Page {
    let mut page = Page::default();
    page.push("");
    match (&app.lost, &app.recording) {
        (Some(reason), _) => {
            page.lines.extend(labelled("  ", reason, theme.alarm(), width, theme));
            page.push("");
            let way_out = "1 shows all jobs; `stallscope ls` lists what runs and what was recorded here";
            page.lines.extend(labelled("  ", way_out, theme.dim(), width, theme));
        }
        (None, Some(recording)) => {
            let sentence = format!("reading {} {}", recording.display(), theme.either("…", "..."));
            page.lines.extend(labelled("  ", &sentence, theme.dim(), width, theme));
        }
        (None, None) => {
            let sentence = "no job is chosen: 1 shows all jobs, Enter opens one";
            page.lines.extend(labelled("  ", sentence, theme.dim(), width, theme));
        }
    }
    page
}

/// "shares", "times": what columns show, when it is not what they begin with.
pub(super) fn columns_in_words(columns: Columns) -> &'static str {
    match columns {
        Columns::Bars => "",
        Columns::Shares => ", shares by cause",
        Columns::Times => ", time a step by cause",
    }
}

pub(super) const fn part_name(part: Part) -> &'static str {
    match part {
        Part::Ledger => "ledger",
        Part::Ranks => "ranks",
        Part::Workers => "workers",
        Part::Files => "files",
    }
}
