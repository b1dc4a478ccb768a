//! Makes the snapshot again, from the chunks alone.

use crate::chunk::Chunk;
use crate::error::{Doing, Error, Result};
use crate::folder::{SET_ASIDE, list, lock, read_chunk};
use crate::id::Id;
use crate::snapshot::{SNAPSHOT, build};
use crate::storage::{Fresh, Storage};
use stallscope_folder::Folder;
use std::path::Path;

/// What came of it.
#[derive(Debug)]
pub struct Rebuilt {
    /// Chunks that the snapshot has now.
    pub chunks: usize,
    /// Chunks that were set aside, and why.
    pub set_aside: Vec<(Id, Error)>,
}

/// Makes the snapshot again. Where a chunk cannot be read, nothing is changed; unless those may be `set_aside`: then they
/// get another name.
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
    let (mut whole, mut bad): (Vec<Chunk>, Vec<(Id, Error)>) = (Vec::new(), Vec::new());
    for (number, id) in listing.chunks.iter().enumerate() {
        progress(number, listing.chunks.len());
        match read_chunk(&folder, dir, *id, whole.first().map(|chunk| chunk.pack)) {
            Ok((_, chunk)) => whole.push(chunk),
            Err(error) => bad.push((*id, error)),
        }
    }
    progress(listing.chunks.len(), listing.chunks.len());
    if let Some((_, first)) = bad.first().filter(|_| !set_aside || whole.is_empty()) {
        let (some, all) = (bad.len(), listing.chunks.len());
        return Err(Error::Refused(format!(
            "{some} of {all} chunks cannot be read, and nothing was changed; --set-aside makes a snapshot of the others and renames these to *{SET_ASIDE}. The first: {first}"
        )));
    }
    for (id, _) in &bad {
        let name = id.file_name();
        let renamed = storage.rename(&folder, &name, &format!("{name}{SET_ASIDE}"));
        renamed.doing("rename", &dir.join(&name))?;
    }
    write(&folder, &whole, storage)?;
    Ok(Rebuilt { chunks: whole.len(), set_aside: bad })
}

/// Writes the snapshot of these chunks, which are all of one pack and on disk.
pub(crate) fn write(folder: &Folder, chunks: &[Chunk], storage: &dyn Storage) -> Result<()> {
    let Some(first) = chunks.first() else { return Ok(()) };
    let bytes = build(first.pack, chunks)?;
    // No snapshot must outlive a power cut that took a chunk of it.
    storage.sync_dir(folder).doing("sync", folder.path())?;
    let mut fresh = Fresh::create(storage, folder, SNAPSHOT)?;
    fresh.write(&bytes)?;
    fresh.finish()?;
    storage.sync_dir(folder).doing("sync", folder.path())
}
