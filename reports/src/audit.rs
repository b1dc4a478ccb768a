//! The audit as text: each of its lines in full.

use crate::style::{Ink, Line, Style, left};
use stallscope_look::tuning;
use stallscope_model::{Act, AuditEvent, Estimate, Knob};

/// Columns of the time, and of the act.
const WHEN: usize = 8;
const ACT: usize = 9;
/// Indent of what follows them, also where it wraps.
const BESIDE: usize = WHEN + 2 + ACT;

/// What a line of the audit is rendered with.
#[derive(Clone, Debug, Default)]
pub struct LineContext {
    /// Knobs of the job, for their units.
    pub knobs: Vec<Knob>,
    /// Name the rank of each line.
    pub ranks: bool,
    /// When the job began, on the clock of [`AuditEvent::time_ns`].
    pub began_ns: u64,
}

/// One line of the audit, broken where it is wider than the terminal. Ends with a newline.
pub fn line(event: &AuditEvent, context: &LineContext, style: &Style) -> String {
    let when = clock(event.time_ns.saturating_sub(context.began_ns));
    let mut head = Line::new(left(&when, WHEN)).plain("  ").ink(left(event.act.name(), ACT), ink(event.act));
    let mut text = String::new();
    for piece in style.wrap(&in_words(event, context), style.width.saturating_sub(BESIDE).max(24)) {
        head.plain(piece).render(style, &mut text);
        head = Line::new(" ".repeat(BESIDE));
    }
    text
}

/// "workers 2 → 4, +31% (+24% to +38%) measured: …"
fn in_words(event: &AuditEvent, context: &LineContext) -> String {
    let mut facts = Vec::new();
    if !event.knob.is_empty() {
        let rank = event.rank.filter(|_| context.ranks);
        let whose = rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
        facts.push(format!("{whose}{}", tuning::change(event, &context.knobs)));
    }
    if !matches!(event.by.as_str(), "" | "controller") {
        facts.push(format!("by {}", event.by));
    }
    let gain = |estimate: &Estimate, how: &str| format!("{} {how}", tuning::gain_with_interval(estimate));
    facts.extend(event.measured.as_ref().map(|measured| gain(measured, "measured")));
    facts.extend(event.predicted.as_ref().map(|predicted| gain(predicted, "expected")));
    let sentences = [event.why.as_str(), event.saw.as_str()];
    let texts: Vec<&str> = sentences.into_iter().filter(|sentence| !sentence.is_empty()).collect();
    [facts.join(", "), texts.join("; ")]
        .iter()
        .filter(|part| !part.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join(": ")
}

fn ink(act: Act) -> Ink {
    match act {
        Act::Keep => Ink::Colour(32),
        Act::Undo | Act::Refused | Act::Freeze => Ink::Colour(31),
        Act::Request | Act::Applied | Act::Release => Ink::Bold,
        Act::Mode | Act::Hold | Act::Advise | Act::Drift => Ink::Dim,
    }
}

/// "1:02:05", "2:05"
fn clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(width: usize) -> Style {
        Style { width, colour: false, unicode: true }
    }

    fn kept() -> AuditEvent {
        AuditEvent {
            time_ns: 3_800_000_000_000,
            act: Act::Keep,
            by: "controller".into(),
            rank: Some(1),
            knob: "workers".into(),
            from: Some(2),
            to: Some(4),
            saw: "40% of the time waits for data".into(),
            predicted: Some(Estimate { value: 0.4, low: 0.3, high: 0.5 }),
            measured: Some(Estimate { value: 0.31, low: 0.24, high: 0.38 }),
            why: "the gain is proven".into(),
            ..AuditEvent::default()
        }
    }

    #[test]
    fn a_line_says_everything() {
        let line = line(&kept(), &LineContext { ranks: true, ..LineContext::default() }, &style(1000));
        assert_eq!(
            line,
            "1:03:20   keep     rank 1: workers 2 → 4, +31% (+24% to +38%) measured, +40% (+30% to +50%) expected: \
             the gain is proven; 40% of the time waits for data\n"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_nothing_is_lost() {
        for width in [44, 80, 120] {
            let text = line(&kept(), &LineContext::default(), &style(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(
                words.join(" ").ends_with("the gain is proven; 40% of the time waits for data"),
                "{text}"
            );
        }
    }

    #[test]
    fn users_and_foreign_bytes_are_shown_clean() {
        let event = AuditEvent {
            act: Act::Mode,
            by: "a\u{1b}[2Jda".into(),
            why: "observe\nwatches".into(),
            ..AuditEvent::default()
        };
        let text = line(&event, &LineContext::default(), &style(200));
        assert_eq!(text, "0:00      mode     by a\\u{1b}[2Jda: observe watches\n");
    }
}
