use super::feeders::{ENOUGH, MAX_FEEDERS};
use std::collections::HashMap;

/// Feeders of workers that are always ahead of training: these never sleep for an index, which would name their feeder, and
/// the main thread has their batches in store before it asks for them.
///
/// Of a main thread that got two messages and handed over one batch the next put follows no message. Threads that it
/// wakes for its own work, or for a log, are woken in each step; that feeder once from one message to the next.
#[derive(Debug, Default)]
pub(super) struct AheadFeeders {
    /// Messages since the last hand-over, and batches in store.
    received: usize,
    stored: usize,
    /// Counts messages and hand-overs.
    window: u64,
    /// By thread: the window in which it was woken last, and in how many in a row once, while a batch was in store.
    woken: HashMap<u32, (u64, u32)>,
}

impl AheadFeeders {
    pub(super) fn got_message(&mut self) {
        self.received += 1;
        self.window += 1;
    }

    pub(super) fn handed_over(&mut self) {
        self.stored = match std::mem::take(&mut self.received) {
            0 => self.stored.saturating_sub(1),
            received => received - 1,
        };
        self.window += 1;
    }

    /// The main thread woke `tid` outside of a wait. Whether that is a feeder by now.
    pub(super) fn contains(&mut self, tid: u32) -> bool {
        if self.woken.len() >= MAX_FEEDERS {
            self.woken.clear();
        }
        let (window, times) = self.woken.entry(tid).or_default();
        let is_first = std::mem::replace(window, self.window) != self.window;
        *times = if is_first && self.stored > 0 { *times + 1 } else { 0 };
        *times >= ENOUGH
    }
}
