//! Tables whose cells carry the exact figures beside what is shown.

use super::fill::Fill;
use askama::Template;
use askama::filters::HtmlSafe;
use stallscope_units as units;

#[derive(Template)]
#[template(path = "table.html")]
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Of all rows together; may be empty.
    pub(crate) foot: Vec<Cell>,
    /// Closed until somebody opens it: the figures of a chart.
    pub(crate) folded: bool,
}

impl HtmlSafe for Table {}

impl Table {
    pub(crate) fn new(caption: impl Into<String>, columns: Vec<Column>, rows: Vec<Vec<Cell>>) -> Table {
        Table { caption: caption.into(), columns, rows, foot: Vec::new(), folded: false }
    }
}

pub(crate) struct Column {
    pub(crate) heading: &'static str,
    pub(crate) figures: bool,
    /// Of a cause's column.
    pub(crate) fill: Option<Fill>,
}

/// A column of words.
pub(crate) const fn words(heading: &'static str) -> Column {
    Column { heading, figures: false, fill: None }
}

/// A column of figures.
pub(crate) const fn figures(heading: &'static str) -> Column {
    Column { heading, figures: true, fill: None }
}

#[derive(Clone, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// The figure itself, in the unit that its name in the JSON report ends with; empty for words.
    pub(crate) exact: String,
    /// Where the figure stands in the JSON report: a JSON pointer, or several whose sum it is.
    pub(crate) source: String,
    pub(crate) fill: Option<Fill>,
    /// To be read first.
    pub(crate) marked: bool,
    /// A path or the like, which may be broken anywhere.
    pub(crate) long: bool,
}

impl Cell {
    pub(crate) fn words(text: &str) -> Cell {
        Cell { text: text.to_owned(), ..Cell::default() }
    }

    pub(crate) fn path(text: &str) -> Cell {
        Cell { long: true, ..Cell::words(text) }
    }

    pub(crate) fn duration(ns: u64) -> Cell {
        Cell { text: units::duration(ns), exact: ns.to_string(), ..Cell::default() }
    }

    pub(crate) fn count(count: u64) -> Cell {
        Cell { text: units::count(count), exact: count.to_string(), ..Cell::default() }
    }

    /// A number that names something, such as a pid.
    pub(crate) fn number(number: u64) -> Cell {
        Cell { text: number.to_string(), exact: number.to_string(), ..Cell::default() }
    }

    pub(crate) fn bytes(bytes: u64) -> Cell {
        Cell { text: units::bytes(bytes), exact: bytes.to_string(), ..Cell::default() }
    }

    /// 0 to 1.
    pub(crate) fn share(share: f64) -> Cell {
        let exact = if share.is_finite() { share } else { 0.0 };
        Cell { text: units::percent_exact(share), exact: format!("{exact:.6}"), ..Cell::default() }
    }

    pub(crate) fn nothing() -> Cell {
        Cell { text: "–".to_owned(), ..Cell::default() }
    }

    pub(crate) fn of(mut self, source: impl Into<String>) -> Cell {
        self.source = source.into();
        self
    }

    pub(crate) fn with(mut self, fill: Fill) -> Cell {
        self.fill = Some(fill);
        self
    }

    pub(crate) fn marked_if(mut self, marked: bool) -> Cell {
        self.marked = marked;
        self
    }
}
