//! One step in full: what each process did, and what held it up.

use super::bars::{by_share, legend, spans};
use super::{Page, clock, first_shown};
use crate::app::{App, View};
use crate::rows;
use crate::snapshot::RunView;
use crate::text::{heading, ink, labelled, left, plain, right};
use crate::theme::{Theme, cause_of};
use ratatui::style::Style;
use ratatui::text::Line;
use stallscope_model::{Cause, Causes, CriticalPiece, Doing, StepDetail, StepLane};
use stallscope_units as units;

/// Columns of a lane's name.
const NAME: usize = 16;

pub(super) fn page(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut page = Page::default();
    let rows = rows::steps(app);
    if rows.is_empty() {
        page.push("");
        page.lines.extend(labelled("  ", &why_none(app, run), theme.dim(), width, theme));
        return page;
    }
    let cursor = rows::step_place(app);
    let Some(step) = rows.get(cursor) else { return page };
    // The list takes what the timeline leaves.
    let listed = (height / 3).clamp(3, 20);
    let drawn = height.saturating_sub(listed);
    page.append(timeline(step, run, theme, width, drawn).cut(drawn));
    let rest = height - page.lines.len();
    page.append(list(app, run, &rows, cursor, theme, width, rest));
    page.cut(height)
}

fn why_none(app: &App, run: &RunView) -> String {
    match &run.steps {
        None => format!("reading steps {}", "..."),
        Some(_) if run.format < 2 => {
            "no step was kept in full: this recording was made by an older stallscope (format 1)".to_owned()
        }
        Some(steps) if steps.is_empty() && run.summary.phases.is_empty() => "there is no step yet".to_owned(),
        Some(steps) if steps.is_empty() => {
            "no step was kept in full so far: the slowest of every minute are, once they are over".to_owned()
        }
        Some(_) if !app.filter().is_empty() => format!("no step in this time matches /{}", app.filter()),
        Some(steps) => format!(
            "none of the {} kept in full lies in the time shown: w goes to the worst, - shows more time",
            units::counted(steps.len() as u64, "step")
        ),
    }
}

/// `height`: more lines are not shown.
fn timeline(step: &StepDetail, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let took_ns = step.end_ns.saturating_sub(step.start_ns);
    let mut page = Page::default();
    let facts = format!(
        "rank {}, {}, {} long, at {}",
        step.rank,
        step.phase.name(),
        units::duration(took_ns),
        clock(step.start_ns.saturating_sub(run.begin_ns))
    );
    page.push(heading(&format!("Step {}", units::count(step.index)), &facts, width, theme));
    // A worker may have begun the batch long before the step; at most a step's length of that is shown.
    let earliest =
        step.lanes.iter().filter_map(|lane| lane.segments.first()).map(|first| first.start_ns).min();
    let from_ns =
        earliest.unwrap_or(step.start_ns).clamp(step.start_ns.saturating_sub(took_ns), step.start_ns);
    let columns = width.saturating_sub(NAME).max(1);
    let scale = Scale { from_ns, length_ns: step.end_ns.saturating_sub(from_ns).max(1), columns };
    page.push(ruler(step, &scale, theme));
    let pieces: Vec<Option<&CriticalPiece>> =
        (0..columns).map(|column| piece_at(step, scale.middle_ns(column))).collect();
    // A foreign recording's step may have a hundred thousand of lanes and of pieces.
    for (place, lane) in step.lanes.iter().enumerate().take(height) {
        let cells = pieces
            .iter()
            .enumerate()
            .map(|(column, piece)| lane_cell(*piece, lane, place, scale.middle_ns(column), theme));
        let mut line = vec![plain(left(&format!("{} {}", lane.role, lane.pid), NAME, theme))];
        line.extend(spans(cells));
        page.push(Line::from(line));
    }
    let critical = pieces.iter().map(|piece| {
        piece.map_or((' ', Style::new()), |piece| (theme.fill(piece.cause), theme.cause(piece.cause)))
    });
    let mut line = vec![ink(left("held up by", NAME, theme), theme.bold())];
    line.extend(spans(critical));
    page.push(Line::from(line));

    let mut causes = Causes::default();
    for piece in &step.critical {
        causes[piece.cause] += piece.end_ns.saturating_sub(piece.start_ns);
    }
    page.lines.extend(legend(&causes, width, 2, theme));
    let doings: Vec<String> =
        Doing::ALL.iter().map(|doing| format!("{} {}", letter(*doing), doing.name())).collect();
    let text = format!("letters: {}; filled: the lane that held the step up", doings.join(", "));
    page.lines.extend(labelled("", &text, theme.dim(), width, theme));
    page.append(longest_pieces(step, theme, width));
    page
}

/// Maps moments to columns.
struct Scale {
    from_ns: u64,
    length_ns: u64,
    columns: usize,
}

impl Scale {
    fn middle_ns(&self, column: usize) -> u64 {
        let middle = (column as u128 * 2 + 1) * u128::from(self.length_ns) / (self.columns as u128 * 2);
        self.from_ns + middle as u64
    }

    fn column(&self, ns: u64) -> usize {
        let at =
            u128::from(ns.saturating_sub(self.from_ns)) * self.columns as u128 / u128::from(self.length_ns);
        (at as usize).min(self.columns - 1)
    }
}

fn ruler(step: &StepDetail, scale: &Scale, theme: &Theme) -> Line<'static> {
    let mut text: Vec<char> = vec![' '; scale.columns];
    let start = scale.column(step.start_ns);
    let mark = theme.either("▏0", "|0");
    let end =
        format!("{}{}", units::duration(step.end_ns.saturating_sub(step.start_ns)), theme.either("▕", "|"));
    for (place, char) in mark.chars().enumerate() {
        if let Some(cell) = text.get_mut(start + place) {
            *cell = char;
        }
    }
    let at = scale.columns.saturating_sub(end.chars().count());
    for (place, char) in end.chars().enumerate().filter(|_| at > start + 3) {
        if let Some(cell) = text.get_mut(at + place) {
            *cell = char;
        }
    }
    let name = if start > 0 { "before | step" } else { "" };
    Line::from(ink(
        format!("{}{}", left(name, NAME, theme), text.into_iter().collect::<String>()),
        theme.dim(),
    ))
}

fn piece_at(step: &StepDetail, at_ns: u64) -> Option<&CriticalPiece> {
    step.critical.iter().find(|piece| piece.start_ns <= at_ns && at_ns < piece.end_ns)
}

/// Filled where the lane held the step up, else a letter for what it did.
fn lane_cell(
    piece: Option<&CriticalPiece>,
    lane: &StepLane,
    place: usize,
    at_ns: u64,
    theme: &Theme,
) -> (char, Style) {
    if let Some(piece) = piece.filter(|piece| piece.lane == place) {
        return (theme.fill(piece.cause), theme.cause(piece.cause));
    }
    let segment = lane.segments.iter().find(|segment| segment.start_ns <= at_ns && at_ns < segment.end_ns);
    segment.map_or((' ', Style::new()), |segment| {
        let style = cause_of(segment.doing, place == 0).map_or(theme.dim(), |cause| theme.cause(cause));
        (letter(segment.doing), style)
    })
}

const fn letter(doing: Doing) -> char {
    match doing {
        Doing::Computing => 'c',
        Doing::Runnable => 'q',
        Doing::Reading => 'r',
        Doing::Writing => 'w',
        Doing::Network => 'n',
        Doing::Waiting => '.',
        Doing::Other => 'o',
    }
}

/// The critical path in words, its longest pieces in the order of time.
fn longest_pieces(step: &StepDetail, theme: &Theme, width: usize) -> Page {
    const PIECES: usize = 6;
    let length_ns = |piece: &CriticalPiece| piece.end_ns.saturating_sub(piece.start_ns);
    let mut longest: Vec<&CriticalPiece> = step.critical.iter().collect();
    longest.sort_by_key(|piece| std::cmp::Reverse(length_ns(piece)));
    longest.truncate(PIECES);
    longest.sort_by_key(|piece| piece.start_ns);
    let mut page = Page::default();
    let more = step.critical.len().saturating_sub(longest.len());
    let facts =
        if more > 0 { format!("its longest pieces; {more} shorter ones left out") } else { String::new() };
    page.push(heading("Critical path", &facts, width, theme));
    for piece in longest {
        let lane =
            step.lanes.get(piece.lane).map_or_else(String::new, |lane| format!("{} {}", lane.role, lane.pid));
        let line = vec![
            plain(right(&units::duration(piece.start_ns.saturating_sub(step.start_ns)), 9, theme)),
            ink(right(&format!("+{}", units::duration(length_ns(piece))), 10, theme), theme.bold()),
            plain("  "),
            ink(theme.fill(piece.cause).to_string(), theme.cause(piece.cause)),
            plain(format!(" {:<10}", piece.cause.name())),
            ink(left(&lane, width.saturating_sub(34), theme), theme.dim()),
        ];
        page.push(Line::from(line));
    }
    page
}

/// The list of steps kept in full.
fn list(
    app: &App,
    run: &RunView,
    rows: &[&StepDetail],
    cursor: usize,
    theme: &Theme,
    width: usize,
    height: usize,
) -> Page {
    let mut page = Page::default();
    let sort = app.sorts[View::Step as usize];
    let facts = format!(
        "{} in the time shown, by {}",
        units::counted(rows.len() as u64, "step"),
        rows::SORTS[View::Step as usize][sort.column]
    );
    page.push(heading("Kept in full", &facts, width, theme));
    let capacity = height.saturating_sub(1).max(1);
    let first = first_shown(rows.len(), cursor, capacity);
    for (place, step) in rows.iter().enumerate().skip(first).take(capacity) {
        let mut causes = Causes::default();
        step.critical
            .iter()
            .for_each(|piece| causes[piece.cause] += piece.end_ns.saturating_sub(piece.start_ns));
        let mut stalls = by_share(&causes);
        stalls.retain(|(cause, _)| *cause != Cause::Compute);
        let words: Vec<String> = stalls
            .iter()
            .take(3)
            .map(|(cause, share)| format!("{} {}", cause.name(), units::percent(*share)))
            .collect();
        let name = format!("{} step {}", clock(step.start_ns.saturating_sub(run.begin_ns)), step.index);
        let line = vec![
            ink(left(&name, 24, theme), if place == cursor { theme.chosen() } else { Style::new() }),
            plain(left(&format!("  rank {}", step.rank), 12, theme)),
            ink(right(&units::duration(step.end_ns.saturating_sub(step.start_ns)), 9, theme), theme.bold()),
            plain(format!("  {}", left(&words.join(", "), width.saturating_sub(49), theme))),
        ];
        page.row(Line::from(line), place);
    }
    page.page = capacity;
    page
}
