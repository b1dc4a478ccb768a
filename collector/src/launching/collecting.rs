//! The collector of a job that nobody launched with `run`. It is the job's user's process, and does for the job what `stallscope run`
//! of that user would, where its shim came by itself, and what `stallscope attach` would, where it has none.

use super::Collect;
use super::session::{become_user, end_with_stdin};
use crate::{procfs, session};
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// As which verb the program is such a collector.
const VERB: &str = "node-collect";

/// Of the job's environment, what `stallscope run` in it would go by. Nothing that decides which code runs here.
const ADOPTED: [&str; 5] =
    ["HOME", "STALLSCOPE_KERNEL_SOCKET", "STALLSCOPE_LABEL", "STALLSCOPE_RUNTIME_DIR", "XDG_RUNTIME_DIR"];

/// What the collector of a job is started with. In words of numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(super) fn of(collect: &Collect, gid: u32) -> CollectOptions {
        let Collect { uid, pid, start_ticks, has_shim, .. } = *collect;
        CollectOptions { uid, gid, pid, start_ticks, has_shim }
    }

    pub(super) fn words(&self) -> [String; 6] {
        [
            VERB.into(),
            if self.has_shim { "shim" } else { "kernel" }.into(),
            self.pid.to_string(),
            self.start_ticks.to_string(),
            self.uid.to_string(),
            self.gid.to_string(),
        ]
    }
}

/// Collects the job's evidence until it ends, a signal comes, or stdin ends. The process must have one thread.
///
/// # Errors
/// There is no such job of this user, it has a collector already, or the launcher did not start this process.
pub fn collect(options: &CollectOptions) -> Result<CollectEnd> {
    let CollectOptions { uid, gid, pid, start_ticks, has_shim } = *options;
    become_user(uid, gid).context("the launcher alone starts collectors")?;
    ensure!(procfs::start_ticks(pid) == Some(start_ticks), "process {pid} has ended");
    let environment =
        procfs::environment(pid).with_context(|| format!("process {pid} may not be looked into"))?;
    adopt(&environment);
    end_with_stdin();
    if !has_shim && !is_wanted(pid, &environment) {
        return Ok(CollectEnd::NoJob);
    }
    session::collect(pid, start_ticks, has_shim)?;
    Ok(CollectEnd::Over)
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
        if let Some(value) = procfs::variable(environment, name) {
            // SAFETY: this process has one thread, as the caller promises.
            unsafe { std::env::set_var(name, OsStr::from_bytes(value)) };
        }
    }
}
