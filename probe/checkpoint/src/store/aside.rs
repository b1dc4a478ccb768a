//! Bad checkpoints, which are set aside in a folder of their own until newer ones are good.

use super::{LATEST, State, Store, removal, short};
use crate::error::{Doing, Result};
use crate::files::{Disk, Files, Folder, put};
use crate::names;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Where checkpoints go that turned out bad.
pub const QUARANTINE: &str = "quarantine";
/// Says beside a checkpoint in quarantine what is wrong with it.
const REASON: &str = "reason.txt";
/// Of a reason: more is not shown.
const REASON_BYTES: u64 = 4096;
/// So many are named: a folder of some megabytes can have as many as it has bytes for links.
const MOST_NAMED: usize = if cfg!(test) { 10 } else { 1000 };

/// What lies in `quarantine`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    /// Names and reasons.
    pub named: Vec<(String, String)>,
    /// How many more there are.
    pub others: u64,
}

impl Store {
    /// Moves a bad checkpoint to `quarantine`.
    pub(crate) fn quarantine(&self, name: &str, reason: &str) -> Result<()> {
        self.set_aside(name, reason)?;
        self.note_moved();
        Ok(())
    }

    /// The same, without what is to be done once for all that are moved. Gives the name that it has there.
    pub(super) fn set_aside(&self, name: &str, reason: &str) -> Result<String> {
        let aside = self.dir.join(QUARANTINE);
        match std::fs::create_dir(&aside) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.doing("make", &aside)?,
        }
        // Who made the checkpoint may have made a link of it, to anywhere.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&aside, flags, Mode::empty())
            .map_err(std::io::Error::from)
            .doing("open", &aside)?;
        // A folder that is there already is never replaced: it has files.
        let mut names =
            (1..1000).map(|attempt| if attempt == 1 { name.into() } else { format!("{name}-{attempt}") });
        let moved_to = loop {
            let to = names.next().ok_or(Errno::EXIST).doing("find a free name in", &aside)?;
            match rustix::fs::renameat(rustix::fs::CWD, self.dir.join(name), &folder, &to) {
                Ok(()) => break to,
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                // With another name it would be the same.
                Err(error) => return Err(error).doing("move a checkpoint to", &aside),
            }
        };
        let opened = PathBuf::from(format!("/proc/thread-self/fd/{}", folder.as_raw_fd()));
        let _ = note_reason(&opened.join(&moved_to), reason);
        Ok(moved_to)
    }

    /// Makes durable that some were moved, and names the newest of what is left. No harm when that fails: nothing trusts it.
    pub(super) fn note_moved(&self) {
        let aside = self.dir.join(QUARANTINE);
        let _ = Disk.sync_dir(&aside).and_then(|()| Disk.sync_dir(&self.dir));
        let Ok(entries) = self.list() else { return };
        let newest = entries.into_iter().find(|entry| entry.state != State::Incomplete);
        let _ = newest.map(|newest| put(&Disk, &self.dir, LATEST, format!("{}\n", newest.name).as_bytes()));
    }

    /// What was set aside. Anybody's who may write to this folder: no link is followed in it.
    pub fn quarantined(&self) -> SetAside {
        let mut found = SetAside::default();
        let Ok(aside) = Folder::open(&self.dir.join(QUARANTINE)) else { return found };
        for entry in std::fs::read_dir(aside.itself()).into_iter().flatten().flatten() {
            if found.named.len() == MOST_NAMED {
                found.others += 1;
                continue;
            }
            // Within the opened folder: a link in its place would have another user's reason, or root's, shown.
            let reason = Folder::reach(&entry.path()).and_then(|folder| reason_in(&folder));
            let reason = reason.unwrap_or_else(|_| "no reason is noted".into());
            found.named.push((entry.file_name().to_string_lossy().into_owned(), reason));
        }
        found.named.sort();
        found
    }

    /// What was set aside goes when all that is kept was saved after it. Its content is foreign: one that cannot be removed, as it
    /// has folders that we do not make, stays.
    pub(super) fn collect_quarantined(&self, files: &dyn Files, since_ns: u64, dry_run: bool) -> Vec<String> {
        // The user who made the checkpoints may put a link in its place at any moment.
        let Ok(aside) = Folder::open(&self.dir.join(QUARANTINE)) else { return Vec::new() };
        let mut removed = Vec::new();
        for entry in std::fs::read_dir(aside.itself()).into_iter().flatten().flatten() {
            let path = entry.path();
            if !names::is_of_checkpoint(&path) {
                continue;
            }
            let Ok(folder) = Folder::open(&path) else { continue };
            let set_aside = folder.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let old = set_aside.is_some_and(|at| at.as_nanos() < u128::from(since_ns));
            if old && (dry_run || removal::empty(files, &folder).is_ok()) {
                removed.push(format!("{QUARANTINE}/{}", entry.file_name().to_string_lossy()));
            }
        }
        removed.sort();
        removed
    }
}

fn reason_in(folder: &Folder) -> std::io::Result<String> {
    let mut reason = Vec::new();
    folder.open_plain(REASON, false)?.take(REASON_BYTES).read_to_end(&mut reason)?;
    Ok(short(String::from_utf8_lossy(&reason).trim()))
}

/// The folder's content is foreign: a file of that name may be a link to one of the user's, and the reason may quote
/// what is in it.
fn note_reason(dir: &Path, reason: &str) -> std::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    // Where it is not there there is nothing to take away; what can't be taken away can't be replaced.
    let _ = rustix::fs::unlinkat(&dir, REASON, AtFlags::empty());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, REASON, flags, Mode::from_raw_mode(0o666))?;
    let plain: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    std::io::Write::write_all(&mut std::fs::File::from(file), format!("{plain}\n").as_bytes())
}
