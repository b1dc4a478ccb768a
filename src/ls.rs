use crate::terminal::{self, Colour};
use anyhow::{Context, Result};
use clap::Args;
use stallscope_collector::RuntimeDir;
use stallscope_reports::list::{Row, of_recordings, table};
use stallscope_store::some_recordings_in;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A recording takes some milliseconds, and a foreign one that wants to take long half a second.
const READ_WITHIN: Duration = Duration::from_secs(20);
/// That are listed: anybody may fill a folder with names.
pub(crate) const MOST_RECORDINGS: usize = 10_000;

/// List running jobs and recordings.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Folder of recordings
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(verb: &Ls, colour: Colour) -> Result<ExitCode> {
    let mut rows: Vec<Row> = RuntimeDir::of_this_user()?
        .running()
        .into_iter()
        .map(|(socket, card)| match stallscope_collector::ask(&socket) {
            Ok(summary) => Row {
                name: card.name,
                state: "running".into(),
                pid: Some(card.pid),
                started_wall_ns: Some(card.started_wall_ns),
                duration_ns: Some(summary.overhead.wall_ns),
                verdict: summary.verdict.sentence,
            },
            Err(error) => Row {
                name: card.name,
                state: "running".into(),
                pid: Some(card.pid),
                started_wall_ns: Some(card.started_wall_ns),
                verdict: format!("{error:#}"),
                ..Row::default()
            },
        })
        .collect();
    let found = some_recordings_in(&verb.folder, MOST_RECORDINGS)
        .with_context(|| format!("cannot list the recordings in {}", verb.folder.display()))?;
    // The recording of a running job has a row already.
    rows.extend(of_recordings(&found.paths, READ_WITHIN).into_iter().filter(|row| row.state != "running"));
    let text = if verb.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "name": row.name, "state": row.state, "pid": row.pid, "started_wall_ns": row.started_wall_ns,
                    "duration_ns": row.duration_ns, "verdict": row.verdict,
                })
            })
            .collect();
        terminal::json(&rows)?
    } else if rows.is_empty() {
        "no job runs here and there is no recording in this folder; start with `stallscope run -- python train.py`\n"
            .into()
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        table(&rows, now, &terminal::style(&std::io::stdout(), colour))
    };
    terminal::print(&text)?;
    if found.more > 0 {
        terminal::say(&format!("{} more recordings in {} are not listed", found.more, verb.folder.display()));
    }
    Ok(ExitCode::SUCCESS)
}
