//! The job's mounts, as the holder sees them: a copy in which nothing changes any more, without file systems that are served, or not, by
//! a process of a user's.
//!
//! Who waits for the answer of such a server cannot be killed, and keeps what it has locked in memory for as long. With a link, or a
//! mount, a user may lead any path there.

use rustix::fs::{Mode, OFlags, fstat, openat, stat};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
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
    let mut table = Vec::new();
    let file = File::from(openat(descriptors, "../mountinfo", flags, Mode::empty())?);
    match file.take(MOST_BYTES).read_to_end(&mut table)? as u64 {
        MOST_BYTES => Err(io::Error::other("it sees too many mounts")),
        _ => Ok(table),
    }
}

/// Places of file systems that a user's process serves: FUSE, and an overlay that a user has made, of whatever.
fn of_users(table: &[u8], are_users: bool) -> Vec<PathBuf> {
    let point = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = unescaped(fields.nth(4)?);
        fields.find(|field| *field == b"-")?;
        let kind = fields.next()?;
        let is_fuse = kind.starts_with(b"fuse") && kind != b"fusectl";
        let is_one = is_fuse || are_users && kind == b"overlay";
        is_one.then(|| Path::new(OsStr::from_bytes(&point)).to_owned())
    };
    table.split(|byte| *byte == b'\n').filter_map(point).collect()
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
    }
}
