use crate::terminal;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Give kernel evidence to every job of this node.
///
/// Run it once per node, as root. It attaches nothing while nobody looks, gives each user the process
/// trees that are theirs, and writes no file. Ends on Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct Collect {
    /// Where to listen
    #[arg(long, value_name = "PATH", default_value = stallscope_collector::KERNEL_SOCKET)]
    socket: PathBuf,
    /// End when the last caller is gone
    #[arg(long)]
    until_idle: bool,
}

pub(crate) fn main(verb: &Collect) -> Result<ExitCode> {
    stallscope_collector::serve(&verb.socket, verb.until_idle, || {
        // One that serves a single job shares that job's terminal.
        if !verb.until_idle {
            terminal::say(&format!("serving kernel evidence at {}; Ctrl-C ends", verb.socket.display()));
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
