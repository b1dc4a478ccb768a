//! Leases (fcntl(2), F_SETLEASE): who opens a file breaks another's lease on it, which sends that process a signal that may end it.

use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek};

/// Of the kernel's table of locks; where it is longer a lease may be anywhere.
const MOST_BYTES: u64 = 1 << 20;

/// The kernel's table of locks, as of when this process had the machine's own /proc in sight.
#[derive(Debug)]
pub(crate) struct Leases(File);

impl Leases {
    pub(crate) fn open() -> Result<Leases, Errno> {
        File::open("/proc/locks")
            .map(Leases)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Whether somebody may have one on a file of that number, of any file system: that of overlayfs has another device than its files.
    pub(crate) fn may_be_on(&mut self, inode: u64) -> bool {
        let mut table = Vec::new();
        let read = self.0.rewind().and_then(|()| (&self.0).take(MOST_BYTES).read_to_end(&mut table));
        !read.is_ok_and(|bytes| (bytes as u64) < MOST_BYTES)
            || has_lease(&String::from_utf8_lossy(&table), inode)
    }
}

/// `1: LEASE  ACTIVE    WRITE 2083 fe:00:1311 0 EOF`
fn has_lease(table: &str, inode: u64) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_lease = fields.next() == Some("LEASE");
        let file = fields.find_map(|field| field.rsplit_once(':'));
        is_lease && file.is_none_or(|(_, number)| number.parse() == Ok(inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, write};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn leases_are_found_and_other_locks_are_none() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 1);
        let file = File::options().write(true).open(&path).unwrap();
        let inode = file.metadata().unwrap().ino();
        let mut leases = Leases::open().unwrap();
        file.lock().unwrap();
        assert!(!leases.may_be_on(inode));
        // SAFETY: a system call on a descriptor that is open.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
        assert!(leases.may_be_on(inode) && !leases.may_be_on(inode + 1));
    }
}
