use crate::terminal;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use stallscope_checkpoint::{Check, Checkpoint, Entry, History, QUARANTINE, State, Store, mark_verified};
use stallscope_reports::clean;
use stallscope_units::{bytes, count, counted, duration, percent_exact};
use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Manage a folder of checkpoints: list, verify, show, remove, export.
///
/// The folder is the one stallscope.Checkpointer saves to. Every command works while a job saves there, and none
/// touches its newest checkpoints. A STEP is `latest`, `best` (by the metric that the job monitors), a step number or a
/// checkpoint's folder name.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ckpt {
    #[command(subcommand)]
    act: Act,
}

const EXAMPLES: &str = "\
Examples:
  stallscope ckpt ls ckpts/                                list checkpoints, newest first
  stallscope ckpt verify ckpts/                            read every byte; exits with 1 if one is bad
  stallscope ckpt verify ckpts/ 120                        verify that of step 120
  stallscope ckpt show ckpts/ latest                       list its tensors
  stallscope ckpt gc ckpts/ --keep 2 --dry-run             print what would be removed
  stallscope ckpt export ckpts/ latest model.safetensors   write one file that other tools read
  stallscope ckpt export ckpts/ best model.safetensors     the best by the monitored metric";

#[derive(Debug, Subcommand)]
enum Act {
    Ls(Ls),
    Verify(Verify),
    Show(Show),
    Gc(Gc),
    Export(Export),
}

/// List the checkpoints in a folder, newest first.
///
/// STATE is `verified` (read back whole since it was saved), `saved`, `incomplete` (a save under way, or one that was
/// killed) or `bad`. REUSED is data that an earlier checkpoint had on disk already. RUN, where there are
/// several, identifies the training run, as a job that starts anew in the same folder is another run.
#[derive(Debug, Args)]
struct Ls {
    /// Folder of checkpoints
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Read every byte of checkpoints and compare it with its checksums.
///
/// Whole checkpoints are marked as verified; nothing else changes. A job that restores skips a bad one and moves it to
/// the folder `quarantine`.
#[derive(Debug, Args)]
struct Verify {
    /// Folder of checkpoints
    dir: PathBuf,
    /// Checkpoints to verify; by default all
    step: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show the contents of a checkpoint: tensors by rank, and the layout on disk.
#[derive(Debug, Args)]
struct Show {
    /// Folder of checkpoints
    dir: PathBuf,
    /// Checkpoint to show
    #[arg(default_value = "latest")]
    step: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove old checkpoints and the remains of killed saves.
///
/// Keeps the newest checkpoints that verify, of any run, and those that a job's `keep_every` and `monitor` select. Reads
/// those not verified yet, which may take long. Removes nothing if there are fewer than N good ones. Checkpoints in
/// `quarantine` are removed once all that are kept are newer. A save under way is never touched.
#[derive(Debug, Args)]
struct Gc {
    /// Folder of checkpoints
    dir: PathBuf,
    /// Number of verified checkpoints to keep
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write the tensors of a checkpoint to one safetensors file, verified as they are read.
#[derive(Debug, Args)]
struct Export {
    /// Folder of checkpoints
    dir: PathBuf,
    /// Checkpoint to export
    step: String,
    /// File to write; an existing one is never overwritten
    file: PathBuf,
    /// Export this rank only, where several ranks have tensors of the same name
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
}

pub(crate) fn main(verb: &Ckpt) -> Result<ExitCode> {
    match &verb.act {
        Act::Ls(ls) => list(ls),
        Act::Verify(verify) => check(verify),
        Act::Show(verb) => show(verb),
        Act::Gc(gc) => collect(gc),
        Act::Export(export) => self::export(export),
    }
}

fn store(dir: &Path) -> Result<Store> {
    if !dir.is_dir() {
        bail!("{} is no folder; name the one that the job saves its checkpoints into", dir.display());
    }
    Ok(Store::open(dir))
}

fn list(verb: &Ls) -> Result<ExitCode> {
    let store = store(&verb.dir)?;
    let (entries, aside) = (store.list()?, store.quarantined());
    if verb.json {
        let others = aside.others;
        let aside: Vec<Value> =
            aside.named.iter().map(|(name, reason)| json!({ "name": name, "reason": reason })).collect();
        let account = json!(History::read(&verb.dir).account());
        return print_json(&Listing {
            account,
            checkpoints: &entries,
            quarantine: aside,
            quarantine_unnamed: others,
        });
    }
    terminal::print_as_made(|out| {
        if entries.is_empty() {
            writeln!(out, "no checkpoint in {}", clean(&verb.dir.to_string_lossy(), true))?;
        } else {
            print_entries(&entries, out)?;
        }
        for entry in &entries {
            if let State::Bad(reason) = &entry.state {
                writeln!(out, "{}: {}", entry.name, clean(reason, true))?;
            }
        }
        for (name, reason) in &aside.named {
            writeln!(out, "set aside: {QUARANTINE}/{}: {}", clean(name, true), clean(reason, true))?;
        }
        if aside.others > 0 {
            writeln!(out, "set aside: {} more in {QUARANTINE}", count(aside.others))?;
        }
        out.write_all(cost(&History::read(&verb.dir)).as_bytes())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_entries(entries: &[Entry], out: &mut dyn Write) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let mut heading = vec!["CHECKPOINT", "STEP", "SAVED", "STATE", "RANKS", "SIZE", "REUSED"];
    let mut more: Vec<fn(&Entry) -> Option<String>> = Vec::new();
    if entries.iter().any(|entry| measured(entry).is_some()) {
        heading.push("METRICS");
        more.push(measured);
    }
    if several_runs(entries) {
        heading.push("RUN");
        more.push(run);
    }
    let row = |entry| {
        let more = more.iter().map(|cell| cell(entry).unwrap_or_else(|| "-".into()));
        cells(entry, now).into_iter().chain(more).collect()
    };
    table(&heading, &[1, 2, 4, 5, 6], entries.iter().map(row), out)
}

/// What `ls` prints as JSON. Of each checkpoint that is made as it is written: their metrics may be many.
#[derive(Serialize)]
struct Listing<'a> {
    account: Value,
    #[serde(serialize_with = "each_entry")]
    checkpoints: &'a [Entry],
    quarantine: Vec<Value>,
    /// How many more there are in it.
    quarantine_unnamed: u64,
}

fn each_entry<S: Serializer>(entries: &[Entry], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(entries.iter().map(entry_json))
}

/// What saving has cost the job beside what it may, and whether that keeps it from what its failures ask for.
fn cost(history: &History) -> String {
    let Some(account) = history.account().filter(|account| account.trained_s > 0.0) else {
        return String::new();
    };
    let time = |seconds: f64| duration((seconds * 1e9) as u64);
    let budget = match account.overhead {
        0.0 => String::new(),
        overhead => format!(" of a budget of {}", percent_exact(overhead)),
    };
    let mut text = format!(
        "cost: {}{budget}, {} of {} trained in {}; {} a checkpoint\n",
        percent_exact(account.spent_s / account.trained_s),
        time(account.spent_s),
        time(account.trained_s),
        counted(history.runs() as u64, "run"),
        time(account.cost_s()),
    );
    if let Some((allowed_s, wanted_s)) = account.forbidden() {
        text += &format!(
            "the budget allows one every {}; with a failure every {}, one every {} would lose least\n",
            time(allowed_s),
            time(account.mtbf_s),
            time(wanted_s),
        );
    }
    text
}

fn state(entry: &Entry) -> &'static str {
    match entry.state {
        State::Verified => "verified",
        State::Committed => "saved",
        State::Incomplete => "incomplete",
        State::Bad(_) => "bad",
    }
}

/// What was measured of its state: "val_loss 0.31".
fn measured(entry: &Entry) -> Option<String> {
    let metrics = entry.manifest.as_ref()?.metrics.iter();
    let words = metrics.map(|(name, value)| format!("{} {value:.4}", clean(name, true)));
    // No more of them than a cell shows.
    let words: Vec<String> = words.take(CELL / 4).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// As much of its run's name as tells runs apart.
fn run(entry: &Entry) -> Option<String> {
    let run = entry.manifest.as_ref()?.run.as_ref()?;
    Some(clean(&run.chars().take(6).collect::<String>(), true))
}

fn several_runs(entries: &[Entry]) -> bool {
    let mut runs = entries.iter().filter_map(|entry| Some(&entry.manifest.as_ref()?.run));
    let first = runs.next();
    runs.any(|run| Some(run) != first)
}

fn cells(entry: &Entry, now_ns: u64) -> Vec<String> {
    let manifest = entry.manifest.as_ref();
    let of =
        |say: &dyn Fn(&stallscope_checkpoint::Listed) -> String| manifest.map_or_else(|| "-".into(), say);
    vec![
        entry.name.clone(),
        count(entry.step),
        of(&|manifest| format!("{} ago", duration(now_ns.saturating_sub(manifest.saved_wall_ns)))),
        state(entry).into(),
        of(&|manifest| manifest.world().to_string()),
        of(&|manifest| bytes(manifest.image_bytes)),
        of(&|manifest| bytes(manifest.reused_bytes)),
    ]
}

fn entry_json(entry: &Entry) -> Value {
    let reason = if let State::Bad(reason) = &entry.state { Some(reason) } else { None };
    let manifest = entry.manifest.as_ref();
    json!({
        "name": entry.name, "step": entry.step, "state": state(entry), "reason": reason,
        "saved_wall_ns": manifest.map(|manifest| manifest.saved_wall_ns),
        "ranks": manifest.map(|manifest| manifest.world()),
        "bytes": manifest.map(|manifest| manifest.image_bytes),
        "written_bytes": manifest.map(|manifest| manifest.written_bytes),
        "reused_bytes": manifest.map(|manifest| manifest.reused_bytes),
        "run": manifest.and_then(|manifest| manifest.run.as_ref()),
        "metrics": manifest.map(stallscope_checkpoint::Listed::written_metrics),
    })
}

/// Verifies with a line of progress on a terminal; notes it where it is whole. `between`: other text is being written to stdout.
fn verified(checkpoint: &Checkpoint, between: bool) -> Result<(), stallscope_checkpoint::Error> {
    let shown = io::stderr().is_terminal() && !(between && io::stdout().is_terminal());
    let last = Mutex::new(Instant::now());
    let name = checkpoint.name();
    let checked = checkpoint.verify(Check::Full, &|done, all| {
        let Ok(mut last) = last.try_lock() else { return };
        if shown && last.elapsed().as_millis() > 200 {
            *last = Instant::now();
            terminal::write_err(&format!("\r\x1b[2Kstallscope: {name}: {} of {}", bytes(done), bytes(all)));
        }
    });
    if shown {
        terminal::write_err("\r\x1b[2K");
    }
    checked.inspect(|()| mark_verified(checkpoint))
}

fn check(verb: &Verify) -> Result<ExitCode> {
    let store = store(&verb.dir)?;
    let names: Vec<String> = if verb.step.is_empty() {
        let committed = store.list()?.into_iter().filter(|entry| entry.state != State::Incomplete);
        committed.map(|entry| entry.name).collect()
    } else {
        verb.step.clone()
    };
    if names.is_empty() {
        bail!("there is no checkpoint in {} to verify", verb.dir.display());
    }
    let mut all_whole = true;
    let mut outcomes = names.into_iter().map(|name| {
        let begun = Instant::now();
        let outcome = store.checkpoint(&name).and_then(|checkpoint| {
            verified(&checkpoint, verb.json)?;
            Ok((checkpoint.name(), checkpoint.manifest.image_bytes))
        });
        all_whole &= outcome.is_ok();
        (name, outcome, begun.elapsed().as_nanos() as u64)
    });
    // Each as it is known: there may be many, and it may take long.
    if verb.json {
        let rows = outcomes.map(|(asked, outcome, took_ns)| match outcome {
            Ok((name, size)) => json!({ "name": name, "whole": true, "bytes": size, "took_ns": took_ns }),
            Err(error) => json!({ "name": asked, "whole": false, "reason": error.to_string() }),
        });
        print_json(&Rows(RefCell::new(rows)))?;
    } else {
        outcomes.try_for_each(|(asked, outcome, took_ns)| {
            terminal::print(&match outcome {
                Ok((name, size)) => {
                    format!("{name}: whole, {} read in {}\n", bytes(size), duration(took_ns))
                }
                Err(error) => format!("{}: {}\n", clean(&asked, true), clean(&error.to_string(), true)),
            })
        })?;
    }
    Ok(if all_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is made as it is written.
struct Rows<I>(RefCell<I>);

impl<I: Iterator<Item = Value>> Serialize for Rows<I> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.borrow_mut().by_ref())
    }
}

fn show(verb: &Show) -> Result<ExitCode> {
    let checkpoint = store(&verb.dir)?.checkpoint(&verb.step)?;
    let manifest = &checkpoint.manifest;
    if verb.json {
        return print_json(&json!({
            "name": checkpoint.name(), "step": manifest.step, "saved_wall_ns": manifest.saved_wall_ns,
            "tool": manifest.tool, "bytes": manifest.image_bytes, "written_bytes": manifest.written_bytes,
            "reused_bytes": manifest.reused_bytes,
            "ranks": checkpoint.parts.iter().map(|part| json!({
                "rank": part.rank, "files": part.files, "tensors": part.tensors,
                "user_bytes": part.user.as_ref().map_or(0, |user| user.bytes),
            })).collect::<Vec<_>>(),
        }));
    }
    let mut text = format!(
        "{}: step {}, {} of {}, saved by {}\n{} written, {} reused\n",
        checkpoint.name(),
        count(manifest.step),
        bytes(manifest.image_bytes),
        counted(u64::from(manifest.world()), "rank"),
        clean(&manifest.tool, true),
        bytes(manifest.written_bytes),
        bytes(manifest.reused_bytes),
    );
    for part in &checkpoint.parts {
        let files: Vec<String> = part.files.iter().map(|file| clean(&file.name, true)).collect();
        let user = part.user.as_ref().map_or(0, |user| user.bytes);
        text += &format!("rank {}: {} of user state; {}\n", part.rank, bytes(user), files.join(", "));
    }
    let tensors = checkpoint
        .parts
        .iter()
        .flat_map(|part| part.tensors.iter().map(move |tensor| (part.rank, &tensor.spec)));
    let rows = tensors.map(|(rank, spec)| {
        let shape: Vec<String> = spec.shape.iter().map(u64::to_string).collect();
        let size = bytes(spec.bytes().unwrap_or_default());
        vec![rank.to_string(), clean(&spec.name, true), spec.dtype.name().into(), shape.join(" x "), size]
    });
    terminal::print_as_made(|out| {
        out.write_all(text.as_bytes())?;
        table(&["RANK", "TENSOR", "TYPE", "SHAPE", "SIZE"], &[0, 4], rows, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn collect(verb: &Gc) -> Result<ExitCode> {
    let store = store(&verb.dir)?;
    let keep = verb.keep as usize;
    let mut whole = 0;
    for entry in store.list()? {
        let counts = match entry.state {
            State::Verified => true,
            State::Committed => {
                store.checkpoint(&entry.name).and_then(|found| verified(&found, false)).is_ok()
            }
            State::Incomplete | State::Bad(_) => false,
        };
        whole += usize::from(counts);
        if whole == keep {
            break;
        }
    }
    let collected = store.collect(keep, verb.dry_run)?;
    if verb.json {
        return print_json(&json!({
            "dry_run": verb.dry_run, "removed": collected.removed, "leftovers": collected.leftovers,
        }));
    }
    let went = if verb.dry_run { "would go" } else { "removed" };
    let mut text = String::new();
    for name in &collected.removed {
        // Of one that was set aside the name may be anything.
        text += &format!("{}: {went}\n", clean(name, true));
    }
    for name in &collected.leftovers {
        text += &format!("{name}: {went}, the rest of a save that never ended\n");
    }
    if text.is_empty() {
        text = format!("nothing to remove: {} of {} wanted are verified\n", whole, keep);
    }
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn export(verb: &Export) -> Result<ExitCode> {
    let checkpoint = store(&verb.dir)?.checkpoint(&verb.step)?;
    let _working = crate::working::Working::on(format!("exporting {}", checkpoint.name()));
    checkpoint.export(verb.rank, &verb.file)?;
    Ok(ExitCode::SUCCESS)
}

fn print_json(value: &impl Serialize) -> Result<ExitCode> {
    terminal::print_json(value)?;
    Ok(ExitCode::SUCCESS)
}

/// Characters of a cell: a manifest may be anybody's, and names its metrics as it likes.
const CELL: usize = 60;

/// Columns as wide as their cells; those named in `figures` are flush right. Rows are made twice rather than kept: a folder may
/// have many.
fn table(
    heading: &[&str],
    figures: &[usize],
    rows: impl Iterator<Item = Vec<String>> + Clone,
    out: &mut dyn Write,
) -> io::Result<()> {
    let heading: Vec<String> = heading.iter().map(|&word| word.into()).collect();
    let cut = |cell: String| match cell.char_indices().nth(CELL) {
        Some((end, _)) => format!("{}…", &cell[..end]),
        None => cell,
    };
    let rows = [heading].into_iter().chain(rows.map(|row| row.into_iter().map(cut).collect()));
    let mut widths = Vec::new();
    for row in rows.clone() {
        widths.resize(row.len(), 0);
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if figures.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
