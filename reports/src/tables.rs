//! A run as tables: what csv and parquet export, and what docs/reports.md documents. A column is called as the
//! field is called everywhere else.

pub(crate) use cache::{CACHE, CACHE_CURVE, CACHE_PERIODS};
pub(crate) use events::CHECKPOINTS;
pub(crate) use summary::RECORDINGS;
pub(crate) use time::ROLLUPS;
pub(crate) use tuning::{ADVICE, AUDIT, KNOBS, RATES};

mod cache;
mod events;
mod summary;
mod time;
mod tuning;

use crate::{Error, Run};
use stallscope_model::{Cause, Causes, Phase, StepLedger};
use std::borrow::Cow;

/// A table, and how its rows are made.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its file's name without an extension.
    pub name: &'static str,
    columns: fn() -> Vec<Column>,
    rows: Rows,
}

type Rows = fn(&Run, &mut Each<'_>) -> Result<(), Error>;
type Each<'a> = dyn FnMut(&[Value<'_>]) -> Result<(), Error> + 'a;

/// A column; any of them may be empty in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unsigned, up to 64 bits.
    Count,
    /// Signed.
    Code,
    /// Any: a share (0 to 1, or more than 1 where a share of one core is meant), a gain, a rate.
    Real,
    Flag,
    Text,
}

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Not known, or there is none.
    Empty,
    Count(u64),
    Code(i64),
    Real(f64),
    Flag(bool),
    /// Foreign texts in it are clean: no control characters, nothing that turns what follows.
    Text(Cow<'a, str>),
}

/// Every table.
pub const TABLES: [Table; 24] = [
    summary::RUN,
    summary::RECORDINGS,
    summary::HOSTS,
    summary::RANKS,
    summary::LOADERS,
    summary::PHASES,
    summary::WORKERS,
    time::STEPS,
    time::ROLLUPS,
    time::WORKER_PERIODS,
    events::CHECKPOINTS,
    events::SLOW_STEPS,
    summary::FILES,
    summary::MOUNTS,
    events::LOSSES,
    events::DIAGNOSES,
    summary::PROBES,
    tuning::KNOBS,
    tuning::RATES,
    tuning::ADVICE,
    tuning::AUDIT,
    cache::CACHE,
    cache::CACHE_PERIODS,
    cache::CACHE_CURVE,
];

impl Table {
    /// The columns, in the order of a row's cells.
    pub fn columns(&self) -> Vec<Column> {
        (self.columns)()
    }

    /// Gives every row to `each`, which gets as many cells as there are columns.
    ///
    /// # Errors
    /// A recording can no longer be read, or `each` failed.
    pub fn each_row(
        &self,
        run: &Run,
        mut each: impl FnMut(&[Value<'_>]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        (self.rows)(run, &mut each)
    }
}

const fn count(name: &'static str) -> Column {
    Column { name, kind: Kind::Count }
}

const fn code(name: &'static str) -> Column {
    Column { name, kind: Kind::Code }
}

const fn real(name: &'static str) -> Column {
    Column { name, kind: Kind::Real }
}

const fn flag(name: &'static str) -> Column {
    Column { name, kind: Kind::Flag }
}

const fn text(name: &'static str) -> Column {
    Column { name, kind: Kind::Text }
}

/// `compute_ns`, `fetch_ns`, …
fn cause_columns() -> [Column; Cause::COUNT] {
    Cause::ALL.map(|cause| count(ns_of(cause)))
}

/// How a cause's time is called.
pub(crate) const fn ns_of(cause: Cause) -> &'static str {
    match cause {
        Cause::Compute => "compute_ns",
        Cause::Fetch => "fetch_ns",
        Cause::Prep => "prep_ns",
        Cause::Starved => "starved_ns",
        Cause::Transfer => "transfer_ns",
        Cause::Preempted => "preempted_ns",
        Cause::Snapshot => "snapshot_ns",
        Cause::Persist => "persist_ns",
        Cause::Peer => "peer_ns",
        Cause::Unknown => "unknown_ns",
    }
}

/// How a phase is called where programs read it.
pub(crate) const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Startup => "startup",
        Phase::Training => "training",
        Phase::Evaluation => "evaluation",
        Phase::Between => "between",
        Phase::After => "after",
    }
}

impl Value<'_> {
    /// A text of ours.
    fn word(text: &str) -> Value<'_> {
        Value::Text(Cow::Borrowed(text))
    }

    /// A text from elsewhere.
    fn foreign(text: &str) -> Value<'static> {
        Value::Text(Cow::Owned(stallscope_look::clean(text, true)))
    }

    fn causes(causes: &Causes) -> [Value<'static>; Cause::COUNT] {
        causes.0.map(Value::Count)
    }
}

/// A loader's number; `None` for what has no loader, or none that is known.
pub(crate) fn loader(number: u16) -> Option<u16> {
    (number != StepLedger::NO_LOADER).then_some(number)
}

impl From<u64> for Value<'_> {
    fn from(count: u64) -> Self {
        Value::Count(count)
    }
}

impl From<u32> for Value<'_> {
    fn from(count: u32) -> Self {
        Value::Count(count.into())
    }
}

impl From<u16> for Value<'_> {
    fn from(count: u16) -> Self {
        Value::Count(count.into())
    }
}

impl From<i32> for Value<'_> {
    fn from(code: i32) -> Self {
        Value::Code(code.into())
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Value::Real(number)
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Empty, Into::into)
    }
}
