//! Whether somebody still writes a recording.
//!
//! The writer holds a `flock` on the write-ahead log. Not on the database: closing any descriptor of that one
//! would drop the locks SQLite itself holds in the same process. A pid would not do across pid namespaces.

use crate::files::beside;
use crate::opening;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Held for as long as a recorder writes.
#[derive(Debug)]
pub(crate) struct Alive {
    _log: File,
}

impl Alive {
    /// Claims the recording at `database`, whose write-ahead log exists.
    pub(crate) fn claim(database: &Path) -> io::Result<Alive> {
        let log = opening::to_read(&beside(database, "-wal"))?;
        // A reader that is just looking holds the lock for an instant.
        for _ in 0..50 {
            match flock(&log, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Alive { _log: log }),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "another process writes this recording"))
    }
}

/// Whether a recorder has `database` open.
pub(crate) fn is_written(database: &Path) -> bool {
    let Ok(log) = opening::to_read(&beside(database, "-wal")) else { return false };
    flock(&log, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}
