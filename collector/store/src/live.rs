//! The database of a recording that is being written.

use crate::alive::Alive;
use crate::files::{Files, beside};
use crate::{opening, place, schema};
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a recording cannot be written now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("{0}")]
    Database(#[from] rusqlite::Error),
    #[error("{0}")]
    Text(#[from] serde_json::Error),
}

impl Trouble {
    /// The reason losses are counted under.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Trouble::Database(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
                "recording: disk full"
            }
            Trouble::File(error) if error.kind() == io::ErrorKind::StorageFull => "recording: disk full",
            _ => "recording: not writable",
        }
    }
}

/// An open recording and what has to happen when it is finished.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) connection: Connection,
    /// Where it is being written.
    pub(crate) path: PathBuf,
    /// Reserved name it is to go to; `None` when it is there already or nothing could be reserved.
    reserved: Option<PathBuf>,
    in_spool: bool,
    link: Option<PathBuf>,
    alive: Alive,
}

impl Live {
    /// Opens a new recording at `target` if its file system allows, else in the spool. Says why when not at
    /// `target` for another reason than a network file system.
    pub(crate) fn create(
        target: &Path,
        spool: Option<&Path>,
        at_target: bool,
    ) -> Result<(Live, Option<Trouble>), Trouble> {
        let at_place = place::normalise(target);
        let mut reason = None;
        let mut reserved = None;
        match &at_place {
            Ok(path) if at_target && path.parent().is_some_and(place::is_local) => {
                match place::reserve(path).map_err(Trouble::from).and_then(|path| Live::open(path, spool)) {
                    Ok(live) => return Ok((live, None)),
                    Err(trouble) => reason = Some(trouble),
                }
            }
            Ok(path) => match place::reserve(path) {
                Ok(path) => reserved = Some(path),
                Err(error) => reason = Some(error.into()),
            },
            Err(error) => reason = Some(io::Error::new(error.kind(), error.to_string()).into()),
        }
        let name = target.file_name().map_or_else(|| "run".into(), |name| name.to_owned());
        let opened = place::spool(spool)
            .and_then(|spool| place::normalise(&spool.join(name)))
            .and_then(|path| place::reserve(&path))
            .map_err(Trouble::from)
            .and_then(|path| Live::open(path, spool));
        match opened {
            Ok(mut live) => {
                live.in_spool = true;
                if let Some(Err(error)) = reserved.as_ref().map(|reserved| place::point(reserved, &live.path))
                {
                    reason = Some(error.into());
                }
                live.reserved = reserved;
                Ok((live, reason))
            }
            Err(trouble) => {
                if let Some(reserved) = reserved {
                    let _ = fs::remove_file(reserved);
                }
                Err(reason.unwrap_or(trouble))
            }
        }
    }

    /// Makes the database in `path`, an empty file of ours, which is removed when that fails.
    fn open(path: PathBuf, spool: Option<&Path>) -> Result<Live, Trouble> {
        let prepared = prepare(&path).and_then(|connection| {
            // Another user with write access to the folder may have created the log first, and could then read it.
            Files::find(&path).map_err(io::Error::other)?;
            Ok((connection, Alive::claim(&path)?))
        });
        match prepared {
            Ok((connection, alive)) => {
                let link = place::spool(spool).ok().and_then(|spool| place::announce(&spool, &path));
                Ok(Live { connection, path, reserved: None, in_spool: false, link, alive })
            }
            Err(trouble) => {
                remove(&path);
                Err(trouble)
            }
        }
    }

    /// Makes one plain file of it and brings it to `target`. Returns where it is now, and why it is not at the
    /// target if it is not.
    pub(crate) fn finish(self, target: &Path) -> (PathBuf, Option<Trouble>) {
        let Live { connection, path, reserved, in_spool, link, alive } = self;
        // Fails while a reader is there: at the target, the next one folds the log in; a spooled one is copied.
        let plain = match fold(&connection) {
            Err(_) if in_spool => copy_plain(&connection, &path),
            _ => Ok(path.clone()),
        };
        drop(connection);
        drop(alive);
        if let Some(link) = link {
            let _ = fs::remove_file(link);
        }
        if !in_spool {
            return (path, None);
        }
        let moved = plain.and_then(|plain| {
            let reserved = match reserved {
                Some(reserved) => reserved,
                None => place::reserve(&place::normalise(target)?)?,
            };
            match place::move_into(&plain, &reserved) {
                Ok(()) => {
                    remove(&path);
                    Ok(reserved)
                }
                Err(error) => {
                    if plain != path {
                        let _ = fs::remove_file(&plain);
                    }
                    // A target that keeps pointing here finds it; an empty file would only puzzle.
                    if place::follow(&reserved).is_none() {
                        let _ = fs::remove_file(&reserved);
                    }
                    Err(error.into())
                }
            }
        });
        match moved {
            Ok(moved) => (moved, None),
            Err(trouble) => (path, Some(trouble)),
        }
    }
}

/// Removes a database and what SQLite keeps beside it.
fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(beside(path, suffix));
    }
}

/// Everything in `connection` as one plain file beside `path`.
fn copy_plain(connection: &Connection, path: &Path) -> Result<PathBuf, Trouble> {
    let copy = beside(path, ".copy");
    let text = copy.to_str().ok_or_else(|| io::Error::other("its name is not UTF-8"))?;
    connection.execute("VACUUM INTO ?", [text])?;
    Ok(copy)
}

fn prepare(path: &Path) -> Result<Connection, Trouble> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    opening::guard_sqlite();
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    // No journal of the first page lies there while that is written: readers refuse a recording with one.
    connection.pragma_update(None, "journal_mode", "memory")?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // A killed process loses nothing either way; full syncs would compete with the job for its disk.
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    schema::create(&mut connection)?;
    Ok(connection)
}

/// Folds the write-ahead log into the file and leaves write-ahead logging, so that the one file is everything.
///
/// The version in the first page is then changed with a journal in memory: one beside the file would have readers refuse it
/// for that moment, and after a kill for good. Such a write is whole, as it is of a hundred bytes.
///
/// # Errors
/// While another connection is open.
pub(crate) fn fold(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    let mode: String = connection.query_row("PRAGMA journal_mode = MEMORY", [], |row| row.get(0))?;
    if mode == "memory" {
        Ok(())
    } else {
        Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None))
    }
}
