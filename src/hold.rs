use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Keep files of a running job in the page cache, for the `attach` that started this.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    pid: u32,
    start_ticks: u64,
    uid: u32,
    most_bytes: u64,
}

pub(crate) fn main(verb: &Hold) -> Result<ExitCode> {
    let &Hold { pid, start_ticks, uid, most_bytes } = verb;
    stallscope_collector::begin_as_helper();
    let held = stallscope_hold::hold(stallscope_hold::Order { pid, start_ticks, uid, most_bytes });
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
