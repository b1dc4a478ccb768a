//! Where a pack is mounted: what may be a place, and how a mount ends.

use crate::{Error, Result};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use stallscope_folder::{Blocked, Folder};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `/proc/mounts` has for the type of such a mount.
pub const FS_TYPE: &str = "fuse.stallscope-pack";

const ITSELF: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

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
        let folder = match Folder::open(path) {
            Ok(folder) => OwnedFd::from(folder),
            Err(Blocked::AnothersLink) => return Err(anothers_link(path)),
            Err(Blocked::System(Errno::NOENT)) => {
                return refused(format!("there is no folder {shown}; make it first: mkdir -p {shown}"));
            }
            Err(Blocked::System(Errno::NOTDIR)) => {
                return refused(format!("{shown} is no folder; name an empty one"));
            }
            Err(Blocked::System(error)) => return refused(format!("cannot open {shown}: {error}")),
        };
        if mounted_at(&folder).is_some_and(|mount| mount.is_pack && mount.begins_at(&folder)) {
            return refused(format!(
                "a pack is mounted on {shown} already: `stallscope pack unmount {shown}` ends that"
            ));
        }
        let list = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = rustix::fs::openat(&folder, ".", list, Mode::empty()).and_then(Dir::new);
        let mut entries = match entries {
            Ok(entries) => entries.flatten(),
            Err(Errno::NOTCONN) => {
                return refused(format!(
                    "at {shown} is a mount whose server has ended: `umount {shown}` removes it"
                ));
            }
            Err(error) => return refused(format!("cannot list {shown}: {error}")),
        };
        let found = rustix::fs::fstat(&folder).map(|found| found.st_uid);
        if owner.is_some_and(|owner| found != Ok(owner)) {
            return refused(format!(
                "{shown} is not yours: with sudo a pack is mounted on your own folders, or by root itself (sudo -i)"
            ));
        }
        if entries.any(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")) {
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
    let folder = match Folder::open(path) {
        Ok(folder) => OwnedFd::from(folder),
        Err(Blocked::AnothersLink) => return Err(anothers_link(path)),
        Err(Blocked::System(_)) => return Err(none()),
    };
    mounted_at(&folder).filter(|mount| mount.is_pack && mount.begins_at(&folder)).ok_or_else(none)?;
    match detach(&folder) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            drop(folder);
            by_helper(path)
        }
        Err(error) => Err(Error::Refused(format!("cannot unmount {shown}: {error}"))),
    }
}

/// Its maker could have any pack's mount ended, or any empty folder covered.
fn anothers_link(path: &Path) -> Error {
    Error::Refused(format!("another user's link leads to {}; name the folder itself", path.display()))
}

/// A descriptor holds what was looked at; with its path anything could be there by now.
fn detach(folder: &OwnedFd) -> Result<(), Errno> {
    rustix::mount::unmount(itself(folder).as_path(), UnmountFlags::DETACH)
}

fn itself(folder: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", folder.as_raw_fd()).into()
}

/// Where a mount is that this process has made, whatever its path leads to by then.
#[derive(Debug)]
pub(crate) struct Point {
    /// The folder around it, and its name there.
    around: OwnedFd,
    name: OsString,
    mount: Vec<u8>,
    path: PathBuf,
}

impl Point {
    /// The newest mount at a place.
    pub(crate) fn of(place: &Place) -> Option<Point> {
        let around = rustix::fs::openat(&place.folder, "..", ITSELF, Mode::empty()).ok()?;
        // While something is mounted on it, it cannot be renamed.
        let name = std::fs::read_link(itself(&place.folder)).ok()?.file_name()?.to_owned();
        let mut point = Point { around, name, mount: Vec::new(), path: place.path.clone() };
        point.mount = mounted_at(&point.there().ok()?).filter(|mount| mount.is_pack)?.number;
        Some(point)
    }

    fn there(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.around, &self.name, ITSELF, Mode::empty())
    }

    /// Ends this mount and none that is there in its place.
    pub(crate) fn end(&self) -> Result<()> {
        let shown = self.path.display();
        let there = self.there().ok().filter(|there| {
            mounted_at(there).is_some_and(|mount| mount.is_pack && mount.number == self.mount)
        });
        let there = there.ok_or_else(|| Error::Refused(format!("the mount on {shown} has ended already")))?;
        detach(&there).map_err(|error| Error::Refused(format!("cannot unmount {shown}: {error}")))
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
    number: Vec<u8>,
    point: PathBuf,
    is_pack: bool,
}

impl MountLine {
    /// Whether this is the mount's own folder rather than one below it. It may not answer any more: the kernel alone is asked.
    fn begins_at(&self, folder: &OwnedFd) -> bool {
        std::fs::read_link(itself(folder)).is_ok_and(|path| path == self.point)
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
    let number = id.into_bytes();
    Some(MountLine { number, point, is_pack: fields.next()? == FS_TYPE.as_bytes() })
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
