//! Makes up the recording that `make bench-report` measures: a day of eight ranks at ten steps a second.
//!
//! `madeup make FILE [HOURS] [RANKS]` writes it, `madeup tuned FILE` one of three minutes in which a controller acts;
//! `madeup open FILE` prints how many milliseconds it takes from opening
//! it to the data that a first screen shows.

use madeup::{Shape, record};
use stallscope_store::{Recording, RollupPeriod};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |place: usize, otherwise: u64| match words.get(place) {
        Some(word) => word.parse().ok(),
        None => Some(otherwise),
    };
    match (words.as_slice(), number(2, 24), number(3, 8)) {
        (["make", file, ..], Some(hours), Some(ranks)) => {
            let ranks = ranks.try_into().unwrap_or(u32::MAX);
            let shape = Shape { seconds: hours * 3600, ranks, checkpoint_seconds: 900, ..Shape::default() };
            println!("{}", record(Path::new(file), &shape).display());
            ExitCode::SUCCESS
        }
        (["tuned", file], ..) => {
            let shape = Shape { seconds: 180, ranks: 2, fetch_ms: 120.0, tuned: true, ..Shape::default() };
            println!("{}", record(Path::new(file), &shape).display());
            ExitCode::SUCCESS
        }
        (["open", file], ..) => match open(Path::new(file)) {
            Ok(ms) => {
                println!("{ms:.1}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: madeup make FILE [HOURS] [RANKS] | madeup tuned FILE | madeup open FILE");
            ExitCode::from(2)
        }
    }
}

fn open(file: &Path) -> Result<f64, stallscope_store::Error> {
    let start = Instant::now();
    let recording = Recording::open(file)?;
    let summary = recording.summary()?;
    let rollups = recording.rollups(RollupPeriod::Minute)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    eprintln!("{} ranks, {} roll-ups", summary.ranks.len(), rollups.len());
    Ok(ms)
}
