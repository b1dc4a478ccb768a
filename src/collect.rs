use crate::{metrics, node, terminal};
use anyhow::Result;
use clap::Args;
use stallscope_collector::{Policy, ServeOptions, node_memory_bytes, start_node_service};
use stallscope_reports::openmetrics;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run this node's collector of kernel evidence.
///
/// One per node, started by root or by a user with CAP_BPF and CAP_PERFMON. It attaches nothing while no job is measured,
/// serves each user their own process trees only, and writes no file. Once its programs are loaded it drops root,
/// capabilities, file access and most system calls. Ends on Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct Collect {
    /// Socket to listen on
    #[arg(long, value_name = "PATH", default_value = stallscope_collector::KERNEL_SOCKET)]
    socket: PathBuf,
    /// Accept only root and members of this group; by default every user, each limited to their own jobs
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// User, by name or number, to switch to once the programs are loaded, when started by root [default: stallscope if
    /// that user exists, else nobody]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Exit when the last client disconnects
    #[arg(long)]
    until_idle: bool,
    /// Allow every user, not only root, to have syscalls hooked (`attach`, `run --syscalls`), which meanwhile costs every
    /// syscall on the node about 50 to 160 ns
    #[arg(long)]
    syscalls_for_everyone: bool,
    /// Serve Prometheus metrics of the node (not of jobs) at http://ADDR/metrics: 9400 listens on localhost, 0.0.0.0:9400
    /// on all interfaces; port 0 picks a free one and prints it
    #[arg(long, value_name = "ADDR", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Require the bearer token in this file (Prometheus: authorization, credentials_file)
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
    /// Have jobs tuned without anybody being asked, as far as this policy allows (contrib/stallscope.toml). SIGHUP reads it
    /// again
    #[arg(long, value_name = "FILE", conflicts_with = "until_idle")]
    config: Option<PathBuf>,
    /// Folder for the node's audit and its pauses, of root's alone
    #[arg(long, value_name = "DIR", requires = "config", default_value = node::STATE)]
    state: PathBuf,
    /// Only print what is understood of the policy
    #[arg(long, requires = "config")]
    check: bool,
}

pub(crate) fn main(verb: &Collect) -> Result<ExitCode> {
    if let (true, Some(config)) = (verb.check, &verb.config) {
        terminal::print(&Policy::read(config)?.in_words(node_memory_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(config) = &verb.config {
        start_node_service(config, &verb.socket, verb.user.as_deref(), &verb.state)?;
    }
    let metrics = metrics::served(verb.metrics, verb.metrics_token.as_deref(), openmetrics::render_node)?;
    let options = ServeOptions {
        socket: &verb.socket,
        only_until_idle: verb.until_idle,
        syscalls_for_everyone: verb.syscalls_for_everyone,
        metrics,
        group: verb.group.as_deref(),
        user: verb.user.as_deref(),
    };
    stallscope_collector::serve(options, |serving| {
        // One that serves a single job shares that job's terminal.
        if !verb.until_idle {
            terminal::say(&format!("serving kernel evidence at {}; Ctrl-C ends", serving.socket));
            terminal::say(&serving.confined);
            serving.not_confined.iter().for_each(|lacking| terminal::say(lacking));
        }
        if let Some(whereabouts) = &serving.metrics {
            terminal::say(whereabouts);
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
