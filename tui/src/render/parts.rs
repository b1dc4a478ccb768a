//! The parts of a job's view: ranks side by side, workers as lanes, files and mounts, checkpoints.

use super::bars::{bar, by_share};
use super::job::SCALE;
use super::{Page, chrome, first_shown, lanes};
use crate::app::{App, Columns, View};
use crate::rows::{self, RankRow};
use crate::snapshot::{RunView, waiting_share};
use crate::text::{clip_start, heading, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use stallscope_model::{Cause, CheckpointAccount, EvidenceState};
use stallscope_units as units;

/// What is missing, and how to get it, where the kernel's evidence is needed.
pub(super) fn needs_kernel(run: &RunView) -> Option<String> {
    let why = match &run.summary.kernel {
        EvidenceState::On => return None,
        EvidenceState::Off => {
            "it is off; leave out --no-kernel, and start `sudo stallscope collect` beside the job"
        }
        EvidenceState::Missing(reason) | EvidenceState::Partial(reason) => reason,
    };
    Some(format!("needs kernel evidence: {why}"))
}

pub(super) fn ranks_height(app: &App) -> usize {
    2 + rows::ranks(app).len().max(1)
}

pub(super) fn ranks(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let rows = rows::ranks(app);
    let mut page = Page::default();
    let slowest = rows.iter().find(|row| row.slowest);
    let mut facts = match (rows.len(), slowest) {
        (0, _) => String::new(),
        (1, _) => "one".to_owned(),
        (count, Some(row)) => format!("{count}; the others wait for rank {}", row.rank),
        (count, None) => format!("{count}, none slower than the others"),
    };
    let sort = app.sorts[View::Job as usize];
    if rows.len() > 1 && sort.column > 0 {
        facts.push_str(&format!(", by {}", rows::SORTS[View::Job as usize][sort.column]));
    }
    facts.push_str(chrome::columns_in_words(app.columns));
    page.push(heading("Ranks", &facts, width, theme));
    if rows.is_empty() {
        let why = match (app.filter().is_empty(), run.summary.ranks.is_empty()) {
            (false, _) => format!("no rank matches /{}", app.filter()),
            (_, true) => "no trainer process was seen so far".to_owned(),
            _ => "no step ended in this time".to_owned(),
        };
        page.lines.extend(labelled("  ", &why, theme.dim(), width, theme));
        return page.cut(height);
    }
    let shares = shown_causes(&rows, width);
    // Headings are left out where they would leave no line for a row.
    if height > 2 {
        let mut text =
            format!("{}{}{}", right("rank", 6, theme), right("step", 9, theme), right("waits", 7, theme));
        match app.columns {
            Columns::Bars => text.push_str(&format!("{}  where time goes", right("samples/s", 11, theme))),
            _ => shares.iter().for_each(|cause| text.push_str(&right(cause.name(), 10, theme))),
        }
        page.push(ink(text, theme.dim()));
    }
    let capacity = height.saturating_sub(page.lines.len()).max(1);
    let cursor = rows::rank_place(app);
    let first = first_shown(rows.len(), cursor, capacity);
    for (place, row) in rows.iter().enumerate().skip(first).take(capacity) {
        page.row(rank(row, place == cursor && rows.len() > 1, app.columns, &shares, theme, width), place);
    }
    page.page = capacity;
    page.cut(height)
}

/// The largest causes that have a column.
fn shown_causes(rows: &[RankRow], width: usize) -> Vec<Cause> {
    let mut total = stallscope_model::Causes::default();
    rows.iter().for_each(|row| total += &row.sum.causes);
    by_share(&total).into_iter().map(|(cause, _)| cause).take(width.saturating_sub(34) / 10).collect()
}

fn rank(
    row: &RankRow,
    chosen: bool,
    columns: Columns,
    shown: &[Cause],
    theme: &Theme,
    width: usize,
) -> Line<'static> {
    let sum = &row.sum;
    let number = right(&row.rank.to_string(), 6, theme);
    let mut spans = vec![
        ink(number, if chosen { theme.chosen() } else { Style::new() }),
        plain(right(&units::duration(sum.step_ns()), 9, theme)),
        ink(right(&units::percent(waiting_share(&sum.causes)), 7, theme), theme.bold()),
    ];
    let mark = if row.slowest { theme.either(" ◀ slowest", " < slowest") } else { "" };
    match columns {
        Columns::Bars => {
            let rate = match sum.samples {
                0 => "-".to_owned(),
                samples => units::per_second(samples, sum.causes.total_ns()),
            };
            spans.push(plain(format!("{}  ", right(&rate, 11, theme))));
            spans.extend(bar(&sum.causes, width.saturating_sub(46), theme));
        }
        Columns::Shares => spans.extend(shown.iter().map(|cause| {
            let share = sum.causes.share(*cause);
            let text = if share > 0.0 { units::percent(share) } else { "-".to_owned() };
            plain(right(&text, 10, theme))
        })),
        Columns::Times => {
            spans.extend(shown.iter().map(|cause| {
                plain(right(&units::duration(sum.causes[*cause] / sum.steps.max(1)), 10, theme))
            }))
        }
    }
    spans.push(ink(mark, theme.alarm()));
    Line::from(spans)
}

pub(super) fn workers_height(app: &App, run: &RunView) -> usize {
    1 + lanes::count(app, run).max(1)
}

pub(super) fn workers(app: &App, run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let mut page = Page::default();
    let of_rank = match rows::rank_at(app) {
        Some(rank) if run.window.ranks.len() > 1 => format!("of rank {rank}, "),
        _ => String::new(),
    };
    let (lines, whole_run) = lanes::lines(app, run, theme, width, height.saturating_sub(1));
    let facts = match (lines.is_empty(), whole_run) {
        (true, _) => of_rank.trim_end_matches(", ").to_owned(),
        (_, true) => format!("{of_rank}their load over the whole run"),
        (_, false) => format!("{of_rank}what they did, and do now"),
    };
    let mut title = heading(run.summary.workers_heading(), &facts, width, theme);
    if !lines.is_empty() {
        for (cause, what) in [(Cause::Fetch, "reads"), (Cause::Prep, "on CPU"), (Cause::Starved, "no CPU")] {
            title.push_span(ink(format!("  {}", theme.fill(cause)), theme.cause(cause)));
            title.push_span(ink(format!(" {what}"), theme.dim()));
        }
    }
    page.push(title);
    if lines.is_empty() {
        let sentence = lanes::why_none(app, run);
        page.lines.extend(labelled("  ", &sentence, theme.dim(), width, theme));
    }
    page.lines.extend(lines);
    page.cut(height)
}

pub(super) fn files_height(run: &RunView) -> usize {
    1 + (run.summary.files.len() + run.summary.mounts.len()).max(1)
}

pub(super) fn files(run: &RunView, theme: &Theme, width: usize, height: usize) -> Page {
    let (files, mounts) = (&run.summary.files, &run.summary.mounts);
    let mut page = Page::default();
    page.push(heading("Files and mounts", "by how long tasks were blocked in them, whole run", width, theme));
    if files.is_empty() && mounts.is_empty() {
        let why = needs_kernel(run).unwrap_or_else(|| "no task was blocked in a file so far".to_owned());
        page.lines.extend(labelled("  ", &why, theme.dim(), width, theme));
        return page.cut(height);
    }
    let capacity = height.saturating_sub(1);
    // Mounts are few, and one of them mostly has nearly all of the waits.
    let mounts_shown = mounts.len().min((capacity / 3).max(1));
    let line = |wait_ns: u64, waits: u64, name: &str, style: Style| {
        let figures = format!(
            "{}{}  ",
            right(&units::duration(wait_ns), 9, theme),
            right(&units::count(waits), 10, theme)
        );
        let columns = width.saturating_sub(figures.len());
        Line::from(vec![plain(figures), ink(clip_start(name, columns, theme), style)])
    };
    let mut by_wait: Vec<_> = mounts.iter().collect();
    by_wait.sort_by_key(|mount| std::cmp::Reverse(mount.wait_ns));
    for mount in by_wait.into_iter().take(mounts_shown) {
        let name = match mount.fs_type.as_str() {
            "" => mount.mount.clone(),
            fs_type => format!("{} ({fs_type})", mount.mount),
        };
        page.push(line(mount.wait_ns, mount.waits, &name, theme.bold()));
    }
    for file in files.iter().take(capacity.saturating_sub(mounts_shown)) {
        page.push(line(file.wait_ns, file.waits, &file.path, Style::new()));
    }
    page.cut(height)
}

/// When checkpoints were saved, below the ledger's time.
pub(super) fn checkpoints(run: &RunView, theme: &Theme, width: usize) -> Line<'static> {
    let label = ink(left("save", SCALE, theme), theme.dim());
    let saved: u64 = run.summary.ranks.iter().map(|rank| rank.checkpoints.count).sum();
    if run.checkpoints.is_empty() {
        let why = match saved {
            0 => "no checkpoint so far".to_owned(),
            _ => format!("{}; this recording does not say when", units::counted(saved, "checkpoint")),
        };
        return Line::from(vec![label, ink(left(&why, width.saturating_sub(SCALE), theme), theme.dim())]);
    }
    let columns = width.saturating_sub(SCALE).max(1);
    let window = &run.window;
    let length_ns = window.to_ns.saturating_sub(window.from_ns).max(1);
    let place = |ns: u64| {
        (ns.saturating_sub(window.from_ns) as u128 * columns as u128 / u128::from(length_ns)) as usize
    };
    let mut cells = vec![(' ', Style::new()); columns];
    for event in
        run.checkpoints.iter().filter(|event| event.end_ns > window.from_ns && event.start_ns < window.to_ns)
    {
        let (first, last) = (place(event.start_ns), place(event.end_ns).min(columns - 1));
        let cell = match event.background {
            true => (theme.either('┄', '~'), theme.cause(Cause::Persist)),
            false => (theme.fill(event.cause), theme.cause(event.cause)),
        };
        for slot in cells.iter_mut().take(last + 1).skip(first) {
            // What training stood still for is not hidden by what went on beside it.
            if slot.0 == ' ' || !event.background {
                *slot = cell;
            }
        }
    }
    if let Some(account) = run.summary.ranks.iter().find_map(|rank| rank.checkpoints.account) {
        write_cost(&account, &mut cells, theme);
    }
    let mut spans: Vec<Span<'static>> = vec![label];
    spans.extend(super::bars::spans(cells));
    Line::from(spans)
}

/// What checkpoints cost and may cost, as far to the right as no checkpoint is hidden by it; nowhere else.
fn write_cost(account: &CheckpointAccount, cells: &mut [(char, Style)], theme: &Theme) {
    let cost = units::percent_exact(units::share(account.spent_ns, account.trained_ns));
    let text = match account.budget_ppm {
        Some(ppm) => format!(" cost {cost} of {} ", units::percent_exact(units::share(ppm, 1_000_000))),
        None => format!(" cost {cost} "),
    };
    let length = text.chars().count();
    let free = |cells: &[(char, Style)]| cells.iter().all(|cell| cell.0 == ' ');
    let space = (0..=cells.len().saturating_sub(length))
        .rev()
        .find(|at| cells.get(*at..at + length).is_some_and(free));
    if let Some(at) = space {
        for (cell, letter) in cells[at..].iter_mut().zip(text.chars()) {
            *cell = (letter, theme.dim());
        }
    }
}
