use crate::budgets::Limits;
use crate::metrics;
use crate::pack_mount::PackAt;
use crate::terminal::{self, Colour, StatusLine};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, ValueEnum, error::ErrorKind};
use stallscope_collector::{KernelChoice, LaunchError, RunOptions, TuneOptions, View};
use stallscope_model::{RunSummary, TuneMode};
use stallscope_reports::openmetrics;
use stallscope_units::parse_bytes;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Launch a job and measure where its time goes.
///
/// The job runs as you, in your environment, with your terminal, and its exit code is passed on. When it ends, on
/// Ctrl-C and on SIGUSR1, a summary shows where its time went. Kernel evidence comes from `sudo stallscope
/// collect`, or with --kernel from a collector for this job alone.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The job's name; by default its script's
    #[arg(long)]
    name: Option<String>,
    /// Recording to write; by default NAME.stall in this folder. An existing file is never overwritten
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Collect kernel evidence for this job alone (starts a privileged collector with sudo)
    #[arg(long, conflicts_with = "no_kernel")]
    kernel: bool,
    /// Use the shim's evidence only
    #[arg(long)]
    no_kernel: bool,
    /// Use kernel evidence only
    #[arg(long)]
    no_shim: bool,
    /// Also hook syscalls, which shows CPU time spent inside reads and costs every syscall on the node about 50 to
    /// 160 ns
    #[arg(long, conflicts_with = "no_kernel")]
    syscalls: bool,
    /// Serve Prometheus metrics at http://ADDR/metrics: 9400 listens on localhost, 0.0.0.0:9400 on all interfaces; port
    /// 0 picks a free one and prints it. If the address cannot be served, the job is not started
    #[arg(long, value_name = "ADDR", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Require the bearer token in this file (Prometheus: authorization, credentials_file)
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token: Option<PathBuf>,
    /// Tune the job from its start: observe (watch only), advise (recommend changes) or act (make one change at a time
    /// and keep proven gains; with --memory also a cache, which begins small). Random augmentation in workers is
    /// another one once their number has changed. See `stallscope tune --help`
    #[arg(long, value_name = "MODE", value_enum, conflicts_with = "no_shim")]
    tune: Option<Tune>,
    /// Keep the files of the data set that the job trains on in so much memory (8GiB, 500MB), under torch's own loader; not
    /// those of an evaluation or of a second data set. Order, samples and randomness stay the script's. docs/cache.md says what
    /// can be kept. 0: no cache, whatever --tune may do
    #[arg(long, value_name = "SIZE", value_parser = cache_bytes, conflicts_with = "no_shim")]
    cache: Option<u64>,
    /// Show the files of a pack (see `stallscope pack`) in a folder, to this job alone: FOLDER is where the script looks for its
    /// data set. What the folder has is hidden from the job; nobody else sees a difference, and the end of the job ends it. May be
    /// given more than once. Takes root or sudo, with which the job still runs as you
    #[arg(long, value_name = "PACK=FOLDER", value_parser = OsStringValueParser::new().try_map(PackAt::parse))]
    pack: Vec<PackAt>,
    #[command(flatten)]
    limits: Limits,
    /// Print neither progress nor the final summary
    #[arg(short, long)]
    quiet: bool,
}

/// A size, or 0 for no cache.
fn cache_bytes(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_bytes(text).map_err(|error| error.to_string()) }
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
            cache_bytes: verb.cache,
            syscalls: verb.syscalls,
            metrics,
            tune: verb.tune.map(|tune| TuneOptions { mode: tune.mode(), budgets: verb.limits.budgets() }),
            mounts: verb.pack.iter().map(PackAt::mount).collect::<Result<_>>()?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cache_is_a_size_too() {
        assert_eq!(cache_bytes("0"), Ok(0));
        assert_eq!(cache_bytes("8GiB"), Ok(8 << 30));
        assert!(cache_bytes("0MiB").is_err() && cache_bytes("much").is_err());
    }
}
