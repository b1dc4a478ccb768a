//! What SQLite spends on the questions to a file: instructions of its virtual machine, the time that they take, and memory.

use rusqlite::ffi;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Instructions between two looks.
pub(crate) const LOOK_EVERY: i32 = 100;
/// Looks at the memory between two at the clock, which costs more.
const CLOCK_EVERY: u64 = 10;
/// CPU time that stands for an instruction: most take a third of it. One that copies a value takes as long as that is long.
const INSTRUCTION_NS: u64 = 50;

/// How much there still is.
#[derive(Debug, Default)]
pub(crate) struct Spending {
    /// Instructions.
    pub(crate) left: AtomicU64,
    /// How many looks there were, and what the clock showed at the last look at it.
    looks: AtomicU64,
    clock_ns: AtomicU64,
    most_memory: AtomicU64,
}

impl Spending {
    /// Something else happened meanwhile. From now on so much more memory may be taken.
    pub(crate) fn begin(&self, memory: u64) {
        self.clock_ns.store(thread_ns(), Relaxed);
        self.most_memory.store(memory_used().saturating_add(memory), Relaxed);
    }

    /// Pays for the instructions since the last look; `false` where there is nothing left to pay with.
    pub(crate) fn pay(&self) -> bool {
        let each = LOOK_EVERY as u64;
        let mut cost = each;
        if self.looks.fetch_add(1, Relaxed).is_multiple_of(CLOCK_EVERY) {
            let now_ns = thread_ns();
            let took_ns = now_ns.saturating_sub(self.clock_ns.swap(now_ns, Relaxed));
            // Most of them are paid for already.
            cost = each.max((took_ns / INSTRUCTION_NS).saturating_sub((CLOCK_EVERY - 1) * each));
        }
        memory_used() <= self.most_memory.load(Relaxed)
            && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(cost)).is_ok()
    }
}

/// CPU time of this thread.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// What SQLite has of memory in this process.
fn memory_used() -> u64 {
    // SAFETY: takes nothing and gives a number, whichever thread asks.
    unsafe { ffi::sqlite3_memory_used() }.max(0) as u64
}
