//! The first half of `make bench-importance`: samplers as published and corrected on a small network that really learns.
//! Writes what each training came to as lines of JSON; bench/importance.py makes tables of them.

mod data;
mod method;
mod net;
mod noise;
mod run;

use clap::Parser;
use data::{Digits, Kind};
use method::{METHODS, Method};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Trains a small network under each sampling and says what it read and learnt.
#[derive(Parser)]
struct Options {
    /// The handwritten digits, as lines of `class,64 numbers`
    #[arg(long, value_name = "FILE")]
    digits: PathBuf,
    /// Runs of each case
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Shares of the samples that are kept, in percent
    #[arg(long, value_delimiter = ',', default_value = "5,10,20,50")]
    cache: Vec<u32>,
    /// Shares of wrong labels, in percent
    #[arg(long, value_delimiter = ',', default_value = "0,5,20")]
    noise: Vec<u32>,
    /// Lengths in epochs, for reads at equal accuracy; made with a cache of 20%
    #[arg(long, value_delimiter = ',', default_value = "4,5,7,10,14,20")]
    epochs: Vec<u32>,
    /// Only methods whose names have this
    #[arg(long, default_value = "")]
    only: String,
}

/// The share at which all lengths are tried.
const MAIN_CACHE: u32 = 20;

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    noise: u32,
    seed: u64,
}

#[derive(Serialize)]
struct Line {
    data: &'static str,
    noise_percent: u32,
    seed: u64,
    method: &'static str,
    cache_percent: u32,
    epochs: u32,
    samples: usize,
    reads: f64,
    hit_ratio: f64,
    substituted_ratio: f64,
    min_hit_ratio: Option<f64>,
    accuracy: f64,
    effective_share: f64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let digits = Digits::read(&options.digits)?;
    let mut cases = vec![];
    for seed in 0..options.seeds {
        for kind in Kind::ALL {
            cases.extend(options.noise.iter().map(|noise| Case { kind, noise: *noise, seed }));
        }
    }
    let (next, out) = (AtomicUsize::new(0), Mutex::new(std::io::stdout()));
    let began = Instant::now();
    let work = || -> anyhow::Result<()> {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            for line in one(case, &options, &digits) {
                if let Ok(mut out) = out.lock() {
                    writeln!(out, "{}", serde_json::to_string(&line)?)?;
                }
            }
            let done = next.load(Ordering::Relaxed).min(cases.len());
            eprintln!("{done} of {} cases begun, {} s", cases.len(), began.elapsed().as_secs());
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a training panicked")))
        })
    })
}

fn one(case: &Case, options: &Options, digits: &Digits) -> Vec<Line> {
    let set = case.kind.make(digits, case.noise as f32 / 100.0, case.seed);
    let longest = options.epochs.iter().copied().max().unwrap_or(1);
    let mut lines = vec![];
    for method in METHODS.iter().filter(|method| method.name.contains(&options.only)) {
        for cache_percent in &options.cache {
            for epochs in &options.epochs {
                if *cache_percent == MAIN_CACHE || *epochs == longest {
                    lines.push(line(case, &set, method, *cache_percent, *epochs));
                }
            }
        }
    }
    lines
}

fn line(case: &Case, set: &data::DataSet, method: &Method, cache_percent: u32, epochs: u32) -> Line {
    let share = f64::from(cache_percent) / 100.0;
    let outcome = run::run(set, method, share, case.kind.learning_rate(), epochs, case.seed);
    Line {
        data: case.kind.name(),
        noise_percent: case.noise,
        seed: case.seed,
        method: method.name,
        cache_percent,
        epochs,
        samples: set.train.len(),
        reads: outcome.reads,
        hit_ratio: outcome.hit_ratio,
        substituted_ratio: outcome.substituted_ratio,
        min_hit_ratio: outcome.min_hit_ratio,
        accuracy: outcome.accuracy,
        effective_share: outcome.effective_share,
    }
}
