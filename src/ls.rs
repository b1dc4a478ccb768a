use crate::terminal::{self, Colour};
use anyhow::{Context, Result};
use clap::Args;
use stallscope_collector::RuntimeDir;
use stallscope_model::RunSummary;
use stallscope_reports::list::{Row, table};
use stallscope_store::{Recording, State, recordings_in};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// List the jobs that run here and the recordings in this folder.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Where to look for recordings
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// JSON for scripts
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(verb: &Ls, colour: Colour) -> Result<ExitCode> {
    let mut rows: Vec<Row> = RuntimeDir::of_this_user()?
        .running()
        .into_iter()
        .map(|(socket, card)| match stallscope_collector::ask(&socket) {
            Ok(summary) => row(card.name, "running", &summary),
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
    let found = recordings_in(&verb.folder)
        .with_context(|| format!("cannot list the recordings in {}", verb.folder.display()))?;
    rows.extend(found.iter().filter_map(|path| recording(path)));
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
        serde_json::to_string_pretty(&rows)? + "\n"
    } else if rows.is_empty() {
        "no job runs here and there is no recording in this folder; start with `stallscope run -- python train.py`\n"
            .into()
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        table(&rows, now, &terminal::style(&std::io::stdout(), colour))
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A recording's row; none for the one of a running job, which has a row already.
fn recording(path: &Path) -> Option<Row> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let read = Recording::open(path).and_then(|recording| Ok((recording.state()?, recording.summary()?)));
    match read {
        Ok((State::Running, _)) => None,
        Ok((State::Finished, summary)) => Some(row(name, "finished", &summary)),
        Ok((State::Killed, summary)) => Some(row(name, "killed", &summary)),
        Err(error) => Some(Row { name, state: "unreadable".into(), verdict: error.to_string(), ..Row::default() }),
    }
}

fn row(name: String, state: &str, summary: &RunSummary) -> Row {
    let started = summary.job.started_wall_ns;
    Row {
        name,
        state: state.into(),
        pid: (state == "running").then_some(summary.job.pid),
        started_wall_ns: Some(started),
        duration_ns: Some(match summary.job.ended_wall_ns {
            Some(ended) => ended.saturating_sub(started),
            None => summary.overhead.wall_ns,
        }),
        verdict: summary.verdict.sentence.clone(),
    }
}
