//! The tables of the audit and of how batches were made: how they are written and read.

use crate::error::Error;
use crate::recording::Recording;
use crate::rows::{invalid, signed, unsigned};
use crate::schema;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};
use stallscope_model::{Act, AuditEvent, BatchService, Estimate};

pub(crate) fn insert_audit(connection: &Connection, events: &[AuditEvent]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO audit (line, time_ns, decision, act, set_by, rank, loader, knob, from_value, to_value, saw,
            predicted, predicted_low, predicted_high, measured, measured_low, measured_high, why)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    for event in events {
        let (predicted, measured) = (event.predicted, event.measured);
        insert.execute(params![
            signed(event.line),
            signed(event.time_ns),
            signed(event.decision),
            event.act.name(),
            event.by,
            event.rank,
            event.loader,
            event.knob,
            event.from.map(signed),
            event.to.map(signed),
            event.saw,
            predicted.map(|estimate| estimate.value),
            predicted.map(|estimate| estimate.low),
            predicted.map(|estimate| estimate.high),
            measured.map(|estimate| estimate.value),
            measured.map(|estimate| estimate.low),
            measured.map(|estimate| estimate.high),
            event.why,
        ])?;
    }
    Ok(())
}

pub(crate) fn insert_batch_services(
    connection: &Connection,
    services: &[BatchService],
) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO batch_service (rank, loader, worker, start_ns, ready_ns, samples, fetch_ns, cpu_ns,
            runnable_ns, read_bytes, readers, makers, cpu_read_ns, reads, readers_spread, readers_effect_ns,
            ahead_spread, ahead_effect_ns, weight) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    for service in services {
        insert.execute(params![
            service.rank,
            service.loader,
            service.worker,
            signed(service.start_ns),
            signed(service.ready_ns),
            service.samples,
            signed(service.fetch_ns),
            signed(service.cpu_ns),
            signed(service.runnable_ns),
            service.read_bytes.map(signed),
            service.readers,
            service.makers,
            signed(service.cpu_read_ns),
            service.reads,
            service.readers_spread,
            service.readers_effect_ns,
            service.ahead_spread,
            service.ahead_effect_ns,
            service.weight,
        ])?;
    }
    Ok(())
}

impl Recording {
    /// The audit from line `from_line` on, in order.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn audit(&self, from_line: u64) -> Result<Vec<AuditEvent>, Error> {
        if self.format() < schema::DECISIONS_SINCE {
            return Ok(Vec::new());
        }
        let sql =
            "SELECT line, time_ns, decision, act, set_by, rank, loader, knob, from_value, to_value, saw,
            predicted, predicted_low, predicted_high, measured, measured_low, measured_high, why
            FROM audit WHERE line >= ? ORDER BY line";
        self.all(sql, &[Value::Integer(signed(from_line))], |row| {
            Ok(AuditEvent {
                line: unsigned(row, 0)?,
                time_ns: unsigned(row, 1)?,
                decision: unsigned(row, 2)?,
                act: act(row, 3)?,
                by: row.get(4)?,
                rank: row.get(5)?,
                loader: row.get(6)?,
                knob: row.get(7)?,
                from: optional(row, 8)?,
                to: optional(row, 9)?,
                saw: row.get(10)?,
                predicted: estimate(row, 11)?,
                measured: estimate(row, 14)?,
                why: row.get(17)?,
            })
        })
    }

    /// How batches were made, a sample of them, by the moment when they were ready.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn batch_services(&self) -> Result<Vec<BatchService>, Error> {
        if self.format() < schema::DECISIONS_SINCE {
            return Ok(Vec::new());
        }
        // Older formats lack the number of readers at the start of a read; the mean over the read is the next best.
        let ahead = match self.format() < schema::AHEAD_SINCE {
            true => "readers_spread, readers_effect_ns",
            false => "ahead_spread, ahead_effect_ns",
        };
        let sql = format!(
            "SELECT rank, loader, worker, start_ns, ready_ns, samples, fetch_ns, cpu_ns, runnable_ns,
            read_bytes, readers, makers, cpu_read_ns, reads, readers_spread, readers_effect_ns, {ahead}, weight
            FROM batch_service ORDER BY ready_ns, rank, loader, worker"
        );
        self.all(&sql, &[], |row| {
            let (start_ns, ready_ns) = (unsigned(row, 3)?, unsigned(row, 4)?);
            if ready_ns < start_ns {
                return Err(invalid(4, "a batch that was ready before it was begun".to_owned()));
            }
            Ok(BatchService {
                rank: row.get(0)?,
                loader: row.get(1)?,
                worker: row.get(2)?,
                start_ns,
                ready_ns,
                samples: unsigned(row, 5)?.try_into().unwrap_or(u32::MAX),
                fetch_ns: unsigned(row, 6)?,
                cpu_ns: unsigned(row, 7)?,
                runnable_ns: unsigned(row, 8)?,
                read_bytes: optional(row, 9)?,
                readers: number(row, 10)?,
                makers: number(row, 11)?,
                cpu_read_ns: unsigned(row, 12)?,
                reads: unsigned(row, 13)?.try_into().unwrap_or(u32::MAX),
                missed: None,
                readers_spread: number(row, 14)?,
                readers_effect_ns: finite(row, 15)?,
                ahead_spread: number(row, 16)?,
                ahead_effect_ns: finite(row, 17)?,
                weight: number(row, 18)?,
            })
        })
    }
}

fn act(row: &Row<'_>, column: usize) -> rusqlite::Result<Act> {
    let text = row.get_ref(column)?.as_str()?;
    Act::ALL
        .into_iter()
        .find(|act| act.name() == text)
        .ok_or_else(|| invalid(column, "unknown act".to_owned()))
}

fn optional(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(column)?.map(|_| unsigned(row, column)).transpose()
}

/// Value, low and high in three columns, NULL where there is no estimate. An interval may have no end: infinite.
fn estimate(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Estimate>> {
    let Some(value) = row.get::<_, Option<f64>>(at)? else { return Ok(None) };
    Ok(Some(Estimate { value, low: row.get(at + 1)?, high: row.get(at + 2)? }))
}

fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<f64> {
    match finite(row, column)? {
        value if value >= 0.0 => Ok(value),
        value => Err(invalid(column, format!("{value} tasks"))),
    }
}

fn finite(row: &Row<'_>, column: usize) -> rusqlite::Result<f64> {
    let value: f64 = row.get(column)?;
    if value.is_finite() { Ok(value) } else { Err(invalid(column, format!("{value} is no figure"))) }
}
