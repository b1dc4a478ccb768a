use crate::handover::Handover;
use std::collections::VecDeque;

/// What the main thread does at most on a CPU between the puts that end workers and the last of these ends, for which it sleeps.
const SHUTDOWN_NS: u64 = 5_000_000;
/// Main threads put an index a batch: more than that are not held back.
const MAX_HELD: usize = 64;

/// Puts without a message before them, which two things make: a batch that was there already, and an iterator that is
/// dropped, which tells each of its workers to end.
///
/// What follows tells them apart. After a batch the main thread works or goes on to the next; after a drop it sleeps
/// until the workers have ended.
#[derive(Debug, Default)]
pub(super) struct AlonePuts(VecDeque<Put>);

#[derive(Debug)]
struct Put {
    feeder: u32,
    at_ns: u64,
    worked_ns: u64,
    handover: Handover,
}

impl AlonePuts {
    /// Holds the hand-over that a put at `at_ns` would be.
    pub(super) fn hold(&mut self, feeder: u32, at_ns: u64, handover: Handover) {
        self.0.push_back(Put { feeder, at_ns, worked_ns: 0, handover });
    }

    /// The main thread was on a CPU for `cpu_ns` of the interval.
    pub(super) fn worked(&mut self, start_ns: u64, end_ns: u64, cpu_ns: u64) {
        for put in &mut self.0 {
            let since_ns = end_ns.saturating_sub(start_ns.max(put.at_ns));
            put.worked_ns = put.worked_ns.saturating_add(cpu_ns.min(since_ns));
        }
    }

    /// Those that batches made for certain, in order: all, where another message came since.
    pub(super) fn certain(&mut self, all: bool) -> Option<Handover> {
        let first = self.0.front()?;
        let certain = all || first.worked_ns >= SHUTDOWN_NS || self.0.len() > MAX_HELD;
        certain.then(|| self.0.pop_front()).flatten().map(|put| put.handover)
    }

    /// A worker ended, whose feeder is one of which `is_its` holds: its puts were no batches.
    pub(super) fn ended(&mut self, is_its: impl Fn(u32) -> bool) -> Vec<Handover> {
        let (its, others) = self.0.drain(..).partition(|put| is_its(put.feeder));
        self.0 = others;
        let its: VecDeque<Put> = its;
        its.into_iter().map(|put| put.handover).collect()
    }
}
