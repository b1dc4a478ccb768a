//! Clocks of the calling thread and its process.

use crate::fork;
use crate::own_fd::OwnFd;
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;

#[inline]
fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[inline]
pub(crate) fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

pub(crate) fn thread_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

/// After so many attempts the last is taken.
const MOST_LOOKS: u32 = 4;

/// Clocks of the calling thread, and its process's CPU time, as of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) time_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) run_delay_ns: u64,
    pub(crate) process_cpu_ns: u64,
}

/// Reads the clocks again where the thread lost its CPU between two of them: it would have that wait before the moment
/// by one clock and after it by the other. This is no rare case, as a thread that computes hardly enters the kernel
/// but to read its clocks, and it is there that the CPU is taken from it.
pub(crate) fn clocks() -> Clocks {
    let mut before_ns = run_delay_ns();
    let mut looks = 0;
    loop {
        looks += 1;
        let (time_ns, cpu_ns) = (now_ns(), thread_cpu_ns());
        let run_delay_ns = run_delay_ns();
        if run_delay_ns == before_ns || looks == MOST_LOOKS {
            let process_cpu_ns = read_ns(ClockId::ProcessCPUTime);
            return Clocks { time_ns, cpu_ns, run_delay_ns, process_cpu_ns };
        }
        before_ns = run_delay_ns;
    }
}

/// The calling thread's schedstat file, opened once a thread and process.
struct RunDelay {
    forks: u64,
    file: Option<OwnFd>,
}

thread_local! {
    static RUN_DELAY: RefCell<Option<RunDelay>> = const { RefCell::new(None) };
}

/// How long the calling thread has been runnable without a CPU, ns; 0 where the kernel doesn't tell.
fn run_delay_ns() -> u64 {
    RUN_DELAY
        .try_with(|cell| {
            let mut cell = cell.try_borrow_mut().ok()?;
            if cell.as_ref().is_none_or(|known| known.forks != fork::generation()) {
                *cell = Some(RunDelay { forks: fork::generation(), file: open() });
            }
            let file = cell.as_ref()?.file.as_ref()?;
            let mut text = [0; 80];
            let length = rustix::io::pread(file.borrow(), &mut text, 0).ok()?;
            parse(&text[..length])
        })
        .ok()
        .flatten()
        .unwrap_or(0)
}

fn open() -> Option<OwnFd> {
    let fd = rustix::fs::open("/proc/thread-self/schedstat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .ok()?;
    OwnFd::adopt(fd)
}

/// The second of three numbers.
fn parse(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}
