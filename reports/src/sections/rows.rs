//! Bars below each other, each of parts, with their names at the left.

use super::fill::Fill;
use super::svg::{Anchor, Svg};

pub(super) struct Row {
    pub(super) name: String,
    /// The one to look at first.
    pub(super) marked: bool,
    /// In order: what, its width as a share of the chart's, and a text that shows on it.
    pub(super) parts: Vec<(Fill, f64, String)>,
}

const BAR: f64 = 14.0;
const PITCH: f64 = 20.0;

/// Height of the plot, without an axis.
pub(super) fn height(rows: usize) -> f64 {
    rows as f64 * PITCH
}

pub(super) fn draw(svg: &mut Svg, rows: &[Row]) {
    for (place, row) in rows.iter().enumerate() {
        let y = place as f64 * PITCH + (PITCH - BAR) / 2.0;
        let class = if row.marked { "name marked" } else { "name" };
        if !row.name.is_empty() {
            let name = if row.marked { format!("▸ {}", row.name) } else { row.name.clone() };
            svg.text(0.0, -8.0, y + BAR - 3.0, Anchor::End, class, &name);
        }
        parts(svg, &row.parts, y, BAR);
    }
}

/// Parts beside each other from the left edge on.
pub(super) fn parts(svg: &mut Svg, parts: &[(Fill, f64, String)], y: f64, height: f64) {
    let mut x = 0.0;
    for (fill, width, hint) in parts {
        if *width > 0.0 {
            svg.rect(x, y, *width, height, *fill, hint);
            x += width;
        }
    }
}

/// Fills in `rows`, each once, in the order of `all`.
pub(super) fn legend(rows: &[Row], all: impl Iterator<Item = Fill>) -> Vec<Fill> {
    let shown = |fill: &Fill| {
        rows.iter().any(|row| row.parts.iter().any(|(other, width, _)| other == fill && *width >= 0.002))
    };
    all.filter(shown).collect()
}
