use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::{Args, ValueEnum};
use stallscope_store::Recording;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Print what a recording or a running job tells.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// A recording (NAME.stall), or a running job's name, prefix or pid
    #[arg(value_name = "FILE|JOB")]
    run: PathBuf,
    /// The screen, or JSON for scripts
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(crate) fn main(verb: &Report, colour: Colour) -> Result<ExitCode> {
    let (summary, recording) = if verb.run.exists() || verb.run.extension().is_some_and(|ext| ext == "stall")
    {
        (Recording::open(&verb.run)?.summary()?, Some(verb.run.as_path()))
    } else {
        (stallscope_collector::running_job(&verb.run.to_string_lossy())?, None::<&Path>)
    };
    let text = match verb.format {
        Format::Text => stallscope_reports::text::screen(
            &summary,
            recording,
            &terminal::style(&std::io::stdout(), colour),
        ),
        Format::Json => stallscope_reports::json::render(&summary),
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
