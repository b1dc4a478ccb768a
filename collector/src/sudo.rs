//! Root by way of sudo: what belongs to the user stays the user's. The job runs as them, and files are made, found
//! and refused as if they had done it themselves.

use nix::unistd::{Gid, Uid, User, getgrouplist, setfsgid, setfsuid, setgid, setgroups, setuid};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The user who called sudo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) name: String,
    gid: Gid,
    pub(crate) home: PathBuf,
    groups: Vec<Gid>,
}

impl Caller {
    /// `None` when we are not root, or root by another way. Asks the sources of users that nsswitch.conf names, as
    /// sudo itself did: on clusters most users are in a directory service and not in /etc/passwd.
    pub(crate) fn find() -> Option<Caller> {
        let (uid, gid) = caller_of_sudo()?;
        let user = User::from_uid(uid).ok().flatten();
        // What sudo calls them serves where the directory service cannot be reached any more.
        let name = user.as_ref().map(|user| user.name.clone()).or_else(|| std::env::var("SUDO_USER").ok());
        let name = name.unwrap_or_else(|| uid.to_string());
        let groups = CString::new(name.as_str()).ok().and_then(|name| getgrouplist(&name, gid).ok());
        Some(Caller {
            uid: uid.as_raw(),
            name,
            gid,
            home: user.map_or_else(|| PathBuf::from("/"), |user| user.dir),
            groups: groups.unwrap_or_else(|| vec![gid]),
        })
    }

    /// Has `command` run as this user, with their groups and home.
    pub(crate) fn run(&self, command: &mut Command) {
        command.env("HOME", &self.home).env("USER", &self.name).env("LOGNAME", &self.name);
        let (uid, gid, groups) = (Uid::from_raw(self.uid), self.gid, self.groups.clone());
        let change = move || {
            setgroups(&groups)?;
            setgid(gid)?;
            setuid(uid)?;
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec and makes three system calls: nothing in it allocates or
        // takes a lock.
        unsafe { command.pre_exec(change) };
    }
}

/// Uid of the user who called sudo; `None` when we are not root, or root by another way.
pub fn caller_uid() -> Option<u32> {
    caller_of_sudo().map(|(uid, _)| uid.as_raw())
}

/// Does `work`, with files made, found and refused as for the owner of `folder`, where we are root. Of this thread alone.
pub(crate) fn as_owner<T>(folder: &OwnedFd, work: impl FnOnce() -> T) -> T {
    let owner =
        rustix::fs::fstat(folder).ok().filter(|owner| owner.st_uid != 0 && Uid::effective().is_root());
    let Some(owner) = owner else { return work() };
    let gid_before = setfsgid(Gid::from_raw(owner.st_gid));
    let uid_before = setfsuid(Uid::from_raw(owner.st_uid));
    let done = work();
    setfsuid(uid_before);
    setfsgid(gid_before);
    done
}

/// Opens what root alone may open, where [`open_files_as_caller_of_sudo`] would not. Of this thread alone.
pub(crate) fn as_root<T>(work: impl FnOnce() -> T) -> T {
    if !Uid::effective().is_root() {
        return work();
    }
    let before = setfsuid(Uid::from_raw(0));
    let done = work();
    setfsuid(before);
    done
}

/// From here on this thread, and those it starts, make and open files as the caller of sudo would, so that root
/// follows no path that the caller could not follow. Other privileges stay. Does nothing without sudo.
pub fn open_files_as_caller_of_sudo() {
    if let Some(caller) = Caller::find() {
        // Root's groups would open what the caller's do not. A container may forbid to change them.
        let _ = setgroups(&caller.groups);
        setfsgid(caller.gid);
        setfsuid(Uid::from_raw(caller.uid));
    }
}

fn caller_of_sudo() -> Option<(Uid, Gid)> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let (uid, gid) = (Uid::from_raw(number("SUDO_UID")?), Gid::from_raw(number("SUDO_GID")?));
    (Uid::effective().is_root() && !uid.is_root()).then_some((uid, gid))
}
