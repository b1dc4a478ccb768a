//! A mapping of a file at an address that huge pages fit.
//!
//! A sample of 100 KiB lies in 25 small pages, and a copy out of memory much larger than the processor's caches pays a
//! walk of the page tables for each: a fifth to a fourth of its time. The kernel maps a huge page as one only where file
//! and address are aligned to it, which it sees to for memfds only where huge pages are on for all of them.

use super::error::{Result, system};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::AsFd;

/// Of a huge page, on machines whose small ones have 4 KiB; others refuse to be asked.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Linux 6.1; the libc crate does not name it.
const MADV_COLLAPSE: i32 = 25;

#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
    reserved: *mut c_void,
    reserved_bytes: usize,
}

impl Mapping {
    /// The first `bytes` bytes of a file, shared. The file may be as large as the machine's memory, and is full of holes: nothing that a job
    /// does to all of its memory at once may fill them.
    pub(crate) fn new(fd: impl AsFd, bytes: usize, access: MprotectFlags) -> Result<Mapping> {
        let reserved_bytes = bytes.saturating_add(HUGE_BYTES);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches none that is there.
        let reserved =
            unsafe { rustix::mm::mmap_anonymous(nowhere, reserved_bytes, ProtFlags::empty(), flags) }
                .map_err(system("mmap"))?;
        let before = reserved.cast::<u8>().align_offset(HUGE_BYTES);
        let start = reserved.cast::<u8>().wrapping_add(before);
        let mapping = Mapping { start, bytes, reserved, reserved_bytes };
        let nothing = ProtFlags::empty();
        // SAFETY: the place is within what was reserved above, as `before` is less than HUGE_BYTES; nobody else knows of it.
        unsafe { rustix::mm::mmap(start.cast(), bytes, nothing, MapFlags::SHARED | MapFlags::FIXED, fd, 0) }
            .map_err(system("mmap"))?;
        // A job that has locked what it maps from then on (mlockall) would have each page of it made here. It may be read first when it is
        // no longer locked.
        // SAFETY: of the mapping alone that was just made, in which nobody has a reference yet.
        let _ = unsafe { rustix::mm::munlock(start.cast(), bytes) };
        // SAFETY: as above.
        unsafe { rustix::mm::mprotect(start.cast(), bytes, access) }.map_err(system("mprotect"))?;
        // A core dump would have each page of it made, too, and written out.
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxDontDump) };
        Ok(mapping)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has the kernel put a huge page at `at`, a multiple of HUGE_BYTES, for what is there and what is still a hole; others
    /// that map the memory, and read it meanwhile, see the same bytes. False where it does not.
    pub(crate) fn make_huge(&self, at: usize) -> bool {
        assert!(
            at.is_multiple_of(HUGE_BYTES)
                && self.bytes.checked_sub(HUGE_BYTES).is_some_and(|last| at <= last)
        );
        // SAFETY: within the mapping by the check above; where the bytes lie changes, not what they are.
        unsafe { libc::madvise(self.start.add(at).cast(), HUGE_BYTES, MADV_COLLAPSE) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` has reserved it; nobody is left who reaches it through us.
        let _ = unsafe { rustix::mm::munmap(self.reserved, self.reserved_bytes) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use rustix::fs::MemfdFlags;
    use std::os::fd::OwnedFd;

    const BYTES: usize = 64 << 20;

    fn holes() -> OwnedFd {
        let fd = rustix::fs::memfd_create("holes", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
        fd
    }

    /// What the kernel has of the mapping that begins at `start`, by the line's name in /proc/self/smaps.
    fn fact(start: *mut u8, name: &str) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{:x}-", start as usize);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
        lines.find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    }

    #[test]
    fn a_core_dump_leaves_it_out() {
        let fd = holes();
        let mapping = Mapping::new(&fd, BYTES, MprotectFlags::READ).unwrap();
        let flags = fact(mapping.start(), "VmFlags:");
        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    fn a_job_that_locks_its_memory_fills_no_holes() {
        // SAFETY: what this process maps from here on is locked, until the end of the test; nothing that is there changes.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            println!("SKIPPED: this user may not lock memory");
            return;
        }
        let fd = holes();
        let made = Mapping::new(&fd, BYTES, MprotectFlags::READ);
        // SAFETY: as above.
        unsafe { libc::munlockall() };
        let mapping = match made {
            Ok(mapping) => mapping,
            // Where only little may be locked, there is no mapping, and no pool.
            Err(error) => return println!("SKIPPED: {error}"),
        };
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0);
        // SAFETY: within the mapping, which may be read.
        assert_eq!(unsafe { mapping.start().add(BYTES - 1).read_volatile() }, 0);
    }
}
