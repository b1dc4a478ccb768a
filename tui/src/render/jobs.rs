//! All jobs: state, pace, where the time goes, and the verdict.

use super::bars::{bar, spark};
use super::{Page, first_shown};
use crate::app::{App, Columns};
use crate::rows;
use crate::snapshot::{JobRow, JobState};
use crate::text::{clip, ink, labelled, left, plain, right};
use crate::theme::Theme;
use ratatui::text::{Line, Span};
use stallscope_model::Cause;
use stallscope_units as units;
use unicode_width::UnicodeWidthStr;

const TREND: usize = 10;

pub(super) fn page(app: &App, theme: &Theme, width: usize, height: usize) -> Page {
    let Some(all) = &app.jobs else {
        let mut page = Page::default();
        page.push(ink(format!("  looking for jobs {}", theme.either("…", "...")), theme.dim()));
        return page;
    };
    if all.is_empty() {
        return empty(theme, width);
    }
    let rows = rows::jobs(app);
    let name = rows
        .iter()
        .map(|job| theme.clean(&job.name).width())
        .max()
        .unwrap_or(4)
        .clamp(4, (width / 4).max(10));
    // State, step, samples a second, stall, and the gaps between.
    let before = name + 2 + 11 + 9 + 11 + 7;
    let verdict =
        if width >= before + 20 + TREND + 2 + 40 { (width - before - 22 - TREND - 2).max(40) } else { 0 };
    let available = width.saturating_sub(before + verdict + usize::from(verdict > 0) * 2);
    let trend = if available >= 10 + TREND + 2 { TREND } else { 0 };
    let middle = available.saturating_sub(trend + usize::from(trend > 0) * 2);

    let mut page = Page::default();
    let mut heading = format!(
        "{}  {}{}{}{}",
        left("JOB", name, theme),
        left("STATE", 11, theme),
        right("STEP", 9, theme),
        right("SAMPLES/S", 11, theme),
        right("WAITS", 7, theme),
    );
    heading.push_str(&format!("  {}", left(middle_heading(app.columns), middle.saturating_sub(2), theme)));
    if trend > 0 {
        heading.push_str(&format!("  {}", left("TREND", trend, theme)));
    }
    if verdict > 0 {
        heading.push_str("  VERDICT");
    }
    page.push(ink(heading, theme.dim()));
    if rows.is_empty() {
        page.push(plain(format!("  no job matches /{}", theme.clean(app.filter()))));
        return page;
    }
    let each = if verdict > 0 { 1 } else { 2 };
    let cursor = rows::job_place(app);
    let shown = (height.saturating_sub(1) / each).max(1);
    let first = first_shown(rows.len(), cursor, shown);
    for (place, job) in rows.iter().enumerate().skip(first).take(shown) {
        let chosen = place == cursor;
        let mut spans = vec![
            ink(left(&job.name, name, theme), if chosen { theme.chosen() } else { theme.bold() }),
            plain("  "),
            state(job, theme),
        ];
        let (step, rate, stall) = match job.steps {
            0 => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
            _ => (units::duration(job.step_ns), rate(job), units::percent(job.waiting_share())),
        };
        spans.push(plain(format!("{}{}", right(&step, 9, theme), right(&rate, 11, theme))));
        spans.push(ink(right(&stall, 7, theme), theme.bold()));
        spans.push(plain("  "));
        spans.extend(middle_of(job, app.columns, middle.saturating_sub(2), theme));
        if trend > 0 {
            spans.push(plain(format!("  {}", spark(&job.trend, trend, theme))));
        }
        if verdict > 0 {
            spans.push(plain(format!("  {}", clip(&job.verdict, verdict, theme))));
        }
        page.row(Line::from(spans), place);
        if verdict == 0 {
            let text = clip(&job.verdict, width.saturating_sub(2), theme);
            page.row(Line::from(ink(format!("  {text}"), theme.dim())), place);
        }
    }
    page.page = shown;
    page
}

const fn middle_heading(columns: Columns) -> &'static str {
    match columns {
        Columns::Bars => "WHERE TIME GOES",
        Columns::Shares => "LARGEST STALLS",
        Columns::Times => "TOOK, STEPS, RANKS",
    }
}

fn middle_of(job: &JobRow, columns: Columns, width: usize, theme: &Theme) -> Vec<Span<'static>> {
    match columns {
        Columns::Bars => bar(&job.causes, width, theme),
        Columns::Shares => {
            let mut stalls = super::bars::by_share(&job.causes);
            stalls.retain(|(cause, _)| *cause != Cause::Compute);
            let words: Vec<String> = stalls
                .iter()
                .map(|(cause, share)| format!("{} {}", cause.name(), units::percent(*share)))
                .collect();
            vec![plain(left(&words.join(", "), width, theme))]
        }
        Columns::Times => {
            let ranks = units::counted(job.ranks as u64, "rank");
            let text =
                format!("{}, {}, {ranks}", units::duration(job.took_ns), units::counted(job.steps, "step"));
            vec![plain(left(&text, width, theme))]
        }
    }
}

fn rate(job: &JobRow) -> String {
    if job.samples == 0 { "-".to_owned() } else { units::per_second(job.samples, job.wall_ns) }
}

fn state(job: &JobRow, theme: &Theme) -> Span<'static> {
    let style = match job.state {
        JobState::Running => theme.good(),
        JobState::Finished => theme.dim(),
        JobState::Killed | JobState::Unreadable => theme.alarm(),
    };
    ink(left(job.state.name(), 11, theme), style)
}

/// Nothing runs and nothing was recorded: what to start.
fn empty(theme: &Theme, width: usize) -> Page {
    let mut page = Page::default();
    page.push("");
    page.push(ink("  No job runs here, and there is no recording in this folder.", theme.bold()));
    page.push("");
    for (command, what) in [
        ("stallscope run -- python train.py", "starts your job and measures it"),
        ("sudo stallscope attach PID", "measures a job that already runs"),
        ("stallscope top FILE.stall", "replays a recording"),
    ] {
        page.lines.extend(labelled(&format!("  {command:<36}"), what, theme.dim(), width, theme));
    }
    page.push("");
    let sentence = "This view attaches nothing by itself. A job that starts shows up here within a second.";
    page.lines.extend(labelled("  ", sentence, theme.dim(), width, theme));
    page
}
