//! Makes the snapshot again, from the chunks alone.

use crate::chunk::Chunk;
use crate::deleted::{DELETED, Deleted};
use crate::error::{Doing, Error, Result};
use crate::folder::{SET_ASIDE, list, lock, read_chunk};
use crate::snapshot::{SNAPSHOT, build};
use crate::storage::{Fresh, Storage};
use stallscope_folder::Folder;
use std::path::Path;

/// What came of it.
#[derive(Debug)]
pub struct Rebuilt {
    /// Chunks that the snapshot has now.
    pub chunks: usize,
    /// Why files were set aside, each of which the error names.
    pub set_aside: Vec<Error>,
}

/// Makes the snapshot again. Where a chunk cannot be read, or what was deleted, nothing is changed; unless those may be
/// `set_aside`: then they get another name.
///
/// # Errors
/// There is no chunk that can be read, one cannot be read and may not be set aside, or the storage failed.
pub fn rebuild(
    dir: &Path,
    set_aside: bool,
    storage: &dyn Storage,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Rebuilt> {
    let folder = Folder::open(dir).doing("open", dir)?;
    let listing = list(&folder, dir)?;
    if listing.chunks.is_empty() {
        return Err(Error::Refused(format!("{} has no chunks to make a snapshot of", dir.display())));
    }
    let _lock = lock(&folder)?;
    let listing = list(&folder, dir)?;
    let (mut whole, mut bad): (Vec<Chunk>, Vec<(String, Error)>) = (Vec::new(), Vec::new());
    for (number, id) in listing.chunks.iter().enumerate() {
        progress(number, listing.chunks.len());
        match read_chunk(&folder, dir, *id, whole.first().map(|chunk| chunk.pack)) {
            Ok((_, chunk)) => whole.push(chunk),
            Err(error) => bad.push((id.file_name(), error)),
        }
    }
    progress(listing.chunks.len(), listing.chunks.len());
    let chunks_at_fault = bad.len();
    let deleted = Deleted::read_of(&folder, dir, whole.first().map(|chunk| chunk.pack))
        .and_then(|deleted| whole.iter().try_for_each(|chunk| deleted.fits(chunk, dir)).map(|()| deleted));
    let deleted = deleted.unwrap_or_else(|error| {
        bad.push((DELETED.into(), error));
        Deleted::default()
    });
    if chunks_at_fault == 0
        && let Some((_, error)) = bad.first().filter(|_| !set_aside)
    {
        return Err(Error::Refused(format!(
            "which files were deleted cannot be read, and nothing was changed; --set-aside renames it to *{SET_ASIDE}, and these files come back: {error}"
        )));
    }
    if let Some((_, first)) = bad.first().filter(|_| !set_aside || whole.is_empty()) {
        let (some, all) = (chunks_at_fault, listing.chunks.len());
        return Err(Error::Refused(format!(
            "{some} of {all} chunks cannot be read, and nothing was changed; --set-aside makes a snapshot of the others and renames these to *{SET_ASIDE}. The first: {first}"
        )));
    }
    for (name, _) in &bad {
        let renamed = storage.rename(&folder, name, &format!("{name}{SET_ASIDE}"));
        renamed.doing("rename", &dir.join(name))?;
    }
    write(&folder, &whole, &deleted, storage)?;
    Ok(Rebuilt { chunks: whole.len(), set_aside: bad.into_iter().map(|(_, error)| error).collect() })
}

/// Writes the snapshot of these chunks, which are all of one pack and on disk, as is what was deleted of them.
pub(crate) fn write(
    folder: &Folder,
    chunks: &[Chunk],
    deleted: &Deleted,
    storage: &dyn Storage,
) -> Result<()> {
    let Some(first) = chunks.first() else { return Ok(()) };
    let bytes = build(first.pack, chunks, deleted)?;
    // No snapshot must outlive a power cut that took a chunk of it.
    storage.sync_dir(folder).doing("sync", folder.path())?;
    let mut fresh = Fresh::create(storage, folder, SNAPSHOT)?;
    fresh.write(&bytes)?;
    fresh.finish()?;
    storage.sync_dir(folder).doing("sync", folder.path())
}
