//! Processes that say where their arguments and environment lie, as any process may, for tests.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs;

/// What `prctl(PR_SET_MM_MAP)` takes.
#[repr(C)]
struct Places {
    /// Code, data, heap, stack, arguments and environment: where each begins and ends, but for the stack, which only begins.
    places: [u64; 11],
    auxiliary: u64,
    auxiliary_bytes: u32,
    program: u32,
}

/// A fork that is stopped until it is dropped.
pub(crate) struct Staged(pub(crate) u32);

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0 as i32) {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

impl Staged {
    /// `first` is called in it, and may make system calls alone.
    pub(crate) fn new(first: impl FnOnce()) -> Staged {
        Staged::forked(|| {
            first();
            stop();
        })
    }

    /// It stops before `then`, and after it once more.
    pub(crate) fn that_goes_on(then: impl FnOnce()) -> Staged {
        Staged::forked(|| {
            stop();
            then();
            stop();
        })
    }

    /// Until it stops again.
    pub(crate) fn go_on(&self) {
        let pid = Pid::from_raw(self.0 as i32).unwrap();
        kill_process(pid, Signal::CONT).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }

    /// Its arguments and its environment are the `bytes` that begin `at`.
    pub(crate) fn with_words_at(at: u64, bytes: u64, first: impl FnOnce()) -> Staged {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let field = |number: usize| fields[number - 3];
        // SAFETY: it only asks.
        let heap = unsafe { libc::sbrk(0) } as u64;
        let own = [field(26), field(27), field(45), field(46), field(47), heap, field(28)];
        let mut places = [at; 11];
        places[..7].copy_from_slice(&own);
        (places[8], places[10]) = (at + bytes, at + bytes);
        let lie = Places { places, auxiliary: 0, auxiliary_bytes: 0, program: u32::MAX };
        Staged::new(|| {
            first();
            // SAFETY: of the child alone, and the kernel looks at what it is given.
            unsafe {
                libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_MAP, &raw const lie, size_of::<Places>(), 0)
            };
        })
    }

    fn forked(does: impl FnOnce()) -> Staged {
        // SAFETY: the child makes system calls alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            does();
            // SAFETY: ends the child without anything of this process being run.
            unsafe { libc::_exit(0) };
        }
        let _ = waitpid(Pid::from_raw(child), WaitOptions::UNTRACED);
        Staged(child as u32)
    }
}

fn stop() {
    // SAFETY: stops this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// Memory that nothing is in yet.
pub(crate) fn mapped(bytes: usize) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping of its own, which is left to the process's end.
    unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, -1, 0) as u64 }
}
