use crate::pack::{CHUNK_SIZE, Progress, chunk_bytes, watched};
use crate::pack_source::{Kind, origin};
use crate::terminal;
use anyhow::{Result, bail};
use clap::Args;
use stallscope_pack::{Disk, Options};
use stallscope_units::{bytes, count, counted};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Add the files of a folder or of tar files, or the rows of tables, to a pack.
///
/// They keep their names below the folder. What the pack has already stays: a file of the same size and time of change is
/// skipped, another one has a sentence. Run it again where it was interrupted.
#[derive(Debug, Args)]
pub(crate) struct Append {
    /// Folder of the pack
    pack: PathBuf,
    /// Folder whose files are added, tar files, or Parquet and Arrow files
    #[arg(required = true)]
    src: Vec<PathBuf>,
    #[command(flatten)]
    kind: Kind,
    /// Pack files anew that the pack has in another state
    #[arg(long)]
    replace: bool,
    /// Seed of the order in which these files lie in chunks
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
}

/// Take files out of a pack.
///
/// Readers that have the pack open keep these files; those that open it from then on do not see them. Their bytes stay in their
/// chunks until `pack purge`. A name that the pack does not have has a sentence, the others are deleted, and the exit code is 1.
/// A class cannot be left without a file if others would get another label by that.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Folder of the pack
    pack: PathBuf,
    /// Files, or folders whose files are deleted
    #[arg(required = true)]
    path: Vec<PathBuf>,
}

/// Give back the bytes of deleted and changed files.
///
/// Chunks of which little counts are written anew, and removed. Jobs that have the pack open read on what they have
/// opened, and get an error at a chunk that is gone: purge between jobs.
#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// Folder of the pack
    pack: PathBuf,
    /// Write chunks anew of whose bytes less than so many percent count; 100 for all that have any that do not
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    live: u8,
    /// Bytes of files after which a chunk is written
    #[arg(long, value_name = "BYTES", default_value = CHUNK_SIZE, value_parser = chunk_bytes)]
    chunk_size: u64,
}

pub(crate) fn append(verb: &Append) -> Result<ExitCode> {
    let shuffle = (!verb.in_order).then_some(verb.seed);
    let options = Options { shuffle, zstd: verb.zstd, chunk_bytes: verb.chunk_size };
    let origin = origin(&verb.src, &verb.kind)?;
    watched(|tell| stallscope_pack::append(origin, &verb.pack, options, verb.replace, &Disk, tell))
}

pub(crate) fn delete(verb: &Delete) -> Result<ExitCode> {
    let names: Vec<Vec<u8>> = verb.path.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let gone = stallscope_pack::delete(&verb.pack, &names, &Disk, &mut terminal::say)?;
    let (files, left) = (counted(gone.files, "file"), count(gone.left));
    terminal::print(&format!("{files} of {} deleted; the pack has {left}\n", bytes(gone.bytes)))?;
    Ok(if gone.problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn purge(verb: &Purge) -> Result<ExitCode> {
    let (mut progress, mut sentences) = (Progress::new(), Vec::new());
    let live = f64::from(verb.live) / 100.0;
    let purged = stallscope_pack::purge(
        &verb.pack,
        live,
        verb.chunk_size,
        &Disk,
        &mut |sentence| sentences.push(sentence.to_owned()),
        &mut |done, all| {
            progress.show(|| format!("{} of {} done", count(done as u64), counted(all as u64, "chunk")));
        },
    );
    progress.clear();
    sentences.iter().for_each(|sentence| terminal::say(sentence));
    let purged = purged?;
    let (chunks, files) = (counted(purged.chunks as u64, "chunk"), counted(purged.files, "file"));
    let freed = bytes(purged.freed);
    terminal::print(&format!("{chunks} removed, {files} of them written anew; {freed} given back\n"))?;
    if purged.problems > 0 {
        bail!("{} above: these chunks stay as they are", counted(purged.problems, "sentence"));
    }
    Ok(ExitCode::SUCCESS)
}
