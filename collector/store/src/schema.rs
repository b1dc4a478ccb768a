use rusqlite::Connection;
use stallscope_model::Cause;

/// Version of the tables below, kept in `PRAGMA user_version`. Format 1 has no [`DETAIL_TABLES`], formats 1 and 2 no
/// [`DECISION_TABLES`], formats 1 to 3 no [`CACHE_TABLES`]; formats 1 to 4 have no phase after training, and no steps of
/// which a row has none; formats 3 to 5 have
/// no [`AHEAD_SINCE`] columns.
pub const VERSION: i64 = 6;

/// `PRAGMA application_id` of a recording: "STAL".
pub(crate) const APPLICATION_ID: i64 = 0x5354_414c;

const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE job (name TEXT, command TEXT, pid INTEGER, user TEXT, started_wall_ns INTEGER,
    ended_wall_ns INTEGER, exit_code INTEGER, attached INTEGER, facts TEXT);
CREATE TABLE host (host TEXT, kernel TEXT, cpus INTEGER, cpu_model TEXT, memory_bytes INTEGER, gpus TEXT);
CREATE TABLE rank (rank INTEGER PRIMARY KEY, world_size INTEGER, pid INTEGER, host TEXT, torch_version TEXT,
    python_version TEXT, unavailable TEXT);
CREATE TABLE loader (rank INTEGER, loader INTEGER, workers INTEGER, batch_size INTEGER,
    prefetch_factor INTEGER, pin_memory INTEGER, persistent_workers INTEGER, start_method TEXT, dataset TEXT,
    dataset_len INTEGER, PRIMARY KEY (rank, loader)) WITHOUT ROWID;
CREATE TABLE loss (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE diagnosis (name TEXT, finding TEXT, evidence TEXT, advice TEXT, cause TEXT, share REAL);
CREATE TABLE clock_anchor (monotonic_ns INTEGER PRIMARY KEY, boottime_ns INTEGER, wall_ns INTEGER);
CREATE TABLE summary (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL);
";

/// First format that has [`DETAIL_TABLES`].
pub(crate) const DETAILS_SINCE: i64 = 2;

const DETAIL_TABLES: &str = "
CREATE TABLE step_detail (id INTEGER PRIMARY KEY, rank INTEGER NOT NULL, loader INTEGER NOT NULL,
    phase TEXT NOT NULL, idx INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    lanes TEXT NOT NULL, critical TEXT NOT NULL);
CREATE INDEX step_detail_minute ON step_detail (rank, end_ns);
CREATE TABLE checkpoint (rank INTEGER NOT NULL, background INTEGER NOT NULL, start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL, saver TEXT NOT NULL, cause TEXT NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (rank, background, start_ns, end_ns)) WITHOUT ROWID;
CREATE TABLE worker_period (start_ns INTEGER NOT NULL, rank INTEGER NOT NULL, loader INTEGER NOT NULL,
    worker INTEGER NOT NULL, pid INTEGER NOT NULL, batches INTEGER NOT NULL, samples INTEGER NOT NULL,
    wall_ns INTEGER NOT NULL, fetch_ns INTEGER NOT NULL, cpu_ns INTEGER NOT NULL, runnable_ns INTEGER NOT NULL,
    idle_ns INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
    PRIMARY KEY (start_ns, rank, loader, worker)) WITHOUT ROWID;
";

/// First format that has [`DECISION_TABLES`].
pub(crate) const DECISIONS_SINCE: i64 = 3;

/// `by`, `from` and `to` would have to be quoted in every question.
const DECISION_TABLES: &str = "
CREATE TABLE audit (line INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL, decision INTEGER NOT NULL,
    act TEXT NOT NULL, set_by TEXT NOT NULL, rank INTEGER, loader INTEGER, knob TEXT NOT NULL,
    from_value INTEGER, to_value INTEGER, saw TEXT NOT NULL, predicted REAL, predicted_low REAL,
    predicted_high REAL, measured REAL, measured_low REAL, measured_high REAL, why TEXT NOT NULL);
CREATE TABLE batch_service (id INTEGER PRIMARY KEY, rank INTEGER NOT NULL, loader INTEGER NOT NULL,
    worker INTEGER NOT NULL, start_ns INTEGER NOT NULL, ready_ns INTEGER NOT NULL, samples INTEGER NOT NULL,
    fetch_ns INTEGER NOT NULL, cpu_ns INTEGER NOT NULL, runnable_ns INTEGER NOT NULL, read_bytes INTEGER,
    readers REAL NOT NULL, makers REAL NOT NULL, cpu_read_ns INTEGER NOT NULL, reads INTEGER NOT NULL,
    readers_spread REAL NOT NULL, readers_effect_ns REAL NOT NULL, ahead_spread REAL NOT NULL,
    ahead_effect_ns REAL NOT NULL, weight REAL NOT NULL);
";

/// First format whose batches have `ahead_spread` and `ahead_effect_ns`.
pub(crate) const AHEAD_SINCE: i64 = 6;

/// First format that has [`CACHE_TABLES`].
pub(crate) const CACHES_SINCE: i64 = 4;

const CACHE_TABLES: &str = "
CREATE TABLE cache_period (start_ns INTEGER NOT NULL, rank INTEGER NOT NULL, loader INTEGER NOT NULL,
    phase TEXT NOT NULL, hits INTEGER NOT NULL, substitutions INTEGER NOT NULL, misses INTEGER NOT NULL,
    prefetched INTEGER NOT NULL, late INTEGER NOT NULL, pool_bytes INTEGER NOT NULL, source_bytes INTEGER NOT NULL,
    kept_bytes INTEGER, capacity_bytes INTEGER, evictions INTEGER, kept_samples INTEGER,
    PRIMARY KEY (start_ns, rank, loader, phase)) WITHOUT ROWID;
";

/// Makes the tables in an empty database, in one transaction.
pub(crate) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let causes: String = cause_columns().map(|name| format!("{name} INTEGER NOT NULL, ")).collect();
    let tables = format!(
        "{TABLES}
        {DETAIL_TABLES}
        {DECISION_TABLES}
        {CACHE_TABLES}
        CREATE TABLE step (id INTEGER PRIMARY KEY, rank INTEGER NOT NULL, loader INTEGER NOT NULL,
            phase TEXT NOT NULL, idx INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
            {causes} hidden_ns INTEGER, producer INTEGER, samples INTEGER NOT NULL, kernel INTEGER NOT NULL,
            shim INTEGER NOT NULL, merged INTEGER NOT NULL);
        CREATE TABLE rollup (period_s INTEGER NOT NULL, start_ns INTEGER NOT NULL, rank INTEGER NOT NULL,
            loader INTEGER NOT NULL, phase TEXT NOT NULL, steps INTEGER NOT NULL, samples INTEGER NOT NULL,
            {causes} step_p50_ns INTEGER NOT NULL, step_p95_ns INTEGER NOT NULL, step_max_ns INTEGER NOT NULL,
            PRIMARY KEY (period_s, start_ns, rank, loader, phase)) WITHOUT ROWID;
        PRAGMA application_id = {APPLICATION_ID};
        PRAGMA user_version = {VERSION};"
    );
    let transaction = connection.transaction()?;
    transaction.execute_batch(&tables)?;
    transaction.commit()
}

/// `compute_ns`, `fetch_ns`, … in the order of [`Cause::ALL`].
pub(crate) fn cause_columns() -> impl Iterator<Item = String> {
    Cause::ALL.into_iter().map(|cause| format!("{}_ns", cause.name()))
}
