//! Removing a checkpoint. A user who may write into the folder of checkpoints can put a link or another checkpoint in the place of
//! one at any moment: so the folder is opened, compared with what was to be removed, and emptied as opened.

use crate::arena::lock;
use crate::error::{Doing, Error, Result};
use crate::files::{Files, Folder};
use crate::manifest::{Listed, MANIFEST, read_manifest};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// They wait for a device.
const SYNC_THREADS: usize = 64;

/// Removes the checkpoint in `dir`, if `is_it` says so of its manifest, or of there being none. Follows no link.
pub(crate) fn remove(files: &dyn Files, dir: &Path, is_it: &dyn Fn(Option<&Listed>) -> bool) -> Result<()> {
    let folder = match Folder::open(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.doing("open", dir)?,
    };
    let manifest = match read_manifest(&folder) {
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

/// Syncs folders of which some may be gone. A device flushes once for many threads that wait for it: one thread took 8 ms a
/// folder, 170 s for 20,000.
pub(super) fn sync_each(files: &dyn Files, dirs: &[PathBuf]) -> Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(dir) = dirs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = gone(files.sync_dir(dir)).doing("sync", dir) {
                next.store(dirs.len(), Ordering::Relaxed);
                lock(&failed).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..SYNC_THREADS.min(dirs.len()) {
            // One thread less where there is none to be had.
            let _ = thread::Builder::new().name("ckpt-sync".into()).spawn_scoped(scope, work);
        }
        work();
    });
    lock(&failed).take().map_or(Ok(()), Err)
}

pub(super) fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
