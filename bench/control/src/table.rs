//! What the benchmark ends with: a Markdown table, and the same rows for programs.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// As bench/table.py has it: one figure, what it has to reach, and whether it does.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    /// "held out", or nothing.
    pub(crate) half: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) bar: Option<String>,
    pub(crate) holds: Option<bool>,
}

#[derive(Serialize)]
struct Report<'a> {
    name: &'static str,
    machine: &'static str,
    rows: &'a [Row],
}

/// Lines up columns; the first is text, the others are figures.
pub(crate) fn markdown(header: &[&str], body: &[Vec<String>]) -> String {
    let width = |column: usize| {
        body.iter().map(|line| line[column].len()).chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .enumerate()
            .map(
                |(at, (cell, width))| {
                    if at == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let mut text = line(&mut header.iter().copied());
    let rule: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(at, width)| if at == 0 { "-".repeat(*width) } else { "-".repeat(width - 1) + ":" })
        .collect();
    text += &format!("| {} |\n", rule.join(" | "));
    for cells in body {
        text += &line(&mut cells.iter().map(String::as_str));
    }
    text
}

/// Writes target/bench/control.json below `root`.
pub(crate) fn write(root: &Path, rows: &[Row]) -> std::io::Result<PathBuf> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder)?;
    let path = folder.join("control.json");
    let report = Report { name: "control", machine: "simulated", rows };
    fs::write(&path, serde_json::to_string_pretty(&report)?)?;
    Ok(path)
}

/// How many bars hold, and which do not.
pub(crate) fn summary(rows: &[Row]) -> String {
    let barred: Vec<&Row> = rows.iter().filter(|row| row.holds.is_some()).collect();
    let missed: Vec<&&Row> = barred.iter().filter(|row| row.holds == Some(false)).collect();
    let mut text = format!("{} of {} bars hold in simulation.\n", barred.len() - missed.len(), barred.len());
    for row in missed {
        let bar = row.bar.as_deref().unwrap_or_default();
        text += &format!("{}: {} is {:.1} {}, not {bar}\n", row.case, row.metric, row.value, row.unit);
    }
    text
}

/// How far from the best static setting the controller ends in each half of the scenarios that have a bar for it.
pub(crate) fn halves(rows: &[Row]) -> String {
    let of = |half: &str, words: &str| {
        let barred = |row: &&Row| row.metric == REGRET && row.half == half && row.holds.is_some();
        let mut regrets: Vec<f64> = rows.iter().filter(barred).map(|row| row.value).collect();
        regrets.sort_by(f64::total_cmp);
        let Some(worst) = regrets.last() else { return String::new() };
        let within = regrets.iter().filter(|regret| **regret <= 5.0).count();
        let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
        format!(
            "Scenarios that {words}: regret {mean:.1}% on average, {:.1}% in the middle one, {worst:.1}% at worst; within 5% in {within} of {}.\n",
            regrets[regrets.len() / 2],
            regrets.len()
        )
    };
    of("", "constants were chosen by") + &of("held out", "are held out")
}

pub(crate) const REGRET: &str = "regret after warm-up";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_has_a_line_of_its_own() {
        let row = |half, value, holds| Row {
            case: String::new(),
            half,
            metric: REGRET,
            value,
            unit: "%",
            bar: None,
            holds,
        };
        let rows = [
            row("", 2.0, Some(true)),
            row("", 8.0, Some(false)),
            row("held out", 4.0, Some(true)),
            row("", 99.0, None),
        ];
        let text = halves(&rows);
        assert!(text.contains("chosen by: regret 5.0% on average, 8.0% in the middle one, 8.0% at worst; within 5% in 1 of 2."), "{text}");
        assert!(text.contains("held out: regret 4.0% on average"), "{text}");
    }
}
