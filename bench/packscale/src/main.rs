//! Packs of millions of files without these files: a pack's chunks are written as `stallscope pack` does, from names that are
//! made up, and what a reader does with the snapshot is timed in this process.

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use stallscope_folder::Folder;
use stallscope_pack::{About, Disk, Id, LEAST_CHUNK_BYTES, Pack, Snapshot, Writer};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

const CLASSES: u64 = 1000;
/// Look-ups of a round, and rounds of which the median is given.
const LOOKUPS: usize = 200_000;
const ROUNDS: usize = 7;

/// Makes packs of many tiny files, and times look-ups in them.
#[derive(Debug, Parser)]
struct Flags {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Writes the chunks of a pack of so many files; `stallscope pack rebuild` makes its snapshot
    Make { pack: PathBuf, files: u64 },
    /// Opens a pack and looks records up; prints times as JSON
    Measure { pack: PathBuf },
}

fn main() -> Result<()> {
    match Flags::parse().what {
        What::Make { pack, files } => make(&pack, files),
        What::Measure { pack } => {
            println!("{}", measure(&pack)?);
            Ok(())
        }
    }
}

fn name(file: u64) -> Vec<u8> {
    format!("class-{:03}/picture-{file:08}.jpg", file % CLASSES).into_bytes()
}

fn make(pack: &Path, files: u64) -> Result<()> {
    std::fs::create_dir_all(pack).with_context(|| format!("cannot make {}", pack.display()))?;
    let folder = Folder::open(pack)
        .map_err(std::io::Error::from)
        .with_context(|| format!("cannot open {}", pack.display()))?;
    let mut writer = Writer::new(&Disk, &folder, Id::random(), None, LEAST_CHUNK_BYTES, false);
    for file in 0..files {
        let about = About { mtime_ns: file as i64, label: Some((file % CLASSES) as u32) };
        writer.add(&name(file), &file.to_le_bytes(), about)?;
    }
    writer.finish()?;
    Ok(())
}

fn measure(pack: &Path) -> Result<Value> {
    let before = resident()?;
    let began = Instant::now();
    let opened = Pack::open(pack)?;
    let open_s = began.elapsed().as_secs_f64();
    let after_open = resident()?;
    let snapshot = opened.snapshot();
    let files = snapshot.records() as u64;
    ensure!(files > 0, "{} has no files", pack.display());

    let mut draw = Pcg64Mcg::seed_from_u64(1);
    // The first time from the disk, if nobody has it in memory.
    let first_list_s = list(snapshot)?.0;
    for number in 0..snapshot.records() {
        ensure!(snapshot.find(&name(number as u64))?.is_some(), "a file is not found");
    }
    let mut by_number_ns = Vec::new();
    let mut by_name_ns = Vec::new();
    for _ in 0..ROUNDS {
        let drawn: Vec<u64> = (0..LOOKUPS).map(|_| draw.next_u64() % files).collect();
        let names: Vec<Vec<u8>> = drawn.iter().map(|file| name(*file)).collect();
        by_number_ns.push(timed(&drawn, |number| Ok(snapshot.entry(*number as usize)?.offset))?);
        by_name_ns.push(timed(&names, |name| Ok(snapshot.find(name)?.unwrap_or_default() as u64))?);
    }
    let (list_s, names_bytes) = list(snapshot)?;
    let (own, mapped) = resident()?;
    Ok(json!({
        "files": files,
        "snapshot_bytes": snapshot.bytes().len(),
        "names_bytes": names_bytes,
        "open_s": open_s,
        "by_number_ns": median(by_number_ns),
        "by_name_ns": median(by_name_ns),
        "first_list_s": first_list_s,
        "list_s": list_s,
        "opened_own_kb": after_open.0.saturating_sub(before.0),
        "opened_mapped_kb": after_open.1.saturating_sub(before.1),
        "own_kb": own.saturating_sub(before.0),
        "mapped_kb": mapped.saturating_sub(before.1),
    }))
}

/// How long it takes to go through all records, and how many bytes their names have.
fn list(snapshot: &Snapshot) -> Result<(f64, usize)> {
    let began = Instant::now();
    let mut names_bytes = 0;
    for entry in snapshot.entries() {
        names_bytes += entry?.name.len();
    }
    Ok((began.elapsed().as_secs_f64(), names_bytes))
}

/// Nanoseconds of a CPU that a look-up takes: of the clock, a neighbour that takes the CPU away would be in it.
fn timed<T>(of: &[T], look_up: impl Fn(&T) -> Result<u64>) -> Result<f64> {
    let began_ns = on_cpu_ns()?;
    let mut sum = 0_u64;
    for one in of {
        sum = sum.wrapping_add(look_up(one)?);
    }
    black_box(sum);
    Ok((on_cpu_ns()? - began_ns) as f64 / of.len() as f64)
}

/// How long this thread had a CPU so far.
fn on_cpu_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    text.split(' ')
        .next()
        .and_then(|ns| ns.parse().ok())
        .context("the kernel does not count the time on a CPU")
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// What of this process is in memory, in KiB: its own, and of files that are mapped.
fn resident() -> Result<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    Ok((field("RssAnon:").context("no RssAnon")?, field("RssFile:").context("no RssFile")?))
}
