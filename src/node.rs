//! The node's policy at work: what it does with the jobs that run here, and its processes.

use crate::audit::unbroken_where_piped;
use crate::metrics;
use crate::terminal::{self, Colour};
use anyhow::{Result, ensure};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use stallscope_collector::{
    Asked, CollectOptions, Endpoint, Export, NodeLog, NodeOptions, Recordings, SessionOptions, Written,
    export_as_configured, export_node, node_state, pause_node, resume_node, serve_node,
};
use stallscope_reports::{Style, clean_json, node, openmetrics, otlp};
use stallscope_store::Retention;
use std::net::SocketAddr;
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
    /// Push the jobs and the audit to a receiver of OpenTelemetry, and show the jobs to Prometheus, until it is ended
    ///
    /// Root exports all jobs, others their own. Lines of the audit are pushed from now on, each once; those of a time in which the
    /// receiver is away come later, and its metrics are lost.
    #[command(group = ArgGroup::new("what").args(["otlp", "prometheus", "config"]).required(true).multiple(true))]
    Export {
        /// Push to this receiver by OTLP over HTTP, as that of an OpenTelemetry collector on this machine: http://HOST[:PORT]
        #[arg(long, value_name = "URL")]
        otlp: Option<Endpoint>,
        /// Time between two pushes
        #[arg(long, value_name = "TIME", default_value = "15s", value_parser = stallscope_units::parse_duration)]
        every: Duration,
        /// Serve the jobs as Prometheus metrics at http://ADDR/metrics: 9402 listens on localhost, 0.0.0.0:9402 on all interfaces
        #[arg(long, value_name = "ADDR", value_parser = metrics::address)]
        prometheus: Option<SocketAddr>,
        /// Require the bearer token in this file (Prometheus: authorization, credentials_file)
        #[arg(long, value_name = "FILE", requires = "prometheus")]
        prometheus_token: Option<PathBuf>,
        /// Do what this policy of the node has in [export]. SIGHUP reads it again
        #[arg(long, value_name = "FILE", conflicts_with_all = ["otlp", "prometheus"])]
        config: Option<PathBuf>,
        /// Started by the node's service, which is asked by stdin
        #[arg(long, hide = true, conflicts_with = "config")]
        by_stdin: bool,
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
        Some(NodeVerb::Export { config: Some(config), every, .. }) => {
            export_as_configured(config, at_least_a_second(*every)?, WRITTEN, terminal::say)?;
        }
        Some(NodeVerb::Export { otlp, every, prometheus, prometheus_token, by_stdin, .. }) => {
            let (prometheus_token, otlp) = (prometheus_token.clone(), otlp.clone());
            let export = Export { prometheus: *prometheus, prometheus_token, otlp };
            let asked = if *by_stdin { Asked::ByStdin } else { Asked::AsCaller };
            export_node(&export, at_least_a_second(*every)?, WRITTEN, asked, terminal::say)?;
        }
        None => {
            let state = node_state()?;
            let text = if verb.json { terminal::json(&state)? } else { node::page(&state, &style) };
            terminal::print(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

const WRITTEN: Written =
    Written { metrics: otlp::metrics, logs: otlp::logs, figures: openmetrics::render_jobs };

fn at_least_a_second(every: Duration) -> Result<Duration> {
    ensure!(every >= Duration::from_secs(1), "--every is at least 1s");
    Ok(every)
}

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
    /// Leave what the policy has in [export] to `stallscope node export --config`, where this has no network
    #[arg(long)]
    no_export: bool,
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
        exports: !verb.no_export,
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
    cores: Cores,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cores {
    Idle,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Advise,
    Act,
}

pub(crate) fn session(verb: &Session) -> Result<ExitCode> {
    let Session { pid, start_ticks, mode, rule, cache_bytes, uid, gid, checkpoint_ppm, cores } = *verb;
    let (acts, all_cores) = (mode == Mode::Act, cores == Cores::All);
    let options =
        SessionOptions { uid, gid, pid, start_ticks, acts, all_cores, rule, cache_bytes, checkpoint_ppm };
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
