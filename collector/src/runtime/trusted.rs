//! What root may believe of a process and of the folder that it names.

use crate::procfs;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Anybody may replace what lies in such a folder, but for files of others where it has [`STICKY`].
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whether all of process `pid`'s users are `uid`. Its folder in /proc does not say so: that is root's for each process
/// that must not be looked into, as a set-uid program that somebody else started.
pub(super) fn is_wholly_of(pid: u32, uid: u32) -> bool {
    let Some(status) = procfs::text(pid, "status") else { return false };
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_whitespace().all(|user| user.parse() == Ok(uid)))
}

/// `path` without links, where it is a folder of `uid` that nobody else can write into or put something in the place of.
pub(super) fn folder_of(path: &Path, uid: u32) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    for (above, folder) in path.ancestors().enumerate() {
        let found = fs::symlink_metadata(folder).ok()?;
        let writable = found.mode() & WRITABLE_BY_OTHERS != 0;
        let (ours, kept) = (found.uid() == uid, found.uid() == 0 && found.mode() & STICKY != 0);
        // The job's folder and the one of all jobs, as `of_this_user` makes them; above them root's and ours.
        let safe = match above {
            0 | 1 => ours && !writable,
            _ => (ours || found.uid() == 0) && (!writable || kept),
        };
        if !found.is_dir() || !safe {
            return None;
        }
    }
    Some(path)
}
