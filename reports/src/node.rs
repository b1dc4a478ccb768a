//! What the node's service does with the jobs that run here, and its audit, as text.

use crate::sections::clock;
use crate::style::{Ink, Line, Style, left};
use stallscope_look::{clean, tuning};
use stallscope_model::{AuditEvent, Estimate};
use stallscope_units as units;
use stallscope_wire::{NodeEvent, NodeJob, NodeState};
use unicode_width::UnicodeWidthStr;

/// Indent of what follows the first line of an event.
const INDENT: usize = 4;

/// The jobs, one a line, with a heading; first the pause of the node, where there is one.
pub fn page(state: &NodeState, style: &Style) -> String {
    let mut text = String::new();
    if let Some(paused) = &state.paused {
        let (by, since) = (clean(&paused.by, style.unicode), clock::moment(paused.since_wall_ns));
        let line = format!("paused by {by} since {since}: nothing is changed until `stallscope node resume`");
        for piece in style.wrap(&line, style.width) {
            Line::default().bold(piece).render(style, &mut text);
        }
    }
    if state.jobs.is_empty() {
        text.push_str("no job runs here that the node's policy knows of\n");
    } else {
        text.push_str(&table(&state.jobs, style));
    }
    text
}

fn table(jobs: &[NodeJob], style: &Style) -> String {
    const HEADING: [&str; 9] = ["JOB", "PID", "USER", "IN", "MODE", "RULE", "CACHES UP TO", "SAVED", "STATE"];
    let clean = |text: &str| clean(text, style.unicode);
    let rows = jobs.iter().map(|job| {
        let rule = job.rule.map_or_else(|| "none".into(), |rule| rule.to_string());
        let caches = if job.cache_bytes > 0 { units::memory(job.cache_bytes) } else { "as they are".into() };
        let pid = if job.pid > 0 { job.pid.to_string() } else { String::new() };
        let state = match &job.frozen {
            Some(frozen) => format!("{}; frozen {frozen}", job.state),
            None => job.state.clone(),
        };
        // Names are their users'.
        let [name, user, place, mode] = [&job.name, &job.user, &job.place, &job.mode].map(|text| clean(text));
        [name, pid, user, place, mode, rule, caches, saved(job), clean(&state)]
    });
    let rows: Vec<_> = [HEADING.map(str::to_owned)].into_iter().chain(rows).collect();
    let widest = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADING.len() - 1).map(widest).collect();
    let mut text = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(&widths) {
            text.push_str(&left(cell, *width));
            text.push_str("  ");
        }
        text.push_str(&row[HEADING.len() - 1]);
        text.push('\n');
    }
    text
}

/// "1.4 h (+31%)"
fn saved(job: &NodeJob) -> String {
    if job.saved_s < 1.0 && job.faster < 0.005 {
        return String::new();
    }
    let saved = units::duration((job.saved_s.max(0.0) as u64).saturating_mul(1_000_000_000));
    format!("{saved} ({})", tuning::gain(job.faster))
}

/// One line of the node's audit, broken where it is wider than the terminal. Ends with a newline.
pub fn line(event: &NodeEvent, style: &Style) -> String {
    let job = match (event.job.as_str(), event.user.as_str()) {
        ("", "") => "the node".to_owned(),
        ("", user) => user.to_owned(),
        (job, user) => format!("{job} ({}, {user})", event.pid),
    };
    let words = format!("{}  {}  {job}: {}", clock::moment(event.wall_ns), event.act, in_words(event));
    let mut text = String::new();
    for (nth, piece) in style.wrap(&words, style.width.saturating_sub(INDENT).max(24)).into_iter().enumerate()
    {
        let head = Line::new(if nth == 0 { String::new() } else { " ".repeat(INDENT) });
        head.ink(piece, ink(&event.act)).render(style, &mut text);
    }
    text
}

fn in_words(event: &NodeEvent) -> String {
    let mut facts = Vec::new();
    if !event.knob.is_empty() {
        let rank = event.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
        let (from, to, knob) = (event.from, event.to, event.knob.clone());
        let changed = AuditEvent { from, to, knob, ..AuditEvent::default() };
        facts.push(format!("{rank}{}", tuning::change(&changed, &[])));
    }
    if !matches!(event.by.as_str(), "" | "controller" | "the service") {
        facts.push(format!("by {}", event.by));
    }
    let gain = |estimate: &Estimate, how: &str| format!("{} {how}", tuning::gain_with_interval(estimate));
    facts.extend(event.measured.as_ref().map(|measured| gain(measured, "measured")));
    facts.extend(event.predicted.as_ref().map(|predicted| gain(predicted, "expected")));
    let sentences = [event.why.as_str(), event.saw.as_str()].into_iter().filter(|text| !text.is_empty());
    let parts = [facts.join(", "), sentences.collect::<Vec<_>>().join("; ")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

fn ink(act: &str) -> Ink {
    match act {
        "keep" | "resume" => Ink::Colour(32),
        "undo" | "refused" | "freeze" | "lost" => Ink::Colour(31),
        "request" | "release" | "pause" | "policy" => Ink::Bold,
        _ => Ink::Dim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_wire::Paused;

    fn style(width: usize) -> Style {
        Style { width, colour: false, unicode: true }
    }

    #[test]
    fn a_pause_of_the_node_stands_above_its_jobs() {
        let job = NodeJob {
            name: "tr\u{1b}[2Jain".into(),
            pid: 70,
            user: "mira".into(),
            place: "train.\u{1b}service".into(),
            mode: "act".into(),
            rule: Some(1),
            cache_bytes: 4 << 30,
            state: "tuned".into(),
            ..NodeJob::default()
        };
        let paused = Some(Paused { by: "root".into(), uid: 0, since_wall_ns: 1_000_000_000 });
        let lines = page(&NodeState { paused: paused.clone(), jobs: vec![job] }, &style(200));
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines[0].starts_with("paused by root since 1 Jan 1970, 00:00:01 UTC"), "{lines:?}");
        assert!(lines[0].ends_with("until `stallscope node resume`"), "{lines:?}");
        let narrow = page(&NodeState { paused: paused.clone(), jobs: vec![] }, &style(40));
        assert!(narrow.replace('\n', " ").contains("until `stallscope node resume`"), "{narrow}");
        assert!(lines[2].starts_with("tr\\u{1b}[2Jain  70"), "{lines:?}");
        assert!(lines[2].contains("  mira  train.\\u{1b}service  act  "), "{lines:?}");
        let frozen = Some("for 43 min: three changes had to be taken back".into());
        let job =
            NodeJob { saved_s: 5040.0, faster: 0.31, frozen, state: "tuned".into(), ..NodeJob::default() };
        let shown = page(&NodeState { paused: None, jobs: vec![job] }, &style(200));
        assert!(shown.contains("1.4 h (+31%)  tuned; frozen for 43 min: three changes"), "{shown}");
        assert_eq!(page(&NodeState { paused, jobs: vec![] }, &style(200)).lines().count(), 2);
    }

    #[test]
    fn a_line_of_the_audit_says_job_change_outcome_and_why() {
        let event = NodeEvent {
            wall_ns: 3_661_000_000_000,
            job: "train".into(),
            pid: 70,
            user: "mi\nra".into(),
            act: "keep".into(),
            by: "controller".into(),
            knob: "workers".into(),
            from: Some(2),
            to: Some(6),
            predicted: Some(Estimate { value: 0.4, low: 0.3, high: 0.5 }),
            measured: Some(Estimate { value: 0.31, low: 0.24, high: 0.38 }),
            why: "the gain is proven".into(),
            ..NodeEvent::default()
        };
        assert_eq!(
            line(&event, &style(1000)),
            "1 Jan 1970, 01:01:01 UTC keep train (70, mi ra): workers 2 → 6, +31% (+24% to +38%) measured, \
             +40% (+30% to +50%) expected: the gain is proven\n"
        );
        let pause =
            NodeEvent { act: "pause".into(), by: "root".into(), why: "so".into(), ..NodeEvent::default() };
        assert!(line(&pause, &style(1000)).ends_with("pause the node: by root: so\n"));
        assert!(line(&event, &style(60)).lines().all(|line| line.chars().count() <= 60));
    }
}
