//! Lines of text that know their width, whatever terminal they are for.

use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns; no line is longer.
    pub width: usize,
    /// The 16 colours; the text itself keeps the terminal's own, so that it is readable on any background.
    pub colour: bool,
    /// False: ASCII only.
    pub unicode: bool,
}

/// How a piece of text is shown where there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Bold,
    Dim,
    /// A foreground of the 16 colours by its SGR code.
    Colour(u8),
}

impl Style {
    /// The columns laid out for: narrower terminals get what fits of that, on wider ones lines would be tiring.
    pub(crate) fn columns(&self) -> usize {
        self.width.clamp(24, 120)
    }

    /// A foreign or finished text as it can be shown on one line: nothing in it moves the cursor, and it is
    /// ASCII where that is asked for.
    pub(crate) fn clean(&self, text: &str) -> String {
        stallscope_look::clean(text, self.unicode)
    }

    /// Between two facts on a line.
    pub(crate) fn dot(&self) -> &'static str {
        if self.unicode { " · " } else { " - " }
    }

    pub(crate) fn arrow(&self) -> &'static str {
        if self.unicode { "→" } else { "->" }
    }

    /// Lines of at most `columns`, broken at spaces where there are some; at least one.
    pub(crate) fn wrap(&self, text: &str, columns: usize) -> Vec<String> {
        let columns = columns.max(8);
        let mut lines = vec![String::new()];
        for word in words(&self.clean(text)) {
            let mut word = word.as_str();
            if let Some(line) = lines.last_mut()
                && !line.is_empty()
            {
                if fits(word, columns.saturating_sub(line.width() + 1)) {
                    line.push(' ');
                    line.push_str(word);
                    continue;
                }
                lines.push(String::new());
            }
            while !fits(word, columns) {
                let (head, tail) = word.split_at(fitting(word, columns));
                if let Some(line) = lines.last_mut() {
                    line.push_str(head);
                }
                lines.push(String::new());
                word = tail;
            }
            if let Some(line) = lines.last_mut() {
                line.push_str(word);
            }
        }
        lines
    }

    /// `text` if it fits, else its beginning and "…".
    pub(crate) fn clip(&self, text: &str, columns: usize) -> String {
        let text = self.clean(beginning(text, columns));
        if text.width() <= columns {
            return text;
        }
        let more = if self.unicode { "…" } else { "..." };
        let Some(kept) = columns.checked_sub(more.width()) else {
            return text[..within(&text, columns)].to_owned();
        };
        let mut clipped = text[..within(&text, kept)].to_owned();
        clipped.push_str(more);
        clipped
    }
}

/// Words, a number together with the unit that follows it.
fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 18] = [
        "ns", "us", "ms", "s", "min", "h", "d", "B", "kB", "MB", "GB", "TB", "M", "KiB", "MiB", "GiB", "TiB",
        "PiB",
    ];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let unit = word.trim_end_matches(|char: char| !char.is_alphanumeric());
        match words.last_mut() {
            Some(number) if UNITS.contains(&unit) && number.ends_with(|char: char| char.is_ascii_digit()) => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Whether `text` does, without a look at all of it: of a word of a megabyte, each of its lines would take one.
fn fits(text: &str, columns: usize) -> bool {
    within(text, columns) == text.len()
}

/// As much of a text as shows whether it fits into `columns`: no character takes less than one of them once it is clean.
fn beginning(text: &str, columns: usize) -> &str {
    text.char_indices().nth(columns.saturating_add(1)).map_or(text, |(end, _)| &text[..end])
}

/// Bytes of `text` that fit into `columns`, but at least one character, so that a wrap comes to an end.
fn fitting(text: &str, columns: usize) -> usize {
    within(text, columns).max(text.chars().next().map_or(0, char::len_utf8))
}

/// A line under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pieces: Vec<(String, Ink)>,
}

impl Line {
    pub(crate) fn new(text: impl Into<String>) -> Line {
        Line::default().plain(text)
    }

    pub(crate) fn ink(mut self, text: impl Into<String>, ink: Ink) -> Line {
        self.pieces.push((text.into(), ink));
        self
    }

    pub(crate) fn plain(self, text: impl Into<String>) -> Line {
        self.ink(text, Ink::Plain)
    }

    pub(crate) fn bold(self, text: impl Into<String>) -> Line {
        self.ink(text, Ink::Bold)
    }

    pub(crate) fn dim(self, text: impl Into<String>) -> Line {
        self.ink(text, Ink::Dim)
    }

    pub(crate) fn then(mut self, other: Line) -> Line {
        self.pieces.extend(other.pieces);
        self
    }

    /// Writes the line, its end cut off where it is too long, and a newline.
    pub(crate) fn render(&self, style: &Style, into: &mut String) {
        let mut left = style.width;
        let mut line = String::new();
        for (text, ink) in &self.pieces {
            let end = if text.width() <= left { text.len() } else { within(text, left) };
            let text = &text[..end];
            left -= text.width();
            let code = match ink {
                _ if !style.colour || text.is_empty() => None,
                Ink::Plain => None,
                Ink::Bold => Some(1),
                Ink::Dim => Some(2),
                Ink::Colour(code) => Some(*code),
            };
            match code {
                Some(code) => drop(write!(line, "\x1b[{code}m{text}\x1b[0m")),
                None => line.push_str(text),
            }
        }
        into.push_str(line.trim_end_matches(' '));
        into.push('\n');
    }
}

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

/// `text` with spaces before it up to `columns`.
pub(crate) fn right(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(text.width())))
}

/// `text` with spaces after it up to `columns`.
pub(crate) fn left(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(text.width())))
}
