//! A mapping of a file at an address that huge pages fit.
//!
//! A sample of 100 KiB lies in 25 small pages, and a copy out of memory much larger than the processor's caches pays a
//! walk of the page tables for each: a fifth to a fourth of its time. The kernel maps a huge page as one only where file
//! and address are aligned to it, which it sees to for memfds only where huge pages are on for all of them.

use super::error::{Result, system};
use rustix::mm::{MapFlags, ProtFlags};
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
    /// The first `bytes` bytes of a file, shared.
    pub(crate) fn new(fd: impl AsFd, bytes: usize, access: ProtFlags) -> Result<Mapping> {
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
        // SAFETY: the place is within what was reserved above, as `before` is less than HUGE_BYTES; nobody else knows of it.
        unsafe { rustix::mm::mmap(start.cast(), bytes, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) }
            .map_err(system("mmap"))?;
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
