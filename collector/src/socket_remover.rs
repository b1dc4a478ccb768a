//! Removes the socket of a collector that has given root away, and could not any more.
//!
//! A process of its own waits for the collector to end, in whatever way, as the owner of the socket's folder, without
//! capabilities and with the few system calls that this takes.

use crate::confine::{drop_all_capabilities, syscalls::allow_only};
use anyhow::{Context, Result, ensure};
use nix::unistd::{ForkResult, Gid, Pid, Uid, fork, setgroups, setresgid, setresuid, setsid};
use rustix::fs::{AtFlags, FileType, statat, unlinkat};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// What is left to it.
const SYSCALLS: [libc::c_long; 8] = [
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
];

pub(crate) struct SocketRemover {
    process: Pid,
    /// It waits for this to be closed.
    ours: OwnedFd,
}

impl SocketRemover {
    /// To be called while the process has one thread. `name`: of a socket in `folder`.
    ///
    /// # Errors
    /// There can't be a further process.
    pub(crate) fn start(folder: &OwnedFd, name: &OsStr) -> Result<SocketRemover> {
        let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let name = CString::new(name.as_bytes()).context("a socket's name has no zero byte")?;
        // SAFETY: this process has one thread, so that its copy finds no lock taken and may do what it likes.
        match unsafe { fork() }.context("cannot start what removes the socket")? {
            ForkResult::Parent { child } => Ok(SocketRemover { process: child, ours }),
            ForkResult::Child => {
                let done = wait_and_remove(&theirs, folder, &name);
                // SAFETY: ends this process and nothing of the other's: no destructor or exit handler runs.
                unsafe { libc::_exit(i32::from(done.is_err())) }
            }
        }
    }

    /// The socket is gone afterwards.
    pub(crate) fn remove(self) {
        drop(self.ours);
        let process = rustix::process::Pid::from_raw(self.process.as_raw());
        // It may have been ended meanwhile.
        let _ = rustix::process::waitpid(process, rustix::process::WaitOptions::empty());
    }
}

fn wait_and_remove(collector: &OwnedFd, folder: &OwnedFd, name: &CString) -> Result<()> {
    let socket = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    // Ctrl-C is for the collector.
    setsid()?;
    keep_open([collector.as_raw_fd(), folder.as_raw_fd()]);
    unmap_what_is_shared()?;
    let owner = rustix::fs::fstat(folder)?;
    let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    drop_all_capabilities()?;
    // Without it there is little that it could do.
    let _ = allow_only(&SYSCALLS);
    while matches!(rustix::io::read(collector, &mut [0; 1]), Err(rustix::io::Errno::INTR)) {}
    let now = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    // Another collector may have taken its place.
    if FileType::from_raw_mode(now.st_mode) == FileType::Socket
        && (now.st_dev, now.st_ino) == (socket.st_dev, socket.st_ino)
    {
        unlinkat(folder, name, AtFlags::empty())?;
    }
    Ok(())
}

/// The kernel side's accounts of tasks are mapped in the collector, and would be in here until its end: the owner of the
/// socket's folder may look into a process of theirs, and the maps would outlive the collector.
fn unmap_what_is_shared() -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("cannot tell what is mapped")?;
    for (start, end) in maps.lines().filter_map(shared_mapping) {
        // SAFETY: nothing in this process uses what it shares with others: its code, heap and stack are its own (`p`), and
        // the collector's objects, which refer to these, are neither used nor dropped in here.
        let done = unsafe { libc::munmap(start as *mut libc::c_void, end - start) };
        ensure!(done == 0, "cannot unmap what the collector has mapped: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// Where the mapping of a line of /proc/PID/maps begins and ends, if it is shared with others.
fn shared_mapping(line: &str) -> Option<(usize, usize)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let is_shared = rest.as_bytes().get(3) == Some(&b's');
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_shared.then_some((address(start)?, address(end)?))
}

/// Closes all other descriptors, which are to end with the process that this one is a copy of.
pub(crate) fn keep_open(mut kept: [i32; 2]) {
    kept.sort_unstable();
    let mut from = 0;
    for last in [kept[0] - 1, kept[1] - 1, i32::MAX] {
        if from <= last {
            // SAFETY: takes no pointers; nothing that is closed here is used in this process again.
            unsafe { libc::syscall(libc::SYS_close_range, from, last, 0) };
        }
        from = last.saturating_add(2);
    }
}
