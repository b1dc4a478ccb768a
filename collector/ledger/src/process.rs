//! One process of the job: what the kernel and its own shim reported of it.

use crate::attribute::{View, asleep, blocked_in_fetch};
use crate::passage::Errands;
use crate::shim::Shim;
use crate::timeline::{Activity, Interval, Pushed, Timeline, scale};
use crate::uncounted::Uncounted;
use stallscope_abi::kernel::{Slice, TaskSlot};
use stallscope_model::{WorkerLoad, WorkerPeriod};
use std::collections::{BTreeMap, VecDeque};

/// How far apart it is remembered how much was read, and how often.
const MARK_NS: u64 = 4_000_000;
const MAX_MARKS: usize = 512;
const MAX_PINS: usize = 64;

/// What a process is to the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessKind {
    Trainer,
    Worker,
    #[default]
    Other,
}

/// What a shim says of its process when it greets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// On the host.
    pub pid: u32,
    /// In the process's own pid namespace.
    pub ns_pid: u32,
    /// In the process's own pid namespace.
    pub ppid: u32,
    pub kind: ProcessKind,
    pub rank: u32,
    /// 0 or 1 when the process trains alone.
    pub world_size: u32,
    pub host: String,
    pub torch_version: Option<String>,
    pub python_version: Option<String>,
    /// Hooks that could not be set, one sentence each.
    pub unavailable: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) facts: ProcessFacts,
    pub(crate) greeted: bool,
    /// pid of the parent on the host, by the kernel.
    pub(crate) host_ppid: Option<u32>,
    pub(crate) kernel: Timeline,
    /// Of pin-memory threads, by tid.
    pub(crate) pins: BTreeMap<u32, Timeline>,
    pub(crate) errands: Errands,
    pub(crate) shim: Shim,
    /// The loader of the first wait for one of its batches, known before that wait's step is closed.
    pub(crate) serves: Option<u16>,
    read_bytes: u64,
    uncounted: Uncounted,
    /// As of some moments of late: `read_bytes`, and what was read in all.
    read_marks: VecDeque<(u64, u64, u64)>,
    /// What was counted up to the last [`Process::take_periods`], and when it had last been seen then.
    taken: WorkerLoad,
    taken_ns: u64,
    /// Something was reported of it since [`Ledger::forget`](crate::Ledger) last dropped what no step needs.
    pub(crate) has_reports: bool,
    /// 0 as long as nothing with a time was reported of it.
    pub(crate) first_seen_ns: u64,
    pub(crate) last_seen_ns: u64,
    pub(crate) exited_ns: Option<u64>,
}

impl Process {
    pub(crate) fn slice(&mut self, slice: &Slice) -> Option<Pushed> {
        if self.read_marks.back().is_none_or(|(at_ns, ..)| slice.start_ns >= at_ns.saturating_add(MARK_NS)) {
            self.read_marks.push_back((slice.start_ns, self.read_bytes, self.read_so_far()));
            if self.read_marks.len() > MAX_MARKS {
                self.read_marks.pop_front();
            }
        }
        self.read_bytes = self.read_bytes.saturating_add(slice.read_bytes);
        self.uncounted.slice(slice);
        Interval::of_slice(slice).map(|interval| self.kernel.push(interval))
    }

    /// Bytes that came from storage in `[a_ns, b_ns)`, an interval between two marks giving in proportion; `None`
    /// where nobody counted, or that is forgotten.
    pub(crate) fn bytes_read(&self, a_ns: u64, b_ns: u64) -> Option<u64> {
        let (first_ns, ..) = *self.read_marks.front()?;
        if a_ns < first_ns {
            return None;
        }
        let by = |at_ns: u64| {
            let after = self.read_marks.partition_point(|(mark_ns, ..)| *mark_ns <= at_ns);
            let (from_ns, from, _) = self.read_marks[after.saturating_sub(1)];
            let end = (self.kernel.covered_to_ns(), self.read_bytes);
            let (to_ns, to) =
                self.read_marks.get(after).map_or(end, |(at_ns, counted, _)| (*at_ns, *counted));
            let span_ns = to_ns.saturating_sub(from_ns);
            from + scale(to - from, at_ns.saturating_sub(from_ns).min(span_ns), span_ns)
        };
        Some(by(b_ns).saturating_sub(by(a_ns)))
    }

    /// Bytes that came from storage, counted there or not, by about this moment. What would only be known later of storage
    /// that counts nothing is taken for read: a total may still shrink by it, a difference between two moments of one process
    /// has it on both sides.
    pub(crate) fn read_by(&self, at_ns: u64) -> u64 {
        let before = self.read_marks.partition_point(|(mark_ns, ..)| *mark_ns < at_ns);
        self.read_marks.get(before).map_or_else(|| self.read_so_far(), |(_, _, read)| *read)
    }

    /// Bytes from storage, counted there and not.
    pub(crate) fn counted_and_not(&self) -> (u64, u64) {
        (self.read_bytes, self.uncounted.bytes(true))
    }

    /// The sum of both, which is less than before where storage counts late what was taken for uncounted.
    pub(crate) fn read_so_far(&self) -> u64 {
        self.read_bytes.saturating_add(self.uncounted.bytes(true))
    }

    pub(crate) fn slot(&mut self, slot: &TaskSlot, now_ns: u64) {
        self.host_ppid = Some(slot.ppid);
        self.named(&slot.comm);
        self.kernel.set_open(Interval::of_slot(slot, now_ns));
    }

    /// Takes up what the shim reported late.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        self.shim.flush(now_ns);
        self.shim.cuts.apply(&mut self.kernel);
    }

    /// A pin-memory thread: no other thread beside the main one is watched.
    pub(crate) fn pin(&mut self, tid: u32) -> Option<&mut Timeline> {
        let known = self.pins.contains_key(&tid) || self.pins.len() < MAX_PINS;
        known.then(|| self.pins.entry(tid).or_default())
    }

    pub(crate) fn forget_before(&mut self, horizon_ns: u64) {
        self.kernel.forget_before(horizon_ns);
        self.shim.forget_before(horizon_ns);
        self.errands.forget_before(horizon_ns);
        for pin in self.pins.values_mut() {
            pin.forget_before(horizon_ns);
        }
        // Each iterator has a thread of its own. One that slept all along is known again as soon as it wakes.
        self.pins.retain(|_, pin| pin.covered_to_ns() > horizon_ns);
    }

    /// DataLoader workers name their main thread, which tells them where no shim does.
    pub(crate) fn named(&mut self, comm: &[u8; 16]) {
        if !self.greeted && comm.starts_with(b"pt_data_worker") {
            self.facts.kind = ProcessKind::Worker;
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { kernel: (!self.kernel.is_empty()).then_some(&self.kernel), shim: &self.shim }
    }

    pub(crate) fn shim_view(&self) -> View<'_> {
        View { kernel: None, shim: &self.shim }
    }

    /// Whether everything up to `to_ns` has arrived, as far as anything will.
    pub(crate) fn covers(&self, to_ns: u64) -> bool {
        self.view().covers(to_ns) || self.exited_ns.is_some_and(|exited_ns| exited_ns <= to_ns)
    }

    pub(crate) fn history_dropped(&self) -> u64 {
        self.shim.history_dropped + self.shim.timeline.dropped + self.kernel.dropped
    }

    /// Loader and number of a worker: who follows it under another pid has the same. Of one that is gone and served nobody, as
    /// its iterator was dropped before, the loader is not known: all that had its number share a place.
    pub(crate) fn place(&self) -> (u16, u32) {
        match self.shim.last_place {
            Some((_, worker)) if self.served_nobody() => (u16::MAX, worker),
            Some((named, worker)) => (self.loader().unwrap_or(named), worker),
            None => (u16::MAX, self.facts.pid),
        }
    }

    /// As [`Self::place`], also of one that is gone. Without a number, as from the kernel alone, nobody follows it.
    pub(crate) fn seat(&self) -> (u16, u32) {
        self.shim
            .last_place
            .map_or((u16::MAX, self.facts.pid), |(named, worker)| (self.loader().unwrap_or(named), worker))
    }

    fn served_nobody(&self) -> bool {
        self.facts.kind == ProcessKind::Worker && self.exited_ns.is_some() && self.loader().is_none()
    }

    /// The loader that it works for, once one was found to have waited for it.
    pub(crate) fn loader(&self) -> Option<u16> {
        self.shim.last_place.filter(|_| self.shim.placed).map(|(loader, _)| loader).or(self.serves)
    }

    /// What its main thread did since it was seen.
    pub(crate) fn so_far(&self) -> Activity {
        if self.kernel.is_empty() { self.shim.timeline.so_far() } else { self.kernel.so_far() }
    }

    pub(crate) fn load(&self) -> WorkerLoad {
        let total = if self.kernel.is_empty() { &self.shim.timeline.total } else { &self.kernel.total };
        let mut load = self.counts();
        load += &load_of(total, self.facts.kind == ProcessKind::Worker);
        load.pid = self.facts.pid;
        load.loader = self.loader();
        load
    }

    fn counts(&self) -> WorkerLoad {
        WorkerLoad {
            batches: self.greeted.then_some(self.shim.batches_made),
            samples: self.greeted.then_some(self.shim.samples_made),
            read_bytes: self.read_bytes.saturating_add(self.uncounted.bytes(self.exited_ns.is_some())),
            ..WorkerLoad::default()
        }
    }

    /// Whether it is known which worker it is, or will not be known better: of one that is gone, the wait for its last batch may
    /// yet be reported, for as long as `patience_ns`.
    pub(crate) fn is_placed(&self, now_ns: u64, patience_ns: u64) -> bool {
        let is_gone = |exited_ns: u64| now_ns.saturating_sub(exited_ns) >= patience_ns;
        !self.greeted || self.shim.placed || self.exited_ns.is_some_and(is_gone)
    }

    /// What a worker did since the last call, by period. What it counted belongs to the one in the middle.
    pub(crate) fn take_periods(&mut self) -> BTreeMap<u64, WorkerLoad> {
        let (kernel, shim) = (self.kernel.take_periods(), self.shim.timeline.take_periods());
        let known = if self.kernel.is_empty() { shim } else { kernel };
        let mut loads: BTreeMap<u64, WorkerLoad> = BTreeMap::new();
        for (period_ns, activity) in known {
            *loads.entry(period_ns).or_default() += &load_of(&activity, true);
        }
        let counts = self.counts();
        let before = std::mem::replace(&mut self.taken, counts.clone());
        let from_ns = std::mem::replace(&mut self.taken_ns, self.last_seen_ns).max(self.first_seen_ns);
        if counts != before {
            let middle_ns = from_ns.midpoint(self.last_seen_ns);
            let period_ns = middle_ns - middle_ns % WorkerPeriod::LENGTH_NS;
            *loads.entry(period_ns).or_default() += &WorkerLoad {
                batches: since(counts.batches, before.batches),
                samples: since(counts.samples, before.samples),
                // What stood for uncounted bytes at the end is less where a late slice shows that they were counted.
                read_bytes: counts.read_bytes.saturating_sub(before.read_bytes),
                ..WorkerLoad::default()
            };
        }
        let (pid, loader) = (self.facts.pid, self.loader());
        loads.values_mut().for_each(|load| (load.pid, load.loader) = (pid, loader));
        loads
    }
}

fn since(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    now.map(|now| now - before.unwrap_or(0))
}

/// A worker that is blocked waits for data, but in a pipe for an index; what others sleep for nobody knows.
fn load_of(total: &Activity, worker: bool) -> WorkerLoad {
    let times = &total.times;
    let read_on_cpu_ns = times.cpu_read_ns.min(times.cpu_ns);
    let asleep_ns = if worker { asleep(total) } else { 0 };
    let blocked_in_fetch_ns = blocked_in_fetch(total).saturating_add(asleep_ns);
    let reading_ns = blocked_in_fetch_ns.saturating_add(read_on_cpu_ns);
    let blocked_ns = times.blocked_ns.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
    let wall_ns = times.cpu_ns.saturating_add(times.runnable_ns).saturating_add(blocked_ns);
    let cpu_ns = times.cpu_ns - read_on_cpu_ns;
    WorkerLoad {
        wall_ns,
        fetch_ns: reading_ns,
        cpu_ns,
        runnable_ns: times.runnable_ns,
        idle_ns: wall_ns.saturating_sub(reading_ns).saturating_sub(cpu_ns).saturating_sub(times.runnable_ns),
        ..WorkerLoad::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_abi::kernel::Blocked;

    #[test]
    fn a_slice_that_comes_after_the_end_takes_no_bytes_back() {
        let mut process = Process::default();
        let mut slice = Slice { rchar: 1 << 20, ..Slice::default() };
        slice.times.blocked_ns[Blocked::FileRead as usize] = 1_000_000;
        process.slice(&slice);
        (process.exited_ns, process.last_seen_ns) = (Some(1), 1);
        let read = |process: &mut Process| -> u64 {
            process.take_periods().values().map(|load| load.read_bytes).sum()
        };
        assert_eq!(read(&mut process), 1 << 20);
        process.slice(&Slice { read_bytes: 1 << 19, ..Slice::default() });
        assert_eq!(read(&mut process), 0);
    }
}
