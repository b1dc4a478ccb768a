use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::Args;
use stallscope_collector::{Connection, RuntimeDir};
use stallscope_model::{Advice, AuditEvent, Budgets, RunSummary};
use stallscope_reports::audit::{LineContext, line};
use stallscope_reports::{Style, clean_json};
use stallscope_store::{Recording, State};
use stallscope_wire::{Reply, Request};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Show every change to a job's settings: by whom, why, and with what effect.
///
/// The audit has a line for each action of the controller or of a user. No knob changes without one, and no line is ever
/// altered.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Running job's name, prefix or PID, or a recording (NAME.stall)
    #[arg(value_name = "JOB|FILE")]
    job: PathBuf,
    /// Print a JSON document, or with --follow one per line
    #[arg(long)]
    json: bool,
    /// Keep printing new lines until the job ends
    #[arg(short, long)]
    follow: bool,
}

/// How often a job is asked for more.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn main(verb: &Audit, colour: Colour) -> Result<ExitCode> {
    let mut job = Job::find(&verb.job)?;
    let summary = job.summary()?;
    if verb.json && !verb.follow {
        let document = serde_json::json!({ "job": summary.job.name, "audit": job.all(0)? });
        terminal::print_json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut style = terminal::style(&std::io::stdout(), colour);
    unbroken_where_piped(&mut style);
    let context = job.context(&summary)?;
    let mut next = 0;
    loop {
        // Looked at before the lines are read: those of its last moment are not missed.
        let over = !verb.follow || !job.is_running();
        let events = match job.all(next) {
            // What would be asked is gone with the job.
            Err(_) if verb.follow && matches!(job, Job::Asked(_)) => break,
            events => events?,
        };
        for event in events {
            next = event.line + 1;
            let line = if verb.json { json_line(&event) } else { line(&event, &context, &style) };
            terminal::print(&line)?;
        }
        if over {
            break;
        }
        std::thread::sleep(LOOK);
    }
    if next == 0 && !verb.json {
        terminal::say(&format!(
            "nothing was turned and no controller was at work in {}; `stallscope tune` says what would help",
            summary.job.name
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// A run whose audit and advice can be had.
pub(crate) enum Job {
    Recorded(Box<Recording>),
    /// One that runs without a recording.
    Asked(Connection),
}

impl Job {
    /// # Errors
    /// No job and no recording is called so, or it cannot be read.
    pub(crate) fn find(job: &Path) -> Result<Job> {
        if is_recording(job) {
            return Ok(Job::Recorded(Box::new(Recording::open(job)?)));
        }
        let (socket, card) = RuntimeDir::of_this_user()?.find(&job.to_string_lossy())?;
        match Recording::open(&card.recording) {
            Ok(recording) => Ok(Job::Recorded(Box::new(recording))),
            Err(_) => Ok(Job::Asked(Connection::open(&socket)?)),
        }
    }

    pub(crate) fn summary(&mut self) -> Result<RunSummary> {
        match self {
            Job::Recorded(recording) => Ok(recording.summary()?),
            Job::Asked(connection) => match connection.ask(&Request::Summary)? {
                Reply::Summary(summary) => Ok(*summary),
                _ => anyhow::bail!("the job's collector answered something else"),
            },
        }
    }

    /// What would help within `budgets`.
    pub(crate) fn advice(&self, summary: &RunSummary, budgets: &Budgets) -> Result<Vec<Advice>> {
        match self {
            Job::Recorded(recording) => Ok(stallscope_collector::advice(recording, summary, budgets)?),
            Job::Asked(_) => anyhow::bail!(
                "{} is not recorded, so that nothing can be advised within limits; without --cores and --memory its \
                 collector has advice",
                summary.job.name
            ),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        match self {
            Job::Recorded(recording) => matches!(recording.state(), Ok(State::Running)),
            Job::Asked(_) => true,
        }
    }

    /// The audit from a line on.
    fn all(&mut self, mut from: u64) -> Result<Vec<AuditEvent>> {
        match self {
            Job::Recorded(recording) => Ok(recording.audit(from)?),
            Job::Asked(connection) => {
                let mut all = Vec::new();
                while let Reply::Audit(page) = connection.ask(&Request::Audit { from })?
                    && let Some(last) = page.last()
                {
                    from = last.line + 1;
                    all.extend(page);
                }
                Ok(all)
            }
        }
    }

    fn context(&self, summary: &RunSummary) -> Result<LineContext> {
        let began_ns = match self {
            Job::Recorded(recording) => {
                let anchor = recording.anchors()?.into_iter().next();
                anchor.map(|anchor| began_ns(summary, anchor.monotonic_ns, anchor.wall_ns))
            }
            Job::Asked(_) => None,
        };
        let context = context_of(summary);
        Ok(LineContext { began_ns: began_ns.unwrap_or(context.began_ns), ..context })
    }
}

/// Whether a path is meant, not a running job's name.
pub(crate) fn is_recording(path: &Path) -> bool {
    path.is_file() || path.extension().is_some_and(|extension| extension == "stall")
}

/// What the audit of a job on this machine is rendered with.
pub(crate) fn context_of(summary: &RunSummary) -> LineContext {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    LineContext {
        knobs: summary.knobs.clone(),
        ranks: summary.ranks.len() > 1,
        began_ns: began_ns(summary, now_ns, wall.as_nanos() as u64),
    }
}

/// Start of the job on the monotonic clock; the two clocks were read at the same moment.
fn began_ns(summary: &RunSummary, monotonic_ns: u64, wall_ns: u64) -> u64 {
    monotonic_ns.saturating_sub(wall_ns.saturating_sub(summary.job.started_wall_ns))
}

/// Turns wrapping off where stdout is no terminal, for programs that read lines.
pub(crate) fn unbroken_where_piped(style: &mut Style) {
    if !std::io::stdout().is_terminal() {
        style.width = usize::MAX;
    }
}

pub(crate) fn json_line(event: &AuditEvent) -> String {
    let line = serde_json::to_string(event).unwrap_or_else(|error| {
        // It has neither maps nor floats that JSON could not hold as null.
        unreachable!("a line of the audit is always JSON: {error}")
    });
    clean_json(&line) + "\n"
}
