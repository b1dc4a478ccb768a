use crate::schema::cause_columns;
use rusqlite::Row;
use rusqlite::types::Type;
use stallscope_model::{Cause, Causes, EvidenceKinds, Phase, StepLedger};

/// One row of the `step` table: one step, or a run of old ones merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Of a merged row: the first step's index, from the first one's start to the last one's end, and sums for
    /// everything else; `producer` is `None` unless they agree, `evidence` what all of them have.
    pub step: StepLedger,
    /// Steps in this row; 1 for one that was not merged, 0 for a part that counts as none.
    pub merged: u64,
}

/// How long a [`Rollup`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RollupPeriod {
    TenSeconds,
    Minute,
}

impl RollupPeriod {
    pub const ALL: [RollupPeriod; 2] = [RollupPeriod::TenSeconds, RollupPeriod::Minute];

    pub const fn seconds(self) -> u64 {
        match self {
            RollupPeriod::TenSeconds => 10,
            RollupPeriod::Minute => 60,
        }
    }

    pub const fn ns(self) -> u64 {
        self.seconds() * 1_000_000_000
    }
}

/// The steps of one rank, loader and phase that ended within one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollup {
    pub period: RollupPeriod,
    /// A multiple of the period on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    pub rank: u32,
    pub loader: u16,
    pub phase: Phase,
    pub steps: u64,
    pub samples: u64,
    pub causes: Causes,
    pub step_p50_ns: u64,
    pub step_p95_ns: u64,
    pub step_max_ns: u64,
}

/// The three clocks read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAnchor {
    pub monotonic_ns: u64,
    pub boottime_ns: u64,
    pub wall_ns: u64,
}

/// Columns of a step in the order [`read_step`] and the insert use, without `id`.
pub(crate) fn step_columns() -> String {
    let causes: Vec<String> = cause_columns().collect();
    format!(
        "rank, loader, phase, idx, start_ns, end_ns, {}, hidden_ns, producer, samples, kernel, shim, merged",
        causes.join(", ")
    )
}

/// Number of columns in [`step_columns`].
pub(crate) const STEP_COLUMNS: usize = 12 + Cause::COUNT;

/// Reads [`step_columns`] from column `at` on.
pub(crate) fn read_step(row: &Row<'_>, at: usize) -> rusqlite::Result<StepRow> {
    let after = at + 6 + Cause::COUNT;
    let merged = unsigned(row, after + 5)?;
    Ok(StepRow {
        step: StepLedger {
            rank: row.get(at)?,
            loader: row.get(at + 1)?,
            phase: phase(row, at + 2)?,
            index: unsigned(row, at + 3)?,
            part: merged == 0,
            start_ns: unsigned(row, at + 4)?,
            end_ns: unsigned(row, at + 5)?,
            causes: causes(row, at + 6)?,
            hidden_ns: row.get::<_, Option<i64>>(after)?.map(|ns| ns.max(0) as u64),
            producer: row.get(after + 1)?,
            samples: unsigned(row, after + 2)?.try_into().unwrap_or(u32::MAX),
            evidence: EvidenceKinds { kernel: row.get(after + 3)?, shim: row.get(after + 4)? },
        },
        merged,
    })
}

/// Columns of a roll-up in the order [`read_rollup`] and the insert use.
pub(crate) fn rollup_columns() -> String {
    let causes: Vec<String> = cause_columns().collect();
    format!(
        "period_s, start_ns, rank, loader, phase, steps, samples, {}, step_p50_ns, step_p95_ns, step_max_ns",
        causes.join(", ")
    )
}

/// Number of columns in [`rollup_columns`].
pub(crate) const ROLLUP_COLUMNS: usize = 10 + Cause::COUNT;

/// Reads [`rollup_columns`].
pub(crate) fn read_rollup(row: &Row<'_>) -> rusqlite::Result<Rollup> {
    let seconds = unsigned(row, 0)?;
    let after = 7 + Cause::COUNT;
    Ok(Rollup {
        period: RollupPeriod::ALL
            .into_iter()
            .find(|period| period.seconds() == seconds)
            .ok_or_else(|| invalid(0, format!("unknown period of {seconds} s")))?,
        start_ns: unsigned(row, 1)?,
        rank: row.get(2)?,
        loader: row.get(3)?,
        phase: phase(row, 4)?,
        steps: unsigned(row, 5)?,
        samples: unsigned(row, 6)?,
        causes: causes(row, 7)?,
        step_p50_ns: unsigned(row, after)?,
        step_p95_ns: unsigned(row, after + 1)?,
        step_max_ns: unsigned(row, after + 2)?,
    })
}

/// How a phase is written in the tables.
pub(crate) const fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Startup => "startup",
        Phase::Training => "training",
        Phase::Evaluation => "evaluation",
        Phase::Between => "between",
        Phase::After => "after",
    }
}

/// SQLite integers are signed; what does not fit is held at the largest.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| invalid(column, format!("negative number {value}")))
}

pub(crate) fn phase(row: &Row<'_>, column: usize) -> rusqlite::Result<Phase> {
    let text = row.get_ref(column)?.as_str()?;
    Phase::ALL
        .into_iter()
        .find(|phase| phase_text(*phase) == text)
        .ok_or_else(|| invalid(column, "unknown phase".to_owned()))
}

fn causes(row: &Row<'_>, at: usize) -> rusqlite::Result<Causes> {
    let mut causes = Causes::default();
    for (place, cause) in causes.0.iter_mut().enumerate() {
        *cause = unsigned(row, at + place)?;
    }
    Ok(causes)
}

pub(crate) fn invalid(column: usize, reason: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Integer, reason.into())
}
