use crate::{metrics, terminal};
use anyhow::Result;
use clap::Args;
use stallscope_collector::ServeOptions;
use stallscope_reports::openmetrics;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Give kernel evidence to every job of this node.
///
/// Run it once per node, as root or as a user with CAP_BPF and CAP_PERFMON. It attaches nothing while nobody looks, gives
/// each user the process trees that are theirs, and writes no file. Once the kernel has its programs it gives away root,
/// capabilities, files and most system calls. Ends on Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct Collect {
    /// Where to listen
    #[arg(long, value_name = "PATH", default_value = stallscope_collector::KERNEL_SOCKET)]
    socket: PathBuf,
    /// Who may connect, besides root: members of this group. Else everybody, who sees their own jobs alone
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Whom to become once the kernel has the programs, where root starts it: a name or a number [default: stallscope where
    /// there is such a user, else nobody]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// End when the last caller is gone
    #[arg(long)]
    until_idle: bool,
    /// Let every user have syscalls hooked (`attach`, `run --syscalls`), which costs each syscall of the node about 50 ns
    /// while they do; else root alone may
    #[arg(long)]
    syscalls_for_everyone: bool,
    /// Serve figures for Prometheus at http://ADDR/metrics: 9400 is for this machine alone, 0.0.0.0:9400 for
    /// everybody; 0 picks a free port and says it. Of the node alone, not of anybody's job
    #[arg(long, value_name = "ADDR", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Serve them only to who shows the token in this file (Prometheus: authorization, credentials_file)
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
}

pub(crate) fn main(verb: &Collect) -> Result<ExitCode> {
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
