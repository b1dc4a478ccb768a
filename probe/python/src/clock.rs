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

/// After so many attempts to read all clocks without losing the CPU the last reading stands.
const MOST_LOOKS: u32 = 4;

/// Clocks of the calling thread, and its process's CPU time, as of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) time_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) run_delay_ns: u64,
    pub(crate) process_cpu_ns: u64,
}

/// A thread that computes hardly enters the kernel but to read its clocks, and there the CPU is taken from it: reading its CPU
/// time has the scheduler look at how long it has had that. What it then waits comes after the moment that is asked for,
/// by all of the clocks, so it is taken off the one that was read after it.
pub(crate) fn clocks() -> Clocks {
    let before_ns = run_delay_ns();
    let (time_ns, cpu_ns) = (now_ns(), thread_cpu_ns());
    let mut after_ns = run_delay_ns();
    if after_ns != before_ns {
        for _ in 0..MOST_LOOKS {
            let (later_ns, later_cpu_ns) = (now_ns(), thread_cpu_ns());
            let last_ns = std::mem::replace(&mut after_ns, run_delay_ns());
            if last_ns == after_ns {
                after_ns -= lost_ns(later_ns - time_ns, later_cpu_ns - cpu_ns, after_ns - before_ns);
                break;
            }
        }
    }
    Clocks { time_ns, cpu_ns, run_delay_ns: after_ns, process_cpu_ns: read_ns(ClockId::ProcessCPUTime) }
}

/// For how long a thread that does not sleep was without a CPU in `span_ns`, of which it was on one for `cpu_ns`; it lost its
/// CPU for `at_most_ns`, in that span and just before it.
fn lost_ns(span_ns: u64, cpu_ns: u64, at_most_ns: u64) -> u64 {
    span_ns.saturating_sub(cpu_ns).min(at_most_ns)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_while_the_clocks_were_read_comes_after() {
        // 33 ms lost between two readings that are 33.01 ms apart.
        assert_eq!(lost_ns(33_010_000, 10_000, 33_000_000), 33_000_000);
        // A part of what was lost came before the first of them.
        assert_eq!(lost_ns(20_010_000, 10_000, 33_000_000), 20_000_000);
        assert_eq!(lost_ns(10_000, 12_000, 0), 0, "clocks of two kinds are not read at once");
    }

    #[test]
    fn the_clocks_of_a_thread_agree_whatever_else_runs() {
        let others: Vec<_> = (0..4).map(|_| std::thread::spawn(|| spin(200))).collect();
        let first = clocks();
        spin(150);
        let last = clocks();
        others.into_iter().for_each(|other| other.join().unwrap());
        let (span, cpu, delay) = (
            last.time_ns - first.time_ns,
            last.cpu_ns - first.cpu_ns,
            last.run_delay_ns - first.run_delay_ns,
        );
        // A thread that does not sleep is on a CPU or waits for one.
        assert!(cpu + delay <= span + span / 20, "{span} {cpu} {delay}");
    }

    fn spin(ms: u64) {
        let begun_ns = now_ns();
        while now_ns() < begun_ns + ms * 1_000_000 {}
    }
}
