//! Which files a job's tasks were blocked in, as the kernel programs add it up: reads, writes and syncs of files
//! and directories, and page faults.

use crate::kernel::{Plain, copy, private};

/// Files kept at once, of all trees. One user may have as many as are still free, so half of them where nobody else has any.
pub const MAX_FILES: u32 = 16384;

/// Mounts kept at once, of all trees.
pub const MAX_MOUNTS: u32 = 1024;

pub const NAME_BYTES: usize = 64;
pub const PARENT_BYTES: usize = 32;

/// One file, or, where `inode` is 0, all that was waited for on a mount. Without any number but the root's: where
/// no file was found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The watched process from which the tasks descend.
    pub root: u32,
    /// The first number of its line in `/proc/PID/mountinfo`.
    pub mount: u32,
    /// As the kernel has it: see [`FileKey::device`]. Of the whole file system, also where `stat` tells of a part.
    pub dev: u32,
    /// Who may know of it: whose the tasks that waited are, and root (0) where these are [`crate::kernel::flags::PRIVILEGED`].
    pub uid: u32,
    pub inode: u64,
}

impl FileKey {
    /// Major and minor number, as in `/proc/PID/mountinfo`.
    pub const fn device(&self) -> (u32, u32) {
        (self.dev >> 20, self.dev & 0xf_ffff)
    }
}

/// Sums since the tree is watched.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountWait {
    pub wait_ns: u64,
    /// Times that a task was blocked.
    pub waits: u64,
}

/// The same of one file, since it was last taken up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWait {
    pub wait_ns: u64,
    pub waits: u64,
    /// The process that waited last.
    pub tgid: u32,
    /// 1 where `parent` (if there is one) and `name` (if there is one) are the whole path within the mount.
    pub whole: u32,
    /// Cut to fit, and ended by a 0: foreign bytes.
    pub name: [u8; NAME_BYTES],
    /// The folder's name, the same way.
    pub parent: [u8; PARENT_BYTES],
}

/// What the kernel side keeps of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptFile {
    pub wait: FileWait,
    /// When the last wait ended.
    pub last_ns: u64,
}

impl Default for FileWait {
    fn default() -> FileWait {
        FileWait { wait_ns: 0, waits: 0, tgid: 0, whole: 0, name: [0; NAME_BYTES], parent: [0; PARENT_BYTES] }
    }
}

impl private::Sealed for FileKey {}
impl private::Sealed for MountWait {}
impl private::Sealed for FileWait {}
impl private::Sealed for KeptFile {}

const _: () = {
    assert!(size_of::<FileKey>() == 24);
    assert!(size_of::<MountWait>() == 16);
    assert!(size_of::<FileWait>() == 24 + NAME_BYTES + PARENT_BYTES);
    assert!(size_of::<KeptFile>() == size_of::<FileWait>() + 8);
};

/// Copies a key and what belongs to it out of `bytes`, one behind the other; `None` when there are too few.
pub fn parse<T: Plain>(bytes: &[u8]) -> Option<(FileKey, T)> {
    Some((copy(bytes)?, copy(bytes.get(size_of::<FileKey>()..)?)?))
}
