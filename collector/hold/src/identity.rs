//! The holder goes to where the job sees its files and becomes the job's user, before it opens anything of the job's. So does what
//! reads a Python stack, but that it stays where it is.

use crate::mounts;
use rustix::fs::{Mode, OFlags, fstat, open, stat};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, fchdir, getgid, getuid, pidfd_open,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, capabilities, move_into_link_name_space,
    set_capabilities, set_keep_capabilities, set_no_new_privs,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Leads to this process's descriptors by their numbers, once it is the job's user: its working folder, as a job's mounts may
/// have another /proc or none.
pub(crate) const DESCRIPTORS: &str = ".";

/// Who a process is, by the kernel's word.
#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Which files are seen afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Those that the job sees, as in its container.
    OfJob,
    /// The same as before; a job that sees others is refused.
    Own,
}

/// What the holder is to know of its job.
#[derive(Debug)]
pub struct Job {
    /// Becomes readable when it ends.
    pub(crate) ended: OwnedFd,
    /// Where it has file systems that this process does not see.
    pub(crate) unseen: Vec<PathBuf>,
    /// Its mounts were made by a user in a namespace of their own.
    pub(crate) are_users: bool,
    /// As many bytes of its files as this process may lock.
    pub(crate) lockable_bytes: u64,
}

/// Goes to the files that process `pid`, which began `start_ticks` after the boot, sees, becomes its user, who has to be `uid`, and
/// may lock so many bytes as that user. Root's privileges are gone afterwards, but for the right to lock memory where the limit of it
/// could not be raised.
///
/// # Errors
/// A sentence: the process has ended, is of several users or of another one, or sees files that this one may not go to.
pub fn become_user_of(
    pid: u32,
    start_ticks: u64,
    uid: u32,
    most_bytes: u64,
    files: Files,
) -> Result<Job, String> {
    let gone = || format!("process {pid} has ended");
    let raw = Pid::from_raw(pid as i32).ok_or_else(gone)?;
    let ended = pidfd_open(raw, PidfdFlags::NONBLOCK).map_err(|_| gone())?;
    // A name need not be UTF-8.
    let status = fs::read(format!("/proc/{pid}/status")).map_err(|_| gone())?;
    let user = User::of(&String::from_utf8_lossy(&status))?;
    // It may execute a set-uid program at any time, such as sudo, and by that have this process become root.
    if user.uid != uid {
        return Err(format!("process {pid} is not of user {uid}, or that user may not look into it"));
    }
    let mounts = mounts_of(pid).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => gone(),
        _ => format!("process {pid} may not be looked into ({error}); with sudo it may"),
    })?;
    // What was read is that process's, as it is still there now.
    if self::start_ticks(pid) != Some(start_ticks) {
        return Err(gone());
    }
    // If memory runs out, this goes before anything of the job's or of others.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let kept = if may_lock(most_bytes) { CapabilitySet::empty() } else { CapabilitySet::IPC_LOCK };
    let itself = "/proc/self/fd";
    let descriptors = open(itself, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let descriptors = descriptors.map_err(|error| format!("{itself} is not there: {error}"))?;
    if mounts.is_some() && files == Files::Own {
        return Err("the job sees other files than this program, as in a container".into());
    }
    let are_users = mounts.as_ref().is_some_and(mounts::are_users);
    if let Some(mounts) = mounts {
        move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(|error| {
            format!("the job sees other files, as in a container, and this program may not go there ({error}); with sudo it may")
        })?;
    }
    let mut unseen = Vec::new();
    if files == Files::OfJob {
        unseen = mounts::without_users(&descriptors, are_users)
            .map_err(|error| format!("nothing is held for process {pid}, as its mounts cannot be copied without those that users serve: {error}"))?;
        fchdir(&descriptors).map_err(|error| format!("{itself} may not be entered: {error}"))?;
    }
    user.take(kept).map_err(|error| format!("cannot become the job's user: {error}"))?;
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| format!("cannot be ended with its parent: {error}"))?;
    let limit = rustix::process::getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let is_free = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let lockable_bytes = if is_free { most_bytes } else { most_bytes.min(limit) };
    Ok(Job { ended, unseen, are_users, lockable_bytes })
}

/// The mounts of a process, where they are others than this one's. Its root folder does not matter: outside of it, /proc shows
/// what it has open by paths from the root of its mounts.
fn mounts_of(pid: u32) -> io::Result<Option<OwnedFd>> {
    let theirs = open(format!("/proc/{pid}/ns/mnt"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let own = stat("/proc/self/ns/mnt")?;
    let found = fstat(&theirs)?;
    Ok(((found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)).then_some(theirs))
}

impl User {
    fn of(status: &str) -> Result<User, String> {
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        // Real, effective, saved, and that of files.
        match (&numbers("Uid:")[..], &numbers("Gid:")[..]) {
            (&[uid, a, b, c], &[gid, d, e, f]) if [a, b, c] == [uid; 3] && [d, e, f] == [gid; 3] => {
                Ok(User { uid, gid, groups: numbers("Groups:") })
            }
            _ => Err("the job's process is of several users at once: nothing is held for it".into()),
        }
    }

    /// Of capabilities `kept` stay, as far as they are there.
    fn take(&self, kept: CapabilitySet) -> io::Result<()> {
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            // Else the change of user would take what is kept.
            set_keep_capabilities(true)?;
            let (uid, gid) = (self.uid, self.gid);
            // SAFETY: system calls on numbers, and the list outlives its call. There is one thread still.
            let done = unsafe {
                libc::setgroups(self.groups.len(), self.groups.as_ptr()) == 0
                    && libc::setresgid(gid, gid, gid) == 0
                    && libc::setresuid(uid, uid, uid) == 0
            };
            if !done {
                return Err(io::Error::last_os_error());
            }
            // Else a debugger of that user's would have a process that may lock more than theirs may.
            set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        }
        if (getuid().as_raw(), getgid().as_raw()) != (self.uid, self.gid) {
            return Err(io::Error::other("it is another user's; with sudo it can be done"));
        }
        let none = CapabilitySet::empty();
        let kept = kept & capabilities(None)?.permitted;
        set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })?;
        Ok(set_no_new_privs(true)?)
    }
}

/// Raises the limit of locked memory to what is asked for, else as far as it may be raised. `false`: it is less than that, as for
/// root of a container without CAP_SYS_RESOURCE.
fn may_lock(most_bytes: u64) -> bool {
    let wanted = Rlimit { current: Some(most_bytes), maximum: Some(most_bytes) };
    let is_raised = setrlimit(Resource::Memlock, wanted).is_ok();
    if !is_raised {
        let now = rustix::process::getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: now.maximum, maximum: now.maximum });
    }
    is_raised
}

fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    String::from_utf8_lossy(&stat).rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Reads of storage wait for those of everybody else, where its scheduler knows of such.
pub(crate) fn read_when_idle() {
    const WHO_PROCESS: libc::c_int = 1;
    const IDLE: libc::c_int = 3 << 13;
    // SAFETY: a system call on numbers, of this thread alone.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, IDLE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_process_of_one_user_is_that_users_with_all_groups() {
        let status = "Name:\tpython\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t8 27 100 \n";
        assert_eq!(User::of(status), Ok(User { uid: 7, gid: 8, groups: vec![8, 27, 100] }));
        for other in ["", "Uid:\t7\t0\t7\t7\nGid:\t8\t8\t8\t8\n", "Uid:\t7\t7\t7\t7\nGid:\t8\t8\t0\t8\n"] {
            assert!(User::of(other).is_err(), "{other}");
        }
    }

    #[test]
    fn who_has_ended_or_has_anothers_number_is_not_followed() {
        // Whatever its name.
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"sleep-\xc3"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut named = std::process::Command::new(program).arg("60").spawn().unwrap();
        let began = start_ticks(named.id());
        named.kill().and_then(|()| named.wait()).unwrap();
        assert!(began.is_some());
        let own = std::process::id();
        let ticks = start_ticks(own).expect("it has a beginning");
        assert!(mounts_of(own).is_ok_and(|mounts| mounts.is_none()));
        let uid = getuid().as_raw();
        let refused = |pid, ticks, uid| become_user_of(pid, ticks, uid, 0, Files::Own).unwrap_err();
        assert!(refused(own, ticks + 1, uid).ends_with("has ended"));
        assert!(refused(4_194_303, 1, uid).ends_with("has ended"));
        assert!(refused(own, ticks, uid + 1).contains("is not of user"));
    }
}
