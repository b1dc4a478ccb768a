//! The collector of a job that nobody launched with `run`. It is the job's user's process, and does for the job what `stallscope run`
//! of that user would, where its shim came by itself, and what `stallscope attach` would, where it has none.

use super::Collect;
use super::session::{become_user, end_with_stdin};
use crate::policy::Recordings;
use crate::{procfs, session};
use anyhow::{Context, Result, ensure};
use nix::unistd::{Uid, setfsuid};
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// As which verb the program is such a collector.
const VERB: &str = "node-collect";

/// Of the job's environment, what `stallscope run` in it would go by. Nothing that decides which code runs here.
const ADOPTED: [&str; 5] =
    ["HOME", "STALLSCOPE_KERNEL_SOCKET", "STALLSCOPE_LABEL", RUNTIME_DIR, "XDG_RUNTIME_DIR"];
const RUNTIME_DIR: &str = "STALLSCOPE_RUNTIME_DIR";

/// What the collector of a job is started with. In words of numbers, and the folder that the node's configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// The job's user and group, whom the collector becomes.
    pub uid: u32,
    pub gid: u32,
    /// Root of the job's process tree.
    pub pid: u32,
    /// When that process began: its number may be another's by now.
    pub start_ticks: u64,
    /// Its shim has come; without it there is the kernel's evidence alone.
    pub has_shim: bool,
    /// Where its user's recordings go, in a folder of the user's own there; `None`: it is not recorded.
    pub recordings: Option<Recordings>,
}

/// How such a collector ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectEnd {
    /// With its job, or because nobody wants it any more.
    Over,
    /// The process that was found trains nothing, or its user wants it left alone.
    NoJob,
}

impl CollectEnd {
    pub fn code(self) -> u8 {
        match self {
            CollectEnd::Over => 0,
            CollectEnd::NoJob => 4,
        }
    }
}

impl CollectOptions {
    pub(super) fn of(collect: &Collect, gid: u32, dir: Option<&Path>) -> CollectOptions {
        let Collect { uid, pid, start_ticks, has_shim, retention, .. } = *collect;
        let recordings =
            dir.zip(retention).map(|(dir, retention)| Recordings { dir: dir.to_owned(), retention });
        CollectOptions { uid, gid, pid, start_ticks, has_shim, recordings }
    }

    pub(super) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![
            VERB.into(),
            if self.has_shim { "shim" } else { "kernel" }.into(),
            self.pid.to_string().into(),
            self.start_ticks.to_string().into(),
            self.uid.to_string().into(),
            self.gid.to_string().into(),
        ];
        if let Some(Recordings { dir, retention }) = &self.recordings {
            words.push(dir.into());
            words.push(retention.keep.as_secs().to_string().into());
            words.push(retention.most_bytes.to_string().into());
        }
        words
    }
}

/// Collects the job's evidence until it ends, a signal comes, or stdin ends. The process must have one thread.
///
/// # Errors
/// There is no such job of this user, it has a collector already, or the launcher did not start this process.
pub fn collect(options: &CollectOptions) -> Result<CollectEnd> {
    let CollectOptions { uid, gid, pid, start_ticks, has_shim, ref recordings } = *options;
    let own_folder = recordings.as_ref().map(|recordings| own_folder(&recordings.dir, uid));
    become_user(uid, gid).context("the launcher alone starts collectors")?;
    ensure!(procfs::start_ticks(pid) == Some(start_ticks), "process {pid} has ended");
    let environment =
        procfs::environment(pid).with_context(|| format!("process {pid} may not be looked into"))?;
    adopt(&environment);
    end_with_stdin()?;
    if !has_shim && !is_wanted(pid, &environment) {
        return Ok(CollectEnd::NoJob);
    }
    let recorded = recordings.as_ref().zip(own_folder).map(|(recordings, own)| session::Recorded {
        folder: own.map_err(|error| format!("{} cannot be used: {error}", recordings.dir.display())),
        retention: recordings.retention,
    });
    session::collect(pid, start_ticks, has_shim, recorded)?;
    Ok(CollectEnd::Over)
}

/// The user's own folder in `dir`, which only root's group writes into: no user can have made that of another.
///
/// # Errors
/// It can't be made, or is somebody else's.
fn own_folder(dir: &Path, uid: u32) -> io::Result<PathBuf> {
    let folder = dir.join(uid.to_string());
    let before = setfsuid(Uid::from_raw(uid));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    setfsuid(before);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let facts = std::fs::symlink_metadata(&folder)?;
    if facts.is_dir() && facts.uid() == uid {
        Ok(folder)
    } else {
        Err(io::Error::other(format!("{} is no folder of user {uid}", folder.display())))
    }
}

/// Whether a process that was found is one of torch, and its user has nothing against its being watched.
fn is_wanted(pid: u32, environment: &[u8]) -> bool {
    let is = |name, value: &[u8]| procfs::variable(environment, name) == Some(value);
    let is_off =
        is("STALLSCOPE_LABEL", b"off") || is("STALLSCOPE_SHIM", b"off") || is("STALLSCOPE_SHIM", b"0");
    !is_off && procfs::text(pid, "maps").is_some_and(|maps| maps.contains("/libtorch"))
}

fn adopt(environment: &[u8]) {
    for name in ADOPTED {
        let value = procfs::variable(environment, name).map(OsStr::from_bytes);
        if let Some(value) = value.filter(|value| name != RUNTIME_DIR || is_own_folder(Path::new(value))) {
            // SAFETY: this process has one thread, as the caller promises.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// The shim has made it where the job's folders are this process's too. In a container of its own it would be made here for nobody,
/// under whatever name: that of another user's folder.
fn is_own_folder(folder: &Path) -> bool {
    let own = Uid::effective().as_raw();
    std::fs::symlink_metadata(folder).is_ok_and(|facts| facts.is_dir() && facts.uid() == own)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_folder_that_is_not_there_or_anothers_is_not_adopted() {
        let folder = std::env::temp_dir().join(format!("ss-adopted-{}", std::process::id()));
        assert!(!is_own_folder(&folder));
        std::fs::create_dir(&folder).unwrap();
        assert!(is_own_folder(&folder));
        std::fs::remove_dir(&folder).unwrap();
        if Uid::effective().is_root() {
            let theirs = Some(65534);
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, theirs, theirs).unwrap();
            assert!(!is_own_folder(&folder));
            std::fs::remove_dir(&folder).unwrap();
        }
    }
}
