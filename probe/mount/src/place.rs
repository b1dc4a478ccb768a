//! Where a pack is mounted: what may be a place, and how a mount ends.

use crate::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `/proc/mounts` has for the type of such a mount.
pub const FS_TYPE: &str = "fuse.stallscope-pack";

/// An empty folder, held open: what was looked at is what is mounted on, whatever its path leads to by then.
#[derive(Debug)]
pub struct Place {
    pub(crate) folder: OwnedFd,
    /// As the user named it, absolute.
    pub(crate) path: PathBuf,
}

impl Place {
    /// # Errors
    /// It is not there, no folder, not empty, or belongs to another user than `owner`, where that is asked for.
    pub fn of(path: &Path, owner: Option<u32>) -> Result<Place> {
        let shown = path.display();
        let refused = |sentence: String| Err(Error::Refused(sentence));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(rustix::io::Errno::NOENT) => {
                return refused(format!("there is no folder {shown}; make it first: mkdir -p {shown}"));
            }
            Err(rustix::io::Errno::NOTDIR) => {
                return refused(format!("{shown} is no folder; name an empty one"));
            }
            Err(rustix::io::Errno::NOTCONN) => {
                return refused(format!(
                    "at {shown} is a mount whose server has ended: `stallscope pack unmount {shown}` removes it"
                ));
            }
            Err(error) => return refused(format!("cannot open {shown}: {error}")),
        };
        if mounted_at(&folder).is_some_and(|mount| mount.is_pack && mount.is_at(path)) {
            return refused(format!(
                "a pack is mounted on {shown} already: `stallscope pack unmount {shown}` ends that"
            ));
        }
        let found = rustix::fs::fstat(&folder).map(|found| found.st_uid).unwrap_or(0);
        if owner.is_some_and(|owner| owner != found) {
            return refused(format!(
                "{shown} is not yours: with sudo a pack is mounted on your own folders, or by root itself (sudo -i)"
            ));
        }
        let mut entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return refused(format!("cannot list {shown}: {error}")),
        };
        if entries.next().is_some() {
            return refused(format!(
                "{shown} is not empty, and a mount would hide what it has: name an empty folder, or use `run --pack`"
            ));
        }
        match std::path::absolute(path) {
            Ok(path) => Ok(Place { folder, path }),
            Err(error) => refused(format!("cannot find {shown}: {error}")),
        }
    }
}

/// Ends the mount of a pack. Files that are open can be read to their end; then its server ends.
///
/// # Errors
/// No pack is mounted there, or it is another user's.
pub fn unmount(path: &Path) -> Result<()> {
    let shown = path.display();
    let none = || {
        Error::Refused(format!("no pack is mounted on {shown}; `findmnt -t {FS_TYPE}` lists those that are"))
    };
    // Of a mount whose server was killed, a descriptor is all that can be had.
    let folder = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|_| none())?;
    let mount = mounted_at(&folder).filter(|mount| mount.is_pack).ok_or_else(none)?;
    if !mount.is_at(path) {
        return Err(none());
    }
    // The descriptor holds what was looked at; with its path anything could be there by now.
    let held = format!("/proc/self/fd/{}", folder.as_raw_fd());
    match rustix::mount::unmount(held.as_str(), UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            drop(folder);
            by_helper(path)
        }
        Err(error) => Err(Error::Refused(format!("cannot unmount {shown}: {error}"))),
    }
}

fn by_helper(path: &Path) -> Result<()> {
    let output = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(path).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Refused(format!("cannot unmount {}: {why}", path.display())))
        }
        Err(_) => Err(Error::Refused(format!(
            "unmounting {} takes root, or fusermount3 (package fuse3)",
            path.display()
        ))),
    }
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug)]
struct MountLine {
    point: PathBuf,
    is_pack: bool,
}

impl MountLine {
    /// Whether this path is the mount's own folder rather than one below it.
    fn is_at(&self, path: &Path) -> bool {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let named = path.file_name().and_then(|name| {
            // The folder itself may not answer any more.
            Some(parent.unwrap_or_else(|| Path::new(".")).canonicalize().ok()?.join(name))
        });
        named.is_some_and(|named| named == self.point)
            || path.canonicalize().is_ok_and(|path| path == self.point)
    }
}

/// The mount that an open folder lies in.
fn mounted_at(folder: &OwnedFd) -> Option<MountLine> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", folder.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().to_owned();
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let line = table
        .split(|byte| *byte == b'\n')
        .find(|line| line.split(|byte| *byte == b' ').next() == Some(id.as_bytes()))?;
    let mut fields = line.split(|byte| *byte == b' ');
    let point = PathBuf::from(OsStr::from_bytes(&unescaped(fields.nth(4)?)));
    fields.find(|field| *field == b"-")?;
    Some(MountLine { point, is_pack: fields.next()? == FS_TYPE.as_bytes() })
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
    fn blanks_in_paths_come_back() {
        assert_eq!(unescaped(br"/mnt/a\040b\134c\x"), br"/mnt/a b\c\x");
        assert_eq!(unescaped(b"/mnt/\xff\\"), b"/mnt/\xff\\");
    }
}
