//! How many bytes the chunks in a folder have, for all processes that share it: a file with their sum, held locked while it is changed.
//!
//! The lock is of an open file of its own each time, so that it keeps threads and processes that were forked apart as well. It is given back
//! by a call and not by closing: a process that is forked meanwhile has the file open, too.

use super::files::{ask_for, open};
use crate::fields::{bytes_at, is_sealed, sealed};
use rustix::fs::{FlockOperation, OFlags};
use stallscope_folder::Folder;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

pub(super) const ACCOUNT: &str = "account";
const ACCOUNT_BYTES: usize = 12;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The account, locked.
#[derive(Debug)]
pub(super) struct Account(File);

impl Account {
    /// None where another process has it for longer than `patience`.
    pub(super) fn lock(folder: &Folder, patience: Duration) -> io::Result<Option<Account>> {
        let file = open(folder, ACCOUNT, OFlags::RDWR | OFlags::CREATE)?;
        let end = Instant::now() + patience;
        while !ask_for(&file, FlockOperation::NonBlockingLockExclusive)? {
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Some(Account(file)))
    }

    /// None where nobody has counted yet, or something else is in the file.
    pub(super) fn total(&self) -> Option<u64> {
        let mut bytes = [0; ACCOUNT_BYTES];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        is_sealed(&bytes).then(|| bytes_at(&bytes, 0).map(u64::from_le_bytes))?
    }

    pub(super) fn set(&self, total: u64) -> io::Result<()> {
        self.0.write_all_at(&sealed(total.to_le_bytes().to_vec()), 0)
    }

    /// So many bytes are gone.
    pub(super) fn less(&self, bytes: u64) {
        if let Some(total) = self.total() {
            // A sum that is too large is right again once somebody counts.
            let _ = self.set(total.saturating_sub(bytes));
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
