//! Text clipped, padded and wrapped to a number of terminal columns.

use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Bytes of `text` that fit into `columns`.
fn within(text: &str, columns: usize) -> usize {
    let mut used = 0;
    text.char_indices()
        .find(|(_, char)| {
            used += char.width().unwrap_or(0);
            used > columns
        })
        .map_or(text.len(), |(place, _)| place)
}

/// Whether `text` does, without a look at all of it: of a word of a megabyte, each of its lines would take one.
fn fits(text: &str, columns: usize) -> bool {
    within(text, columns) == text.len()
}

/// As much of a text as shows whether it fits into `columns`: no character takes less than one of them once it is clean.
fn beginning(text: &str, columns: usize) -> &str {
    text.char_indices().nth(columns.saturating_add(1)).map_or(text, |(end, _)| &text[..end])
}

/// A text of foreign origin if it fits, else its beginning and "…".
pub(crate) fn clip(text: &str, columns: usize, theme: &Theme) -> String {
    let text = theme.clean(beginning(text, columns));
    if text.width() <= columns {
        return text;
    }
    let more = theme.either("…", "~");
    let Some(kept) = columns.checked_sub(more.width()) else { return String::new() };
    format!("{}{more}", &text[..within(&text, kept)])
}

/// The end of a text of foreign origin whose end says more than its beginning, a path for instance.
pub(crate) fn clip_start(text: &str, columns: usize, theme: &Theme) -> String {
    let text = theme.clean(text);
    let width = text.width();
    if width <= columns {
        return text;
    }
    let Some(kept) = columns.checked_sub(1) else { return String::new() };
    let mut skipped = 0;
    let from = text.char_indices().find(|(_, char)| {
        let enough = skipped >= width - kept;
        skipped += char.width().unwrap_or(0);
        enough
    });
    format!("{}{}", theme.either("…", "~"), from.map_or("", |(place, _)| &text[place..]))
}

/// `text`, clipped and padded to exactly `columns`.
pub(crate) fn left(text: &str, columns: usize, theme: &Theme) -> String {
    let text = clip(text, columns, theme);
    let pad = columns.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(pad))
}

pub(crate) fn right(text: &str, columns: usize, theme: &Theme) -> String {
    let text = clip(text, columns, theme);
    let pad = columns.saturating_sub(text.width());
    format!("{}{text}", " ".repeat(pad))
}

/// Lines of at most `columns`, broken at spaces.
pub(crate) fn wrap(text: &str, columns: usize, theme: &Theme) -> Vec<String> {
    let columns = columns.max(4);
    let mut lines = vec![String::new()];
    for word in theme.clean(text).split(' ').filter(|word| !word.is_empty()) {
        let mut word = word;
        loop {
            let last = lines.last_mut().map_or(0, |line| line.width());
            let gap = usize::from(last > 0);
            if fits(word, columns.saturating_sub(last + gap)) {
                if let Some(line) = lines.last_mut() {
                    line.push_str(if gap == 1 { " " } else { "" });
                    line.push_str(word);
                }
                break;
            }
            if last > 0 {
                lines.push(String::new());
                continue;
            }
            let first = word.chars().next().map_or(0, char::len_utf8);
            let (head, tail) = word.split_at(within(word, columns).max(first));
            if let Some(line) = lines.last_mut() {
                line.push_str(head);
            }
            lines.push(String::new());
            word = tail;
        }
    }
    lines
}

pub(crate) fn plain(text: impl Into<String>) -> Span<'static> {
    Span::raw(text.into())
}

pub(crate) fn ink(text: impl Into<String>, style: Style) -> Span<'static> {
    Span::styled(text.into(), style)
}

/// A wrapped text beside a label.
pub(crate) fn labelled(
    label: &str,
    text: &str,
    style: Style,
    columns: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let width = label.width();
    wrap(text, columns.saturating_sub(width), theme)
        .into_iter()
        .enumerate()
        .map(|(nth, line)| {
            let label = if nth == 0 { label.to_owned() } else { " ".repeat(width) };
            Line::from(vec![ink(label, theme.dim()), ink(line, style)])
        })
        .collect()
}

/// A heading with facts behind it: "Ranks  64, the slowest first".
pub(crate) fn heading(title: &str, facts: &str, columns: usize, theme: &Theme) -> Line<'static> {
    let facts_columns = columns.saturating_sub(title.width() + 2);
    Line::from(vec![
        ink(title.to_owned(), theme.bold()),
        plain("  "),
        ink(clip(facts, facts_columns, theme), theme.dim()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Colours;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_foreign_name_is_wider_than_its_columns_or_steers_the_terminal(
            name in any::<String>(), columns in 0usize..60, unicode in any::<bool>(),
        ) {
            let theme = Theme { colours: Colours::None, unicode };
            let mut texts = vec![
                clip(&name, columns, &theme),
                clip_start(&name, columns, &theme),
                left(&name, columns, &theme),
                right(&name, columns, &theme),
            ];
            for text in &texts {
                prop_assert!(text.width() <= columns, "{text:?}");
            }
            texts.extend(wrap(&name, columns, &theme));
            for text in &texts {
                prop_assert!(!text.chars().any(char::is_control), "{text:?}");
                prop_assert!(unicode || text.is_ascii(), "{text:?}");
            }
        }
    }

    /// Of a foreign recording: by the square of its length this would take hours.
    #[test]
    fn a_word_of_megabytes_is_wrapped_in_one_pass() {
        let theme = Theme { colours: Colours::None, unicode: true };
        let word = "x".repeat(8 << 20);
        let lines = wrap(&format!("a {word} b"), 40, &theme);
        assert_eq!(lines.len(), (8 << 20) / 40 + 2);
        assert_eq!(clip(&word, 6, &theme), "xxxxx…");
    }

    #[test]
    fn long_texts_keep_the_end_that_says_more() {
        let theme = Theme { colours: Colours::None, unicode: true };
        assert_eq!(clip("a-long-name", 6, &theme), "a-lon…");
        assert_eq!(clip_start("/data/train/0001.jpg", 9, &theme), "…0001.jpg");
        assert_eq!(wrap("one two three", 7, &theme), ["one two", "three"]);
    }
}
