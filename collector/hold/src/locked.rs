//! One file's beginning, brought into the page cache and locked there.
//!
//! Nothing here reads through the mapping: who truncates the file would end such a reader by SIGBUS. The kernel brings the pages
//! in for `pread`, and `mlock` on what is gone is an error. Whether so much may be locked is asked before anything is read.

use rustix::fs::{
    Advice, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fadvise, fstat, fstatfs, openat2,
    statat,
};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};
use rustix::mm::{MapFlags, MlockFlags, ProtFlags, mlock, mlock_with, mmap, munmap};
use std::ffi::c_void;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is read at once: between two pieces the holder may be asked to stop.
const PIECE: usize = 1 << 20;
/// Less than that of a file, where there is no headroom for all of it, is not worth it.
pub(crate) const LEAST_PART: u64 = 4 << 20;

/// Never asked where this process may keep out of its sight.
pub(crate) const FUSE: &str = "FUSE, which may forget what it has at each open";

/// Pages in memory for as long as this is.
#[derive(Debug)]
pub(crate) struct Locked {
    at: *mut c_void,
    pub(crate) bytes: u64,
    identity: Identity,
}

// SAFETY: it is an address of this process, which no one reads or writes through.
unsafe impl Send for Locked {}

/// Which file it is, and in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    dev: u64,
    ino: u64,
    size: i64,
    written: (i64, u64),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not now: it does not fit.
    Full,
    /// The kernel allows no more locked memory, or mappings.
    Limit,
    /// Not now: the job has it mapped or is reading it, or what was written to it is not on the disk yet.
    Used,
    /// Never: it is gone, no plain file, or not to be read by this user.
    File,
    /// Never, and none of its file system.
    FileSystem(&'static str),
}

/// Where bytes are asked for before they are taken, so that the sum never exceeds what may be held.
pub(crate) trait Headroom {
    /// So many may be taken in all that are not yet.
    fn left_bytes(&self) -> u64;
    /// Takes them; `false`: there is no headroom any more.
    fn take(&self, bytes: u64) -> bool;
    fn give_back(&self, bytes: u64);
}

impl Identity {
    fn of(stat: &Stat) -> Identity {
        Identity {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: stat.st_size,
            written: (stat.st_mtime, stat.st_mtime_nsec),
        }
    }
}

impl Locked {
    /// Brings a file in and locks it, as much of it as there is headroom for.
    pub(crate) fn new(path: &Path, headroom: &impl Headroom) -> Result<Locked, Refused> {
        let (file, identity) = open(path)?;
        let whole = (identity.size as u64).next_multiple_of(page());
        let bytes = match headroom.left_bytes() {
            left if whole <= left => whole,
            left if left >= LEAST_PART => left / page() * page(),
            _ => return Err(Refused::Full),
        };
        if !headroom.take(bytes) {
            return Err(Refused::Full);
        }
        let locked = Locked::bring_in(&file, identity, bytes, headroom);
        // Truncated or written to meanwhile: of that the kernel's word may be another.
        let same = fstat(&file).is_ok_and(|now| Identity::of(&now) == identity);
        match locked {
            Ok(locked) if same => Ok(locked),
            other => {
                let refused = if same { other.err().unwrap_or(Refused::File) } else { Refused::File };
                headroom.give_back(bytes);
                Err(refused)
            }
        }
    }

    fn bring_in(
        file: &OwnedFd,
        identity: Identity,
        bytes: u64,
        headroom: &impl Headroom,
    ) -> Result<Locked, Refused> {
        let length = bytes as usize;
        // SAFETY: a new mapping, which is never read or written through.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let at = at.map_err(|error| if error == Errno::NOMEM { Refused::Limit } else { Refused::File })?;
        let locked = Locked { at, bytes, identity };
        // SAFETY: the mapping of above. With this flag the kernel counts what is to be locked, and reads nothing.
        unsafe { mlock_with(at, length, MlockFlags::ONFAULT) }.map_err(refused_by)?;
        give_up(file, bytes, identity.size as u64)?;
        let mut piece = vec![0_u8; PIECE.min(length)];
        let mut from = 0;
        while from < length {
            // It is to hold less by now.
            if from > 0 && !headroom.take(0) {
                return Err(Refused::Full);
            }
            let part = piece.len().min(length - from);
            read(file, &mut piece[..part], from as u64)?;
            // SAFETY: within the mapping of above.
            unsafe { mlock(at.byte_add(from), part) }.map_err(refused_by)?;
            from += part;
        }
        Ok(locked)
    }

    /// Lets the end of it go, of so many bytes at least. Returns how many those were.
    pub(crate) fn shrink(&mut self, bytes: u64) -> u64 {
        let less = bytes.next_multiple_of(page()).min(self.bytes - page());
        // SAFETY: the end of the mapping, which is forgotten below.
        let _ = unsafe { munmap(self.at.byte_add((self.bytes - less) as usize), less as usize) };
        self.bytes -= less;
        less
    }

    /// Of the file, whatever its name.
    pub(crate) fn inode(&self) -> (u64, u64) {
        (self.identity.dev, self.identity.ino)
    }

    /// Whether `path` leads to this file still, as it was.
    pub(crate) fn is_still(&self, path: &Path) -> bool {
        statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|now| Identity::of(&now) == self.identity)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: it was mapped so long, and nobody has its address.
        let _ = unsafe { munmap(self.at, self.bytes as usize) };
    }
}

/// A plain file of a file system whose pages stay, by a path without any link.
fn open(path: &Path) -> Result<(OwnedFd, Identity), Refused> {
    let is_plain = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // Before it is opened: opening a device may do something.
    let before = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| Refused::File)?;
    if !is_plain(&before) || before.st_size <= 0 {
        return Err(Refused::File);
    }
    let file = open_without_links(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(|_| Refused::File)?;
    let identity = Identity::of(&fstat(&file).map_err(|_| Refused::File)?);
    if identity != Identity::of(&before) {
        return Err(Refused::File);
    }
    let kind = fstatfs(&file).map_err(|_| Refused::File)?.f_type;
    keeps(kind).map_err(Refused::FileSystem)?;
    Ok((file, identity))
}

pub(crate) fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS) {
        // Before Linux 5.6.
        Err(Errno::NOSYS) => rustix::fs::open(path, flags, Mode::empty()),
        opened => opened,
    }
}

/// Whether a file system's pages are those that its readers get, and stay while nobody writes; else which it is.
pub(crate) fn keeps(kind: i64) -> Result<(), &'static str> {
    // As in linux/magic.h.
    match kind as u32 {
        // ext2 to ext4, XFS, Btrfs, F2FS, and overlayfs, whose pages are those of the file below.
        0xEF53 | 0x5846_5342 | 0x9123_683E | 0xF2F5_2010 | 0x794C_7630 => Ok(()),
        0x6573_5546 => Err(FUSE),
        0x2FC1_2FC1 => Err("ZFS, which keeps files in a cache of its own"),
        0x0102_1994 | 0x8584_58F6 => Err("tmpfs, which is memory already"),
        0x6969 => Err("NFS"),
        0x0BD0_0BD0 => Err("Lustre"),
        _ => Err("a file system that this was not tried on"),
    }
}

/// Pages that the job brought in are charged to its control group, and locking those would take from its memory: they are given
/// up first, and what comes in then is the holder's. What the job has mapped, or is reading, stays: then nothing is locked. (Of a hole in
/// a sparse file it looks the same.)
fn give_up(file: &OwnedFd, bytes: u64, size: u64) -> Result<(), Refused> {
    let _ = fadvise(file, 0, NonZeroU64::new(bytes), Advice::DontNeed);
    let mut byte = [0];
    let mut stayed = |at| {
        // A file system that knows no such read says so.
        preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT)
            .is_ok_and(|read| read > 0)
    };
    if stayed(0) || stayed(bytes.min(size) / 2) {
        return Err(Refused::Used);
    }
    let _ = fadvise(file, 0, None, Advice::Sequential);
    Ok(())
}

/// Up to the end of the file.
fn read(file: &OwnedFd, piece: &mut [u8], from: u64) -> Result<(), Refused> {
    let mut at = 0;
    while at < piece.len() {
        match pread(file, &mut piece[at..], from + at as u64) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(Errno::INTR) => {}
            Err(_) => return Err(Refused::File),
        }
    }
    Ok(())
}

fn refused_by(error: Errno) -> Refused {
    match error {
        Errno::NOMEM | Errno::AGAIN | Errno::PERM => Refused::Limit,
        _ => Refused::File,
    }
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, write};
    use std::cell::Cell;
    use std::os::unix::fs::symlink;

    struct Free(Cell<u64>);

    impl Headroom for Free {
        fn left_bytes(&self) -> u64 {
            self.0.get()
        }

        fn take(&self, bytes: u64) -> bool {
            let left = self.0.get().checked_sub(bytes);
            left.inspect(|left| self.0.set(*left)).is_some()
        }

        fn give_back(&self, bytes: u64) {
            self.0.set(self.0.get() + bytes);
        }
    }

    /// What this process has locked, by the kernel's word.
    fn locked_kib(at: *mut c_void) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.split_once(&format!("{:x}-", at as usize)).expect("it is mapped").1;
        let line = ours.lines().find_map(|line| line.strip_prefix("Locked:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn a_file_is_locked_until_it_is_let_go_and_no_longer_than_it_is_the_same() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 10_000);
        let headroom = Free(Cell::new(1 << 20));
        let locked = Locked::new(&path, &headroom).unwrap();
        assert_eq!((locked.bytes, headroom.left_bytes()), (12_288, (1 << 20) - 12_288));
        assert_eq!(locked_kib(locked.at), 12);
        assert!(locked.is_still(&path));
        std::fs::write(&path, "").unwrap();
        assert!(!locked.is_still(&path), "it is truncated");
    }

    #[test]
    fn what_does_not_fit_is_left_and_of_a_large_file_the_beginning_is_held() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("large");
        write(&path, 8 << 20);
        assert_eq!(Locked::new(&path, &Free(Cell::new(1 << 20))).unwrap_err(), Refused::Full);
        let headroom = Free(Cell::new((6 << 20) + 100));
        let locked = Locked::new(&path, &headroom);
        match locked {
            Ok(locked) => assert_eq!(locked.bytes, 6 << 20),
            // Of an ordinary user's 8 MiB, another test may have some.
            Err(refused) => assert_eq!(refused, Refused::Limit),
        }
    }

    #[test]
    fn the_end_of_a_file_is_let_go_by_itself() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 50_000);
        let mut locked = Locked::new(&path, &Free(Cell::new(1 << 20))).unwrap();
        assert_eq!((locked.shrink(5000), locked.bytes, locked_kib(locked.at)), (8192, 45_056, 44));
        assert_eq!((locked.shrink(1 << 20), locked.bytes, locked_kib(locked.at)), (40_960, 4096, 4));
    }

    #[test]
    fn what_the_job_has_mapped_is_not_locked_at_its_charge() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 50_000);
        let file = std::fs::File::open(&path).unwrap();
        // SAFETY: a mapping of its own, which nobody truncates.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), 50_000, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        let mapped = mapped.unwrap();
        // SAFETY: within it.
        (0..50_000).step_by(4096).for_each(|at| assert_eq!(unsafe { *mapped.cast::<u8>().byte_add(at) }, 7));
        let headroom = Free(Cell::new(1 << 20));
        assert_eq!(Locked::new(&path, &headroom).unwrap_err(), Refused::Used);
        assert_eq!(headroom.left_bytes(), 1 << 20);
        // SAFETY: nobody has it any more.
        unsafe { munmap(mapped, 50_000) }.unwrap();
        assert!(Locked::new(&path, &headroom).is_ok());
    }

    #[test]
    fn links_pipes_devices_and_empty_files_are_not_opened() {
        let Some(folder) = folder() else { return };
        let within = |name: &str| folder.path().join(name);
        std::fs::write(within("file"), "x").unwrap();
        std::fs::write(within("empty"), "").unwrap();
        symlink(within("file"), within("link")).unwrap();
        std::fs::create_dir(within("real")).unwrap();
        write(&within("real/file"), 1);
        symlink(within("real"), within("linked")).unwrap();
        rustix::fs::mknodat(CWD, within("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let headroom = Free(Cell::new(1 << 20));
        for name in ["empty", "link", "linked/file", "pipe", "real", "nothing"] {
            assert_eq!(Locked::new(&within(name), &headroom).unwrap_err(), Refused::File, "{name}");
        }
        assert_eq!(Locked::new(Path::new("/dev/null"), &headroom).unwrap_err(), Refused::File);
        assert!(Locked::new(&within("real/file"), &headroom).is_ok());
    }

    #[test]
    fn file_systems_whose_pages_do_not_stay_are_named() {
        assert!(keeps(0xEF53).is_ok() && keeps(0x5846_5342).is_ok());
        assert!(keeps(0x6573_5546).is_err_and(|why| why.starts_with("FUSE")));
        assert!(keeps(1).is_err());
    }
}
