//! A wait for a batch that takes longer than torch sleeps for it in one go.

use stallscope_abi::kernel::{Blocked, Slice};

/// torch sleeps for 5 s (MP_STATUS_CHECK_INTERVAL), looks whether its workers live, and sleeps on. Nobody ends such a sleep.
const IN_ONE_GO_NS: u64 = 5_000_000_000;
/// What a sleep may be off that, as others may be part of its slice.
const OFF_NS: u64 = 50_000_000;
/// What that look takes where the thread hardly gets a CPU.
const LOOK_NS: u64 = 100_000_000;

/// The sleeps of a main thread that ended without a message, one directly after the other.
#[derive(Debug, Default)]
pub(super) struct Overlong {
    start_ns: u64,
    end_ns: u64,
}

impl Overlong {
    /// The main thread slept until `slice` ended, and nobody woke it.
    pub(super) fn slept(&mut self, slice: &Slice, kind: Blocked) {
        let (slept_ns, end_ns) = (slice.times.blocked_ns[kind as usize], slice.header.time_ns);
        if slept_ns.abs_diff(IN_ONE_GO_NS) <= OFF_NS {
            // What the slice has besides is the work before it, and that look.
            let start_ns = end_ns.saturating_sub(slept_ns).max(slice.start_ns);
            self.start_ns = self.since(start_ns);
            self.end_ns = end_ns;
        }
    }

    /// When the wait began whose last sleep began at `start_ns`.
    pub(super) fn since(&self, start_ns: u64) -> u64 {
        let goes_on = start_ns <= self.end_ns.saturating_add(LOOK_NS);
        if self.end_ns > 0 && goes_on { self.start_ns.min(start_ns) } else { start_ns }
    }
}
