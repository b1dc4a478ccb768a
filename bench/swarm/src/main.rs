//! A job of many ranks with many workers, in real processes with real lanes, that knows how many records it pushed.
//!
//! Everything that a collector sees of a torch job is here but torch: index and result pipes, reads, compute, pauses.

mod lane;
mod rank;
mod worker;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::process::{Child, Command, ExitCode, Stdio};

/// Plays a training job and prints, as JSON, how many records its processes pushed and how many their lanes refused.
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    shape: Shape,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The job, the same for all of its processes.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Shape {
    #[arg(long, default_value_t = 64)]
    ranks: u32,
    /// Of each rank
    #[arg(long, default_value_t = 8)]
    workers: u32,
    /// Steps a second of each rank
    #[arg(long, default_value_t = 10.0)]
    hz: f64,
    /// Samples in a batch
    #[arg(long, default_value_t = 32)]
    batch: u32,
    /// Records of samples in a batch, at most one a sample: a real batch's samples share records as in the Python package
    #[arg(long, default_value_t = 16)]
    records: u32,
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
}

#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Rank { number: u32 },
    #[command(hide = true)]
    Worker { number: u32, rank: u32 },
}

/// Records offered by some processes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Totals {
    processes: u64,
    steps: u64,
    pushed: u64,
    /// Found their lane full.
    refused: u64,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.processes += other.processes;
        self.steps += other.steps;
        self.pushed += other.pushed;
        self.refused += other.refused;
    }
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let done = match flags.role {
        None => job(flags.shape),
        Some(Role::Rank { number }) => rank::run(flags.shape, number),
        Some(Role::Worker { number, rank }) => worker::run(flags.shape, number, rank),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("swarm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn job(shape: Shape) -> Result<()> {
    ensure!(
        shape.ranks > 0 && shape.workers > 0 && shape.batch > 0 && shape.records > 0,
        "a job has ranks, workers and samples"
    );
    ensure!(shape.hz > 0.0 && shape.seconds > 0.0, "steps and seconds are more than none");
    let mut ranks = (0..shape.ranks)
        .map(|number| myself(shape, "rank", &[number]).stdout(Stdio::piped()).spawn())
        .collect::<Result<Vec<Child>, _>>()
        .context("cannot start a rank")?;
    let mut totals = Totals::default();
    for rank in &mut ranks {
        let mut line = String::new();
        let output = rank.stdout.take().context("a rank has no output")?;
        std::io::BufReader::new(output).read_line(&mut line)?;
        totals.add(serde_json::from_str(&line).context("a rank ended without its totals")?);
        ensure!(rank.wait()?.success(), "a rank failed");
    }
    println!("{}", serde_json::to_string(&totals)?);
    Ok(())
}

/// This program in another role.
fn myself(shape: Shape, role: &str, numbers: &[u32]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["--ranks", &shape.ranks.to_string(), "--workers", &shape.workers.to_string()])
        .args(["--hz", &shape.hz.to_string(), "--batch", &shape.batch.to_string()])
        .args(["--records", &shape.records.to_string()])
        .args(["--seconds", &shape.seconds.to_string(), role])
        .args(numbers.iter().map(u32::to_string));
    command
}
