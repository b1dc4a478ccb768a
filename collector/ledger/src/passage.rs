//! A batch on its way: from when it was ready until the trainer has it, by what the threads that must act did.
//!
//! They act one after the other. The worker's feeder thread pickles the batch and writes a message; the trainer's main
//! thread, or its pin-memory thread, reads it; for each tensor the worker's resource sharer then hands over a
//! descriptor. While one of the worker's threads is neither on a CPU nor waiting for one, it mostly waits for the
//! interpreter's lock, which its main thread holds: then that is the one that must act.

use crate::attribute::View;
use crate::timeline::{Activity, Timeline, scale};
use stallscope_abi::kernel::{Blocked, Wait};
use std::collections::{BTreeMap, VecDeque};

const MAX_ERRANDS: usize = 512;
const CLOCKS_DIFFER_NS: u64 = 1_000;

/// What a thread did from its wake-up until it had handed on what it was woken for.
#[derive(Clone, Copy, Debug)]
struct Errand {
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
    runnable_ns: u64,
    /// Blocked in files, page faults and the network.
    read_ns: u64,
}

/// The errands of the two threads of a worker that carry its batches: each thread's in order, without overlap.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    feeder: VecDeque<Errand>,
    sharer: VecDeque<Errand>,
}

impl Errands {
    /// Takes the errand that ended a wait for this process. False when its figures make no sense.
    pub(crate) fn take(&mut self, wait: &Wait) -> bool {
        let thread =
            if wait.blocked_in == Blocked::Unix as u32 { &mut self.sharer } else { &mut self.feeder };
        // Clocks of two CPUs may differ by some ns.
        let start_ns = wait.errand_start_ns.max(thread.back().map_or(0, |last| last.end_ns));
        let end_ns = wait.header.time_ns;
        let parts = [wait.errand_cpu_ns, wait.errand_runnable_ns, wait.errand_read_ns];
        let sum_ns = parts.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        if end_ns.saturating_sub(start_ns).saturating_add(CLOCKS_DIFFER_NS) < sum_ns {
            return false;
        }
        if start_ns < end_ns {
            if thread.len() == MAX_ERRANDS {
                thread.pop_front();
            }
            let [cpu_ns, runnable_ns, read_ns] = parts;
            thread.push_back(Errand { start_ns, end_ns, cpu_ns, runnable_ns, read_ns });
        }
        true
    }

    pub(crate) fn forget_before(&mut self, horizon_ns: u64) {
        for thread in [&mut self.feeder, &mut self.sharer] {
            while thread.pop_front_if(|errand| errand.end_ns <= horizon_ns).is_some() {}
        }
    }
}

/// Who must act between a batch that is ready and the end of the wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage<'a> {
    pub(crate) trainer: View<'a>,
    /// The trainer's pin-memory threads; only those of the loader that is waited for do anything then.
    pub(crate) pins: Option<&'a BTreeMap<u32, Timeline>>,
    /// The worker's main thread, and its helpers' errands where the kernel reported them; `None` where the trainer made the
    /// batch itself, or nobody knows who did.
    pub(crate) worker: Option<(View<'a>, Option<&'a Errands>)>,
}

/// Why the batch was not there yet. What is left of the time is transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) starved_ns: u64,
    pub(crate) fetch_ns: u64,
}

impl Held {
    fn add(&mut self, other: Held) {
        self.starved_ns += other.starved_ns;
        self.fetch_ns += other.fetch_ns;
    }

    /// No more than `most_ns` in all.
    fn within(self, most_ns: u64) -> Held {
        let starved_ns = self.starved_ns.min(most_ns);
        Held { starved_ns, fetch_ns: self.fetch_ns.min(most_ns - starved_ns) }
    }
}

impl Passage<'_> {
    /// What held up the batch in `[a_ns, b_ns)`.
    pub(crate) fn held(&self, a_ns: u64, b_ns: u64) -> Held {
        let mut held = Held::default();
        self.trainer.each(a_ns, b_ns, |from_ns, to_ns, did| {
            if let Some(did) = did {
                held.add(self.held_in(from_ns, to_ns, did));
            }
        });
        held
    }

    /// The same in an interval of the trainer's main thread.
    fn held_in(&self, a_ns: u64, b_ns: u64, did: &Activity) -> Held {
        let mut held = Held { starved_ns: did.times.runnable_ns, fetch_ns: 0 };
        let mut asleep_ns: u64 = did.times.blocked_ns.iter().sum();
        let mut served_ns = did.of(Blocked::Unix);
        for pin in self.pins.iter().flat_map(|pins| pins.values()) {
            let pin = pin.query(a_ns, b_ns, |_, _| {});
            let runnable_ns = pin.times.runnable_ns.min(asleep_ns);
            held.starved_ns += runnable_ns;
            asleep_ns -= runnable_ns;
            asleep_ns -= pin.times.cpu_ns.min(asleep_ns);
            served_ns += pin.of(Blocked::Unix);
        }
        if let Some((worker, errands)) = &self.worker {
            let served_ns = served_ns.min(asleep_ns);
            held.add(errand(worker, errands.map(|errands| &errands.sharer), a_ns, b_ns, served_ns));
            held.add(errand(
                worker,
                errands.map(|errands| &errands.feeder),
                a_ns,
                b_ns,
                asleep_ns - served_ns,
            ));
        }
        held
    }
}

/// What held up a thread of the worker that others waited for during `awaited_ns` of `[a_ns, b_ns)`.
fn errand(
    worker: &View<'_>,
    thread: Option<&VecDeque<Errand>>,
    a_ns: u64,
    b_ns: u64,
    awaited_ns: u64,
) -> Held {
    let mut held = Held::default();
    let mut covered_ns = 0;
    if awaited_ns == 0 {
        return held;
    }
    // In which part of an interval the main thread, which holds the lock, had no CPU.
    let holder = |from_ns, to_ns, ns| {
        let seen = worker.query(from_ns, to_ns).activity;
        scale(ns, seen.times.runnable_ns, to_ns - from_ns)
    };
    for errand in thread.into_iter().flatten() {
        let (from_ns, to_ns) = (errand.start_ns.max(a_ns), errand.end_ns.min(b_ns));
        if from_ns >= to_ns {
            continue;
        }
        let part = |ns| scale(ns, to_ns - from_ns, errand.end_ns - errand.start_ns);
        let (cpu_ns, runnable_ns, read_ns) =
            (part(errand.cpu_ns), part(errand.runnable_ns), part(errand.read_ns));
        let locked_ns = (to_ns - from_ns).saturating_sub(cpu_ns + runnable_ns + read_ns);
        held.add(Held { starved_ns: runnable_ns + holder(from_ns, to_ns, locked_ns), fetch_ns: read_ns });
        covered_ns += to_ns - from_ns;
    }
    // Before its errand, the main thread had yet to wake it; where that was not reported, the main thread's own record speaks for it.
    let rest_ns = awaited_ns.saturating_sub(covered_ns);
    if rest_ns > 0 {
        held.starved_ns += holder(a_ns, b_ns, rest_ns);
    }
    held.within(awaited_ns)
}
