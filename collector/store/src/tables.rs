//! What is written into each table.

use crate::rows::{
    ClockAnchor, ROLLUP_COLUMNS, Rollup, STEP_COLUMNS, StepRow, phase_text, rollup_columns, signed,
    step_columns,
};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use stallscope_model::{Diagnosis, HostFacts, JobFacts, Loss, RankFacts, RunSummary, StepLedger};
use std::iter::once;

/// `?, ?, …`
pub(crate) fn placeholders(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// A step in the order of [`step_columns`].
pub(crate) fn step_values(row: &StepRow) -> Vec<Value> {
    values(&row.step, row.merged)
}

fn values(step: &StepLedger, merged: u64) -> Vec<Value> {
    let integer = |value: u64| Value::Integer(signed(value));
    let optional = |value: Option<u64>| value.map_or(Value::Null, integer);
    [
        integer(step.rank.into()),
        integer(step.loader.into()),
        Value::Text(phase_text(step.phase).to_owned()),
        integer(step.index),
        integer(step.start_ns),
        integer(step.end_ns),
    ]
    .into_iter()
    .chain(step.causes.0.into_iter().map(integer))
    .chain([
        optional(step.hidden_ns),
        optional(step.producer.map(u64::from)),
        integer(step.samples.into()),
        integer(step.evidence.kernel.into()),
        integer(step.evidence.shim.into()),
        integer(merged),
    ])
    .collect()
}

pub(crate) fn insert_steps<'a>(
    connection: &Connection,
    steps: impl Iterator<Item = &'a StepLedger>,
) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(&format!(
        "INSERT INTO step ({}) VALUES ({})",
        step_columns(),
        placeholders(STEP_COLUMNS)
    ))?;
    for step in steps {
        insert.execute(params_from_iter(values(step, step.steps())))?;
    }
    Ok(())
}

pub(crate) fn insert_rollups(connection: &Connection, rollups: &[Rollup]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(&format!(
        "INSERT OR REPLACE INTO rollup ({}) VALUES ({})",
        rollup_columns(),
        placeholders(ROLLUP_COLUMNS)
    ))?;
    for rollup in rollups {
        let keys = [rollup.period.seconds(), rollup.start_ns, rollup.rank.into(), rollup.loader.into()];
        let counts = [rollup.steps, rollup.samples];
        let times = [rollup.step_p50_ns, rollup.step_p95_ns, rollup.step_max_ns];
        let integer = |value: u64| Value::Integer(signed(value));
        let row = keys
            .into_iter()
            .map(integer)
            .chain(once(Value::Text(phase_text(rollup.phase).to_owned())))
            .chain(counts.into_iter().chain(rollup.causes.0).chain(times).map(integer));
        insert.execute(params_from_iter(row))?;
    }
    Ok(())
}

pub(crate) fn insert_anchors(connection: &Connection, anchors: &[ClockAnchor]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO clock_anchor VALUES (?, ?, ?)")?;
    for anchor in anchors {
        insert.execute([signed(anchor.monotonic_ns), signed(anchor.boottime_ns), signed(anchor.wall_ns)])?;
    }
    Ok(())
}

pub(crate) fn set_meta(connection: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value]).map(drop)
}

pub(crate) fn set_loss(connection: &Connection, loss: &Loss) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO loss VALUES (?, ?)")?
        .execute(params![loss.reason, signed(loss.count)])
        .map(drop)
}

pub(crate) fn set_summary(connection: &Connection, json: &str) -> rusqlite::Result<()> {
    connection.execute("INSERT OR REPLACE INTO summary VALUES (1, ?)", [json]).map(drop)
}

/// Brings the tables that mirror parts of the summary up to date where it differs from `before`.
pub(crate) fn mirror(
    connection: &Connection,
    before: Option<&RunSummary>,
    now: &RunSummary,
) -> Result<(), crate::live::Trouble> {
    if before.is_none_or(|before| before.job != now.job) {
        set_job(connection, &now.job)?;
    }
    if before.is_none_or(|before| before.host != now.host) {
        set_host(connection, &now.host)?;
    }
    for (place, rank) in now.ranks.iter().enumerate() {
        let same =
            before.and_then(|before| before.ranks.get(place)).is_some_and(|old| old.facts == rank.facts);
        if !same {
            set_rank(connection, &rank.facts)?;
        }
    }
    if before.is_none_or(|before| before.diagnoses != now.diagnoses) {
        set_diagnoses(connection, &now.diagnoses)?;
    }
    Ok(())
}

fn set_job(connection: &Connection, job: &JobFacts) -> Result<(), crate::live::Trouble> {
    connection.execute("DELETE FROM job", [])?;
    connection.execute(
        "INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            job.name,
            serde_json::to_string(&job.command)?,
            job.pid,
            job.user,
            signed(job.started_wall_ns),
            job.ended_wall_ns.map(signed),
            job.exit_code,
            job.attached,
            serde_json::to_string(job)?,
        ],
    )?;
    Ok(())
}

fn set_host(connection: &Connection, host: &HostFacts) -> Result<(), crate::live::Trouble> {
    connection.execute("DELETE FROM host", [])?;
    connection.execute(
        "INSERT INTO host VALUES (?, ?, ?, ?, ?, ?)",
        params![
            host.host,
            host.kernel,
            host.cpus,
            host.cpu_model,
            signed(host.memory_bytes),
            serde_json::to_string(&host.gpus)?,
        ],
    )?;
    Ok(())
}

fn set_rank(connection: &Connection, rank: &RankFacts) -> Result<(), crate::live::Trouble> {
    connection.execute(
        "INSERT OR REPLACE INTO rank VALUES (?, ?, ?, ?, ?, ?, ?)",
        params![
            rank.rank,
            rank.world_size,
            rank.pid,
            rank.host,
            rank.torch_version,
            rank.python_version,
            serde_json::to_string(&rank.unavailable)?,
        ],
    )?;
    for loader in &rank.loaders {
        connection.execute(
            "INSERT OR REPLACE INTO loader VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                rank.rank,
                loader.loader,
                loader.workers,
                loader.batch_size,
                loader.prefetch_factor,
                loader.pin_memory,
                loader.persistent_workers,
                loader.start_method,
                loader.dataset,
                loader.dataset_len.map(signed),
            ],
        )?;
    }
    Ok(())
}

fn set_diagnoses(connection: &Connection, diagnoses: &[Diagnosis]) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM diagnosis", [])?;
    let mut insert = connection.prepare_cached("INSERT INTO diagnosis VALUES (?, ?, ?, ?, ?, ?)")?;
    for diagnosis in diagnoses {
        insert.execute(params![
            diagnosis.name,
            diagnosis.finding,
            diagnosis.evidence,
            diagnosis.advice,
            diagnosis.cause.map(|cause| cause.name()),
            diagnosis.share,
        ])?;
    }
    Ok(())
}
