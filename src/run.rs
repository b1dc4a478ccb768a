use crate::budgets::Limits;
use crate::metrics;
use crate::terminal::{self, Colour, StatusLine};
use anyhow::Result;
use clap::{Args, CommandFactory, ValueEnum, error::ErrorKind};
use stallscope_collector::{KernelChoice, LaunchError, RunOptions, TuneOptions, View};
use stallscope_model::{RunSummary, TuneMode};
use stallscope_reports::openmetrics;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Launch a job and measure it.
///
/// The job runs as you, in your environment, with your terminal; its exit code is passed on. At its end, on
/// Ctrl-C and on SIGUSR1 one screen tells where its time went. Kernel evidence comes from `sudo stallscope
/// collect`, or with --kernel for this job alone.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// What to call the job; by default like its script
    #[arg(long)]
    name: Option<String>,
    /// Where to record; by default NAME.stall in this folder. An existing file is never overwritten
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Get kernel evidence for this job alone (starts a privileged collector with sudo)
    #[arg(long, conflicts_with = "no_kernel")]
    kernel: bool,
    /// Use the shim's evidence alone
    #[arg(long)]
    no_kernel: bool,
    /// Use the kernel's evidence alone
    #[arg(long)]
    no_shim: bool,
    /// Hook syscalls too: sees CPU time inside reads, costs each syscall of the node about 100 ns
    #[arg(long, conflicts_with = "no_kernel")]
    syscalls: bool,
    /// Serve figures for Prometheus at http://ADDR/metrics: 9400 is for this machine alone, 0.0.0.0:9400 for
    /// everybody; 0 picks a free port and says it. Where that cannot be, the job is not started
    #[arg(long, value_name = "ADDR", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Serve them only to who shows the token in this file (Prometheus: authorization, credentials_file)
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
    /// Let a controller work on the job from its beginning: observe (only watches), advise (says what would help) or
    /// act (turns one knob at a time, keeps what it can prove). See `stallscope tune --help`
    #[arg(long, value_name = "MODE", value_enum, conflicts_with = "no_shim")]
    tune: Option<Tune>,
    #[command(flatten)]
    limits: Limits,
    /// Print neither progress nor the screen at the end
    #[arg(short, long)]
    quiet: bool,
}

/// [`TuneMode`] as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tune {
    Observe,
    Advise,
    Act,
}

impl Tune {
    fn mode(self) -> TuneMode {
        match self {
            Tune::Observe => TuneMode::Observe,
            Tune::Advise => TuneMode::Advise,
            Tune::Act => TuneMode::Act,
        }
    }
}

pub(crate) fn main(verb: Run, colour: Colour) -> Result<ExitCode> {
    if verb.limits.any() && verb.tune.is_none() {
        let what = "--cores and --memory are limits of the controller: say --tune too";
        crate::Arguments::command().error(ErrorKind::MissingRequiredArgument, what).exit();
    }
    let metrics = metrics::served(verb.metrics, verb.metrics_token.as_deref(), openmetrics::render)?;
    let mut view = Screen::new(colour, verb.quiet);
    let outcome = stallscope_collector::run(
        RunOptions {
            command: verb.command,
            name: verb.name,
            output: verb.output,
            kernel: match (verb.kernel, verb.no_kernel) {
                (true, _) => KernelChoice::Sudo,
                (_, true) => KernelChoice::Off,
                _ => KernelChoice::Auto,
            },
            shim: !verb.no_shim,
            syscalls: verb.syscalls,
            metrics,
            tune: verb.tune.map(|tune| TuneOptions { mode: tune.mode(), budgets: verb.limits.budgets() }),
        },
        &mut view,
    );
    drop(view);
    match outcome {
        Ok(code) => Ok(ExitCode::from(code as u8)),
        Err(error) => match error.downcast_ref::<LaunchError>() {
            Some(launch) => {
                terminal::say(&launch.to_string());
                Ok(ExitCode::from(launch.code as u8))
            }
            None => Err(error),
        },
    }
}

/// The terminal of `run` and `attach`: everything goes to stderr, because stdout is the job's.
pub(crate) struct Screen {
    colour: Colour,
    quiet: bool,
    status: StatusLine,
}

impl Screen {
    pub(crate) fn new(colour: Colour, quiet: bool) -> Screen {
        Screen { colour, quiet, status: StatusLine::new() }
    }
}

impl View for Screen {
    fn progress(&mut self, summary: &RunSummary) {
        if !self.quiet {
            let line = stallscope_reports::progress::line(summary, self.status.width());
            self.status.show(&line);
        }
    }

    fn note(&mut self, sentence: &str) {
        if !self.quiet {
            terminal::say(sentence);
        }
    }

    fn screen(&mut self, summary: &RunSummary, recording: Option<&Path>) {
        self.status.clear();
        if !self.quiet {
            let style = terminal::style(&std::io::stderr(), self.colour);
            let screen = stallscope_reports::text::screen(summary, recording, &style);
            terminal::write_err(&format!("\n{screen}"));
        }
    }
}
