//! One file's beginning, brought into the page cache and locked there.
//!
//! Nothing here reads through the mapping: who truncates the file would end such a reader by SIGBUS. The kernel brings the pages
//! in for `mlock`, to which what is gone is an error. Whether so much may be locked is asked before anything is read.
//!
//! Nor does anything wait for the job's user (walk.rs has why). `pread` would, on XFS, for who writes to the file; so would advice that
//! pages will be needed. What is left here takes no lock of the inode's on ext4, XFS, Btrfs and overlayfs over these:
//!
//! - `mlock` brings pages in as a fault on the mapping does: under the lock that keeps what is truncated or punched out (invalidate_lock;
//!   on older kernels the file system's own), and the page's. Both are taken while the inode's is had or without it, never the other way
//!   round, and given back before a user's memory is looked at: writers copy into a locked page only what is in memory already.
//! - `mmap` links the mapping into the file's list of them, which who truncates has while pages are unmapped.
//! - Advice that reads are sequential is a flag; advice to drop pages is given by a process apart (dropper.rs has why).
//! - A read with RWF_NOWAIT tries for the inode's lock, and takes what is in memory.
//! - The last one to close a file that is gone, or a mapping of it, waits for the disk to free its blocks, as any of these may wait for the
//!   disk.

use crate::dropper::Dropper;
use crate::leases::Leases;
use crate::walk::{self, Identity, Onwards};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::mm::{Advice as Use, MapFlags, MlockFlags, ProtFlags, madvise, mlock, mlock_with, mmap, munmap};
use std::ffi::c_void;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is brought in at once: between two pieces the holder may be asked to stop.
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

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not now: it does not fit.
    Full,
    /// The kernel allows no more locked memory, or mappings.
    Limit,
    /// Not now: the job has it mapped or is reading it, or what was written to it is not on the disk yet.
    Used,
    /// Not now, and it was not opened: the kernel does not have its path in its cache.
    Unknown,
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

/// What bringing a file in takes besides.
#[derive(Debug)]
pub(crate) struct Means {
    pub(crate) leases: Leases,
    pub(crate) dropper: Dropper,
}

impl Locked {
    /// Brings a file in and locks it, as much of it as there is headroom for.
    pub(crate) fn new(
        path: &Path,
        onwards: &mut Onwards,
        Means { leases, dropper }: &mut Means,
        headroom: &impl Headroom,
    ) -> Result<Locked, Refused> {
        let (file, identity) = open(path, onwards, leases)?;
        let whole = identity.size.next_multiple_of(page());
        let bytes = match headroom.left_bytes() {
            left if whole <= left => whole,
            left if left >= LEAST_PART => left / page() * page(),
            _ => return Err(Refused::Full),
        };
        if !headroom.take(bytes) {
            return Err(Refused::Full);
        }
        let locked = Locked::bring_in(&file, identity, bytes, dropper, headroom);
        // Truncated or written to meanwhile: of that the kernel's word may be another.
        let same = Identity::of(&file) == Ok(identity);
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
        dropper: &mut Dropper,
        headroom: &impl Headroom,
    ) -> Result<Locked, Refused> {
        let length = bytes as usize;
        // SAFETY: a new mapping, which is never read or written through.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let at = at.map_err(|error| if error == Errno::NOMEM { Refused::Limit } else { Refused::File })?;
        let locked = Locked { at, bytes, identity };
        // SAFETY: the mapping of above.
        let _ = unsafe { madvise(at, length, Use::Sequential) };
        // SAFETY: as above. With this flag the kernel counts what is to be locked, and reads nothing.
        unsafe { mlock_with(at, length, MlockFlags::ONFAULT) }.map_err(refused_by)?;
        give_up(file, bytes, identity.size, dropper)?;
        let mut from = 0;
        while from < length {
            // It is to hold less by now.
            if from > 0 && !headroom.take(0) {
                return Err(Refused::Full);
            }
            let part = PIECE.min(length - from);
            // SAFETY: within the mapping of above.
            unsafe { mlock(at.byte_add(from), part) }.map_err(|error| match error {
                // So much was counted above: it is gone, or cannot be read.
                Errno::NOMEM => Refused::File,
                error => refused_by(error),
            })?;
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

    /// Whether `path` leads to this file still, as it was. Where that is not known now it does not (walk.rs has why).
    pub(crate) fn is_still(&self, path: &Path) -> bool {
        walk::find(path).is_ok_and(|now| now.identity == self.identity)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: it was mapped so long, and nobody has its address.
        let _ = unsafe { munmap(self.at, self.bytes as usize) };
    }
}

/// A plain file of a file system whose pages stay, by a path without any link.
fn open(path: &Path, onwards: &mut Onwards, leases: &mut Leases) -> Result<(OwnedFd, Identity), Refused> {
    let found = walk::find(path).map_err(|error| match error {
        Errno::AGAIN => Refused::Unknown,
        _ => Refused::File,
    })?;
    // Before it is opened: opening a device may do something.
    if !found.is_plain() {
        return Err(Refused::File);
    }
    keeps(onwards.kind(&found).ok_or(Refused::Unknown)?).map_err(Refused::FileSystem)?;
    if leases.may_be_on(found.identity.ino) {
        return Err(Refused::Used);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(onwards.path(&found), flags, Mode::empty()).map_err(|_| Refused::File)?;
    Ok((file, found.identity))
}

pub(crate) const FUSE_MAGIC: i64 = 0x6573_5546;

/// Of file systems as the table of mounts names them, and as in linux/magic.h. Those of FUSE begin with its name.
pub(crate) const MAGICS: [(&str, i64); 12] = [
    ("ext2", 0xEF53),
    ("ext3", 0xEF53),
    ("ext4", 0xEF53),
    ("xfs", 0x5846_5342),
    ("btrfs", 0x9123_683E),
    ("f2fs", 0xF2F5_2010),
    ("overlay", 0x794C_7630),
    ("zfs", 0x2FC1_2FC1),
    ("tmpfs", 0x0102_1994),
    ("nfs", 0x6969),
    ("nfs4", 0x6969),
    ("lustre", 0x0BD0_0BD0),
];

/// Whether a file system's pages are those that its readers get, and stay while nobody writes; else which it is.
pub(crate) fn keeps(kind: i64) -> Result<(), &'static str> {
    // As in linux/magic.h.
    match kind as u32 {
        // ext2 to ext4, XFS, Btrfs, and overlayfs, whose pages are those of the file below.
        0xEF53 | 0x5846_5342 | 0x9123_683E | 0x794C_7630 => Ok(()),
        0x6573_5546 => Err(FUSE),
        0xF2F5_2010 => Err("F2FS, where to open a file is to wait for its writers"),
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
fn give_up(file: &OwnedFd, bytes: u64, size: u64, dropper: &mut Dropper) -> Result<(), Refused> {
    if !dropper.drops(file, bytes) {
        return Err(Refused::Used);
    }
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
    use rustix::fs::{CWD, FileType};
    use std::cell::Cell;
    use std::os::unix::fs::symlink;

    fn means() -> Means {
        Means { leases: Leases::open().unwrap(), dropper: Dropper::start().unwrap() }
    }

    fn lock(path: &Path, headroom: &Free) -> Result<Locked, Refused> {
        // As its job has done a moment before.
        let _ = std::fs::symlink_metadata(path);
        Locked::new(path, &mut Onwards::new("/proc/self/fd", false).unwrap(), &mut means(), headroom)
    }

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
        let locked = lock(&path, &headroom).unwrap();
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
        assert_eq!(lock(&path, &Free(Cell::new(1 << 20))).unwrap_err(), Refused::Full);
        let headroom = Free(Cell::new((6 << 20) + 100));
        let locked = lock(&path, &headroom);
        match locked {
            Ok(locked) => assert_eq!(locked.bytes, 6 << 20),
            // Of an ordinary user's 8 MiB, another test may have some.
            Err(refused) => assert_eq!(refused, Refused::Limit),
        }
    }

    #[test]
    fn what_the_kernel_does_not_have_in_its_cache_is_not_opened() {
        let Some(folder) = folder() else { return };
        let mut onwards = Onwards::new("/proc/self/fd", false).unwrap();
        let headroom = Free(Cell::new(1 << 20));
        let refused =
            Locked::new(&folder.path().join("a"), &mut onwards, &mut means(), &headroom).unwrap_err();
        assert_eq!((refused, headroom.left_bytes()), (Refused::Unknown, 1 << 20));
    }

    #[test]
    fn what_was_replaced_from_above_is_another_one() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("class/a");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        write(&path, 10_000);
        let locked = lock(&path, &Free(Cell::new(1 << 20))).unwrap();
        assert!(locked.is_still(&path));
        std::fs::rename(folder.path().join("class"), folder.path().join("before")).unwrap();
        assert!(!locked.is_still(&path), "nobody has looked there");
        assert!(locked.is_still(&folder.path().join("before/a")));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        write(&path, 10_000);
        assert!(!locked.is_still(&path));
    }

    #[test]
    fn what_is_truncated_while_it_is_brought_in_is_refused_and_ends_nobody() {
        struct Truncates<'a>(&'a Path);
        impl Headroom for Truncates<'_> {
            fn left_bytes(&self) -> u64 {
                u64::MAX
            }
            fn take(&self, bytes: u64) -> bool {
                // Asked between two pieces.
                if bytes == 0 {
                    std::fs::File::options().write(true).open(self.0).unwrap().set_len(1).unwrap();
                }
                true
            }
            fn give_back(&self, _: u64) {}
        }
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 2 * PIECE);
        let mut onwards = Onwards::new("/proc/self/fd", false).unwrap();
        let refused = Locked::new(&path, &mut onwards, &mut means(), &Truncates(&path)).unwrap_err();
        assert!([Refused::File, Refused::Limit].contains(&refused), "{refused:?}");
        // The error is the file's, also where nothing tells that it has changed.
        write(&path, 1);
        let mut means = means();
        let (file, identity) = open(&path, &mut onwards, &mut means.leases).unwrap();
        let brought =
            Locked::bring_in(&file, identity, 2 * PIECE as u64, &mut means.dropper, &Free(Cell::new(0)));
        assert!([Refused::File, Refused::Limit].contains(&brought.unwrap_err()));
    }

    #[test]
    fn the_end_of_a_file_is_let_go_by_itself() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 50_000);
        let mut locked = lock(&path, &Free(Cell::new(1 << 20))).unwrap();
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
        assert_eq!(lock(&path, &headroom).unwrap_err(), Refused::Used);
        assert_eq!(headroom.left_bytes(), 1 << 20);
        // SAFETY: nobody has it any more.
        unsafe { munmap(mapped, 50_000) }.unwrap();
        assert!(lock(&path, &headroom).is_ok());
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
            assert_eq!(lock(&within(name), &headroom).unwrap_err(), Refused::File, "{name}");
        }
        assert_eq!(lock(Path::new("/dev/null"), &headroom).unwrap_err(), Refused::File);
        assert!(lock(&within("real/file"), &headroom).is_ok());
    }

    #[test]
    fn file_systems_whose_pages_do_not_stay_are_named() {
        assert!(keeps(0xEF53).is_ok() && keeps(0x5846_5342).is_ok());
        assert!(keeps(0x6573_5546).is_err_and(|why| why.starts_with("FUSE")));
        assert!(keeps(0xF2F5_2010).is_err() && keeps(1).is_err());
    }
}
