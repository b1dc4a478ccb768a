use crate::pack_change::{self, Append, Delete, Purge};
use crate::pack_mount::{self, Mount, Serve, Unmount};
use crate::pack_source::{Kind, origin};
use crate::terminal;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stallscope_pack::{
    ClassNames, Disk, LEAST_CHUNK_BYTES, Notice, Options, Pack, Packed, Result as PackResult, as_text,
    class_of, shown,
};
use stallscope_reports::clean;
use stallscope_units::{bytes, bytes_per_second, count, counted, duration, parse_bytes};
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Pack a data set's files into large chunks; change, check, list and extract packs.
///
/// Packs the folder SRC, the files in tar files, or the rows of Parquet and Arrow files into the folder PACK. SRC is only read. A
/// run that was interrupted goes on when it is started again: files in whole chunks are not read again. Each file that cannot be
/// packed has a sentence, the others are packed, and the exit code is 1. stallscope.PackedImageFolder and
/// stallscope.PackedDataset read packs; `pack mount` and `run --pack` show one as a folder to programs that stay as they are.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = EXAMPLES)]
pub(crate) struct PackVerb {
    /// Folder to pack, tar files (WebDataset shards), or Parquet and Arrow files; what is called as a command below is written `./verify`
    #[arg(required = true)]
    src: Vec<PathBuf>,
    /// Folder of the pack
    #[arg(short, long, value_name = "PACK", required = true)]
    output: Option<PathBuf>,
    #[command(flatten)]
    kind: Kind,
    /// Seed of the order in which files lie in chunks
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Lay files into chunks in the order of their names, not shuffled
    #[arg(long, conflicts_with = "seed")]
    in_order: bool,
    /// Compress files where that saves an eighth of their bytes or more; 1 is fastest, 19 smallest
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3", value_parser = clap::value_parser!(i32).range(1..=19))]
    zstd: Option<i32>,
    /// Bytes of files after which a chunk is written
    #[arg(long, value_name = "BYTES", default_value = CHUNK_SIZE, value_parser = chunk_bytes)]
    chunk_size: u64,
    #[command(subcommand)]
    act: Option<Act>,
}

/// `--chunk-size` where it is not given.
pub(crate) const CHUNK_SIZE: &str = "4MiB";

const EXAMPLES: &str = "\
Examples:
  stallscope pack /data/imagenet -o /fast/imagenet.pack        pack, or go on packing
  stallscope pack shards/*.tar -o /fast/imagenet.pack          pack what is in WebDataset shards
  stallscope pack data/train-*.parquet -o /fast/train.pack     pack the rows of tables, as Hugging Face has them
  stallscope pack /data/texts -o /fast/texts.pack --zstd       compress what is worth it
  stallscope pack verify /fast/imagenet.pack                   read every byte; exits with 1 if one is bad
  stallscope pack ls -l /fast/imagenet.pack train/cat          list the files of a folder
  stallscope pack extract /fast/imagenet.pack -o out           write all files
  stallscope pack append /fast/imagenet.pack /data/more        add the files of another folder
  stallscope pack delete /fast/imagenet.pack train/cat/7.jpg   take files out; `pack purge` gives their bytes back
  stallscope pack mount /fast/imagenet.pack /mnt/imagenet      show it as a folder to any program
  stallscope pack rebuild /fast/imagenet.pack                  make the snapshot again";

#[derive(Debug, Subcommand)]
enum Act {
    Verify(Verify),
    Ls(Ls),
    Stat(Stat),
    Extract(Extract),
    Append(Append),
    Delete(Delete),
    Purge(Purge),
    Rebuild(Rebuild),
    Mount(Mount),
    Unmount(Unmount),
    Serve(Serve),
}

/// Read every byte of a pack and name each fault.
#[derive(Debug, Args)]
struct Verify {
    /// Folder of the pack
    pack: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List the files of a pack, in the order of the data set.
///
/// A name is printed as it is where the output is no terminal.
#[derive(Debug, Args)]
struct Ls {
    /// Folder of the pack
    pack: PathBuf,
    /// Files, or folders whose files are listed; by default all
    path: Vec<PathBuf>,
    /// Also print the size and the label
    #[arg(short, long)]
    long: bool,
    /// End names with a zero byte, as `xargs -0` takes them
    #[arg(short = '0', long)]
    null: bool,
}

/// Show what a pack has: files, bytes, chunks, classes.
#[derive(Debug, Args)]
struct Stat {
    /// Folder of the pack
    pack: PathBuf,
    /// Print JSON, with the number of files of each class
    #[arg(long)]
    json: bool,
}

/// Write the files of a pack into a folder.
///
/// Nothing is written over, and names that lead out of the folder are refused; each has a sentence, the others are
/// written, and the exit code is 1.
#[derive(Debug, Args)]
struct Extract {
    /// Folder of the pack
    pack: PathBuf,
    /// Files, or folders whose files are written; by default all
    path: Vec<PathBuf>,
    /// Folder to write to
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
}

/// Make the snapshot of a pack again, from its chunks alone.
#[derive(Debug, Args)]
struct Rebuild {
    /// Folder of the pack
    pack: PathBuf,
    /// Rename chunks that cannot be read to *.damaged, and go on without them
    #[arg(long)]
    set_aside: bool,
}

pub(crate) fn chunk_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(bytes) if (LEAST_CHUNK_BYTES..=1 << 40).contains(&bytes) => Ok(bytes),
        Ok(_) => Err("a chunk has 4 MiB to 1 TiB".into()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn main(verb: &PackVerb) -> Result<ExitCode> {
    match &verb.act {
        None => create(verb),
        Some(Act::Verify(verb)) => verify(verb),
        Some(Act::Ls(verb)) => list(verb),
        Some(Act::Stat(verb)) => stat(verb),
        Some(Act::Extract(verb)) => extract(verb),
        Some(Act::Append(verb)) => pack_change::append(verb),
        Some(Act::Delete(verb)) => pack_change::delete(verb),
        Some(Act::Purge(verb)) => pack_change::purge(verb),
        Some(Act::Rebuild(verb)) => rebuild(verb),
        Some(Act::Mount(verb)) => pack_mount::mount(verb),
        Some(Act::Unmount(verb)) => pack_mount::unmount(verb),
        Some(Act::Serve(verb)) => pack_mount::serve(verb),
    }
}

/// How often a line of progress is drawn on a terminal, and printed elsewhere.
const DRAWN_EVERY: Duration = Duration::from_millis(200);
const PRINTED_EVERY: Duration = Duration::from_secs(10);

/// A line on stderr that says how far long work is.
pub(crate) struct Progress {
    terminal: bool,
    last: Instant,
    drawn: bool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), last: Instant::now(), drawn: false }
    }

    pub(crate) fn show(&mut self, line: impl FnOnce() -> String) {
        let every = if self.terminal { DRAWN_EVERY } else { PRINTED_EVERY };
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        match self.terminal {
            true => terminal::write_err(&format!("\r\x1b[2Kstallscope: {}", line())),
            false => terminal::say(&line()),
        }
        self.drawn = self.terminal;
    }

    pub(crate) fn say(&mut self, sentence: &str) {
        self.clear();
        terminal::say(sentence);
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            terminal::write_err("\r\x1b[2K");
        }
    }
}

fn create(verb: &PackVerb) -> Result<ExitCode> {
    let Some(into) = &verb.output else { bail!("name SRC and -o PACK") };
    let origin = origin(&verb.src, &verb.kind)?;
    let shuffle = (!verb.in_order).then_some(verb.seed);
    let options = Options { shuffle, zstd: verb.zstd, chunk_bytes: verb.chunk_size };
    watched(|tell| stallscope_pack::pack(origin, into, options, &Disk, tell))
}

/// Packs, shows how far it is, and says what came of it.
pub(crate) fn watched(
    pack: impl FnOnce(&mut dyn FnMut(Notice<'_>)) -> PackResult<Packed>,
) -> Result<ExitCode> {
    let (mut progress, begun) = (Progress::new(), Instant::now());
    let packed = pack(&mut |notice| match notice {
        Notice::Found(files) => progress.show(|| format!("{} found", counted(files, "file"))),
        Notice::Done(done, all, read) => progress.show(|| {
            let rate = bytes_per_second(read as f64 / begun.elapsed().as_secs_f64());
            format!("{} of {}, {} read, {rate}", count(done), counted(all, "file"), bytes(read))
        }),
        Notice::Unpacked(done, all, read) => progress
            .show(|| format!("{} of {} unpacked, {} read", count(done), counted(all, "row"), bytes(read))),
        Notice::Problem(sentence) => progress.say(sentence),
    });
    progress.clear();
    let packed = packed?;
    let mut text = format!(
        "{} packed, {}, in {}; the pack has {}",
        counted(packed.files, "file"),
        bytes(packed.bytes),
        duration(begun.elapsed().as_nanos() as u64),
        counted(packed.chunks as u64, "chunk"),
    );
    if packed.compressed > 0 {
        text += &format!("; {} compressed, which saves {}", count(packed.compressed), bytes(packed.saved));
    }
    if packed.kept > 0 {
        text += &format!("; {} were there already", count(packed.kept));
    }
    if packed.changed > 0 {
        text += &format!("; {} had changed and were packed again", count(packed.changed));
    }
    terminal::print(&(text + "\n"))?;
    if packed.problems > 0 {
        bail!(
            "{} above: what they name is not packed, or not as it is now",
            counted(packed.problems, "sentence")
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(verb: &Verify) -> Result<ExitCode> {
    let mut progress = Progress::new();
    let verified = stallscope_pack::verify(&verb.pack, &mut |done, all| {
        progress.show(|| format!("{} of {} read", count(done as u64), counted(all as u64, "chunk")));
    });
    progress.clear();
    let verified = verified?;
    if verb.json {
        let faults: Vec<Value> = verified
            .faults
            .iter()
            .map(|fault| json!({ "file": fault.file, "record": fault.record.as_deref().map(shown), "what": fault.what }))
            .collect();
        terminal::print_json(&json!({
            "chunks": verified.chunks, "records": verified.records, "bytes": verified.bytes, "faults": faults,
            "unnamed_faults": verified.unnamed,
        }))?;
    } else {
        let whole = match verified.faults.len() as u64 + verified.unnamed {
            0 => "whole".into(),
            faults => counted(faults, "fault"),
        };
        let (chunks, records) = (verified.chunks as u64, verified.records);
        let (chunks, records) = (counted(chunks, "chunk"), counted(records, "file"));
        terminal::print_as_made(|out| {
            for fault in &verified.faults {
                writeln!(out, "{}", clean(&fault.to_string(), true))?;
            }
            if verified.unnamed > 0 {
                writeln!(out, "and {} more", counted(verified.unnamed, "record"))?;
            }
            writeln!(out, "{chunks}, {records} of {} read: {whole}", bytes(verified.bytes))
        })?;
    }
    Ok(if verified.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(dir: &Path) -> Result<Pack> {
    remarked(dir, Pack::open(dir)?)
}

/// Says where a pack's snapshot is not of all that is there.
fn remarked(dir: &Path, pack: Pack) -> Result<Pack> {
    if let Some(sentence) = pack.is_stale() {
        terminal::say(&sentence);
    }
    if !pack.newer().is_empty() {
        let chunks = counted(pack.newer().len() as u64, "chunk");
        terminal::say(&format!(
            "{chunks} of {} not shown: packing goes on, or was interrupted",
            dir.display()
        ));
    }
    if let Some(sentence) = pack.other_deletions() {
        terminal::say(sentence);
    }
    Ok(pack)
}

fn list(verb: &Ls) -> Result<ExitCode> {
    let pack = open(&verb.pack)?;
    let wanted: Vec<&[u8]> = verb.path.iter().map(|path| path.as_os_str().as_bytes()).collect();
    let raw = !std::io::stdout().is_terminal();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut found = vec![false; wanted.len()];
    let mut all_read = true;
    for entry in pack.snapshot().entries() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                all_read = false;
                terminal::say(&error.to_string());
                continue;
            }
        };
        let at = wanted.iter().position(|wanted| stallscope_pack::is_at_or_below(entry.name, wanted));
        match at {
            Some(at) => found[at] = true,
            None if wanted.is_empty() => {}
            None => continue,
        }
        let mut line = Vec::new();
        if verb.long {
            let label = entry.label.map_or_else(|| "-".into(), |label| label.to_string());
            line.extend(format!("{:>12} {label:>6}  ", entry.bytes).bytes());
        }
        match raw {
            true => line.extend_from_slice(entry.name),
            false => line.extend(clean(&as_text(entry.name), true).bytes()),
        }
        line.push(if verb.null { 0 } else { b'\n' });
        match out.write_all(&line) {
            // A reader that has seen enough is no error.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            other => other?,
        }
    }
    match out.flush() {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        other => other?,
    }
    for (path, _) in verb.path.iter().zip(&found).filter(|(_, found)| !**found) {
        terminal::say(&format!("{} is not in {}", path.display(), verb.pack.display()));
    }
    Ok(if all_read && !found.contains(&false) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a snapshot has in all.
#[derive(Default)]
struct Sums {
    bytes: u64,
    chunk_bytes: u64,
    /// Files that are compressed, and how many bytes that saves.
    compressed: u64,
    saved: u64,
    /// Of records that count no more.
    unused: u64,
    /// Each with its files, in order.
    classes: Vec<(Vec<u8>, u64)>,
}

impl Sums {
    fn of(pack: &Pack) -> Result<Sums> {
        let (snapshot, mut names) = (pack.snapshot(), ClassNames::of(pack));
        let mut sums = Sums::default();
        let mut used = 0_u64;
        for number in 0..snapshot.chunks() {
            sums.chunk_bytes = sums.chunk_bytes.saturating_add(snapshot.chunk(number)?.bytes);
            used += stallscope_pack::CHUNK_OVERHEAD;
        }
        for number in 0..snapshot.records() {
            let entry = snapshot.entry(number)?;
            sums.bytes = sums.bytes.saturating_add(entry.bytes);
            if entry.is_compressed() {
                sums.compressed += 1;
                sums.saved = sums.saved.saturating_add(entry.bytes - entry.stored_bytes);
            }
            used = used.saturating_add(entry.bytes_in_chunk());
            let Some(class) = class_of(entry.name) else { continue };
            match (names.next(class)?, sums.classes.last_mut()) {
                (None, Some((_, files))) => *files += 1,
                (class, _) => sums.classes.extend(class.map(|class| (class, 1))),
            }
        }
        sums.unused = sums.chunk_bytes.saturating_sub(used);
        Ok(sums)
    }
}

fn stat(verb: &Stat) -> Result<ExitCode> {
    let pack = open(&verb.pack)?;
    let snapshot = pack.snapshot();
    let sums = Sums::of(&pack)?;
    let version: String = snapshot.version().iter().map(|byte| format!("{byte:02x}")).collect();
    if verb.json {
        let classes: serde_json::Map<String, Value> =
            sums.classes.iter().map(|(class, files)| (as_text(class), json!(files))).collect();
        terminal::print_json(&json!({
            "files": snapshot.records(), "bytes": sums.bytes, "chunks": snapshot.chunks(),
            "chunk_bytes": sums.chunk_bytes, "unused_bytes": sums.unused, "compressed_files": sums.compressed,
            "saved_bytes": sums.saved, "snapshot_bytes": snapshot.bytes().len(),
            "pack": snapshot.pack().to_string(), "version": version, "classes": classes,
            "missing_chunks": pack.missing().len(), "newer_chunks": pack.newer().len(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "files     {}, {}\nchunks    {}, {}\nsnapshot  {}\npack      {}\nversion   {version}\n",
        count(snapshot.records() as u64),
        bytes(sums.bytes),
        count(snapshot.chunks() as u64),
        bytes(sums.chunk_bytes),
        bytes(snapshot.bytes().len() as u64),
        snapshot.pack(),
    );
    if sums.compressed > 0 {
        let (files, saved) = (counted(sums.compressed, "file"), bytes(sums.saved));
        text += &format!("zstd      {files} compressed, which saves {saved}\n");
    }
    if sums.unused > 0 {
        let unused = bytes(sums.unused);
        text += &format!(
            "unused    {unused} of deleted and changed files; `stallscope pack purge` gives most of it back\n"
        );
    }
    if let (Some(least), Some(most)) =
        (sums.classes.iter().map(|class| class.1).min(), sums.classes.iter().map(|class| class.1).max())
    {
        let classes = count(sums.classes.len() as u64);
        text += &format!("classes   {classes}, of {} to {}\n", count(least), counted(most, "file"));
    }
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Records of which `extract` says that they could not be written.
const MOST_NAMED: u64 = stallscope_pack::MOST_DAMAGED as u64;

fn extract(verb: &Extract) -> Result<ExitCode> {
    let pack = remarked(&verb.pack, Pack::open_to_show(&verb.pack)?)?;
    let names: Vec<Vec<u8>> = verb.path.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let working = crate::working::Working::on(format!("extracting {}", verb.pack.display()));
    // At once, and not kept: a pack of some megabytes can have as many as it has records.
    let mut sentences = 0_u64;
    let extracted = stallscope_pack::extract(&pack, &names, &verb.output, &mut |sentence| {
        sentences += 1;
        if sentences <= MOST_NAMED {
            working.say(sentence);
        }
    });
    drop(working);
    if let Some(more) = sentences.checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        terminal::say(&format!("and {} more that were not extracted", count(more)));
    }
    let extracted = extracted?;
    let files = counted(extracted.files, "file");
    terminal::print(&format!("{files} extracted, {}\n", bytes(extracted.bytes)))?;
    Ok(if sentences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn rebuild(verb: &Rebuild) -> Result<ExitCode> {
    let mut progress = Progress::new();
    let rebuilt = stallscope_pack::rebuild(&verb.pack, verb.set_aside, &Disk, &mut |done, all| {
        progress.show(|| format!("{} of {} read", count(done as u64), counted(all as u64, "chunk")));
    });
    progress.clear();
    let rebuilt = rebuilt?;
    for error in &rebuilt.set_aside {
        terminal::say(&format!("set aside: {error}"));
    }
    terminal::print(&format!("the snapshot has {}\n", counted(rebuilt.chunks as u64, "chunk")))?;
    Ok(if rebuilt.set_aside.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
