//! Keeps a recording from growing for ever: its oldest steps are merged, of the other tables the oldest rows dropped.
//!
//! Steps are merged in passes over the older half of the rows, the newer half stays as it was measured. Each pass
//! allows twice as many steps in a row as the one before, so that the older half keeps an even resolution. The
//! work is spread over the flushes.

use crate::rows::{STEP_COLUMNS, StepRow, read_step, signed, step_columns, unsigned};
use crate::tables::{placeholders, step_values};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use stallscope_model::{EvidenceKinds, Phase, StepLedger};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Flushes between two looks at the other tables: counting their rows takes a walk over them.
const OTHERS_EVERY: u64 = 600;

/// Where the merging stands.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    /// Rows of the `step` table there may be.
    cap: u64,
    pub(crate) rows: u64,
    /// Steps a row may stand for in the pass under way.
    grain: u64,
    /// Last row this pass has looked at, and how many rows there are up to it.
    cursor: i64,
    before: u64,
    flushes: u64,
}

impl Growth {
    pub(crate) fn new(cap: u64) -> Growth {
        Growth { cap: cap.max(64), rows: 0, grain: 2, cursor: 0, before: 0, flushes: 0 }
    }

    /// Merges as many old steps as are too many. To be called within the transaction that added rows.
    pub(crate) fn trim_steps(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut chunk = (2 * self.rows.saturating_sub(self.cap)).max(1024);
        let mut freed_in_pass = true;
        while self.rows > self.cap {
            let left = (self.cap / 2).saturating_sub(self.before);
            if left == 0 {
                if !freed_in_pass && chunk > self.rows {
                    // Every row is of another rank or loader.
                    break;
                }
                (self.cursor, self.before, self.grain) = (0, 0, self.grain.saturating_mul(2));
                chunk *= if freed_in_pass { 1 } else { 2 };
                freed_in_pass = false;
                continue;
            }
            let (seen, freed) = self.merge_next(connection, chunk.min(left))?;
            freed_in_pass |= freed > 0;
            self.rows -= freed;
            self.before += if seen == 0 { left } else { seen - freed };
        }
        Ok(())
    }

    /// Merges rows of one rank, loader and phase among the next `chunk`. Returns how many it saw and how many
    /// of those are no more.
    fn merge_next(&mut self, connection: &Connection, chunk: u64) -> rusqlite::Result<(u64, u64)> {
        let columns = step_columns();
        let rows: Vec<(i64, StepRow)> = connection
            .prepare_cached(&format!("SELECT id, {columns} FROM step WHERE id > ? ORDER BY id LIMIT ?"))?
            .query_map([self.cursor, signed(chunk)], |row| Ok((row.get(0)?, read_step(row, 1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut delete = connection.prepare_cached("DELETE FROM step WHERE id = ?")?;
        let mut update = connection.prepare_cached(&format!(
            "UPDATE step SET ({columns}) = ({}) WHERE id = ?",
            placeholders(STEP_COLUMNS)
        ))?;
        // The row that the next one of its rank, loader and phase may go into.
        let mut into: HashMap<(u32, u16, Phase), Growing> = HashMap::new();
        let mut full = Vec::new();
        let mut freed = 0;
        let seen = rows.len() as u64;
        self.cursor = rows.last().map_or(self.cursor, |(id, _)| *id);
        for (id, row) in rows {
            match into.entry((row.step.rank, row.step.loader, row.step.phase)) {
                Entry::Occupied(mut entry)
                    if entry.get().row.merged.saturating_add(row.merged) <= self.grain =>
                {
                    let growing = entry.get_mut();
                    growing.row = merge(&growing.row, &row);
                    growing.changed = true;
                    delete.execute([id])?;
                    freed += 1;
                }
                Entry::Occupied(mut entry) => full.push(entry.insert(Growing { id, row, changed: false })),
                Entry::Vacant(entry) => {
                    entry.insert(Growing { id, row, changed: false });
                }
            }
        }
        for growing in full.into_iter().chain(into.into_values()).filter(|growing| growing.changed) {
            let values = step_values(&growing.row).into_iter().chain([Value::Integer(growing.id)]);
            update.execute(params_from_iter(values))?;
        }
        Ok((seen, freed))
    }
}

struct Growing {
    id: i64,
    row: StepRow,
    changed: bool,
}

/// A table of which too many rows go, and the order in which they do.
struct Bounded {
    /// Where what went is counted in `meta`.
    dropped: &'static str,
    /// Of the rows that there may be of steps, one in how many.
    one_in: u64,
    /// The first that have to go: `?` is how many.
    count: &'static str,
    delete: &'static str,
}

/// Roll-ups of each period, periods of workers and caches, and checkpoints: the oldest, as their steps, merged by then, stay. Step
/// details: those of the shortest steps. Of the audit and of how batches were made: the oldest.
const BOUNDED: [Bounded; 8] = [
    Bounded {
        dropped: "rollups_dropped",
        one_in: 2,
        count: "SELECT count(*) FROM rollup WHERE period_s = 10",
        delete: "DELETE FROM rollup WHERE period_s = 10 AND start_ns <= (SELECT start_ns FROM rollup
            WHERE period_s = 10 ORDER BY start_ns LIMIT 1 OFFSET ? - 1)",
    },
    Bounded {
        dropped: "rollups_dropped",
        one_in: 2,
        count: "SELECT count(*) FROM rollup WHERE period_s = 60",
        delete: "DELETE FROM rollup WHERE period_s = 60 AND start_ns <= (SELECT start_ns FROM rollup
            WHERE period_s = 60 ORDER BY start_ns LIMIT 1 OFFSET ? - 1)",
    },
    Bounded {
        dropped: "worker_periods_dropped",
        one_in: 2,
        count: "SELECT count(*) FROM worker_period",
        delete: "DELETE FROM worker_period WHERE start_ns <= (SELECT start_ns FROM worker_period
            ORDER BY start_ns LIMIT 1 OFFSET ? - 1)",
    },
    Bounded {
        dropped: "cache_periods_dropped",
        one_in: 2,
        count: "SELECT count(*) FROM cache_period",
        delete: "DELETE FROM cache_period WHERE start_ns <= (SELECT start_ns FROM cache_period
            ORDER BY start_ns LIMIT 1 OFFSET ? - 1)",
    },
    Bounded {
        dropped: "checkpoints_dropped",
        one_in: 10,
        count: "SELECT count(*) FROM checkpoint",
        delete: "DELETE FROM checkpoint WHERE start_ns <= (SELECT start_ns FROM checkpoint
            ORDER BY start_ns LIMIT 1 OFFSET ? - 1)",
    },
    Bounded {
        dropped: "step_details_dropped",
        one_in: 100,
        count: "SELECT count(*) FROM step_detail",
        delete: "DELETE FROM step_detail WHERE id IN (SELECT id FROM step_detail
            ORDER BY end_ns - start_ns, id LIMIT ?)",
    },
    Bounded {
        dropped: "audit_lines_dropped",
        one_in: 10,
        count: "SELECT count(*) FROM audit",
        delete: "DELETE FROM audit WHERE line IN (SELECT line FROM audit ORDER BY line LIMIT ?)",
    },
    Bounded {
        dropped: "batch_services_dropped",
        one_in: 5,
        count: "SELECT count(*) FROM batch_service",
        delete: "DELETE FROM batch_service WHERE id IN (SELECT id FROM batch_service ORDER BY id LIMIT ?)",
    },
];

impl Growth {
    /// Drops from the other tables what is too much. To be called once a flush, within its transaction.
    pub(crate) fn trim_others(&mut self, connection: &Connection, last: bool) -> rusqlite::Result<()> {
        self.flushes += 1;
        if !last && !self.flushes.is_multiple_of(OTHERS_EVERY) {
            return Ok(());
        }
        for table in &BOUNDED {
            let rows = connection.query_row(table.count, [], |row| unsigned(row, 0))?;
            let excess = rows.saturating_sub(self.cap / table.one_in);
            if excess > 0 {
                let dropped = connection.execute(table.delete, [signed(excess)])?;
                connection.execute(
                    "INSERT INTO meta VALUES (?1, ?2)
                        ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + ?2",
                    rusqlite::params![table.dropped, signed(dropped as u64)],
                )?;
            }
        }
        Ok(())
    }
}

fn merge(older: &StepRow, newer: &StepRow) -> StepRow {
    let (first, last) = (&older.step, &newer.step);
    let mut causes = first.causes;
    causes += &last.causes;
    let merged = older.merged.saturating_add(newer.merged);
    StepRow {
        step: StepLedger {
            part: merged == 0,
            start_ns: first.start_ns.min(last.start_ns),
            end_ns: first.end_ns.max(last.end_ns),
            causes,
            hidden_ns: first.hidden_ns.zip(last.hidden_ns).map(|(a, b)| a.saturating_add(b)),
            producer: first.producer.filter(|producer| last.producer == Some(*producer)),
            samples: first.samples.saturating_add(last.samples),
            evidence: EvidenceKinds {
                kernel: first.evidence.kernel && last.evidence.kernel,
                shim: first.evidence.shim && last.evidence.shim,
            },
            ..first.clone()
        },
        merged,
    }
}
