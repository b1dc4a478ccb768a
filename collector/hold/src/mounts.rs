//! The job's mounts, as the holder sees them: a copy in which nothing changes any more, without file systems that are served, or not, by
//! a process of a user's.
//!
//! Who waits for the answer of such a server cannot be killed, and keeps what it has locked in memory for as long. With a link, or a
//! mount, a user may lead any path there.

use crate::locked::{FUSE_MAGIC, MAGICS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, openat, stat};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// More is no table of mounts that a job needs.
const MOST_BYTES: u64 = 4 << 20;
/// Mounts lie upon each other.
const PASSES: u32 = 8;
/// From linux/nsfs.h.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// Whether these mounts are of another user namespace than this process, whose user has made what is new among them.
pub(crate) fn are_users(mounts: &OwnedFd) -> bool {
    let own = stat("/proc/self/ns/user").map(|own| own.st_ino);
    // SAFETY: the descriptor that it returns is nobody else's.
    let theirs = match unsafe { libc::ioctl(mounts.as_raw_fd(), NS_GET_USERNS) } {
        ..0 => return true,
        // SAFETY: as above.
        raw => unsafe { OwnedFd::from_raw_fd(raw) },
    };
    fstat(&theirs).map(|theirs| theirs.st_ino) != own
}

/// Goes to such a copy, where this process may; to be called while it has one thread. `descriptors`: its own in /proc. `are_users`: as
/// above. Returns where something is not seen any more.
///
/// # Errors
/// There are such file systems that cannot be taken out.
pub(crate) fn without_users(descriptors: &OwnedFd, are_users: bool) -> io::Result<Vec<PathBuf>> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SYS_ADMIN) {
        // It is the job's user by itself, and locks what that user may lock anyway.
        return Ok(Vec::new());
    }
    // SAFETY: of mounts alone; descriptors stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let mut out = Vec::new();
    for _ in 0..PASSES {
        let points = of_users(&table(descriptors)?, are_users);
        if points.is_empty() {
            return Ok(out);
        }
        for point in points {
            // What was not taken out is found again.
            let _ = unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            out.push(point);
        }
    }
    Err(io::Error::other("it sees a file system that a user serves, and that cannot be kept out of sight"))
}

fn table(descriptors: &OwnedFd) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    read(&File::from(openat(descriptors, "../mountinfo", flags, Mode::empty())?))
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut table = Vec::new();
    match file.take(MOST_BYTES).read_to_end(&mut table)? as u64 {
        MOST_BYTES => Err(io::Error::other("it sees too many mounts")),
        _ => Ok(table),
    }
}

/// A mount's number, its place, still escaped, and its file system.
fn lines(table: &[u8]) -> impl Iterator<Item = (u64, &[u8], &[u8])> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let number = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let point = fields.nth(3)?;
        fields.find(|field| *field == b"-")?;
        Some((number, point, fields.next()?))
    })
}

/// FUSE, and an overlay that a user has made, of whatever: a user's process serves it.
fn is_users(kind: &[u8], are_users: bool) -> bool {
    kind.starts_with(b"fuse") && kind != b"fusectl" || are_users && kind == b"overlay"
}

fn of_users(table: &[u8], are_users: bool) -> Vec<PathBuf> {
    let theirs = lines(table).filter(|(_, _, kind)| is_users(kind, are_users));
    theirs.map(|(_, point, _)| Path::new(OsStr::from_bytes(&unescaped(point))).to_owned()).collect()
}

/// Which file system each mount is of, by the kernel's word alone: to ask a file system itself is to wait for it.
///
/// A mount that a user has led out of sight by a rename, and may lead back into it, is not in the table; one that is there keeps its
/// number for as long as a descriptor of it is open.
#[derive(Debug)]
pub(crate) struct Mounts {
    table: File,
    are_users: bool,
    kinds: HashMap<u64, i64>,
}

impl Mounts {
    pub(crate) fn new(descriptors: &Path, are_users: bool) -> io::Result<Mounts> {
        let table = File::open(descriptors.join("../mountinfo"))?;
        let mut mounts = Mounts { table, are_users, kinds: HashMap::new() };
        mounts.read();
        Ok(mounts)
    }

    fn read(&mut self) {
        let table = self.table.rewind().and_then(|()| read(&self.table)).unwrap_or_default();
        let kind = |name: &[u8]| match is_users(name, self.are_users) || name == b"virtiofs" {
            true => FUSE_MAGIC,
            false => MAGICS.iter().find(|(known, _)| known.as_bytes() == name).map_or(0, |(_, magic)| *magic),
        };
        self.kinds = lines(&table).map(|(number, _, name)| (number, kind(name))).collect();
    }

    /// As in linux/magic.h, of a mount of which a descriptor is open; zero: of none that is known. `None`: it is not among those that
    /// this process sees.
    pub(crate) fn kind(&mut self, number: u64) -> Option<i64> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Something was mounted or unmounted: another one may have the number.
        let changed = poll(&mut [PollFd::new(&self.table, PollFlags::PRI)], Some(&now));
        if changed != Ok(0) {
            self.read();
        }
        self.kinds.get(&number).copied()
    }
}

/// Blanks and backslashes are written as three octal digits: `\040`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(byte) = field.get(at) {
        let digits = field.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let value = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(*byte));
        at += if value.is_some() { 4 } else { 1 };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_users_serve_are_found() {
        let table = b"28 0 0:31 / / rw - overlay overlay rw\n\
            36 28 8:17 / /data rw - ext4 /dev/sdb1 rw\n\
            50 28 0:60 / /a\\040b ro propagate_from:3 - fuse.sshfs slow rw\n\
            51 28 0:61 / /c rw - fuse c rw\n52 28 0:62 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n\nx\n";
        assert_eq!(of_users(table, false), ["/a b", "/c"].map(PathBuf::from));
        assert_eq!(of_users(table, true), ["/", "/a b", "/c"].map(PathBuf::from));
        let numbers: Vec<(u64, &[u8])> = lines(table).map(|(number, _, kind)| (number, kind)).collect();
        assert_eq!((numbers.len(), numbers[1]), (5, (36, &b"ext4"[..])));
    }
}
