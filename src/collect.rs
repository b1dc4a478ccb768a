use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Give kernel evidence to every job of this node.
///
/// Run it once per node, as root. It attaches nothing while nobody looks, shows each user their own jobs only,
/// and writes no file. Ends on Ctrl-C.
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
    stallscope_collector::serve(&verb.socket, verb.until_idle)?;
    Ok(ExitCode::SUCCESS)
}
