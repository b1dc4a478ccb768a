//! The lines of each view, filtered and in order, and the cursor among them. Pure.

use crate::app::{App, View};
use crate::command::{COMMANDS, Entry};
use crate::series::Sum;
use crate::snapshot::{JobRow, JobState, waiting_share};
use stallscope_model::{AuditEvent, Cause, Causes, Diagnosis, Knob, StepDetail};
use std::cmp::Reverse;

/// The columns that each view can be sorted by; the first is the default.
pub(crate) const SORTS: [&[&str]; View::ALL.len()] = [
    &["state", "start", "name", "step time", "samples a second", "waits"],
    &["rank", "step time", "waits", "samples"],
    &["duration", "time", "rank"],
    &[],
    &[],
    &[],
    &[],
    &[],
];

/// One rank within the time shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankRow {
    pub rank: u32,
    pub sum: Sum,
    /// Whether the other ranks wait for this one.
    pub slowest: bool,
}

/// The cause that stalled most; `None` without a stall.
pub(crate) fn worst_cause(causes: &Causes) -> Option<Cause> {
    let stalls = causes.iter().filter(|(cause, ns)| *cause != Cause::Compute && *ns > 0);
    stalls.max_by_key(|(_, ns)| *ns).map(|(cause, _)| cause)
}

fn contains(text: &str, filter: &str) -> bool {
    filter.is_empty() || text.to_lowercase().contains(&filter.to_lowercase())
}

fn sorted<T>(app: &App, view: View, rows: &mut [T], compare: impl Fn(&T, &T, usize) -> std::cmp::Ordering) {
    let sort = app.sorts[view as usize];
    rows.sort_by(|a, b| {
        let order = compare(a, b, sort.column);
        if sort.reversed { order.reverse() } else { order }
    });
}

pub(crate) fn jobs(app: &App) -> Vec<&JobRow> {
    let filter = &app.filters[View::Jobs as usize];
    let Some(all) = &app.jobs else { return Vec::new() };
    let mut rows: Vec<&JobRow> = all
        .iter()
        .filter(|job| {
            contains(&job.name, filter)
                || contains(job.state.name(), filter)
                || contains(&job.verdict, filter)
        })
        .collect();
    let rate = |job: &JobRow| job.samples as f64 / job.wall_ns.max(1) as f64;
    sorted(app, View::Jobs, &mut rows, |a, b, column| {
        let newest = || b.started_wall_ns.cmp(&a.started_wall_ns);
        let order = match column {
            0 => (a.state != JobState::Running).cmp(&(b.state != JobState::Running)),
            1 => newest(),
            2 => a.name.cmp(&b.name),
            3 => b.step_ns.cmp(&a.step_ns),
            4 => rate(b).total_cmp(&rate(a)),
            _ => b.waiting_share().total_cmp(&a.waiting_share()),
        };
        order.then_with(newest).then_with(|| a.recording.cmp(&b.recording))
    });
    rows
}

pub(crate) fn ranks(app: &App) -> Vec<RankRow> {
    let filter = &app.filters[View::Job as usize];
    let Some(run) = app.shown() else { return Vec::new() };
    let slowest = run.window.slowest();
    let mut rows: Vec<RankRow> = run
        .window
        .ranks
        .iter()
        .map(|(rank, sum)| RankRow { rank: *rank, sum: *sum, slowest: slowest == Some(*rank) })
        .filter(|row| {
            let cause = worst_cause(&row.sum.causes).map_or("", Cause::name);
            filter.is_empty() || contains(&format!("rank {}", row.rank), filter) || contains(cause, filter)
        })
        .collect();
    sorted(app, View::Job, &mut rows, |a, b, column| {
        let order = match column {
            0 => a.rank.cmp(&b.rank),
            1 => b.sum.step_ns().cmp(&a.sum.step_ns()),
            2 => waiting_share(&b.sum.causes).total_cmp(&waiting_share(&a.sum.causes)),
            _ => b.sum.samples.cmp(&a.sum.samples),
        };
        order.then(a.rank.cmp(&b.rank))
    });
    rows
}

/// The steps kept in full that end in the time shown.
pub(crate) fn steps(app: &App) -> Vec<&StepDetail> {
    let filter = &app.filters[View::Step as usize];
    let Some(run) = app.shown() else { return Vec::new() };
    let Some(steps) = &run.steps else { return Vec::new() };
    let mut rows: Vec<&StepDetail> = steps
        .iter()
        .filter(|step| step.end_ns > run.window.from_ns && step.start_ns < run.window.to_ns)
        .filter(|step| {
            filter.is_empty()
                || format!("rank {}", step.rank) == filter.trim()
                || contains(&format!("step {}", step.index), filter)
                || contains(step.phase.name(), filter)
                || worst_piece(step).is_some_and(|cause| contains(cause.name(), filter))
        })
        .collect();
    sorted(app, View::Step, &mut rows, |a, b, column| match column {
        0 => Reverse(a.end_ns - a.start_ns).cmp(&Reverse(b.end_ns - b.start_ns)),
        1 => a.start_ns.cmp(&b.start_ns),
        _ => a.rank.cmp(&b.rank),
    });
    rows
}

/// The stall that took most of a step.
pub(crate) fn worst_piece(step: &StepDetail) -> Option<Cause> {
    let mut causes = Causes::default();
    for piece in &step.critical {
        causes[piece.cause] += piece.end_ns.saturating_sub(piece.start_ns);
    }
    worst_cause(&causes)
}

pub(crate) fn diagnoses(app: &App) -> Vec<&Diagnosis> {
    let filter = &app.filters[View::Diagnoses as usize];
    let Some(run) = app.shown() else { return Vec::new() };
    run.summary
        .diagnoses
        .iter()
        .filter(|diagnosis| contains(&diagnosis.name, filter) || contains(&diagnosis.finding, filter))
        .collect()
}

pub(crate) fn knobs(app: &App) -> Vec<&Knob> {
    let filter = &app.filters[View::Knobs as usize];
    let Some(run) = app.shown() else { return Vec::new() };
    run.summary
        .knobs
        .iter()
        .filter(|knob| {
            contains(&knob.name, filter)
                || contains(&format!("rank {}", knob.rank), filter)
                || contains(knob.state.name(), filter)
                || contains(&knob.set_by, filter)
        })
        .collect()
}

/// The audit up to the end of the time shown.
pub(crate) fn audit_to_date(app: &App) -> &[AuditEvent] {
    let Some(run) = app.shown() else { return &[] };
    let upto_ns = app.time.at_ns.unwrap_or(u64::MAX);
    // The recorder appends lines in the order of their times, so a binary search finds the end.
    &run.audit[..run.audit.partition_point(|event| event.time_ns <= upto_ns)]
}

pub(crate) fn audit(app: &App) -> Vec<&AuditEvent> {
    let filter = &app.filters[View::Audit as usize];
    audit_to_date(app)
        .iter()
        .filter(|event| {
            [event.act.name(), &event.knob, &event.by, &event.why, &event.saw]
                .into_iter()
                .any(|text| contains(text, filter))
                || event.rank.is_some_and(|rank| contains(&format!("rank {rank}"), filter))
        })
        .collect()
}

pub(crate) fn commands(app: &App) -> Vec<&'static Entry> {
    let filter = &app.filters[View::Help as usize];
    COMMANDS
        .iter()
        .filter(|entry| {
            let keys = entry.keys.iter().any(|key| key.to_string() == *filter);
            keys || contains(entry.name, filter) || contains(entry.help, filter)
        })
        .collect()
}

/// The cursor's place among the jobs.
pub(crate) fn job_place(app: &App) -> usize {
    let at = app.job_at.as_ref().or(app.recording.as_ref());
    jobs(app).iter().position(|job| Some(&job.recording) == at).unwrap_or(0)
}

/// The rank the cursor is on.
pub(crate) fn rank_at(app: &App) -> Option<u32> {
    let rows = ranks(app);
    let at = app.rank_at.filter(|rank| rows.iter().any(|row| row.rank == *rank));
    // The rank that makes the others wait is the one to look at first.
    let slowest = || rows.iter().find(|row| row.slowest).map(|row| row.rank);
    at.or_else(slowest).or_else(|| rows.first().map(|row| row.rank))
}

/// The cursor's place among the ranks.
pub(crate) fn rank_place(app: &App) -> usize {
    let at = rank_at(app);
    ranks(app).iter().position(|row| Some(row.rank) == at).unwrap_or(0)
}

/// The cursor's place among the steps.
pub(crate) fn step_place(app: &App) -> usize {
    steps(app).iter().position(|step| Some((step.rank, step.start_ns)) == app.step_at).unwrap_or(0)
}

/// The cursor's place in the audit: at the newest line, unless another was chosen.
pub(crate) fn audit_place(app: &App) -> usize {
    let rows = audit(app);
    let chosen = app.audit_at.and_then(|line| rows.iter().position(|event| event.line == line));
    chosen.unwrap_or(rows.len().saturating_sub(1))
}

/// Moves the cursor of the view.
pub(crate) fn go(app: &mut App, to: impl Fn(usize) -> usize) {
    let within = |place: usize, len: usize| to(place).min(len.saturating_sub(1));
    match app.view {
        View::Jobs => {
            let rows = jobs(app);
            app.job_at = rows.get(within(job_place(app), rows.len())).map(|job| job.recording.clone());
        }
        View::Job => {
            let rows = ranks(app);
            app.rank_at = rows.get(within(rank_place(app), rows.len())).map(|row| row.rank);
        }
        View::Step => {
            let rows = steps(app);
            app.step_at =
                rows.get(within(step_place(app), rows.len())).map(|step| (step.rank, step.start_ns));
        }
        View::Diagnoses => app.line_at[View::Diagnoses as usize] = within(line(app), diagnoses(app).len()),
        View::Help => app.line_at[View::Help as usize] = within(line(app), commands(app).len()),
        View::Knobs => app.line_at[View::Knobs as usize] = within(line(app), knobs(app).len()),
        View::Audit => {
            let rows = audit(app);
            let place = within(audit_place(app), rows.len());
            // `None` at the last line: the cursor follows lines that are written later.
            app.audit_at = rows.get(place).filter(|_| place + 1 < rows.len()).map(|event| event.line);
        }
        // The number of lines is known once they are drawn, which clamps this further.
        View::Health => app.line_at[View::Health as usize] = to(line(app)).min(10_000),
    }
}

fn line(app: &App) -> usize {
    app.line_at[app.view as usize]
}
