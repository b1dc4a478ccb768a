//! The node's policy at work: what it does with the jobs that run here, and its processes.

use crate::audit::unbroken_where_piped;
use crate::terminal::{self, Colour};
use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use stallscope_collector::{
    CollectOptions, Endpoint, NodeLog, NodeOptions, Recordings, SessionOptions, Written, export_node,
    node_state, pause_node, resume_node, serve_node,
};
use stallscope_reports::{Style, clean_json, node, otlp};
use stallscope_store::Retention;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Where the service keeps the node's audit and its pauses.
pub(crate) const STATE: &str = "/var/lib/stallscope";

/// Show what the node's policy does with the jobs that run here, pause it, or read the node's audit.
///
/// Root sees all jobs, others see their own. `stallscope audit JOB` has every change of one job and its effect.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Node {
    #[command(subcommand)]
    verb: Option<NodeVerb>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  stallscope node                 what is done with each job
  sudo stallscope node pause      nothing is changed any more, in any job
  stallscope node pause train     the same for one job of yours
  stallscope node log             what was changed, why, and what came of it
  sudo stallscope node export --otlp http://127.0.0.1:4318      all that for OpenTelemetry, as it happens";

#[derive(Debug, Subcommand)]
enum NodeVerb {
    /// Have nothing changed any more, in one job or the whole node; what is in force stays
    ///
    /// What is being tried at this moment is put back. A pause outlasts restarts of the service. The whole node is paused by
    /// root, a job by its owner or root.
    Pause {
        /// Job's name, prefix or PID; without one the whole node
        job: Option<String>,
    },
    /// Take a pause back
    Resume {
        /// Job's name, prefix or PID; without one the whole node's
        job: Option<String>,
    },
    /// Print the node's audit: what sessions of the policy changed in which job, why, and what came of it
    Log {
        /// Print a JSON document per line
        #[arg(long)]
        json: bool,
    },
    /// Push the jobs and the audit to a receiver of OpenTelemetry, as metrics and events, until it is ended
    ///
    /// Root pushes all jobs, others their own. Lines of the audit are pushed from now on, each once; those of a time in which the
    /// receiver is away come later, and its metrics are lost.
    Export {
        /// The receiver, by OTLP over HTTP, as that of an OpenTelemetry collector on this machine: http://HOST[:PORT]
        #[arg(long, value_name = "URL")]
        otlp: Endpoint,
        /// Time between two pushes
        #[arg(long, value_name = "TIME", default_value = "15s", value_parser = stallscope_units::parse_duration)]
        every: Duration,
    },
}

pub(crate) fn main(verb: &Node, colour: Colour) -> Result<ExitCode> {
    let mut style = terminal::style(&std::io::stdout(), colour);
    match &verb.verb {
        Some(NodeVerb::Pause { job }) => terminal::say(&pause_node(job.as_deref())?),
        Some(NodeVerb::Resume { job }) => terminal::say(&resume_node(job.as_deref())?),
        Some(NodeVerb::Log { json }) => {
            unbroken_where_piped(&mut style);
            print_log(*json, &style)?;
        }
        Some(NodeVerb::Export { otlp, every }) => {
            ensure!(*every >= Duration::from_secs(1), "--every is at least 1s");
            export_node(otlp, *every, WRITTEN, terminal::say)?;
        }
        None => {
            let state = node_state()?;
            let text = if verb.json { terminal::json(&state)? } else { node::page(&state, &style) };
            terminal::print(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

const WRITTEN: Written = Written { metrics: otlp::metrics, logs: otlp::logs };

fn print_log(json: bool, style: &Style) -> Result<()> {
    let mut log = NodeLog::default();
    let mut any = false;
    loop {
        let events = log.more()?;
        if events.is_empty() {
            break;
        }
        any = true;
        for event in &events {
            let line = if json {
                clean_json(&serde_json::to_string(event)?) + "\n"
            } else {
                node::line(event, style)
            };
            terminal::print(&line)?;
        }
    }
    if !any && !json {
        terminal::say("the node's audit has no line yet that you may read");
    }
    Ok(())
}

/// Have jobs tuned as far as the node's policy allows, without kernel evidence.
#[derive(Debug, Args)]
pub(crate) struct Service {
    /// The policy
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Socket to listen on
    #[arg(long, value_name = "PATH", default_value = "/run/stallscope/node.sock")]
    socket: PathBuf,
    /// User, by name or number, as whom users are heard [default: stallscope if that user exists, else nobody]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Folder for the node's audit and its pauses, of root's alone
    #[arg(long, value_name = "DIR", default_value = STATE)]
    state: PathBuf,
    /// Started by `collect`: ends with stdin
    #[arg(long, hide = true)]
    beside_collect: bool,
}

pub(crate) fn service(verb: &Service) -> Result<ExitCode> {
    let options = NodeOptions {
        config: &verb.config,
        socket: &verb.socket,
        user: verb.user.as_deref(),
        state: &verb.state,
        ends_with_stdin: verb.beside_collect,
    };
    serve_node(options, terminal::say)?;
    Ok(ExitCode::SUCCESS)
}

/// Tune one job for the node's policy.
#[derive(Debug, Args)]
pub(crate) struct Session {
    pid: u32,
    start_ticks: u64,
    mode: Mode,
    rule: u32,
    cache_bytes: u64,
    uid: u32,
    gid: u32,
    checkpoint_ppm: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Advise,
    Act,
}

pub(crate) fn session(verb: &Session) -> Result<ExitCode> {
    let Session { pid, start_ticks, mode, rule, cache_bytes, uid, gid, checkpoint_ppm } = *verb;
    let acts = mode == Mode::Act;
    let options = SessionOptions { uid, gid, pid, start_ticks, acts, rule, cache_bytes, checkpoint_ppm };
    Ok(ExitCode::from(stallscope_collector::session(&options)?.code()))
}

/// Collect the evidence of one job that nobody launched with `run`, for the node's policy.
#[derive(Debug, Args)]
pub(crate) struct Collect {
    evidence: Evidence,
    pid: u32,
    start_ticks: u64,
    uid: u32,
    gid: u32,
    /// Where its user's recordings go, for how many seconds and with how many bytes together they are kept
    #[arg(requires = "most_bytes")]
    dir: Option<PathBuf>,
    keep_s: Option<u64>,
    most_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Evidence {
    /// The shim's, and the kernel's where there is any.
    Shim,
    Kernel,
}

pub(crate) fn collect(verb: &Collect) -> Result<ExitCode> {
    let Collect { evidence, pid, start_ticks, uid, gid, ref dir, keep_s, most_bytes } = *verb;
    let has_shim = evidence == Evidence::Shim;
    let recordings = dir.clone().zip(keep_s.zip(most_bytes)).map(|(dir, (keep_s, most_bytes))| {
        let retention = Retention { keep: Duration::from_secs(keep_s), most_bytes };
        Recordings { dir, retention }
    });
    let options = CollectOptions { uid, gid, pid, start_ticks, has_shim, recordings };
    Ok(ExitCode::from(stallscope_collector::collect(&options)?.code()))
}
