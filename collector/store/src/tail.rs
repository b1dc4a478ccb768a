//! Reading a recording while it grows: what came since the last look, without reading the rest again.

use crate::error::Error;
use crate::recording::Recording;
use crate::rows::{
    Rollup, RollupPeriod, StepRow, read_rollup, read_step, rollup_columns, signed, step_columns,
};
use rusqlite::types::Value;

impl Recording {
    /// A number that changes when the writer has flushed since the last call: a look that costs no reading. While
    /// [`Recording::steps`] iterates it stays as it is.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn data_version(&self) -> Result<i64, Error> {
        self.one("PRAGMA data_version", |row| row.get(0))
    }

    /// The latest row of steps, for [`Recording::steps_after`]; 0 when there is none.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn last_step_id(&self) -> Result<i64, Error> {
        self.one("SELECT ifnull(max(id), 0) FROM step", |row| row.get(0))
    }

    /// The first `limit` rows of steps after row `id`, each with its own. Rows come in the order they were
    /// written; the newer half of them is never merged, so that a reader that keeps up misses none.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn steps_after(&self, id: i64, limit: usize) -> Result<Vec<(i64, StepRow)>, Error> {
        let sql = format!("SELECT id, {} FROM step WHERE id > ? ORDER BY id LIMIT ?", step_columns());
        let values = [Value::Integer(id), Value::Integer(signed(limit as u64))];
        let rows = self.all(&sql, &values, |row| Ok((row.get(0)?, read_step(row, 1)?)))?;
        self.demand_order(id, &rows)?;
        Ok(rows)
    }

    /// Roll-ups of one period that begin at `start_ns` or later, by time. Those under way are written anew with
    /// every flush.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn rollups_from(&self, period: RollupPeriod, start_ns: u64) -> Result<Vec<Rollup>, Error> {
        let sql = format!(
            "SELECT {} FROM rollup WHERE period_s = ? AND start_ns >= ? ORDER BY start_ns, rank, loader, phase",
            rollup_columns()
        );
        let values = [period.seconds(), start_ns].map(|value| Value::Integer(signed(value)));
        self.all(&sql, &values, read_rollup)
    }
}
