//! The database of a recording that is being written.

use crate::alive::Alive;
use crate::files::{Files, beside};
use crate::spot::{Made, Spot};
use crate::{opening, place, schema};
use rusqlite::{Connection, OpenFlags};
use stallscope_folder::file_user;
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
    /// Closed before the folder, by whose descriptor it goes.
    pub(crate) connection: Connection,
    /// Where it is being written, for readers; its folder may be elsewhere by now.
    pub(crate) path: PathBuf,
    made: Made,
    /// Reserved name it is to go to; `None` when it is there already or nothing could be reserved.
    reserved: Option<Made>,
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
            Ok(spot) if at_target && place::is_local(&spot.folder()) => {
                match place::reserve(spot).map_err(Trouble::from).and_then(|made| Live::open(made, spool)) {
                    Ok(live) => return Ok((live, None)),
                    Err(trouble) => reason = Some(trouble),
                }
            }
            Ok(spot) => match place::reserve(spot) {
                Ok(made) => reserved = Some(made),
                Err(error) => reason = Some(error.into()),
            },
            Err(error) => reason = Some(io::Error::new(error.kind(), error.to_string()).into()),
        }
        let name = target.file_name().map_or_else(|| "run".into(), |name| name.to_owned());
        let opened = place::spool(spool)
            .and_then(|spool| place::normalise(&spool.join(name)))
            .and_then(|spot| place::reserve(&spot))
            .map_err(Trouble::from)
            .and_then(|made| Live::open(made, spool));
        match opened {
            Ok(mut live) => {
                live.in_spool = true;
                if let Some(Err(error)) =
                    reserved.as_ref().map(|reserved| place::point(reserved.spot.path(), &live.path))
                {
                    reason = Some(error.into());
                }
                live.reserved = reserved;
                Ok((live, reason))
            }
            Err(trouble) => {
                if let Some(reserved) = reserved {
                    reserved.remove();
                }
                Err(reason.unwrap_or(trouble))
            }
        }
    }

    /// Makes the database in `made`, an empty file, which is removed when that fails.
    fn open(made: Made, spool: Option<&Path>) -> Result<Live, Trouble> {
        let prepared = prepare(made.spot.path()).and_then(|connection| {
            let path = made.spot.shown()?;
            // Another user with write access to the folder may have put another file there.
            if !made.is_there()? {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            // Or created the log first, and could then read it.
            Files::at(&path, made.spot.clone(), file_user()).map_err(io::Error::other)?;
            Ok((connection, Alive::claim(made.spot.path())?, path))
        });
        match prepared {
            Ok((connection, alive, path)) => {
                let link = place::spool(spool).ok().and_then(|spool| place::announce(&spool, &path));
                Ok(Live { connection, path, made, reserved: None, in_spool: false, link, alive })
            }
            Err(trouble) => {
                made.remove_database();
                Err(trouble)
            }
        }
    }

    /// Makes one plain file of it and brings it to `target`. Returns where it is now, and why it is not at the
    /// target if it is not.
    pub(crate) fn finish(self, target: &Path) -> (PathBuf, Option<Trouble>) {
        let Live { connection, path, made, reserved, in_spool, link, alive } = self;
        // Fails while a reader is there: at the target, the next one folds the log in; a spooled one is copied.
        let plain = match fold(&connection) {
            Err(_) if in_spool => copy_plain(&connection, &made.spot).map(Some),
            _ => Ok(None),
        };
        drop(connection);
        drop(alive);
        if let Some(link) = link {
            let _ = fs::remove_file(link);
        }
        let path = made.spot.shown().unwrap_or(path);
        if !in_spool {
            return (path, None);
        }
        let moved = plain.and_then(|copy| {
            let reserved = match reserved {
                Some(reserved) => reserved,
                None => place::reserve(&place::normalise(target)?)?,
            };
            let moved = place::move_into(copy.as_deref().unwrap_or(made.spot.path()), &reserved);
            if let Some(copy) = copy {
                let _ = fs::remove_file(copy);
            }
            match moved {
                Ok(()) => {
                    made.remove_database();
                    // Something may be mounted over its folder by now.
                    Ok(reserved.spot.shown().unwrap_or_else(|_| target.to_path_buf()))
                }
                Err(error) => {
                    // A target that keeps pointing here finds it; an empty file would only puzzle.
                    if place::follow(reserved.spot.path()).is_none() {
                        reserved.remove();
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

/// Everything in `connection` as one plain file beside its own.
fn copy_plain(connection: &Connection, spot: &Spot) -> Result<PathBuf, Trouble> {
    let copy = beside(spot.path(), ".copy");
    let text = copy.to_str().ok_or_else(|| io::Error::other("its name is not UTF-8"))?;
    connection.execute("VACUUM INTO ?", [text])?;
    Ok(copy)
}

fn prepare(path: &Path) -> Result<Connection, Trouble> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = opening::connect(path, flags)?;
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
