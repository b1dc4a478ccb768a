use crate::metrics;
use crate::run::Screen;
use crate::terminal::Colour;
use anyhow::Result;
use clap::Args;
use stallscope_collector::AttachOptions;
use stallscope_reports::openmetrics;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure a running job, from the kernel alone.
///
/// The job is not changed. Needs root, or a job of your own and `sudo stallscope collect` running on this node. Ends
/// with the job, after --for, or on Ctrl-C. If the job was launched by a `stallscope run` that was killed, attach takes
/// over from it: loader evidence and knobs return within a second, without privileges.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// PID, or a job's name or its prefix as listed by `stallscope ls`
    #[arg(value_name = "JOB")]
    job: String,
    /// How long to measure: 90s, 5m, 2h
    #[arg(long = "for", value_name = "TIME", value_parser = stallscope_units::parse_duration)]
    period: Option<Duration>,
    /// Recording to write; by default NAME.stall in this folder. An existing file is never overwritten
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Do not hook syscalls: cheaper for the node, less precise for jobs that read cached files
    #[arg(long)]
    no_syscalls: bool,
    /// Serve Prometheus metrics at http://ADDR/metrics: 9400 listens on localhost, 0.0.0.0:9400 on all interfaces; port
    /// 0 picks a free one and prints it
    #[arg(long, value_name = "ADDR", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Require the bearer token in this file (Prometheus: authorization, credentials_file)
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
    /// Hold up to so much (8GiB, 500MB) of the files that the job reads again and again in the page cache, by a process of the
    /// job's user, beside the job: a shuffle defeats the kernel's own choice. For jobs that open files anew in each pass, by any
    /// library. Without sudo as much as RLIMIT_MEMLOCK allows. Gives way where memory gets short, and ends with this. See
    /// docs/cache.md
    #[arg(long, value_name = "SIZE", value_parser = stallscope_units::parse_bytes)]
    cache: Option<u64>,
    /// Print neither progress nor the final summary
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn main(verb: Attach, colour: Colour) -> Result<ExitCode> {
    let mut view = Screen::new(colour, verb.quiet);
    let options = AttachOptions {
        job: verb.job,
        period: verb.period,
        output: verb.output,
        syscalls: !verb.no_syscalls,
        cache_bytes: verb.cache,
        metrics: metrics::served(verb.metrics, verb.metrics_token.as_deref(), openmetrics::render)?,
    };
    stallscope_collector::attach(options, &mut view)?;
    Ok(ExitCode::SUCCESS)
}
