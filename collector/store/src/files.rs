//! The files of a recording: what lies there is looked at before any of it is opened.

use crate::error::Error;
use crate::spot::Spot;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file system that compresses may keep so many bytes of a recording in one.
const MOST_COMPRESSED: u64 = 32;
/// Of files up to here some file systems say that they have nothing on disk.
const SMALL_BYTES: u64 = 1 << 20;
/// Looks at a file whose name is another's by the time that its folder is open, as its writer's may be when it finishes.
const LOOKS: u32 = 10;

/// A recording and the log that may lie beside it.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The path as it was given, for messages.
    pub(crate) named: PathBuf,
    /// Where that led. SQLite keeps its log beside this one.
    spot: Spot,
    made_by: u32,
}

impl Files {
    /// Finds the file at `path`, whatever it is, and demands of what lies beside it to be what a recorder leaves there.
    ///
    /// # Errors
    /// There is no file with anything in it, or beside it lies what no recorder leaves there.
    pub(crate) fn find(path: &Path) -> Result<Files, Error> {
        let unreadable =
            |error: std::io::Error| Error::Unreadable { path: path.to_path_buf(), reason: error.to_string() };
        for _ in 0..LOOKS {
            // Not by another user's link to what they may not read themselves.
            let found = stallscope_folder::find(None, path).map_err(|blocked| unreadable(blocked.into()))?;
            let facts = rustix::fs::fstat(&found).map_err(|error| unreadable(error.into()))?;
            if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile || facts.st_size == 0 {
                return Err(Error::NotARecording { path: path.to_path_buf() });
            }
            if let Some(spot) = Spot::of(&found).map_err(unreadable)? {
                return Files::at(path, spot, facts.st_uid);
            }
        }
        Err(unreadable(Errno::NOENT.into()))
    }

    /// The file of user `made_by` that was found at `path`, and is at `spot`.
    ///
    /// # Errors
    /// Beside it lies what no recorder leaves there.
    pub(crate) fn at(path: &Path, spot: Spot, made_by: u32) -> Result<Files, Error> {
        let named = path.to_path_buf();
        for suffix in ["-wal", "-shm", "-journal"] {
            let Ok(found) = fs::symlink_metadata(beside(spot.path(), suffix)) else { continue };
            if let Some(reason) = strange(suffix, &found, made_by) {
                let other = beside(&spot.shown().unwrap_or_else(|_| named.clone()), suffix);
                return Err(Error::Beside { path: named, other, reason });
            }
        }
        Ok(Files { named, spot, made_by })
    }

    /// Leads to it by the folder's descriptor, as long as this is held.
    pub(crate) fn database(&self) -> &Path {
        self.spot.path()
    }

    pub(crate) fn log(&self) -> PathBuf {
        beside(self.database(), "-wal")
    }

    /// Of the recording, which may grow, and its log; of a file with holes no more than what it has on disk can stand for.
    pub(crate) fn bytes(&self) -> u64 {
        let length = |path: &Path| {
            let held = |file: &Metadata| file.blocks().saturating_mul(512).saturating_mul(MOST_COMPRESSED);
            fs::metadata(path).map_or(0, |file| file.len().min(held(&file).max(SMALL_BYTES)))
        };
        length(self.database()).saturating_add(length(&self.log()))
    }

    /// Whether who made the file, which says that the recording is `live`, may read that as well: it is theirs, or this user made
    /// the file.
    pub(crate) fn may_lead_to(&self, live: &Files) -> bool {
        [rustix::process::geteuid().as_raw(), live.made_by].contains(&self.made_by)
    }

    /// Whether it is this user's alone to change: others' recordings are read and no more.
    pub(crate) fn are_ours(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        fs::symlink_metadata(self.database()).is_ok_and(|facts| facts.uid() == own && facts.nlink() == 1)
    }
}

/// Why `other`, beside a recording, is none of a recorder's.
fn strange(suffix: &str, other: &Metadata, made_by: u32) -> Option<&'static str> {
    // It would be played back into the recording.
    if suffix == "-journal" {
        Some("is a rollback journal, which no recorder leaves")
    } else if !other.is_file() {
        Some("is not an ordinary file")
    } else if other.uid() != made_by {
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
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("hole.stall");
        fs::write(&database, vec![1; 3 << 20]).unwrap();
        let files = Files::find(&database).unwrap();
        assert_eq!(files.bytes(), 3 << 20);
        fs::File::options().write(true).open(&database).unwrap().set_len(1 << 40).unwrap();
        assert!((3 << 20..=200 << 20).contains(&files.bytes()), "{}", files.bytes());
    }
}
