//! Draws a state: functions from what is known to what is seen, nothing else.

mod audit;
mod bars;
mod cache;
mod chrome;
mod diagnoses;
mod health;
mod help;
mod job;
mod jobs;
mod knobs;
mod lanes;
mod parts;
mod rates;
mod stall;
mod step;

use crate::app::{App, View};
use crate::theme::Theme;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use std::ops::Range;

/// Where the last frame drew what can be clicked, and the limits of scrolling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    pub tabs: Vec<(Range<u16>, View)>,
    /// Line of the screen, and the index of the row shown there.
    pub rows: Vec<(u16, usize)>,
    /// Lines that a page has.
    pub page: usize,
    /// The furthest a view of plain lines can be scrolled.
    pub last_line: usize,
}

/// Lines of a view, in the order they are seen.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) lines: Vec<Line<'static>>,
    /// The lines that a cursor can be on, each with the index of its row.
    pub(crate) rows: Vec<(usize, usize)>,
    pub(crate) page: usize,
    pub(crate) last_line: usize,
}

impl Page {
    pub(crate) fn push(&mut self, line: impl Into<Line<'static>>) {
        self.lines.push(line.into());
    }

    pub(crate) fn row(&mut self, line: impl Into<Line<'static>>, place: usize) {
        self.rows.push((self.lines.len(), place));
        self.lines.push(line.into());
    }

    pub(crate) fn append(&mut self, mut other: Page) {
        let above = self.lines.len();
        self.rows.extend(other.rows.iter().map(|(line, place)| (line + above, *place)));
        self.lines.append(&mut other.lines);
        self.page = self.page.max(other.page);
        self.last_line = self.last_line.max(other.last_line);
    }

    /// Cuts the page to at most `height` lines.
    pub(crate) fn cut(mut self, height: usize) -> Page {
        self.lines.truncate(height);
        self.rows.retain(|(line, _)| *line < height);
        self
    }
}

/// Columns and lines below which there is nothing but a sentence.
const SMALLEST: (u16, u16) = (40, 10);

/// Draws everything.
pub(crate) fn frame(app: &App, theme: &Theme, area: Rect, buffer: &mut Buffer) -> Hits {
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (columns, lines) = SMALLEST;
        let text = format!("stallscope needs {columns} x {lines}; this is {} x {}", area.width, area.height);
        let text = crate::text::clip(&text, area.width.into(), theme);
        put(&[Line::from(text)], area, buffer);
        return Hits::default();
    }
    let body = Rect { y: area.y + 2, height: area.height - 3, ..area };
    let (width, height) = (usize::from(body.width), usize::from(body.height));
    let mut hits = chrome::draw(app, theme, area, buffer);
    let page = view(app, theme, width, height);
    put(&page.lines, body, buffer);
    let rows = page.rows.iter().filter(|(line, _)| *line < height);
    hits.rows = rows.map(|(line, place)| (body.y + *line as u16, *place)).collect();
    hits.page = page.page.max(1);
    hits.last_line = page.last_line;
    chrome::draw_palette(app, theme, body, buffer);
    hits
}

fn view(app: &App, theme: &Theme, width: usize, height: usize) -> Page {
    match app.view {
        View::Jobs => return jobs::page(app, theme, width, height),
        View::Help => return help::page(app, theme, width, height),
        _ => {}
    }
    let Some(run) = app.shown() else { return chrome::nothing_yet(app, theme, width) };
    match app.view {
        View::Step => step::page(app, run, theme, width, height),
        View::Knobs => knobs::page(app, run, theme, width, height),
        View::Audit => audit::page(app, run, theme, width, height),
        View::Diagnoses => diagnoses::page(app, run, theme, width, height),
        View::Health => health::page(app, run, theme, width, height),
        View::Job | View::Jobs | View::Help => job::page(app, run, theme, width, height),
    }
}

fn put(lines: &[Line<'_>], area: Rect, buffer: &mut Buffer) {
    for (line, y) in lines.iter().zip(area.y..area.bottom()) {
        buffer.set_line(area.x, y, line, area.width);
    }
}

/// The first of `len` rows to show so that the one at `cursor` is among `height`.
pub(crate) fn first_shown(len: usize, cursor: usize, height: usize) -> usize {
    cursor.saturating_sub(height / 2).min(len.saturating_sub(height))
}

/// A page of plain lines that is scrolled as a whole.
pub(crate) fn scrolled(lines: Vec<Line<'static>>, from: usize, height: usize) -> Page {
    let last_line = lines.len().saturating_sub(height);
    let lines: Vec<Line<'static>> = lines.into_iter().skip(from.min(last_line)).collect();
    Page { lines, rows: Vec::new(), page: height, last_line }
}

/// A moment as time since the run's beginning: "0:12:40".
pub(crate) fn clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
