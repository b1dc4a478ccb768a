//! The node's policy at work: what it does with the jobs that run here, and its processes.

use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::{Args, ValueEnum};
use stallscope_collector::{NodeOptions, SessionOptions, jobs_of_node, serve_node};
use stallscope_reports::list;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what the node's policy does with the jobs that run here.
///
/// Root sees all jobs, others see their own. `stallscope audit JOB` has every change and its effect.
#[derive(Debug, Args)]
pub(crate) struct Node {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(verb: &Node, colour: Colour) -> Result<ExitCode> {
    let jobs = jobs_of_node()?;
    let text = match verb.json {
        true => terminal::json(&jobs)?,
        false if jobs.is_empty() => "no job runs here that the node's policy knows of\n".into(),
        false => list::of_node(&jobs, &terminal::style(&std::io::stdout(), colour)),
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
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
    /// Started by `collect`: ends with stdin
    #[arg(long, hide = true)]
    beside_collect: bool,
}

pub(crate) fn service(verb: &Service) -> Result<ExitCode> {
    let options = NodeOptions {
        config: &verb.config,
        socket: &verb.socket,
        user: verb.user.as_deref(),
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Advise,
    Act,
}

pub(crate) fn session(verb: &Session) -> Result<ExitCode> {
    let Session { pid, start_ticks, mode, rule, cache_bytes, uid, gid } = *verb;
    let options = SessionOptions { uid, gid, pid, start_ticks, acts: mode == Mode::Act, rule, cache_bytes };
    Ok(ExitCode::from(stallscope_collector::session(&options)?.code()))
}
