//! Removing a checkpoint. A user who may write into the folder of checkpoints can put a link or another checkpoint in the place of
//! one at any moment: so the folder is opened, compared with what was to be removed, and emptied as opened.

use crate::error::{Doing, Error, Result};
use crate::files::{Files, Folder};
use crate::manifest::{MANIFEST, Manifest, read_sealed};
use std::ffi::OsStr;
use std::path::Path;

/// Removes the checkpoint in `dir`, if `is_it` says so of its manifest, or of there being none. Follows no link.
pub(crate) fn remove(files: &dyn Files, dir: &Path, is_it: &dyn Fn(Option<&Manifest>) -> bool) -> Result<()> {
    let folder = match Folder::open(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.doing("open", dir)?,
    };
    let manifest = match read_sealed::<Manifest>(&folder.itself().join(MANIFEST)) {
        Ok((manifest, _)) => Some(manifest),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    match manifest {
        Some(manifest) if is_it(Some(&manifest)) => empty(files, &folder),
        None if is_it(None) => clear(files, &folder),
        // Another collection is at it.
        None => Ok(()),
        Some(_) => Err(Error::Refused(format!("{} is another checkpoint by now, and stays", dir.display()))),
    }
}

/// First what commits it: a collection that is killed leaves remains, never half a checkpoint.
pub(super) fn empty(files: &dyn Files, folder: &Folder) -> Result<()> {
    let dir = folder.path();
    gone(files.remove_in(folder, OsStr::new(MANIFEST))).doing("remove", &dir.join(MANIFEST))?;
    // Or a power cut could bring the manifest back without what it names.
    gone(files.sync_dir(dir)).doing("sync", dir)?;
    clear(files, folder)
}

/// The rest of one that nothing commits any more. Enters no folder inside: we make none.
fn clear(files: &dyn Files, folder: &Folder) -> Result<()> {
    let dir = folder.path();
    for entry in std::fs::read_dir(folder.itself()).doing("list", dir)? {
        let name = entry.doing("list", dir)?.file_name();
        gone(files.remove_in(folder, &name)).doing("remove", &dir.join(&name))?;
    }
    // By name: whatever is there now, only an empty folder goes.
    gone(files.remove_dir(dir)).doing("remove", dir)
}

pub(super) fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
