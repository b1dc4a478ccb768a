//! Gives back what deleted and superseded records take: what counts of a chunk is written into a new one.

use crate::chunk::{Chunk, OTHER_BYTES, OTHER_CODEC};
use crate::error::{Doing, Error, Result};
use crate::folder::{lock, open_plain_in, to_change};
use crate::names::shown;
use crate::pack::Pack;
use crate::rebuild;
use crate::record::{Record, is_readable};
use crate::state::State;
use crate::storage::Storage;
use crate::writer::Writer;
use stallscope_folder::Folder;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PIECE_BYTES: u64 = 1 << 20;

/// What came of purging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Chunks that are there no more.
    pub chunks: usize,
    /// How many bytes less the pack's chunks have.
    pub freed: u64,
    /// Records that were written into new chunks.
    pub files: u64,
    /// How many sentences there were.
    pub problems: u64,
}

/// Rewrites chunks of whose bytes less than `least_live`, from 0 to 1, are of files that count, and removes those in which none
/// is. `tell` hears a sentence for each chunk that stays as it cannot be read; `progress` how many chunks are done, of how many.
///
/// # Errors
/// There is no pack, another user's link leads to it, another process writes to it, no file of it is left, or the storage failed. The pack has the same files
/// then.
pub fn purge(
    dir: &Path,
    least_live: f64,
    chunk_bytes: u64,
    storage: &dyn Storage,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Purged> {
    let folder = to_change(dir)?;
    Pack::open_in(&folder)?;
    let _lock = lock(&folder)?;
    let state = State::read_whole(&folder, storage, &|_| false)?;
    let mut live: Vec<Vec<usize>> = vec![Vec::new(); state.chunks.len()];
    for (chunk, record) in state.live().into_values() {
        live[chunk].push(record);
    }
    if live.iter().all(Vec::is_empty) {
        let dir = dir.display();
        return Err(Error::Refused(format!("no file of {dir} is left: remove the folder instead")));
    }
    let mut purged = Purged::default();
    let is_due = |number: &usize| is_due(&state.chunks[*number], &live[*number], least_live);
    let due: Vec<usize> = (0..state.chunks.len()).filter(is_due).collect();
    let mut writer =
        Writer::new(storage, &folder, state.pack(), state.last(), chunk_bytes, state.has_labels());
    let mut going = HashSet::new();
    for (done, number) in due.iter().enumerate() {
        progress(done, due.len());
        let (chunk, live) = (&state.chunks[*number], &mut live[*number]);
        live.sort_unstable();
        // All are read before one is written: a record that is damaged stays where it is. And once more then, rather than kept.
        match whole(&folder, chunk, live)? {
            Err(sentence) => {
                tell(&sentence);
                purged.problems += 1;
            }
            Ok(file) => {
                let path = dir.join(chunk.id.file_name());
                for record in live.iter().map(|at| &chunk.records[*at]) {
                    add(&mut writer, &file, &path, record, chunk_bytes)?;
                    purged.files += 1;
                }
                going.insert(chunk.id);
                purged.freed += chunk.bytes;
            }
        }
    }
    progress(due.len(), due.len());
    let written = writer.finish()?;
    if going.is_empty() {
        return Ok(purged);
    }
    purged.chunks = going.len();
    purged.freed = purged.freed.saturating_sub(written.iter().map(|chunk| chunk.bytes).sum());
    let (gone, mut chunks): (Vec<Chunk>, Vec<Chunk>) =
        state.chunks.into_iter().partition(|chunk| going.contains(&chunk.id));
    chunks.extend(written);
    let deleted = state.deleted.only(|id| !going.contains(&id));
    // From here on nobody opens the old chunks; where this ends before they are gone, the next run removes them.
    rebuild::write(&folder, &chunks, &deleted, storage)?;
    for chunk in gone {
        let name = chunk.id.file_name();
        storage.remove(&folder, &name).doing("remove", &dir.join(&name))?;
    }
    // A chunk must not come back from a power cut without its marks.
    storage.sync_dir(&folder).doing("sync", dir)?;
    if deleted != state.deleted {
        deleted.write(&folder, chunks[0].pack, storage)?;
    }
    Ok(purged)
}

/// Whether so little of a chunk counts.
fn is_due(chunk: &Chunk, live: &[usize], least_live: f64) -> bool {
    let all: u64 = chunk.records.iter().map(|record| record.stored_bytes).sum();
    let counting: u64 = live.iter().map(|at| chunk.records[*at].stored_bytes).sum();
    live.is_empty() || live.len() < chunk.records.len() && (counting as f64) < least_live * all as f64
}

/// The file of a chunk, of which these records are whole; or, in a sentence, why it stays as it is.
fn whole(folder: &Folder, chunk: &Chunk, live: &[usize]) -> Result<std::result::Result<File, String>> {
    let name = chunk.id.file_name();
    let path = folder.path().join(&name);
    let file = open_plain_in(folder, name.as_ref()).doing("open", &path)?;
    for record in live.iter().map(|at| &chunk.records[*at]) {
        if let Err(what) = stream(&file, record, &mut |_| Ok(()))? {
            let (path, name) = (path.display(), shown(&record.name));
            return Ok(Err(format!("{path} stays as it is: its record {name} {what}")));
        }
    }
    Ok(Ok(file))
}

/// Hands over what is stored of a record piece by piece, and says then what is wrong with it.
fn stream(
    file: &File,
    record: &Record,
    to: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<std::result::Result<(), String>> {
    if !is_readable(record.codec) {
        return Ok(Err(OTHER_CODEC.into()));
    }
    let mut piece = vec![0; PIECE_BYTES.min(record.stored_bytes) as usize];
    let (mut done, mut crc) = (0, 0);
    while done < record.stored_bytes {
        let part = &mut piece[..PIECE_BYTES.min(record.stored_bytes - done) as usize];
        // Records lie within the file: who read the chunk has seen to it.
        if let Err(error) = file.read_exact_at(part, record.offset + done) {
            return Ok(Err(format!("cannot be read: {error}")));
        }
        crc = crc32c::crc32c_append(crc, part);
        to(part)?;
        done += part.len() as u64;
    }
    Ok(if crc == record.crc { Ok(()) } else { Err(OTHER_BYTES.into()) })
}

/// Adds a record of a chunk that was found whole.
fn add(writer: &mut Writer<'_>, file: &File, path: &Path, record: &Record, chunk_bytes: u64) -> Result<()> {
    // Somebody else writes to it.
    let whole = |read: std::result::Result<(), String>| {
        read.map_err(|what| Error::damaged(path, format!("its record {} {what}", shown(&record.name))))
    };
    if record.stored_bytes >= chunk_bytes {
        return writer.add_large_again(record, |to| whole(stream(file, record, to)?));
    }
    let mut stored = Vec::with_capacity(record.stored_bytes as usize);
    whole(stream(file, record, &mut |piece| {
        stored.extend_from_slice(piece);
        Ok(())
    })?)?;
    writer.add_again(record, &stored)
}
