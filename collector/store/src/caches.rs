//! The table of what caches gave: how it is written and read.

use crate::error::Error;
use crate::recording::Recording;
use crate::rows::{phase, phase_text, signed, unsigned};
use crate::schema;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};
use stallscope_model::{CachePeriod, CacheState, CacheUses};

/// Adds to the periods that are there.
pub(crate) fn add_cache_periods<'a>(
    connection: &Connection,
    periods: impl Iterator<Item = &'a CachePeriod>,
) -> rusqlite::Result<()> {
    let mut add = connection.prepare_cached(
        "INSERT INTO cache_period VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
            hits = hits + excluded.hits, substitutions = substitutions + excluded.substitutions,
            misses = misses + excluded.misses, prefetched = prefetched + excluded.prefetched,
            late = late + excluded.late, pool_bytes = pool_bytes + excluded.pool_bytes,
            source_bytes = source_bytes + excluded.source_bytes,
            kept_bytes = ifnull(excluded.kept_bytes, kept_bytes),
            capacity_bytes = ifnull(excluded.capacity_bytes, capacity_bytes),
            evictions = ifnull(excluded.evictions, evictions),
            kept_samples = ifnull(excluded.kept_samples, kept_samples)",
    )?;
    for period in periods {
        let (uses, state) = (&period.uses, &period.state);
        let of_state = |of: fn(&CacheState) -> u64| state.as_ref().map(|state| signed(of(state)));
        add.execute(params![
            signed(period.start_ns),
            period.rank,
            period.loader,
            phase_text(period.phase),
            signed(uses.hits),
            signed(uses.substitutions),
            signed(uses.misses),
            signed(uses.prefetched),
            signed(uses.late),
            signed(uses.pool_bytes),
            signed(uses.source_bytes),
            of_state(|state| state.kept_bytes),
            of_state(|state| state.capacity_bytes),
            of_state(|state| state.evictions),
            of_state(|state| state.kept_samples),
        ])?;
    }
    Ok(())
}

impl Recording {
    /// What every loader's cache gave, by time.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn cache_periods(&self) -> Result<Vec<CachePeriod>, Error> {
        self.cache_periods_from(0)
    }

    /// The same for periods that begin at `start_ns` or later. The one under way grows with every flush.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn cache_periods_from(&self, start_ns: u64) -> Result<Vec<CachePeriod>, Error> {
        self.cache_periods_between(start_ns, u64::MAX)
    }

    /// The same for periods that begin from `start_ns` to before `before_ns`.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn cache_periods_between(&self, start_ns: u64, before_ns: u64) -> Result<Vec<CachePeriod>, Error> {
        if self.format() < schema::CACHES_SINCE {
            return Ok(Vec::new());
        }
        let sql =
            "SELECT start_ns, rank, loader, phase, hits, substitutions, misses, prefetched, late, pool_bytes,
            source_bytes, kept_bytes, capacity_bytes, evictions, kept_samples FROM cache_period
            WHERE start_ns >= ? AND start_ns < ? ORDER BY start_ns, rank, loader, phase";
        self.all(sql, &[start_ns, before_ns].map(|ns| Value::Integer(signed(ns))), read_period)
    }
}

fn read_period(row: &Row<'_>) -> rusqlite::Result<CachePeriod> {
    let stated = row.get::<_, Option<i64>>(11)?.is_some();
    let state = || {
        Ok::<_, rusqlite::Error>(CacheState {
            kept_bytes: unsigned(row, 11)?,
            capacity_bytes: unsigned(row, 12)?,
            evictions: unsigned(row, 13)?,
            kept_samples: unsigned(row, 14)?,
        })
    };
    Ok(CachePeriod {
        start_ns: unsigned(row, 0)?,
        rank: row.get(1)?,
        loader: row.get(2)?,
        phase: phase(row, 3)?,
        uses: CacheUses {
            hits: unsigned(row, 4)?,
            substitutions: unsigned(row, 5)?,
            misses: unsigned(row, 6)?,
            prefetched: unsigned(row, 7)?,
            late: unsigned(row, 8)?,
            pool_bytes: unsigned(row, 9)?,
            source_bytes: unsigned(row, 10)?,
        },
        state: stated.then(state).transpose()?,
    })
}
