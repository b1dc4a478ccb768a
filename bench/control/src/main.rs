//! `make bench-control`: the controller on simulated jobs, beside doing nothing, the best static setting and hill
//! climbing. Prints a table; writes target/bench/control.json. Exits with 1 when a bar does not hold.

mod best;
mod cache;
mod goodput;
#[cfg(test)]
mod goodput_tests;
mod held_out;
mod job;
mod judge;
mod policy;
mod rank;
mod recorded;
mod run;
mod saves;
mod scenario;
mod table;
#[cfg(test)]
mod tests;

use clap::Parser;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Simulated jobs that the controller is tried on.
#[derive(Parser)]
struct Options {
    /// Runs of each scenario and policy
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// Only scenarios whose names have this
    #[arg(long, default_value = "")]
    only: String,
    /// The best static settings, by name of the scenario: of those in this file they are not looked for again, and what is found
    /// is added to it. Looking for them takes most of the time, and they change with a scenario and not with the controller.
    #[arg(long, value_name = "FILE")]
    best: Option<PathBuf>,
    /// Print what the controller says in one run of each scenario, instead of the table
    #[arg(long, value_name = "SEED")]
    audit: Option<u64>,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let chosen: Vec<scenario::Scenario> =
        scenario::all().into_iter().filter(|scenario| scenario.name.contains(&options.only)).collect();
    anyhow::ensure!(!chosen.is_empty(), "no scenario has `{}` in its name", options.only);
    if let Some(seed) = options.audit {
        chosen.iter().for_each(|scenario| tell(scenario, seed));
        return Ok(ExitCode::SUCCESS);
    }
    let (mut body, mut rows) = (Vec::new(), Vec::new());
    let known = best::Known::of(options.best)?;
    for (line, figures) in judged(&chosen, options.seeds, &known) {
        body.push(line);
        rows.extend(figures);
    }
    println!(
        "Simulated jobs of 40 minutes and more, {} seeds each; samples a second that count in the end, and regret, after {} minutes of warm-up.\n",
        options.seeds,
        run::WARM_UP_S / 60
    );
    println!("{}", table::markdown(&judge::HEADER, &body));
    print!("{}{}", table::halves(&rows), table::summary(&rows));
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    if options.only.is_empty() {
        table::write(&root, &rows)?;
    }
    let holds = rows.iter().all(|row| row.holds != Some(false));
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Judged = (Vec<String>, Vec<table::Row>);

/// Each scenario's, in their order; as many at a time as there are CPUs.
fn judged(chosen: &[scenario::Scenario], seeds: u64, known: &best::Known) -> Vec<Judged> {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((at, scenario)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, chosen.get(at)?)))
        {
            let best = known.best_static(scenario);
            let seeds: Vec<judge::Seed> = (0..seeds).map(|seed| judge::seed(scenario, best, seed)).collect();
            let found = judge::judge(scenario, &seeds);
            eprintln!("{} (best static: {})", found.0.join("  "), best.words(scenario));
            if let Ok(mut all) = all.lock() {
                all.insert(at, found);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    all.into_inner().map(|all| all.into_values().collect()).unwrap_or_default()
}

fn tell(scenario: &scenario::Scenario, seed: u64) {
    let ran = run::ours(scenario, seed);
    println!("# {}: {:.0} samples/s, {:?}", scenario.name, ran.pace(scenario.measured_from()), ran.settings);
    for event in &ran.audit {
        let value = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
        println!(
            "{:6.0} s {:3} {:8} {} {} {}\n         saw {}\n         why {}",
            event.time_ns as f64 / 1e9,
            event.decision,
            event.act.name(),
            event.knob,
            value(event.from),
            value(event.to),
            event.saw,
            event.why
        );
    }
}
