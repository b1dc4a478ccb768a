//! Files that can be locked.

use crate::locked::keeps;

/// `None` where the folder for such is memory already.
pub(crate) fn folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let kind = rustix::fs::statfs(folder.path()).unwrap().f_type;
    if let Err(which) = keeps(kind) {
        eprintln!("SKIPPED: files in {} cannot be locked: it is on {which}", folder.path().display());
        return None;
    }
    Some(folder)
}

/// Onto the disk: what is still to be written cannot be brought in anew.
pub(crate) fn write(path: &std::path::Path, bytes: usize) {
    std::fs::write(path, vec![7; bytes]).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}
