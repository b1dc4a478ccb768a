//! Root by way of sudo: what belongs to the user stays the user's. The job runs as them, and files are made, found
//! and refused as if they had done it themselves.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use tokio::process::Command;

/// The user who called sudo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
    home: OsString,
    groups: Vec<libc::gid_t>,
}

impl Caller {
    /// `None` when we are not root, or root by another way.
    pub(crate) fn find() -> Option<Caller> {
        let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        let (uid, gid) = (number("SUDO_UID")?, number("SUDO_GID")?);
        if !rustix::process::geteuid().is_root() || uid == 0 {
            return None;
        }
        let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
        let entry = passwd
            .split(|byte| *byte == b'\n')
            .map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>())
            .find(|fields| fields.get(2).is_some_and(|field| *field == uid.to_string().as_bytes()));
        let field = |at: usize| entry.as_ref().and_then(|fields| fields.get(at)).map(|field| field.to_vec());
        let name = field(0).map(|name| String::from_utf8_lossy(&name).into_owned());
        let groups = groups_of(name.as_deref().unwrap_or_default(), gid);
        Some(Caller {
            uid,
            gid,
            name: name.unwrap_or_else(|| uid.to_string()),
            home: OsString::from_vec(field(5).unwrap_or_else(|| b"/".to_vec())),
            groups,
        })
    }

    /// Has `command` run as this user, with their groups and home.
    pub(crate) fn run(&self, command: &mut Command) {
        command.env("HOME", &self.home).env("USER", &self.name).env("LOGNAME", &self.name);
        let Caller { uid, gid, groups, .. } = self.clone();
        let change = move || {
            // SAFETY: `groups` lives in the closure and its length is given; the calls take nothing else.
            let done = unsafe {
                libc::setgroups(groups.len(), groups.as_ptr()) == 0
                    && libc::setgid(gid) == 0
                    && libc::setuid(uid) == 0
            };
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: the closure runs between fork and exec and makes three system calls: nothing in it allocates or
        // takes a lock.
        unsafe { command.pre_exec(change) };
    }
}

/// From here on this thread, and those it starts, make and open files as the caller of sudo would, so that root
/// follows no path that the caller could not follow. Other privileges stay. Does nothing without sudo.
pub fn open_files_as_caller_of_sudo() {
    if let Some(Caller { uid, gid, .. }) = Caller::find() {
        // SAFETY: both calls take a number and change only this thread's identity towards file systems.
        unsafe {
            libc::setfsgid(gid);
            libc::setfsuid(uid);
        }
    }
}

fn groups_of(name: &str, gid: u32) -> Vec<libc::gid_t> {
    let Ok(name) = CString::new(name) else { return vec![gid] };
    let mut groups = vec![gid; 256];
    let mut count = groups.len() as libc::c_int;
    // SAFETY: `name` ends with a zero byte, and `count` tells how many numbers fit into `groups`.
    let found = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    groups.truncate(if found < 0 { 1 } else { count as usize });
    groups
}
