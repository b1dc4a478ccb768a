//! The files of a recording: what lies there is looked at before any of it is opened.

use crate::error::Error;
use std::fs::{self, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file system that compresses may keep so many bytes of a recording in one.
const MOST_COMPRESSED: u64 = 32;
/// Of files up to here some file systems say that they have nothing on disk.
const SMALL_BYTES: u64 = 1 << 20;

/// A recording and the log that may lie beside it.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The path as it was given, for messages.
    pub(crate) named: PathBuf,
    /// The path with links resolved. SQLite keeps its log beside this one.
    pub(crate) database: PathBuf,
}

impl Files {
    /// Finds the file at `path`, whatever it is, and demands of what lies beside it to be what a recorder leaves there.
    ///
    /// # Errors
    /// There is no file with anything in it, or beside it lies what no recorder leaves there.
    pub(crate) fn find(path: &Path) -> Result<Files, Error> {
        let named = path.to_path_buf();
        let unreadable =
            |error: std::io::Error| Error::Unreadable { path: path.to_path_buf(), reason: error.to_string() };
        // Not by another user's link to what they may not read themselves.
        let found = stallscope_folder::find(None, path).map_err(|blocked| unreadable(blocked.into()))?;
        let place = format!("/proc/self/fd/{}", found.as_raw_fd());
        let database = fs::read_link(place).map_err(unreadable)?;
        let facts = fs::symlink_metadata(&database).map_err(unreadable)?;
        if !facts.is_file() || facts.len() == 0 {
            return Err(Error::NotARecording { path: named });
        }
        for suffix in ["-wal", "-shm", "-journal"] {
            let other = beside(&database, suffix);
            let Ok(found) = fs::symlink_metadata(&other) else { continue };
            if let Some(reason) = strange(suffix, &found, &facts) {
                return Err(Error::Beside { path: named, other, reason });
            }
        }
        Ok(Files { named, database })
    }

    pub(crate) fn log(&self) -> PathBuf {
        beside(&self.database, "-wal")
    }

    /// Of the recording, which may grow, and its log; of a file with holes no more than what it has on disk can stand for.
    pub(crate) fn bytes(&self) -> u64 {
        let length = |path: &Path| {
            let held = |file: &Metadata| file.blocks().saturating_mul(512).saturating_mul(MOST_COMPRESSED);
            fs::metadata(path).map_or(0, |file| file.len().min(held(&file).max(SMALL_BYTES)))
        };
        length(&self.database).saturating_add(length(&self.log()))
    }

    /// Whether who made the file, which says that the recording is at `live`, may read that as well: it is theirs, or this user made
    /// the file.
    pub(crate) fn may_lead_to(&self, live: &Path) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let of = |path: &Path| fs::metadata(path).map(|facts| facts.uid()).ok();
        of(&self.database).is_some_and(|maker| maker == own || of(live) == Some(maker))
    }

    /// Whether it is this user's alone to change: others' recordings are read and no more.
    pub(crate) fn are_ours(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        fs::symlink_metadata(&self.database).is_ok_and(|facts| facts.uid() == own && facts.nlink() == 1)
    }
}

/// Why `other`, beside a recording, is none of a recorder's.
fn strange(suffix: &str, other: &Metadata, recording: &Metadata) -> Option<&'static str> {
    // It would be played back into the recording.
    if suffix == "-journal" {
        Some("is a rollback journal, which no recorder leaves")
    } else if !other.is_file() {
        Some("is not an ordinary file")
    } else if other.uid() != recording.uid() {
        Some("belongs to another user")
    } else {
        None
    }
}

/// `database` with `suffix` appended to its file name.
pub(crate) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_hole_is_no_reason_to_read_for_long() {
        let database = std::env::temp_dir().join(format!("stallscope-hole-{}.stall", std::process::id()));
        fs::write(&database, vec![1; 3 << 20]).unwrap();
        let files = Files { named: database.clone(), database };
        assert_eq!(files.bytes(), 3 << 20);
        fs::File::options().write(true).open(&files.database).unwrap().set_len(1 << 40).unwrap();
        assert!((3 << 20..=200 << 20).contains(&files.bytes()), "{}", files.bytes());
        fs::remove_file(&files.database).unwrap();
    }
}
