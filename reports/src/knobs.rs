//! What can be turned in a job, one knob a line.

use crate::style::{Line, Style, left, right};
use stallscope_look::tuning::{amount, amount_in_full};
use stallscope_model::{Knob, KnobState};
use unicode_width::UnicodeWidthStr;

const HEADING: [&str; 9] = ["RANK", "LOADER", "KNOB", "NOW", "SCRIPT", "BOUNDS", "ASKED", "STATE", "BY"];

/// Columns that hold figures.
const RIGHT: [usize; 4] = [0, 1, 4, 6];
const BY: usize = 8;

/// Widest cell of a foreign text.
const WIDEST: usize = 20;

/// A table with a heading, and below a knob what the job says of it. Empty without knobs.
pub fn table(knobs: &[Knob], style: &Style) -> String {
    if knobs.is_empty() {
        return String::new();
    }
    let heading = HEADING.map(str::to_owned);
    let rows: Vec<[String; 9]> = knobs.iter().map(|knob| cells(knob, style)).collect();
    let widths: Vec<usize> = (0..HEADING.len())
        .map(|column| rows.iter().chain([&heading]).map(|row| row[column].width()).max().unwrap_or(0))
        .collect();
    // On a narrow terminal the name goes to a line of its own.
    let beside = widths.iter().sum::<usize>() + 2 * BY <= style.columns();
    let line = |row: &[String; 9]| {
        let shown = if beside { &row[..] } else { &row[..BY] };
        let cells = shown.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if RIGHT.contains(&column) { right(cell, *width) } else { left(cell, *width) }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut text = String::new();
    Line::default().bold(line(&heading)).render(style, &mut text);
    for (knob, row) in knobs.iter().zip(&rows) {
        Line::new(line(row)).render(style, &mut text);
        let by = if beside || knob.set_by.is_empty() { String::new() } else { format!("by {}", row[BY]) };
        let below: Vec<&str> =
            [by.as_str(), &knob.reason].into_iter().filter(|words| !words.is_empty()).collect();
        if !below.is_empty() {
            for line in style.wrap(&below.join(": "), style.columns() - 4) {
                Line::new("    ").dim(line).render(style, &mut text);
            }
        }
    }
    text
}

fn cells(knob: &Knob, style: &Style) -> [String; 9] {
    let nothing = || "-".to_owned();
    let shown = |value: u64| amount(value, &knob.unit);
    let turnable = knob.state != KnobState::Unavailable;
    [
        knob.rank.to_string(),
        knob.loader.map_or_else(nothing, |loader| loader.to_string()),
        style.clip(&knob.name, WIDEST),
        style.clip(&amount_in_full(knob.value, &knob.unit), WIDEST),
        style.clip(&shown(knob.initial), WIDEST),
        if turnable { format!("{} to {}", shown(knob.min), shown(knob.max)) } else { nothing() },
        knob.requested.map_or_else(nothing, shown),
        match (knob.state, knob.requested) {
            (KnobState::Applied, None) => nothing(),
            (state, _) => state.name().to_owned(),
        },
        if knob.set_by.is_empty() { nothing() } else { style.clip(&knob.set_by, WIDEST) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knob(rank: u32, value: u64) -> Knob {
        Knob {
            rank,
            loader: Some(0),
            name: "prefetch".into(),
            unit: "batches".into(),
            value,
            initial: 4,
            min: 1,
            max: 2_000,
            ..Knob::default()
        }
    }

    #[test]
    fn a_table_shows_value_bounds_request_and_reason() {
        let turned = Knob { requested: Some(32), set_by: "mira".into(), ..knob(0, 32) };
        let refused = Knob {
            requested: Some(64),
            state: KnobState::Refused,
            reason: "There is no memory for it.".into(),
            set_by: "controller".into(),
            ..knob(1, 4)
        };
        let blind = Knob {
            loader: None,
            name: "\x1b[3mnaps".into(),
            unit: "ns".into(),
            value: 1_500_000_000,
            initial: 1_500_000_000,
            state: KnobState::Unavailable,
            reason: "It \x07writes none.".into(),
            ..knob(2, 0)
        };
        let style = Style { width: 100, colour: false, unicode: true };
        let knobs = [turned, refused, blind, knob(3, 4)];
        let text = table(&knobs, &style);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "RANK  LOADER  KNOB           NOW         SCRIPT  BOUNDS      ASKED  STATE        BY",
                "   0       0  prefetch       32 batches       4  1 to 2,000     32  applied      mira",
                "   1       0  prefetch       4 batches        4  1 to 2,000     64  refused      controller",
                "    There is no memory for it.",
            ]
        );
        assert!(lines[4].contains("1.5 s") && lines[4].contains("unavailable"), "{text}");
        assert!(lines[6].ends_with("-"), "{text}");
        assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text}");
        let narrow = table(&knobs, &Style { width: 80, ..style });
        let lines: Vec<&str> = narrow.lines().collect();
        assert_eq!(
            lines[1..5],
            [
                "   0       0  prefetch       32 batches       4  1 to 2,000     32  applied",
                "    by mira",
                "   1       0  prefetch       4 batches        4  1 to 2,000     64  refused",
                "    by controller: There is no memory for it.",
            ]
        );
        assert_eq!(table(&[], &style), "");
    }
}
