//! Tables whose cells carry the exact figures beside what is shown.

use super::fill::Fill;
use askama::Template;
use askama::filters::HtmlSafe;
use stallscope_units as units;

#[derive(Template)]
#[template(path = "table.html")]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Of all rows together; may be empty.
    pub(super) foot: Vec<Cell>,
    /// Closed until somebody opens it: the figures of a chart.
    pub(super) folded: bool,
}

impl HtmlSafe for Table {}

impl Table {
    pub(super) fn new(caption: impl Into<String>, columns: Vec<Column>, rows: Vec<Vec<Cell>>) -> Table {
        Table { caption: caption.into(), columns, rows, foot: Vec::new(), folded: false }
    }
}

pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) figures: bool,
    /// Of a cause's column.
    pub(super) fill: Option<Fill>,
}

/// A column of words.
pub(super) const fn words(heading: &'static str) -> Column {
    Column { heading, figures: false, fill: None }
}

/// A column of figures.
pub(super) const fn figures(heading: &'static str) -> Column {
    Column { heading, figures: true, fill: None }
}

#[derive(Clone, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    /// The figure itself, in the unit that its name in the JSON report ends with; empty for words.
    pub(super) exact: String,
    /// Where the figure stands in the JSON report: a JSON pointer, or several whose sum it is.
    pub(super) source: String,
    pub(super) fill: Option<Fill>,
    /// To be read first.
    pub(super) marked: bool,
    /// A path or the like, which may be broken anywhere.
    pub(super) long: bool,
}

impl Cell {
    pub(super) fn words(text: &str) -> Cell {
        Cell { text: text.to_owned(), ..Cell::default() }
    }

    pub(super) fn path(text: &str) -> Cell {
        Cell { long: true, ..Cell::words(text) }
    }

    pub(super) fn duration(ns: u64) -> Cell {
        Cell { text: units::duration(ns), exact: ns.to_string(), ..Cell::default() }
    }

    pub(super) fn count(count: u64) -> Cell {
        Cell { text: units::count(count), exact: count.to_string(), ..Cell::default() }
    }

    /// A number that names something, such as a pid.
    pub(super) fn number(number: u64) -> Cell {
        Cell { text: number.to_string(), exact: number.to_string(), ..Cell::default() }
    }

    pub(super) fn bytes(bytes: u64) -> Cell {
        Cell { text: units::bytes(bytes), exact: bytes.to_string(), ..Cell::default() }
    }

    /// 0 to 1.
    pub(super) fn share(share: f64) -> Cell {
        let exact = if share.is_finite() { share } else { 0.0 };
        Cell { text: units::percent_exact(share), exact: format!("{exact:.6}"), ..Cell::default() }
    }

    pub(super) fn nothing() -> Cell {
        Cell { text: "–".to_owned(), ..Cell::default() }
    }

    pub(super) fn of(mut self, source: impl Into<String>) -> Cell {
        self.source = source.into();
        self
    }

    pub(super) fn with(mut self, fill: Fill) -> Cell {
        self.fill = Some(fill);
        self
    }

    pub(super) fn marked_if(mut self, marked: bool) -> Cell {
        self.marked = marked;
        self
    }
}
