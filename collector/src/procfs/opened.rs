//! A process whose folder in /proc is open: what is read of it is of this one, or of none once it has ended, whatever process has
//! its number by then.

use super::{MOST_BYTES, file};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, openat, readlinkat, statat, statx};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;

#[derive(Debug)]
pub(crate) struct Opened {
    folder: OwnedFd,
}

impl Opened {
    /// `None`: it is gone, or another user's than `uid`.
    pub(crate) fn of(pid: u32, uid: u32) -> Option<Opened> {
        let itself = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = Opened { folder: rustix::fs::open(file(pid, ""), itself, Mode::empty()).ok()? };
        opened.is_of(uid).then_some(opened)
    }

    fn is_of(&self, uid: u32) -> bool {
        fstat(&self.folder).is_ok_and(|found| found.st_uid == uid)
    }

    /// Whether it is a process of this user still, and one that they may look into. The kernel says so by the owners of such files,
    /// at each question anew: of what has gained rights, as a set-uid program has, they are root's.
    pub(crate) fn is_open_to(&self, uid: u32) -> bool {
        let within = statat(&self.folder, "environ", AtFlags::SYMLINK_NOFOLLOW);
        self.is_of(uid) && within.is_ok_and(|found| found.st_uid == uid)
    }

    pub(crate) fn open(&self, name: &str) -> Option<File> {
        let opened = openat(&self.folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.ok().map(File::from)
    }

    pub(crate) fn beginning(&self, name: &str, most_bytes: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.take(most_bytes).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.beginning(name, MOST_BYTES).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn link(&self, name: &str) -> Option<OsString> {
        let link = readlinkat(&self.folder, name, Vec::new()).ok()?;
        Some(OsString::from_vec(link.into_bytes()))
    }

    /// The size of the file behind such a link if it is a plain one, by what is known of it already: no server is asked.
    pub(crate) fn plain_bytes(&self, name: &str) -> Option<u64> {
        let wanted = StatxFlags::TYPE | StatxFlags::SIZE;
        let found = statx(&self.folder, name, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        (kind == FileType::RegularFile).then_some(found.stx_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::staged::Staged;

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_process_is_read_until_it_ends_and_no_other_in_its_place() {
        let child = Staged::new(|| {});
        let opened = Opened::of(child.0, own_uid()).expect("it is this user's");
        assert!(opened.text("stat").is_some_and(|stat| stat.starts_with(&format!("{} (", child.0))));
        assert!(Opened::of(child.0, own_uid() + 1).is_none(), "another user's");
        drop(child);
        assert!(opened.text("stat").is_none() && opened.link("cwd").is_none());
    }

    #[test]
    fn what_its_own_user_may_not_look_into_is_not_open_to_them() {
        let child = Staged::new(|| {
            // SAFETY: of the child alone.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        });
        let opened = Opened::of(child.0, own_uid()).expect("it is this user's");
        assert_eq!(opened.is_open_to(own_uid()), own_uid() == 0, "root may look into every process");
    }

    #[test]
    fn one_that_has_become_another_users_is_not_open_any_more() {
        if own_uid() != 0 {
            return;
        }
        // It stops as this user, and becomes another when it goes on.
        let child = Staged::that_goes_on(|| {
            // SAFETY: system calls, in the child alone.
            unsafe {
                libc::syscall(libc::SYS_setresuid, 65_001, 65_001, 65_001);
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
            }
        });
        let opened = Opened::of(child.0, 0).expect("it is root's");
        child.go_on();
        assert!(!opened.is_open_to(0) && opened.is_open_to(65_001));
    }
}
