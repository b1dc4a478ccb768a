//! Memory that the pool writes and its clients read: memfds of a sealed size.
//!
//! They are sealed against shrinking, so that no access can end in SIGBUS, and growing, but not against writing: a pool
//! that shrinks gives pages back by punching holes, which that seal would forbid. Clients get a descriptor that was opened
//! for reading only, of a file that its mode (0400) lets nobody open for writing.

use super::error::{Error, Result, system};
use super::mapping::{HUGE_BYTES, Mapping};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) const PAGE_BYTES: usize = 4096;

/// What the kernel calls tmpfs and memfds; the faults of a hugetlb memfd may kill us.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A kernel without huge pages, or one that finds no more, is not asked for ever: each search takes time.
const MOST_REFUSALS: u32 = 16;

/// Where a process may have so much address space and no more, what it maps of the pool is at most one part in so many of what is left.
const MAPPED_OF_LIMITED: u64 = 8;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Shared memory, reached by atomics alone.
#[derive(Debug)]
pub(crate) struct Memory {
    map: Mapping,
}

// SAFETY: plain shared memory that is only ever reached through atomics, from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Somebody else's memory of exactly `bytes`, for reading.
    pub(crate) fn open(fd: &OwnedFd, bytes: usize) -> Result<Memory> {
        let refuse = |what: &str| Error::Refused(format!("its memory {what}"));
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| refuse("has no seals"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(refuse("has no sealed size"));
        }
        let kind = rustix::fs::fstatfs(fd).map_err(system("fstatfs"))?;
        #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
        if kind.f_type as i64 != TMPFS_MAGIC {
            return Err(refuse("is not plain memory"));
        }
        let found = rustix::fs::fstat(fd).map_err(system("fstat"))?.st_size;
        if usize::try_from(found) != Ok(bytes) || bytes == 0 {
            return Err(refuse("has another size than it says"));
        }
        if let Some(free_bytes) = address_space_free()
            && (bytes as u64) > free_bytes / MAPPED_OF_LIMITED
        {
            let free = free_bytes >> 20;
            return Err(refuse(&format!(
                "maps {} MiB, and this process may have only {free} MiB more of address space (ulimit -v)",
                bytes >> 20
            )));
        }
        Ok(Memory { map: Mapping::new(fd, bytes, MprotectFlags::READ)? })
    }

    /// Bytes that are mapped by huge pages.
    #[cfg(test)]
    pub(crate) fn huge_bytes(&self) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let head = format!("{:x}-", self.map.start() as usize);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
        let figure = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap_or_default();
        figure.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) << 10
    }

    /// The words from byte `at` on; both are of whole words within the memory.
    #[inline]
    pub(crate) fn words(&self, at: usize, words: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(8) && words * 8 <= self.map.bytes() && at <= self.map.bytes() - words * 8);
        // SAFETY: page-aligned memory that cannot shrink (sealed), within it by the check above. AtomicU64 allows any
        // bytes and any concurrent atomic access, from other processes too. In a client the memory is read-only, where
        // loads of words of up to 8 bytes, all that a client does, are plain loads on every platform with such words.
        unsafe { std::slice::from_raw_parts(self.map.start().add(at).cast::<AtomicU64>(), words) }
    }

    /// The same of half words.
    #[inline]
    pub(crate) fn halves(&self, at: usize, halves: usize) -> &[AtomicU32] {
        assert!(
            at.is_multiple_of(4) && halves * 4 <= self.map.bytes() && at <= self.map.bytes() - halves * 4
        );
        // SAFETY: as in `words`.
        unsafe { std::slice::from_raw_parts(self.map.start().add(at).cast::<AtomicU32>(), halves) }
    }
}

/// Memory of the pool's own, with its descriptors.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) memory: Memory,
    fd: OwnedFd,
    for_clients: OwnedFd,
    /// Up to here huge pages were asked for, and how often there was none.
    huge_bytes: usize,
    pub(crate) refusals: u32,
}

impl Owned {
    /// New memory of zeros. Pages are taken as they are written, or before where `make_huge` says so.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<Owned> {
        let fd = memfd(name)?;
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(system("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system("fcntl(F_ADD_SEALS)"))?;
        let map = Mapping::new(&fd, bytes, MprotectFlags::READ | MprotectFlags::WRITE)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let for_clients = rustix::fs::open(path, flags, Mode::empty()).map_err(system("open"))?;
        rustix::fs::fchmod(&fd, Mode::RUSR).map_err(system("fchmod"))?;
        Ok(Owned { memory: Memory { map }, fd, for_clients, huge_bytes: 0, refusals: 0 })
    }

    pub(crate) fn for_clients(&self) -> BorrowedFd<'_> {
        self.for_clients.as_fd()
    }

    /// Asks for huge pages for what is about to be written up to `to`, as far as whole ones lie within `end`.
    pub(crate) fn make_huge(&mut self, to: usize, end: usize) {
        while self.refusals < MOST_REFUSALS && self.huge_bytes < to && self.huge_bytes + HUGE_BYTES <= end {
            // A range of which no page was ever touched is refused. Holes are filled by a load, too.
            std::hint::black_box(self.memory.words(self.huge_bytes, 1)[0].load(Ordering::Relaxed));
            self.refusals += u32::from(!self.memory.map.make_huge(self.huge_bytes));
            self.huge_bytes += HUGE_BYTES;
        }
    }

    /// Gives the whole pages between two places back to the system; they read as zeros from then on.
    pub(crate) fn punch(&mut self, from: u64, to: u64) {
        self.huge_bytes = self.huge_bytes.min(from as usize / HUGE_BYTES * HUGE_BYTES);
        let page = PAGE_BYTES as u64;
        let (from, to) = (from.next_multiple_of(page), to / page * page);
        if from < to {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A page that cannot be given back is used again.
            let _ = rustix::fs::fallocate(&self.fd, how, from, to - from);
        }
    }

    /// Bytes of pages that are taken.
    #[cfg(test)]
    pub(crate) fn taken_bytes(&self) -> u64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }
}

/// Bytes that this process may map yet; None: there is no limit.
fn address_space_free() -> Option<u64> {
    let most_bytes = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    // The process's name in it need not be UTF-8.
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mapped = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap_or_default();
    let mapped_kib: u64 = mapped.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    Some(most_bytes.saturating_sub(mapped_kib << 10))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use rustix::process::{Resource, getrlimit, setrlimit};

    #[test]
    fn a_process_of_limited_address_space_keeps_most_of_it() {
        let bytes = 8 << 30;
        let pool = Owned::create("limited", bytes).unwrap();
        let fd = pool.for_clients().try_clone_to_owned().unwrap();
        assert!(Memory::open(&fd, bytes).is_ok());
        let before = getrlimit(Resource::As);
        // Enough for whatever else this process does meanwhile.
        let most_bytes = 4 * bytes as u64;
        let mut limited = before;
        limited.current = Some(before.maximum.unwrap_or(u64::MAX).min(most_bytes));
        setrlimit(Resource::As, limited).unwrap();
        let opened = Memory::open(&fd, bytes);
        setrlimit(Resource::As, before).unwrap();
        let sentence = opened.unwrap_err().to_string();
        assert!(sentence.contains("maps 8192 MiB") && sentence.contains("ulimit -v"), "{sentence}");
    }
}
