//! One job's session of the node: a controller for as long as the service wants it and the job lasts. It is the job's user's
//! process, and can do nothing that `stallscope tune JOB --act` of that user could not.

use super::Start;
use crate::acting::{self, Acted};
use crate::confine::drop_all_capabilities;
use crate::{procfs, runtime};
use anyhow::{Context, Result, bail, ensure};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use stallscope_model::{Budgets, TuneMode};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A session that was asked to end and has not by then ends at once: more than undoing what was not proven takes.
const ENDS_WITHIN: Duration = Duration::from_secs(15);
/// Beside as many of one user as there may be, all of them busy, the kernel gives the service three times what it takes for 1,000 jobs;
/// beside a busy loader worker it gives one of these several times what it takes.
const NICE: i32 = 10;
/// As which verb the program is a session.
const VERB: &str = "node-session";

/// What a session is started with. In words of numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The job's user and group, whom the session becomes.
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    /// When that process began: its number may be another's by now.
    pub start_ticks: u64,
    pub acts: bool,
    /// Workers may be added on cores that others need, too.
    pub all_cores: bool,
    /// The policy's rule.
    pub rule: u32,
    /// Most that the job's caches may be raised to.
    pub cache_bytes: u64,
    /// Of training, what saves may cost at most, in millionths; 0: what the script says.
    pub checkpoint_ppm: u32,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    JobEnded,
    /// It could not begin: the job refused, or is not there.
    Failed,
    /// By a signal of its user's or because nobody wants it any more.
    Stopped,
}

impl SessionEnd {
    pub fn code(self) -> u8 {
        match self {
            SessionEnd::JobEnded => 0,
            SessionEnd::Failed => 1,
            SessionEnd::Stopped => 3,
        }
    }

    pub(crate) fn of_code(code: i32) -> SessionEnd {
        let all = [SessionEnd::JobEnded, SessionEnd::Stopped];
        all.into_iter().find(|end| i32::from(end.code()) == code).unwrap_or(SessionEnd::Failed)
    }
}

impl SessionOptions {
    pub(super) fn of(start: &Start, gid: u32) -> SessionOptions {
        let Start { uid, pid, start_ticks, acts, all_cores, rule, cache_bytes, checkpoint_ppm, .. } = *start;
        SessionOptions { uid, gid, pid, start_ticks, acts, all_cores, rule, cache_bytes, checkpoint_ppm }
    }

    pub(super) fn words(&self) -> [String; 10] {
        let mode = if self.acts { "act" } else { "advise" };
        [
            VERB.into(),
            self.pid.to_string(),
            self.start_ticks.to_string(),
            mode.into(),
            self.rule.to_string(),
            self.cache_bytes.to_string(),
            self.uid.to_string(),
            self.gid.to_string(),
            self.checkpoint_ppm.to_string(),
            if self.all_cores { "all" } else { "idle" }.into(),
        ]
    }
}

/// Tunes the job until it ends, a signal comes, or stdin does.
///
/// # Errors
/// There is no such job of this user, it has a controller already, or the launcher did not start this process.
pub fn session(options: &SessionOptions) -> Result<SessionEnd> {
    let SessionOptions { uid, gid, pid, start_ticks, acts, all_cores, rule, cache_bytes, checkpoint_ppm } =
        *options;
    become_user(uid, gid).context("the launcher alone starts sessions")?;
    ensure!(procfs::start_ticks(pid) == Some(start_ticks), "process {pid} has ended");
    let socket = runtime::socket_of(pid).context("the job has no shim")?;
    // Open for as long as it is on the way to the socket.
    let (_folder, socket) = reached_from_here(pid, socket)?;
    end_with_stdin()?;
    let mode = if acts { TuneMode::Act } else { TuneMode::Advise };
    let checkpoint_overhead = Some(f64::from(checkpoint_ppm) / 1e6).filter(|share| *share > 0.0);
    let budgets = Budgets {
        cache_bytes: Some(cache_bytes),
        checkpoint_overhead,
        spare_cores_only: !all_cores,
        ..Budgets::default()
    };
    Ok(match acting::tune(&socket, mode, budgets, Some(rule), &mut |_| {})? {
        Acted::JobEnded => SessionEnd::JobEnded,
        Acted::ByUser(_) => SessionEnd::Stopped,
    })
}

/// The `socket` that process `pid` names, by a path that leads there from here through the folder that is opened. The process may have
/// another root and other mounts, as in a container, where the same path leads to nothing here, or to another job's socket.
fn reached_from_here(pid: u32, socket: PathBuf) -> Result<(Option<OwnedFd>, PathBuf)> {
    let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
        bail!("{} names no socket", socket.display())
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())
        .with_context(|| format!("process {pid} may not be looked into"))?;
    match rustix::fs::openat2(&root, parent, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        Ok(folder) => {
            let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            Ok((Some(folder), path))
        }
        // Before Linux 5.6, or under a filter of before.
        Err(Errno::NOSYS | Errno::PERM) => Ok((None, socket)),
        Err(error) => {
            Err(error).with_context(|| format!("the job's folder {} cannot be opened", parent.display()))
        }
    }
}

/// Once the program runs, and not before it is executed: an execution would open the process to its user's debuggers, who would
/// then have a process outside of the control groups and limits that were set for them.
pub(super) fn become_user(uid: u32, gid: u32) -> Result<()> {
    ensure!(uid != 0, "a session is never root's");
    // Where there is no memory left, it goes before the service, which all users' jobs have.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    // And where the unit's CPU time (`CPUQuota=`) is used up by what one user keeps busy.
    let _ = rustix::process::nice(NICE);
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // It connects to a socket of the user's own, and needs none of their further groups.
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    drop_all_capabilities()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// The launcher, which may not send signals to processes of others, holds the other end.
///
/// # Errors
/// No thread can be made: its user may have no more of them. What nobody could end does not begin.
pub(super) fn end_with_stdin() -> Result<()> {
    let waits = || {
        let mut bytes = [0; 64];
        while std::io::stdin().read(&mut bytes).is_ok_and(|read| read > 0) {}
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        // What it waits for may be a process of the job's user, which need not answer.
        std::thread::sleep(ENDS_WITHIN);
        // SAFETY: a system call; nothing of this process is to be written or undone any more.
        unsafe { libc::_exit(3) }
    };
    std::thread::Builder::new()
        .name("end".into())
        .spawn(waits)
        .context("no thread can be made to end it by")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// In a process of its own, which becomes a user's that may have no more of them.
    fn ends_without_threads() -> bool {
        let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: a number.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) }, 0);
        become_user(65_015, 65_015).unwrap();
        end_with_stdin().is_err_and(|error| error.to_string().contains("no thread"))
    }

    #[test]
    fn a_session_that_nobody_could_end_does_not_begin() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: a_session_that_nobody_could_end_does_not_begin takes root");
            return;
        }
        // SAFETY: the child finds the memory of this thread alone in use, and the allocator as it is after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ended = std::panic::catch_unwind(ends_without_threads).unwrap_or(false);
            // SAFETY: ends the child without anything of this process being run.
            unsafe { libc::_exit(i32::from(!ended)) };
        }
        let child = rustix::process::Pid::from_raw(child).unwrap();
        let (_, status) =
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
