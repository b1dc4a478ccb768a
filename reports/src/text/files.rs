//! Which files and mounts the job's tasks were blocked in.

use super::Page;
use crate::style::{Line, Style, left, right};
use stallscope_model::{MountWait, RunSummary};
use stallscope_units as units;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Rows of each kind.
const MOUNTS: usize = 4;
const FILES: usize = 5;

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    let total_ns = summary.mounts.iter().fold(0, |sum: u64, mount| sum.saturating_add(mount.wait_ns));
    if total_ns == 0 {
        return;
    }
    let facts = format!(
        "tasks were blocked in them for {}, whether or not training waited",
        units::duration(total_ns)
    );
    page.heading("Files", &facts);
    let mut rows: Vec<(String, u64, u64)> = Vec::new();
    for mount in summary.mounts.iter().take(MOUNTS) {
        let name = match (mount.mount.as_str(), mount.fs_type.as_str()) {
            ("unknown", "") => "which file is not known".to_owned(),
            (point, "") => format!("on {point}"),
            (point, fs_type) => format!("on {point} ({fs_type})"),
        };
        rows.push((name, mount.wait_ns, mount.waits));
    }
    if let Some(others) = summary.mounts.get(MOUNTS..).filter(|others| !others.is_empty()) {
        let name = format!("on {}", units::counted(others.len() as u64, "other mount"));
        let sum = |of: fn(&MountWait) -> u64| others.iter().map(of).fold(0, u64::saturating_add);
        rows.push((name, sum(|mount| mount.wait_ns), sum(|mount| mount.waits)));
    }
    for file in summary.files.iter().take(FILES) {
        rows.push((file.path.clone(), file.wait_ns, file.waits));
    }
    let wide = page.style.columns() >= 60;
    let figures = if wide { 31 } else { 17 };
    let available = page.style.columns().saturating_sub(2 + figures);
    for (name, wait_ns, waits) in &rows {
        let share = units::percent_exact(units::share(*wait_ns, total_ns));
        let mut line = Line::new(format!("  {}", left(&ending(page.style, name, available), available)))
            .plain(right(&units::duration(*wait_ns), 9))
            .bold(right(&share, 8));
        if wide {
            line = line.dim(right(&units::counted(*waits, "wait"), 14));
        }
        page.line(line);
    }
}

/// `text` if it fits, else "…" and its end, which says more of a path than its beginning.
fn ending(style: &Style, text: &str, columns: usize) -> String {
    let text = style.clean(text);
    if text.width() <= columns {
        return text;
    }
    let more = if style.unicode { "…" } else { "..." };
    let mut available = columns.saturating_sub(more.width());
    let kept = text.char_indices().rev().take_while(|(_, char)| {
        let width = char.width().unwrap_or(0);
        let fits = width <= available;
        available = available.saturating_sub(width);
        fits
    });
    let start = kept.last().map_or(text.len(), |(place, _)| place);
    format!("{more}{}", &text[start..])
}
