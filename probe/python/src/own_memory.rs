//! The memory that a forked child shares with other processes becomes its own: nothing that it writes there is seen by them.
//!
//! torch's shared tensors, multiprocessing's values and locks and numpy's memory maps stay shared across a fork.

use pyo3::prelude::*;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, Stat};
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

/// What no descriptor or path leads to is copied, up to this size: a lock takes a page.
const MOST_COPIED_BYTES: usize = 64 << 20;

static EXIT_CODE: AtomicI32 = AtomicI32::new(0);

/// In a forked child with one thread: writable memory that it shares becomes a private copy, page by page as it is written to (the job's later changes
/// of other pages may show). Where that cannot be, as with a device's, a write ends the process with `exit_code`.
#[pyfunction]
pub(crate) fn own_shared_memory(exit_code: i32) -> PyResult<()> {
    EXIT_CODE.store(exit_code, Ordering::Relaxed);
    // Paths need not be UTF-8: such a one leads nowhere, and its mapping is copied.
    let maps = std::fs::read("/proc/self/maps")?;
    let maps = String::from_utf8_lossy(&maps);
    let shared: Vec<Mapping<'_>> = maps.lines().filter_map(Mapping::shared_and_writable).collect();
    let open = if shared.is_empty() { Vec::new() } else { open_files()? };
    for mapping in shared {
        mapping.make_own(&open)?;
    }
    Ok(())
}

/// Neither does a process that ends so leave a core behind, nor does what the job has for its own faults speak of it.
fn end_at_faults() {
    extern "C" fn end(_signal: libc::c_int) {
        // SAFETY: it may be called in a handler, and ends the process.
        unsafe { libc::_exit(EXIT_CODE.load(Ordering::Relaxed)) }
    }
    // SAFETY: the handler calls nothing that may not be called in one.
    unsafe { libc::signal(libc::SIGSEGV, end as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

struct Mapping<'a> {
    start: usize,
    bytes: usize,
    is_readable: bool,
    is_executable: bool,
    offset: u64,
    device: u64,
    inode: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    /// By a line of /proc/PID/maps.
    fn shared_and_writable(line: &'a str) -> Option<Mapping<'a>> {
        let mut rest = line;
        let mut next = || {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after;
            word
        };
        let (start, end) = next().split_once('-')?;
        let rights = next().as_bytes();
        let (offset, device, inode) = (next(), next(), next());
        let &[read, b'w', execute, b's', ..] = rights else { return None };
        let (major, minor) = device.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)? as usize, number(end)? as usize);
        Some(Mapping {
            start,
            bytes: end - start,
            is_readable: read == b'r',
            is_executable: execute == b'x',
            offset: number(offset)?,
            device: rustix::fs::makedev(number(major)? as u32, number(minor)? as u32),
            inode: inode.parse().ok()?,
            path: rest.trim_start(),
        })
    }

    fn make_own(&self, open: &[(Stat, i32)]) -> std::io::Result<()> {
        let of_file = open.iter().filter(|(stat, _)| self.is_of(stat)).find_map(|(_, number)| {
            // SAFETY: the numbers are those of open descriptors, which this process, of one thread, has not closed since.
            self.mapped_anew(unsafe { BorrowedFd::borrow_raw(*number) }, self.offset)
        });
        let replacement = of_file.or_else(|| self.mapped_by_path()).or_else(|| self.copied());
        if let Some(replacement) = replacement {
            // SAFETY: the new mapping, which nobody knows of, takes the place of one of the same size and content, with the rights to read and write
            // that it had: references into it stay valid.
            let moved = unsafe {
                let place = self.start as *mut c_void;
                rustix::mm::mremap_fixed(replacement, self.bytes, self.bytes, MremapFlags::MAYMOVE, place)
            };
            if moved.is_ok() {
                return Ok(());
            }
            // SAFETY: it was mapped above, and has not moved.
            unsafe { rustix::mm::munmap(replacement, self.bytes) }?;
        }
        end_at_faults();
        // SAFETY: it may end this process, which is meant to, and changes nothing for another one.
        Ok(unsafe { rustix::mm::mprotect(self.start as *mut c_void, self.bytes, MprotectFlags::READ) }?)
    }

    fn is_of(&self, stat: &Stat) -> bool {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && (stat.st_dev, stat.st_ino) == (self.device, self.inode)
    }

    /// Whether it is a file's, or nothing but memory; else it is a device's, or the kernel's.
    fn is_memory(&self) -> bool {
        ["/dev/shm/", "/dev/zero", "/memfd:", "/SYSV"].iter().any(|memory| self.path.starts_with(memory))
            || !(self.path.starts_with("/dev/") || self.path.starts_with("anon_inode:"))
    }

    fn mapped_by_path(&self) -> Option<*mut c_void> {
        let is_there = rustix::fs::stat(self.path).is_ok_and(|stat| self.is_of(&stat));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = is_there.then(|| rustix::fs::open(self.path, flags, Mode::empty()))?.ok()?;
        // Another one may have come to its place.
        rustix::fs::fstat(&file)
            .is_ok_and(|stat| self.is_of(&stat))
            .then(|| self.mapped_anew(file.as_fd(), self.offset))?
    }

    fn copied(&self) -> Option<*mut c_void> {
        if !(self.is_memory() && self.is_readable && self.bytes <= MOST_COPIED_BYTES) {
            return None;
        }
        let copy = rustix::fs::memfd_create("stallscope", MemfdFlags::CLOEXEC).ok()?;
        rustix::fs::ftruncate(&copy, self.bytes as u64).ok()?;
        let mut done = 0;
        while done < self.bytes {
            // SAFETY: the kernel reads what is mapped here, others may write to it meanwhile, and of what is not there it says so.
            let written = unsafe {
                let from = (self.start + done) as *const c_void;
                libc::pwrite(copy.as_raw_fd(), from, self.bytes - done, done as libc::off_t)
            };
            match usize::try_from(written) {
                Ok(written) if written > 0 => done += written,
                // It is mapped beyond the file's end.
                _ => break,
            }
        }
        self.mapped_anew(copy.as_fd(), 0)
    }

    /// The file's part, mapped somewhere: what is written there is this process's alone.
    fn mapped_anew(&self, file: BorrowedFd<'_>, offset: u64) -> Option<*mut c_void> {
        let mut rights = ProtFlags::WRITE;
        rights.set(ProtFlags::READ, self.is_readable);
        rights.set(ProtFlags::EXEC, self.is_executable);
        // SAFETY: a new mapping, where the kernel chooses.
        unsafe { rustix::mm::mmap(null_mut(), self.bytes, rights, MapFlags::PRIVATE, file, offset) }.ok()
    }
}

/// The descriptors of this process, with what they are of.
fn open_files() -> std::io::Result<Vec<(Stat, i32)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // SAFETY: a number that is not open any more is refused.
        let described = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) });
        found.extend(described.ok().map(|stat| (stat, number)));
    }
    Ok(found)
}
