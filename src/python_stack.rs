use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Print the Python stack of a process as JSON, as its user, for the collector that started this.
#[derive(Debug, Args)]
pub(crate) struct PythonStack {
    pid: u32,
    start_ticks: u64,
    uid: u32,
}

pub(crate) fn main(verb: &PythonStack) -> Result<ExitCode> {
    let &PythonStack { pid, start_ticks, uid } = verb;
    stallscope_collector::begin_as_helper();
    let printed = stallscope_collector::print_python_stack(pid, start_ticks, uid);
    Ok(if printed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
