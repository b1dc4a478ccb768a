//! The tables of step details, checkpoints and worker periods: how they are written and read.

use crate::error::Error;
use crate::foreign;
use crate::recording::Recording;
use crate::rows::{invalid, phase, phase_text, signed, unsigned};
use crate::schema;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};
use stallscope_model::{
    Cause, CheckpointEvent, CriticalPiece, Doing, Segment, StepDetail, StepLane, WorkerLoad, WorkerPeriod,
};

/// Details kept of each rank and minute: of the slowest steps that ended in it.
const DETAILS_A_MINUTE: i64 = 3;
const MINUTE_NS: u64 = 60_000_000_000;

/// A lane as it is written: its pid, its role, and segments by where they begin and end after the step's start,
/// which a worker's may do before it.
type LaneText = (u32, String, Vec<(i64, i64, Doing)>);
/// The pieces of a critical path as they are written: length, cause and lane of each.
type CriticalText = Vec<(u64, Cause, usize)>;

pub(crate) fn insert_details(
    connection: &Connection,
    details: &[StepDetail],
) -> Result<(), crate::live::Trouble> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO step_detail (rank, loader, phase, idx, start_ns, end_ns, lanes, critical)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    for detail in details {
        insert.execute(params![
            detail.rank,
            detail.loader,
            phase_text(detail.phase),
            signed(detail.index),
            signed(detail.start_ns),
            signed(detail.end_ns),
            serde_json::to_string(&lanes_text(detail))?,
            serde_json::to_string(&critical_text(detail))?,
        ])?;
    }
    let mut keep_slowest = connection.prepare_cached(
        "DELETE FROM step_detail WHERE id IN (SELECT id FROM step_detail WHERE rank = ? AND end_ns >= ?
            AND end_ns < ? ORDER BY end_ns - start_ns DESC, id LIMIT -1 OFFSET ?)",
    )?;
    let mut minutes: Vec<(u32, u64)> =
        details.iter().map(|detail| (detail.rank, detail.end_ns / MINUTE_NS)).collect();
    minutes.sort_unstable();
    minutes.dedup();
    for (rank, minute) in minutes {
        let from_ns = minute * MINUTE_NS;
        let to_ns = from_ns.saturating_add(MINUTE_NS);
        keep_slowest.execute(params![rank, signed(from_ns), signed(to_ns), DETAILS_A_MINUTE])?;
    }
    Ok(())
}

fn lanes_text(detail: &StepDetail) -> Vec<LaneText> {
    let after = |ns: u64| signed(ns).saturating_sub(signed(detail.start_ns));
    let segments = |lane: &StepLane| {
        lane.segments.iter().map(|s| (after(s.start_ns), after(s.end_ns), s.doing)).collect()
    };
    detail.lanes.iter().map(|lane| (lane.pid, lane.role.clone(), segments(lane))).collect()
}

fn critical_text(detail: &StepDetail) -> CriticalText {
    let length_ns = |piece: &CriticalPiece| piece.end_ns.saturating_sub(piece.start_ns);
    detail.critical.iter().map(|piece| (length_ns(piece), piece.cause, piece.lane)).collect()
}

/// A save may call another one, which ends and is reported first, and the kernel reports one save several times, longer
/// each time: a checkpoint replaces those that lie within it.
pub(crate) fn insert_checkpoints(
    connection: &Connection,
    checkpoints: &[CheckpointEvent],
) -> rusqlite::Result<()> {
    let mut within = connection.prepare_cached(
        "DELETE FROM checkpoint
            WHERE rank = ?1 AND background = ?2 AND start_ns BETWEEN ?3 AND ?4 AND end_ns <= ?4",
    )?;
    let mut insert = connection.prepare_cached("INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?, ?, ?)")?;
    for event in checkpoints {
        let (start_ns, end_ns) = (signed(event.start_ns), signed(event.end_ns));
        within.execute(params![event.rank, event.background, start_ns, end_ns])?;
        insert.execute(params![
            event.rank,
            event.background,
            start_ns,
            end_ns,
            event.saver,
            event.cause.name(),
            signed(event.bytes),
        ])?;
    }
    Ok(())
}

/// Adds to the periods that are there.
pub(crate) fn add_worker_periods<'a>(
    connection: &Connection,
    periods: impl Iterator<Item = &'a WorkerPeriod>,
) -> rusqlite::Result<()> {
    let mut add = connection.prepare_cached(
        "INSERT INTO worker_period VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
            pid = excluded.pid, batches = batches + excluded.batches, samples = samples + excluded.samples,
            wall_ns = wall_ns + excluded.wall_ns, fetch_ns = fetch_ns + excluded.fetch_ns,
            cpu_ns = cpu_ns + excluded.cpu_ns, runnable_ns = runnable_ns + excluded.runnable_ns,
            idle_ns = idle_ns + excluded.idle_ns, read_bytes = read_bytes + excluded.read_bytes",
    )?;
    for period in periods {
        let load = &period.load;
        add.execute(params![
            signed(period.start_ns),
            period.rank,
            period.loader,
            period.worker,
            load.pid,
            signed(load.batches.unwrap_or(0)),
            signed(load.samples.unwrap_or(0)),
            signed(load.wall_ns),
            signed(load.fetch_ns),
            signed(load.cpu_ns),
            signed(load.runnable_ns),
            signed(load.idle_ns),
            signed(load.read_bytes),
        ])?;
    }
    Ok(())
}

impl Recording {
    /// The slowest steps in full, slowest first.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn step_details(&self) -> Result<Vec<StepDetail>, Error> {
        self.slowest_steps(usize::MAX)
    }

    /// The same for the `limit` slowest.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn slowest_steps(&self, limit: usize) -> Result<Vec<StepDetail>, Error> {
        if self.format() < schema::DETAILS_SINCE {
            return Ok(Vec::new());
        }
        let sql = "SELECT rank, loader, phase, idx, start_ns, end_ns, lanes, critical FROM step_detail
            ORDER BY end_ns - start_ns DESC, start_ns, rank LIMIT ?";
        self.all(sql, &[Value::Integer(signed(limit as u64))], read_detail)
    }

    /// Every checkpoint, by its start.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointEvent>, Error> {
        if self.format() < schema::DETAILS_SINCE {
            return Ok(Vec::new());
        }
        let sql = "SELECT rank, background, start_ns, end_ns, saver, cause, bytes FROM checkpoint
            ORDER BY start_ns, rank";
        self.all(sql, &[], |row| {
            Ok(CheckpointEvent {
                rank: row.get(0)?,
                background: row.get(1)?,
                start_ns: unsigned(row, 2)?,
                end_ns: unsigned(row, 3)?,
                saver: row.get(4)?,
                cause: cause(row, 5)?,
                bytes: unsigned(row, 6)?,
            })
        })
    }

    /// What every worker did, by time.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn worker_periods(&self) -> Result<Vec<WorkerPeriod>, Error> {
        self.worker_periods_from(0)
    }

    /// The same for periods that begin at `start_ns` or later. The one under way grows with every flush.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn worker_periods_from(&self, start_ns: u64) -> Result<Vec<WorkerPeriod>, Error> {
        self.worker_periods_between(start_ns, u64::MAX)
    }

    /// The same for periods that begin from `start_ns` to before `before_ns`.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn worker_periods_between(&self, start_ns: u64, before_ns: u64) -> Result<Vec<WorkerPeriod>, Error> {
        if self.format() < schema::DETAILS_SINCE {
            return Ok(Vec::new());
        }
        let sql = "SELECT start_ns, rank, loader, worker, pid, batches, samples, wall_ns, fetch_ns, cpu_ns,
            runnable_ns, idle_ns, read_bytes FROM worker_period WHERE start_ns >= ? AND start_ns < ?
            ORDER BY start_ns, rank, loader, worker";
        self.all(sql, &[start_ns, before_ns].map(|ns| Value::Integer(signed(ns))), |row| {
            let loader: u16 = row.get(2)?;
            // Without a shim neither the loader nor the number of batches is known.
            let counted = |count: u64| (loader != u16::MAX).then_some(count);
            Ok(WorkerPeriod {
                start_ns: unsigned(row, 0)?,
                rank: row.get(1)?,
                loader,
                worker: row.get(3)?,
                load: WorkerLoad {
                    pid: row.get(4)?,
                    loader: Some(row.get(2)?),
                    batches: counted(unsigned(row, 5)?),
                    samples: counted(unsigned(row, 6)?),
                    wall_ns: unsigned(row, 7)?,
                    fetch_ns: unsigned(row, 8)?,
                    cpu_ns: unsigned(row, 9)?,
                    runnable_ns: unsigned(row, 10)?,
                    idle_ns: unsigned(row, 11)?,
                    read_bytes: unsigned(row, 12)?,
                },
            })
        })
    }
}

/// What comes out holds together whatever the file says: segments within time, pieces without gaps from the
/// step's start to its end, lanes that are there.
fn read_detail(row: &Row<'_>) -> rusqlite::Result<StepDetail> {
    let (start_ns, end_ns) = (unsigned(row, 4)?, unsigned(row, 5)?);
    let lanes: Vec<LaneText> = json(row, 6)?;
    let critical: CriticalText = json(row, 7)?;
    let mut at_ns = start_ns;
    let mut pieces = Vec::with_capacity(critical.len());
    for (length_ns, cause, lane) in critical {
        let to_ns = at_ns.checked_add(length_ns).filter(|to_ns| *to_ns <= end_ns && lane < lanes.len());
        let to_ns = to_ns.ok_or_else(|| invalid(7, "a critical path that leaves its step".to_owned()))?;
        pieces.push(CriticalPiece { start_ns: at_ns, end_ns: to_ns, cause, lane });
        at_ns = to_ns;
    }
    if at_ns != end_ns {
        return Err(invalid(7, "a critical path that is not as long as its step".to_owned()));
    }
    Ok(StepDetail {
        rank: row.get(0)?,
        loader: row.get(1)?,
        phase: phase(row, 2)?,
        index: unsigned(row, 3)?,
        start_ns,
        end_ns,
        lanes: lanes.into_iter().map(|lane| read_lane(start_ns, lane)).collect::<rusqlite::Result<_>>()?,
        critical: pieces,
    })
}

fn read_lane(step_ns: u64, (pid, role, texts): LaneText) -> rusqlite::Result<StepLane> {
    let mut segments: Vec<Segment> = Vec::with_capacity(texts.len());
    for (from, to, doing) in texts {
        let after_last = |from_ns: &u64| segments.last().is_none_or(|last| last.end_ns <= *from_ns);
        let start_ns = step_ns.checked_add_signed(from).filter(after_last);
        let end_ns = step_ns.checked_add_signed(to);
        match start_ns.zip(end_ns) {
            Some((start_ns, end_ns)) if start_ns <= end_ns => {
                segments.push(Segment { start_ns, end_ns, doing });
            }
            _ => return Err(invalid(6, "a lane out of order".to_owned())),
        }
    }
    Ok(StepLane { pid, role, segments })
}

fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    foreign::parse(text).map_err(|reason| invalid(column, reason))
}

fn cause(row: &Row<'_>, column: usize) -> rusqlite::Result<Cause> {
    let text = row.get_ref(column)?.as_str()?;
    Cause::ALL
        .into_iter()
        .find(|cause| cause.name() == text)
        .ok_or_else(|| invalid(column, "unknown cause".to_owned()))
}
