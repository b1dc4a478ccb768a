use crate::terminal::{self, Colour};
use crate::working::Working;
use anyhow::Result;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use stallscope_collector::RuntimeDir;
use stallscope_reports::target::{self, Kind, Target};
use stallscope_reports::{
    Error, Folder, Run, Style, csv, html, json, markdown, openmetrics, parquet, perfetto, text, write_whole,
};
use std::ffi::OsStr;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show where a recording's or a running job's time went.
///
/// Prints text, or writes a web page, tables or a trace. Several recordings of one job, such as one per node, become
/// one report: their clocks are aligned, and the ledger is computed anew over all ranks.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Report {
    /// Recordings (NAME.stall) of one job, or a running job's name, prefix or PID
    #[arg(value_name = "FILE|JOB", required = true)]
    runs: Vec<PathBuf>,
    /// Output format; by default by the extension of -o, else text
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// File or folder to write to, `-` for stdout; an existing file is overwritten. By default text, markdown, json and
    /// openmetrics go to stdout, other formats to this folder under the recording's name
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: Option<PathBuf>,
    /// Hide paths, hosts, users and command lines
    #[arg(long)]
    redact: bool,
}

const EXAMPLES: &str = "\
Examples:
  stallscope report train.stall                         print the summary
  stallscope report train.stall -o train.html           write a self-contained page
  stallscope report node*.stall --format markdown       report all nodes of a job, for a pull request
  stallscope report train.stall --format csv -o tables  write a folder of tables, see docs/reports.md
  stallscope report train --format json | jq .verdict   query a running job";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Markdown,
    Html,
    Csv,
    Json,
    Parquet,
    Perfetto,
    Openmetrics,
}

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Format] {
        use Format::*;
        &[Text, Markdown, Html, Csv, Json, Parquet, Perfetto, Openmetrics]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(match self {
            Format::Text => "the summary that a run ends with",
            Format::Markdown => "for a pull request",
            Format::Html => "a self-contained page",
            Format::Csv => "a folder of tables",
            Format::Json => "for scripts, with a schema",
            Format::Parquet => "a folder of tables for data frames",
            Format::Perfetto => "a trace for ui.perfetto.dev",
            Format::Openmetrics => "the metrics that Prometheus scrapes",
        }))
    }
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Markdown => "markdown",
            Format::Html => "html",
            Format::Csv => "csv",
            Format::Json => "json",
            Format::Parquet => "parquet",
            Format::Perfetto => "perfetto",
            Format::Openmetrics => "openmetrics",
        }
    }

    fn writer(self) -> Writer {
        let text = |ending| Kind { ending, read_at_once: true, binary: false };
        match self {
            Format::Text => Writer::Screen(text(".txt")),
            Format::Markdown => Writer::File(text(".md"), markdown::write),
            Format::Html => {
                Writer::File(Kind { ending: ".html", read_at_once: false, binary: false }, html::write)
            }
            Format::Csv => Writer::Folder("-csv", csv::write),
            Format::Json => Writer::File(text(".json"), json::write),
            Format::Parquet => Writer::Folder("-parquet", parquet::write),
            Format::Perfetto => {
                let kind = Kind { ending: ".perfetto-trace", read_at_once: false, binary: true };
                Writer::File(kind, perfetto::write)
            }
            Format::Openmetrics => Writer::File(text(".prom"), openmetrics::write),
        }
    }

    /// What a file of this name is expected to be; text without an extension.
    fn of(path: &Path) -> Result<Format> {
        let Some(extension) = path.extension().map(OsStr::to_string_lossy) else { return Ok(Format::Text) };
        Ok(match &*extension {
            "txt" => Format::Text,
            "md" => Format::Markdown,
            "html" | "htm" => Format::Html,
            "json" => Format::Json,
            "perfetto-trace" | "pftrace" => Format::Perfetto,
            "prom" => Format::Openmetrics,
            "csv" | "parquet" => {
                anyhow::bail!("{extension} is a folder of tables: --format {extension} -o FOLDER")
            }
            _ => anyhow::bail!("no format is known by the extension .{extension}: name one with --format"),
        })
    }
}

/// How a format is written.
enum Writer {
    /// For a terminal of any kind.
    Screen(Kind),
    File(Kind, fn(&Run, &mut dyn Write) -> Result<(), Error>),
    /// Its folder's name ends in this.
    Folder(&'static str, fn(&Run, &Folder) -> Result<Vec<PathBuf>, Error>),
}

pub(crate) fn main(verb: &Report, colour: Colour) -> Result<ExitCode> {
    let output = verb.output.as_deref();
    let format = match (verb.format, output) {
        (Some(format), _) => format,
        (None, Some(path)) if !path.is_dir() => Format::of(path)?,
        (None, _) => Format::Text,
    };
    let name = verb.runs[0].file_stem().unwrap_or_default().to_string_lossy();
    let terminal = std::io::stdout().is_terminal();
    // Where it goes is looked at before a long recording is read.
    match format.writer() {
        Writer::Screen(kind) => {
            let target = target::file(kind, output, &name, terminal)?;
            let style = match target {
                Target::Stdout => terminal::style(&std::io::stdout(), colour),
                // Read anywhere.
                Target::File(_) => Style { width: 100, colour: false, unicode: true },
            };
            one_file(verb, target, |run, out| Ok(out.write_all(text::report(run, &style).as_bytes())?))
        }
        Writer::File(kind, write) => {
            one_file(verb, target::file(kind, output, &name, terminal)?, |run, out| write(run, out))
        }
        Writer::Folder(ending, write) => {
            let place = target::folder(ending, output, &name)?;
            let working = Working::on(format!("reading {}", called(&verb.runs)));
            let run = open(verb)?;
            let (path, replaces) = (place.path.clone(), place.replaces);
            write(&run, &place.open()?)?;
            drop(working);
            done(&path, replaces)
        }
    }
}

fn one_file(
    verb: &Report,
    target: Target,
    write: impl FnOnce(&Run, &mut dyn Write) -> Result<(), Error>,
) -> Result<ExitCode> {
    let working = Working::on(format!("reading {}", called(&verb.runs)));
    let run = open(verb)?;
    match target {
        Target::Stdout => {
            drop(working);
            let mut out = std::io::BufWriter::new(std::io::stdout().lock());
            match write(&run, &mut out).and_then(|()| Ok(out.flush()?)) {
                // A reader that has seen enough (`| head`) is no error.
                Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
                other => Ok(other.map(|()| ExitCode::SUCCESS)?),
            }
        }
        Target::File(place) => {
            write_whole(&place, |out| write(&run, out))?;
            drop(working);
            done(&place.path, place.replaces)
        }
    }
}

fn done(path: &Path, replaces: bool) -> Result<ExitCode> {
    let verb = if replaces { "replaced" } else { "wrote" };
    terminal::say(&format!("{verb} {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn open(verb: &Report) -> Result<Run> {
    let mut run = read(&verb.runs)?;
    if verb.redact {
        run.redact();
    }
    Ok(run)
}

/// Recordings, or the running job of that name.
fn read(runs: &[PathBuf]) -> Result<Run> {
    if let [job] = runs
        && !job.is_file()
        && job.extension().is_none_or(|extension| extension != "stall")
    {
        let job = job.to_string_lossy();
        let (socket, card) = RuntimeDir::of_this_user()?.find(&job)?;
        // Its recording knows more; where there is none the job itself is asked.
        return match Run::open(&[card.recording]) {
            Ok(run) => Ok(run),
            Err(_) => Ok(Run::of_summary(stallscope_collector::ask(&socket)?)),
        };
    }
    Ok(Run::open(runs)?)
}

fn called(runs: &[PathBuf]) -> String {
    match runs {
        [one] => one.display().to_string(),
        several => format!("{} recordings", several.len()),
    }
}
