//! One process at a time saves into a folder.
//!
//! The lock is a record lock (fcntl): the kernel takes it back when its process dies, however that happens, and a forked
//! loader worker does not inherit it. Such a lock does not keep two savers of one process apart, and goes when any
//! descriptor of its file is closed there; so the process keeps a list of its own.

use crate::arena::lock;
use crate::error::{Doing, Error, Result};
use crate::files::{open_plain, write_all};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "lock";
const PATIENCE: Duration = Duration::from_secs(2);

/// The folders that this process saves into.
static HELD: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// The right to save into a folder, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    dir: PathBuf,
    _file: Option<File>,
}

impl Lock {
    /// For a job that starts: the one before may be dying still, or somebody be collecting.
    pub(crate) fn take_patiently(dir: &Path) -> Result<Lock> {
        let begun = Instant::now();
        loop {
            match Lock::take(dir) {
                Err(Error::Busy { .. }) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(20))
                }
                other => return other,
            }
        }
    }

    pub(crate) fn take(dir: &Path) -> Result<Lock> {
        let dir = dir.canonicalize().doing("open", dir)?;
        let mut held = lock(&HELD);
        // What a parent holds, a forked child does not.
        let own = std::process::id();
        if held.iter().any(|(pid, other)| *pid == own && *other == dir) {
            return Err(Error::Busy { dir, holder: "this one".into() });
        }
        let path = dir.join(NAME);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file: File =
            rustix::fs::open(&path, flags, Mode::from_raw_mode(0o666)).doing("open", &path)?.into();
        let file = match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // For the message of who comes second; no more than that hangs on it.
                let _ = file.set_len(0).and_then(|()| write_all(&file, format!("{own}\n").as_bytes(), 0));
                Some(file)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
                return Err(Error::Busy { holder: holder(&path), dir });
            }
            // A file system without locks: folders of checkpoints are made exclusively all the same.
            Err(_) => None,
        };
        held.push((own, dir.clone()));
        Ok(Lock { dir, _file: file })
    }
}

fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = open_plain(path, false).and_then(|file| file.take(20).read_to_string(&mut text));
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "elsewhere".into(),
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let own = std::process::id();
        lock(&HELD).retain(|(pid, dir)| *pid != own || *dir != self.dir);
    }
}
