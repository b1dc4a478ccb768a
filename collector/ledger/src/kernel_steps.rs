//! Finds a PyTorch DataLoader's handovers in kernel evidence alone.
//!
//! What a loader with worker processes does, as the kernel sees it:
//! - the trainer's main thread sleeps in a pipe until a worker's feeder thread writes a message about a batch;
//!   with a pin-memory thread, that thread sleeps in the pipe and the main thread in a futex of its;
//! - when a batch is handed over, the main thread puts the next index: it wakes a feeder thread of its own;
//! - with syscall hooks, a main thread that creates a file, writes and closes it between two hand-overs saves a
//!   checkpoint; a file that stays open over hand-overs is something else (a log);
//! - before that, each tensor's handle comes over a Unix socket from a thread of the worker that made it;
//! - at the tail of an epoch there is no index left to put: a batch is over when the main thread has worked for long and goes
//!   on to the next, which is a sleep, a tensor's handle or, with syscall hooks, a header that it reads. One that was read
//!   while another was awaited shows by nothing, and is part of the step before;
//! - a worker takes an index from a pipe, makes the batch and wakes its own feeder thread: the batch is ready;
//! - whatever a loader's processes send each other is sent by a thread beside the main one.
//!
//! Which batch was awaited is decided afterwards: the thread that puts the next index names the worker, as far as it is
//! known whose it is (see [`Feeders`]), else the last message before that. (Counting ahead fails as soon as a batch
//! arrives out of order.) The moment of a message is when it woke its reader, not when the reader got a CPU.

mod ahead;
mod alone;
mod feeders;
mod overlong;
mod pins;
mod saving;

use self::ahead::AheadFeeders;
use self::alone::AlonePuts;
use self::feeders::{CERTAIN, Feeders};
use self::overlong::Overlong;
use self::pins::Pins;
use self::saving::Saving;
use crate::handover::{BatchTimes, Handover, Producer, Source};
use stallscope_abi::kernel::{self, Blocked, Record, Slice, TaskNew, Wait, Wake};
use stallscope_abi::lane::{self, wait_flags};
use std::collections::{HashMap, VecDeque};

/// What the main thread does between the put of the next index and the return of `next()`: 60 us of CPU time on an Intel
/// Xeon, 150 on an AMD EPYC.
pub(crate) const AFTER_PUT_NS: u64 = 120_000;
/// Main threads that work for longer than this without a message between have gone back to their own work.
const OWN_WORK_NS: u64 = 1_000_000;
/// What unpickling a batch takes where no put shows its end: at an epoch's tail there are no more indices.
const UNPICKLE_NS: u64 = 300_000;
/// Messages between two hand-overs: more than that are no loader's.
const MAX_MESSAGES: usize = 256;
/// Moments that are remembered of each process.
const REMEMBERED: usize = 256;

/// The detector. Feed it every record in ring order.
#[derive(Debug, Default)]
pub(crate) struct KernelSteps {
    processes: HashMap<u32, Process>,
}

#[derive(Debug, Default)]
struct Process {
    parent: u32,
    /// When its batches were ready, and when it took up an index it had waited for.
    ready_ns: VecDeque<u64>,
    taken_up_ns: VecDeque<u64>,
    trainer: Option<Trainer>,
    /// An ancestor gave it an index.
    is_worker: bool,
    pins: Pins,
}

#[derive(Debug, Default)]
struct Trainer {
    feeders: Feeders,
    ahead: AheadFeeders,
    handed_over: u64,
    last_exit_ns: u64,
    /// When the wait that is under way began.
    enter_ns: Option<u64>,
    /// Since the last hand-over.
    messages: Vec<Message>,
    puts: AlonePuts,
    /// The main thread slept until the last message came, and has not read its header.
    unread: bool,
    /// When the main thread had the last message, or the last of its tensors, and for how long of what followed it is known
    /// that it was on no CPU. A thread that works is reported when it stops, a long time without a CPU at its end.
    got_ns: u64,
    off_cpu_ns: u64,
    /// For how long it worked of late between a message and the next index: unpickling, which takes a large batch long.
    unpickling_ns: Option<u64>,
    /// Workers were started since the last handover: an epoch begins.
    new_workers: bool,
    /// Workers ended since the last handover.
    workers_ended: bool,
    pinned: bool,
    overlong: Overlong,
    saving: Saving,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// It woke the main thread, and before that the pin-memory thread, if there is one.
    at_ns: u64,
    sent_ns: u64,
    worker: Option<u32>,
    /// Nobody waited for it in a pipe: the batch was there before.
    was_ready: bool,
}

impl KernelSteps {
    /// Takes one record and returns the handover that it makes certain.
    pub(crate) fn record(&mut self, record: &Record) -> Option<Handover> {
        match record {
            Record::TaskNew(task) => return self.arrived(task),
            Record::TaskExit(exit) if exit.header.tid == exit.header.tgid => self.ended(exit.header.tgid),
            Record::Wait(wait) => return self.waited(wait),
            Record::Wake(wake) => return self.woke(wake),
            Record::Slice(slice) => self.ran(slice),
            Record::BatchRead(read) => {
                return self.read_message(read.header.tgid, read.header.tid, read.header.time_ns);
            }
            Record::TaskExec(_) | Record::TaskExit(_) | Record::Save(_) => {}
        }
        None
    }

    /// A hand-over of the process `pid` that what came since made certain; it was before any that the last record made.
    pub(crate) fn certain(&mut self, pid: u32) -> Option<Handover> {
        let trainer = self.processes.get_mut(&pid)?.trainer.as_mut()?;
        trainer.puts.certain(!trainer.messages.is_empty())
    }

    /// With syscall hooks: the checkpoint that `save` completes, in the shim's form. The same one comes again,
    /// longer, with every further mark.
    pub(crate) fn save(&mut self, save: &kernel::Save) -> Option<lane::Checkpoint> {
        let header = &save.header;
        let main = self.processes.get_mut(&header.tgid).filter(|_| header.tid == header.tgid)?;
        main.trainer.as_mut()?.saving.mark(save)
    }

    /// A main thread that starts a process has the last batch, though nobody saw it put the next index.
    fn arrived(&mut self, task: &TaskNew) -> Option<Handover> {
        if task.header.tid != task.header.tgid {
            return None;
        }
        self.processes.entry(task.header.tgid).or_default().parent = task.ppid;
        let of_parent = self.processes.get(&task.ppid).and_then(|process| process.trainer.as_ref());
        let tail = of_parent.and_then(|trainer| trainer.tail(task.header.time_ns));
        let handed_over = tail.map(|tail| self.hand_over(task.ppid, tail));
        if let Some(trainer) = self.trainer_above(task.header.tgid) {
            trainer.new_workers = true;
        }
        handed_over
    }

    fn ended(&mut self, pid: u32) {
        let was_worker = self.processes.get(&pid).is_some_and(|process| process.is_worker);
        if was_worker && let Some(trainer) = self.trainer_above(pid) {
            trainer.workers_ended = true;
            let feeders = &trainer.feeders;
            let dropped = trainer.puts.ended(|feeder| feeders.worker(feeder).is_none_or(|its| its == pid));
            trainer.new_workers |= dropped.iter().any(|put| put.has(wait_flags::FIRST));
        }
        self.processes.remove(&pid);
    }

    /// The nearest trainer among the ancestors of `pid`.
    fn trainer_above(&mut self, pid: u32) -> Option<&mut Trainer> {
        let found = self
            .ancestors(pid)
            .into_iter()
            .find(|above| self.processes.get(above).is_some_and(|process| process.trainer.is_some()))?;
        self.processes.get_mut(&found)?.trainer.as_mut()
    }

    fn ancestors(&self, pid: u32) -> Vec<u32> {
        let mut above = Vec::new();
        let mut at = pid;
        // A pid that was reused could close a circle.
        while let Some(process) = self.processes.get(&at).filter(|_| above.len() < 16) {
            at = process.parent;
            above.push(at);
        }
        above
    }

    fn waited(&mut self, wait: &Wait) -> Option<Handover> {
        let (pid, tid, at_ns) = (wait.header.tgid, wait.header.tid, wait.header.time_ns);
        let pipe = wait.blocked_in == Blocked::Pipe as u32;
        if wait.waker_tid == wait.waker_tgid {
            // Another child of the loop (an environment, a decoder): it answers by itself.
            return None;
        }
        if wait.blocked_in == Blocked::Unix as u32 {
            return self.received_tensor(wait);
        }
        let from = wait.waker_tgid;
        if pipe && self.ancestors(pid).contains(&from) {
            // A worker waited for an index.
            let process = self.processes.entry(pid).or_default();
            process.is_worker = true;
            remember(&mut process.taken_up_ns, at_ns);
            if let Some(trainer) = self.processes.get_mut(&from).and_then(|process| process.trainer.as_mut())
            {
                trainer.feeders.vote(wait.waker_tid, pid, CERTAIN);
            }
            return None;
        }
        let process = self.processes.entry(pid).or_default();
        let message = if pipe && from != pid {
            Message { at_ns, sent_ns: at_ns, worker: Some(from), was_ready: false }
        } else if !pipe && from == pid && tid == pid {
            // The pin-memory thread passed on what it had got.
            let message = process.pins.passed_on(at_ns)?;
            process.trainer.get_or_insert_default().pinned = true;
            message
        } else {
            return None;
        };
        if tid != pid {
            process.pins.slept_for(tid, message);
            return None;
        }
        if message.worker.is_some_and(|worker| !self.ancestors(worker).contains(&pid)) {
            return None;
        }
        let trainer = self.processes.get_mut(&pid)?.trainer.get_or_insert_default();
        let start_ns = trainer.overlong.since(wait.start_ns);
        let tail = trainer.tail(start_ns);
        let handed_over = tail.map(|tail| self.hand_over(pid, tail));
        let trainer = self.processes.get_mut(&pid)?.trainer.get_or_insert_default();
        trainer.enter_ns.get_or_insert(start_ns);
        trainer.got(message);
        trainer.unread = pipe;
        handed_over
    }

    /// A batch that was there already shows by this alone. At an epoch's tail no index is put between two of them.
    fn received_tensor(&mut self, wait: &Wait) -> Option<Handover> {
        let (pid, tid, worker, start_ns) =
            (wait.header.tgid, wait.header.tid, wait.waker_tgid, wait.start_ns);
        let got_ns = wait.header.time_ns;
        if !self.ancestors(worker).contains(&pid) {
            return None;
        }
        let process = self.processes.get_mut(&pid)?;
        if tid != pid {
            process.pins.received(tid, worker, start_ns);
            return None;
        }
        let tail = process.trainer.get_or_insert_default().tail(start_ns);
        let handed_over = tail.map(|tail| self.hand_over(pid, tail));
        let trainer = self.processes.get_mut(&pid)?.trainer.as_mut()?;
        trainer.enter_ns.get_or_insert(start_ns);
        if trainer.messages.is_empty() {
            trainer.got(Message::there(start_ns));
        }
        if let Some(last) = trainer.messages.last_mut() {
            last.worker.get_or_insert(worker);
        }
        (trainer.got_ns, trainer.off_cpu_ns) = (got_ns, 0);
        handed_over
    }

    /// With syscall hooks: the main thread reads a message that was there already, or its pin-memory thread one.
    fn read_message(&mut self, pid: u32, tid: u32, time_ns: u64) -> Option<Handover> {
        let process = self.processes.get_mut(&pid)?;
        if tid != pid {
            process.pins.read(tid, time_ns);
            return None;
        }
        if process.is_worker {
            remember(&mut process.taken_up_ns, time_ns);
            return None;
        }
        let trainer = process.trainer.as_mut()?;
        if std::mem::take(&mut trainer.unread) {
            return None;
        }
        let tail = trainer.tail(time_ns);
        let handed_over = tail.map(|tail| self.hand_over(pid, tail));
        let trainer = self.processes.get_mut(&pid)?.trainer.as_mut()?;
        trainer.enter_ns.get_or_insert(time_ns);
        trainer.got(Message::there(time_ns));
        handed_over
    }

    fn woke(&mut self, wake: &Wake) -> Option<Handover> {
        let (pid, at_ns, feeder) = (wake.header.tgid, wake.header.time_ns, wake.woken_tid);
        let is_before_any = self.is_before_any_batch(pid, feeder);
        let process = self.processes.get_mut(&pid)?;
        let Some(trainer) = &mut process.trainer else {
            // In a process that nobody knows as a trainer yet it may be a worker's result feeder.
            remember(&mut process.ready_ns, at_ns);
            return None;
        };
        let waits = !trainer.messages.is_empty() || trainer.enter_ns.is_some();
        if process.pins.contains(feeder) {
            return None;
        }
        if !waits && !trainer.feeders.contains(feeder) && !trainer.ahead.contains(feeder) {
            return None;
        }
        // An iterator that ends closes the queues of its workers when they have ended, which wakes their feeders.
        if !waits && (trainer.workers_ended || is_before_any) {
            return None;
        }
        trainer.feeders.insert(feeder);
        if at_ns < trainer.last_exit_ns {
            // Depth grows with several puts in a row: one handover.
            return None;
        }
        // Of the first it is not known yet how long it takes to unpickle.
        let tail = trainer.tail(at_ns).filter(|_| trainer.unpickling_ns.is_some());
        trainer.unpickled(at_ns);
        // The end of an epoch puts one for each worker, not only for the one that made the last batch.
        if let Some(tail) = tail {
            let handed_over = self.hand_over(pid, tail);
            self.processes.get_mut(&pid)?.trainer.as_mut()?.last_exit_ns = at_ns + AFTER_PUT_NS;
            return Some(handed_over);
        }
        if let Some(last) = trainer.messages.last()
            && let Some(worker) = last.worker
        {
            trainer.feeders.vote(feeder, worker, 1);
        }
        if let Some(worker) = trainer.feeders.worker(feeder).filter(|_| !trainer.messages.is_empty()) {
            trainer.handed_over_by(worker, at_ns);
        }
        let ended = Ended { enter_ns: trainer.enter_ns.unwrap_or(at_ns), exit_ns: at_ns + AFTER_PUT_NS };
        let handed_over = self.hand_over(pid, ended);
        if waits {
            return Some(handed_over);
        }
        self.processes.get_mut(&pid)?.trainer.as_mut()?.puts.hold(feeder, at_ns, handed_over);
        None
    }

    /// Whether what `feeder` puts is among the first indices of a worker that was just started, which an iterator puts when it
    /// is made, prefetch_factor for each worker: nothing is handed over by them.
    fn is_before_any_batch(&self, pid: u32, feeder: u32) -> bool {
        let trainer = self.processes.get(&pid).and_then(|process| process.trainer.as_ref());
        let started = trainer.filter(|trainer| trainer.new_workers);
        started
            .and_then(|trainer| trainer.feeders.worker(feeder))
            .and_then(|worker| self.processes.get(&worker))
            .is_some_and(|worker| worker.ready_ns.is_empty())
    }

    fn ran(&mut self, slice: &Slice) {
        if slice.header.tid == slice.header.tgid
            && let Some(process) = self.processes.get_mut(&slice.header.tgid)
            && let Some(trainer) = &mut process.trainer
        {
            let (start_ns, end_ns) = (slice.start_ns, slice.header.time_ns);
            let since_ns = end_ns.saturating_sub(start_ns.max(trainer.got_ns));
            let off_cpu_ns = end_ns.saturating_sub(start_ns).saturating_sub(slice.times.cpu_ns);
            trainer.off_cpu_ns = trainer.off_cpu_ns.saturating_add(off_cpu_ns.min(since_ns));
            trainer.puts.worked(start_ns, end_ns, slice.times.cpu_ns);
            if trainer.got_ns <= start_ns {
                trainer.overlong.slept(slice, if trainer.pinned { Blocked::Futex } else { Blocked::Pipe });
            }
        }
    }

    fn hand_over(&mut self, pid: u32, ended: Ended) -> Handover {
        let trainer = self.processes.get(&pid).and_then(|process| process.trainer.as_ref());
        let message = trainer.and_then(|trainer| trainer.messages.last().copied());
        let batch = message.and_then(|message| {
            let ready = BatchTimes { start_ns: message.sent_ns, ready_ns: message.sent_ns };
            self.batch(message).or(message.was_ready.then_some(ready))
        });
        let mut handover = Handover {
            pid,
            loader: 0,
            enter_ns: ended.enter_ns,
            exit_ns: ended.exit_ns,
            producer: message.and_then(|message| message.worker).map_or(Producer::Unknown, Producer::Pid),
            batch,
            index: 0,
            samples: 0,
            flags: 0,
            source: Source::Kernel,
        };
        if let Some(trainer) = self.processes.get_mut(&pid).and_then(|process| process.trainer.as_mut()) {
            if std::mem::take(&mut trainer.new_workers) {
                handover.flags |= wait_flags::FIRST;
                trainer.handed_over = 0;
            }
            if trainer.pinned {
                handover.flags |= wait_flags::PINNED;
            }
            handover.index = trainer.handed_over;
            trainer.handed_over += 1;
            trainer.workers_ended = false;
            trainer.last_exit_ns = ended.exit_ns;
            trainer.enter_ns = None;
            trainer.messages.clear();
            trainer.ahead.handed_over();
            trainer.saving = Saving::default();
        }
        handover
    }

    /// When the batch of a message was made: it was the last that its worker had ready.
    fn batch(&self, message: Message) -> Option<BatchTimes> {
        let worker = self.processes.get(&message.worker?)?;
        let before =
            |moments: &VecDeque<u64>, at_ns: u64| moments.iter().rev().copied().find(|ns| *ns <= at_ns);
        let ready_ns = before(&worker.ready_ns, message.sent_ns)?;
        let earlier = before(&worker.ready_ns, ready_ns.saturating_sub(1));
        let taken_up = before(&worker.taken_up_ns, ready_ns);
        Some(BatchTimes { start_ns: earlier.max(taken_up).unwrap_or(ready_ns), ready_ns })
    }
}

/// A wait that is over.
struct Ended {
    enter_ns: u64,
    exit_ns: u64,
}

impl Message {
    /// One that was there before the main thread looked; whose it is shows by who hands over the tensors.
    fn there(at_ns: u64) -> Message {
        Message { at_ns, sent_ns: at_ns, worker: None, was_ready: true }
    }
}

impl Trainer {
    fn got(&mut self, message: Message) {
        if self.messages.len() < MAX_MESSAGES {
            self.messages.push(message);
        }
        self.ahead.got_message();
        (self.got_ns, self.off_cpu_ns) = (message.at_ns, 0);
    }

    /// From the last message to `at_ns`, on a CPU.
    fn worked_ns(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.got_ns).saturating_sub(self.off_cpu_ns)
    }

    /// The batch is of `worker`, whatever message came last: one that was read without a sleep is in none of them.
    fn handed_over_by(&mut self, worker: u32, at_ns: u64) {
        let its = self.messages.iter().rfind(|message| message.worker == Some(worker)).copied();
        self.messages.push(its.unwrap_or(Message { worker: Some(worker), ..Message::there(at_ns) }));
    }

    /// At `put_ns` the next index was put. What took much longer than before was a step, and moves it little.
    fn unpickled(&mut self, put_ns: u64) {
        let worked_ns = self.worked_ns(put_ns);
        if !self.messages.is_empty() {
            let before_ns = self.unpickling_ns.unwrap_or(worked_ns);
            self.unpickling_ns =
                Some(worked_ns.min(before_ns.saturating_add(before_ns / 8 + OWN_WORK_NS / 8)));
        }
    }

    /// At `start_ns` a new wait begins, or the loader ends, though no index was put since the last message: when the main
    /// thread worked for a while between, that message was a handover.
    fn tail(&self, start_ns: u64) -> Option<Ended> {
        let own_work_ns = OWN_WORK_NS.max(self.unpickling_ns.unwrap_or(0).saturating_mul(4));
        let message = self.messages.last().filter(|_| self.worked_ns(start_ns) >= own_work_ns)?;
        let exit_ns = (message.at_ns + UNPICKLE_NS).min(start_ns);
        Some(Ended { enter_ns: self.enter_ns.unwrap_or(message.at_ns), exit_ns })
    }
}

fn remember(moments: &mut VecDeque<u64>, at_ns: u64) {
    if moments.len() == REMEMBERED {
        moments.pop_front();
    }
    moments.push_back(at_ns);
}

#[cfg(test)]
mod saves;
#[cfg(test)]
mod tests;
