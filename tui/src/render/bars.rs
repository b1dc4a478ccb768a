//! Time by cause as a bar, as an area over time, as one line; and what its colours mean.

use crate::series::Sum;
use crate::text::{ink, plain};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use stallscope_model::{Cause, Causes};
use stallscope_units as units;

/// Equal neighbours become one span.
pub(crate) fn spans(cells: impl IntoIterator<Item = (char, Style)>) -> Vec<Span<'static>> {
    let mut spans: Vec<(String, Style)> = Vec::new();
    for (char, style) in cells {
        match spans.last_mut() {
            Some((text, last)) if *last == style => text.push(char),
            _ => spans.push((char.to_string(), style)),
        }
    }
    spans.into_iter().map(|(text, style)| ink(text, style)).collect()
}

/// The cause of each of `cells` cells, in the order of causes; empty without time.
pub(crate) fn cells(causes: &Causes, cells: usize) -> Vec<Cause> {
    let total = causes.0.iter().map(|ns| *ns as f64).sum::<f64>();
    let mut filled = Vec::with_capacity(cells);
    if total <= 0.0 {
        return filled;
    }
    let mut end = 0.0;
    for (cause, ns) in causes.iter() {
        end += ns as f64;
        let upto = (end / total * cells as f64).round() as usize;
        filled.resize(upto.clamp(filled.len(), cells), cause);
    }
    filled
}

/// All causes in one bar of `width` cells.
pub(crate) fn bar(causes: &Causes, width: usize, theme: &Theme) -> Vec<Span<'static>> {
    let filled = cells(causes, width);
    let pad = width - filled.len();
    let mut bar = spans(filled.into_iter().map(|cause| (theme.fill(cause), theme.cause(cause))));
    bar.push(plain(" ".repeat(pad)));
    bar
}

/// Columns of causes, stacked from the bottom, the lines from the top down. Time in other phases is a dot.
pub(crate) fn area(columns: &[Sum], height: usize, theme: &Theme) -> Vec<Vec<Span<'static>>> {
    let stacks: Vec<Vec<Cause>> = columns.iter().map(|sum| cells(&sum.causes, height)).collect();
    let dot = theme.either('·', '.');
    (0..height)
        .rev()
        .map(|level| {
            spans(stacks.iter().zip(columns).map(|(stack, sum)| match stack.get(level) {
                Some(cause) => (theme.fill(*cause), theme.cause(*cause)),
                None if level == 0 && sum.other_ns > 0 => (dot, theme.dim()),
                None => (' ', Style::new()),
            }))
        })
        .collect()
}

/// Shares as heights, the newest at the right.
pub(crate) fn spark(shares: &[f64], width: usize, theme: &Theme) -> String {
    let heights = theme.heights();
    let height = |share: f64| {
        heights[((share.clamp(0.0, 1.0) * heights.len() as f64) as usize).min(heights.len() - 1)]
    };
    let newest = &shares[shares.len().saturating_sub(width)..];
    let pad = width - newest.len();
    let text: String = newest.iter().map(|share| height(*share)).collect();
    format!("{}{text}", " ".repeat(pad))
}

/// Causes by share, largest first, those of half a percent and more.
pub(crate) fn by_share(causes: &Causes) -> Vec<(Cause, f64)> {
    let mut shares: Vec<(Cause, f64)> = Cause::ALL.map(|cause| (cause, causes.share(cause))).into();
    shares.retain(|(_, share)| *share >= 0.005);
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

/// What the colours mean, with shares, on at most `lines` lines.
pub(crate) fn legend(causes: &Causes, width: usize, lines: usize, theme: &Theme) -> Vec<Line<'static>> {
    let mut legend: Vec<Vec<Span<'static>>> = vec![Vec::new()];
    let mut used = 0;
    for (cause, share) in by_share(causes) {
        let text = format!(" {} {}  ", cause.name(), units::percent(share));
        let columns = text.len() + 1;
        if used + columns > width + 2 {
            if legend.len() == lines {
                break;
            }
            legend.push(Vec::new());
            used = 0;
        }
        used += columns;
        if let Some(line) = legend.last_mut() {
            line.extend([ink(theme.fill(cause).to_string(), theme.cause(cause)), plain(text)]);
        }
    }
    legend.into_iter().filter(|line| !line.is_empty()).map(Line::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Colours;
    use proptest::prelude::*;

    const PLAIN: Theme = Theme { colours: Colours::None, unicode: true };

    proptest! {
        #[test]
        fn a_bar_is_as_wide_as_its_place(ns in proptest::array::uniform10(any::<u64>()), width in 0usize..200) {
            let bar = bar(&Causes(ns), width, &PLAIN);
            prop_assert_eq!(bar.iter().map(|span| span.content.chars().count()).sum::<usize>(), width);
        }
    }

    #[test]
    fn the_trend_keeps_its_newest() {
        assert_eq!(spark(&[0.0, 0.5, 1.0], 5, &PLAIN), "  ▁▅█");
        assert_eq!(spark(&[0.0, 0.5, 1.0], 2, &PLAIN), "▅█");
    }
}
