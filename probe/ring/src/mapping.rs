//! Memory shared with another process: a sealed memfd that is only ever reached as 8-byte atomics.

use crate::error::{Error, Result, system};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the kernel calls tmpfs and memfds; a hugetlb memfd has another number, and its faults may kill us.
const TMPFS_MAGIC: i64 = 0x0102_1994;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Shared memory whose size has been checked or made.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
    words: usize,
}

// SAFETY: the mapping is plain shared memory that is only ever reached through atomics, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory of zeros and the descriptor to hand to the other side. Memory is taken as words are touched.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<(Mapping, OwnedFd)> {
        let fd = memfd(name)?;
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(system("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system("fcntl(F_ADD_SEALS)"))?;
        Ok((Mapping::new(fd.as_fd(), bytes)?, fd))
    }

    /// The first `mapped` bytes of somebody else's memory behind `fd`, and its size. `refuse` makes an error of why it is none.
    ///
    /// No more is mapped than has to be: who touches a page that its maker left out makes it, and their control group is charged
    /// for it as long as its maker keeps the memory, whatever becomes of them.
    pub(crate) fn open(
        fd: &OwnedFd,
        mapped: usize,
        sizes: RangeInclusive<usize>,
        refuse: impl Fn(&'static str) -> Error,
    ) -> Result<(Mapping, usize)> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| refuse("it has no seals"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(refuse("its size is not sealed"));
        }
        let kind = rustix::fs::fstatfs(fd).map_err(system("fstatfs"))?;
        #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
        if kind.f_type as i64 != TMPFS_MAGIC {
            return Err(refuse("it is not plain memory"));
        }
        let bytes = rustix::fs::fstat(fd).map_err(system("fstat"))?.st_size;
        let bytes = usize::try_from(bytes).map_err(|_| refuse("its size is negative"))?;
        if !sizes.contains(&bytes) {
            return Err(refuse("it has another size"));
        }
        Ok((Mapping::new(fd.as_fd(), mapped.min(bytes))?, bytes))
    }

    fn new(fd: BorrowedFd<'_>, bytes: usize) -> Result<Mapping> {
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(&fd)
            .map_err(|source| Error::System { call: "mmap", source })?;
        Ok(Mapping { map, words: bytes / 8 })
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words * 8` bytes long, shared, writable and cannot shrink under
        // us (sealed); AtomicU64 allows any bytes and any concurrent atomic access, from other processes too.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>(), self.words) }
    }

    pub(crate) fn load(&self, at: usize) -> u64 {
        self.words()[at].load(Ordering::Acquire)
    }

    pub(crate) fn store(&self, at: usize, value: u64) {
        self.words()[at].store(value, Ordering::Release);
    }
}

fn memfd(name: &str) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 know no NOEXEC_SEAL; some later ones demand it.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }
    .map_err(system("memfd_create"))
}
