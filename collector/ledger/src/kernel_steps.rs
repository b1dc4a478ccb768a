//! Finds a PyTorch DataLoader's handovers in kernel evidence alone.
//!
//! What a loader with worker processes does, as the kernel sees it:
//! - the trainer's main thread sleeps in a pipe until a worker's feeder thread writes a message about a batch;
//!   with a pin-memory thread, that thread sleeps in the pipe and the main thread in a futex of its;
//! - when a batch is handed over, the main thread puts the next index: it wakes a feeder thread of its own;
//! - with syscall hooks, a main thread that creates a file, writes and closes it between two hand-overs saves a
//!   checkpoint; a file that stays open over hand-overs is something else (a log);
//! - before that, each tensor's handle comes over a Unix socket from a thread of the worker that made it;
//! - a worker takes an index from a pipe, makes the batch and wakes its own feeder thread: the batch is ready.
//!
//! Which batch was awaited is decided afterwards: the last message before the main thread puts the next index
//! names the worker. (Counting ahead fails as soon as a batch arrives out of order.) The moment of a message is
//! when it woke its reader, not when the reader got a CPU.

use crate::handover::{BatchTimes, Handover, Producer, Source};
use stallscope_abi::kernel::{self, Blocked, Record, Slice, TaskNew, Wait, Wake};
use stallscope_abi::lane::{self, wait_flags};
use std::collections::{HashMap, HashSet, VecDeque};

/// What the main thread does between the put of the next index and the return of `next()`.
const AFTER_PUT_NS: u64 = 60_000;
/// Main threads that burn more than this without a message between have gone back to their own work.
const OWN_WORK_NS: u64 = 1_000_000;
/// What unpickling a batch takes where no put shows its end: at an epoch's tail there are no more indices.
const UNPICKLE_NS: u64 = 300_000;
/// With a pin-memory thread: after its wake-up the main thread may have to wait for the interpreter's lock, at once;
/// and soon after that it puts the next index. What is longer ago was about the lock alone.
const LOCK_GAP_NS: u64 = 400_000;
const PUT_WITHIN_NS: u64 = 2_000_000;
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
    /// The last message that its pin-memory thread waited for.
    pinned: Option<Message>,
}

#[derive(Debug, Default)]
struct Trainer {
    /// Threads that put indices into pipes.
    feeders: HashSet<u32>,
    handed_over: u64,
    last_exit_ns: u64,
    /// When the wait that is under way began.
    enter_ns: Option<u64>,
    message: Option<Message>,
    /// CPU of the main thread since the message.
    cpu_since_message_ns: u64,
    /// Workers were started since the last handover: an epoch begins.
    new_workers: bool,
    pinned: bool,
    /// Since the last handover: when a file was created, and the size of the largest one written.
    save_begun_ns: Option<u64>,
    saved_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    at_ns: u64,
    worker: u32,
    /// Nobody waited for it in a pipe: the batch was there before.
    was_ready: bool,
}

impl KernelSteps {
    /// Takes one record and returns the handover that it makes certain.
    pub(crate) fn record(&mut self, record: &Record) -> Option<Handover> {
        match record {
            Record::TaskNew(task) => self.arrived(task),
            Record::TaskExit(exit) if exit.header.tid == exit.header.tgid => {
                self.processes.remove(&exit.header.tgid);
            }
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

    /// With syscall hooks: the checkpoint that `save` completes, in the shim's form. The same one comes again,
    /// longer, with every further mark.
    pub(crate) fn save(&mut self, save: &kernel::Save) -> Option<lane::Record> {
        let header = &save.header;
        if header.tid != header.tgid {
            return None;
        }
        let trainer = self.processes.get_mut(&header.tgid)?.trainer.as_mut()?;
        if save.what == kernel::save::BEGUN {
            trainer.save_begun_ns.get_or_insert(header.time_ns);
            return None;
        }
        // A file that was there before says nothing of one that is created later.
        let begun_ns = trainer.save_begun_ns?;
        trainer.saved_bytes = trainer.saved_bytes.max(save.bytes);
        if trainer.saved_bytes == 0 {
            return None;
        }
        Some(lane::Record {
            time_ns: header.time_ns,
            kind: lane::Kind::Checkpoint as u16,
            id: lane::Saver::Other as u32,
            a: begun_ns,
            b: 1,
            c: trainer.saved_bytes,
            ..lane::Record::default()
        })
    }

    fn arrived(&mut self, task: &TaskNew) {
        if task.header.tid != task.header.tgid {
            return;
        }
        self.processes.entry(task.header.tgid).or_default().parent = task.ppid;
        if let Some(trainer) = self.trainer_above(task.header.tgid) {
            trainer.new_workers = true;
        }
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
        if wait.blocked_in == Blocked::Unix as u32 {
            self.received_tensor(wait);
            return None;
        }
        let from = wait.waker_tgid;
        if pipe && self.ancestors(pid).contains(&from) {
            // A worker waited for an index.
            let process = self.processes.entry(pid).or_default();
            process.is_worker = true;
            remember(&mut process.taken_up_ns, at_ns);
            if let Some(trainer) = self.processes.get_mut(&from).and_then(|process| process.trainer.as_mut())
            {
                trainer.feeders.insert(wait.waker_tid);
            }
            return None;
        }
        let process = self.processes.entry(pid).or_default();
        let message = if pipe && from != pid {
            Message { at_ns, worker: from, was_ready: false }
        } else if !pipe && from == pid && tid == pid {
            // The pin-memory thread passed on what it had got.
            let pinned = process.pinned?;
            process.trainer.get_or_insert_default().pinned = true;
            Message { at_ns, ..pinned }
        } else {
            return None;
        };
        if tid != pid {
            process.pinned = Some(message);
            return None;
        }
        if !self.ancestors(message.worker).contains(&pid) {
            return None;
        }
        let trainer = self.processes.get_mut(&pid)?.trainer.get_or_insert_default();
        if !pipe && trainer.message.is_some_and(|last| wait.start_ns > last.at_ns + LOCK_GAP_NS) {
            // The two threads hand the interpreter's lock to each other all the time, which looks the same. What
            // was followed by work of its own was no wait for a batch.
            (trainer.enter_ns, trainer.message) = (None, None);
        }
        let tail = trainer.tail(wait.start_ns);
        let handed_over = tail.map(|tail| self.hand_over(pid, tail));
        let trainer = self.processes.get_mut(&pid)?.trainer.get_or_insert_default();
        trainer.enter_ns.get_or_insert(wait.start_ns);
        trainer.message = Some(message);
        trainer.cpu_since_message_ns = 0;
        handed_over
    }

    /// A batch that was there already shows by this alone.
    fn received_tensor(&mut self, wait: &Wait) {
        let pid = wait.header.tgid;
        if wait.header.tid != pid || !self.ancestors(wait.waker_tgid).contains(&pid) {
            return;
        }
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let trainer = process.trainer.get_or_insert_default();
        trainer.enter_ns.get_or_insert(wait.start_ns);
        trainer.message.get_or_insert(Message {
            at_ns: wait.start_ns,
            worker: wait.waker_tgid,
            was_ready: true,
        });
        trainer.cpu_since_message_ns = 0;
    }

    /// With syscall hooks: the main thread reads a message that was there already.
    fn read_message(&mut self, pid: u32, tid: u32, time_ns: u64) -> Option<Handover> {
        if tid != pid {
            return None;
        }
        let process = self.processes.get_mut(&pid)?;
        if process.is_worker {
            remember(&mut process.taken_up_ns, time_ns);
            return None;
        }
        let tail = process.trainer.as_mut()?.tail(time_ns);
        let handed_over = tail.map(|tail| self.hand_over(pid, tail));
        self.processes.get_mut(&pid)?.trainer.as_mut()?.enter_ns.get_or_insert(time_ns);
        handed_over
    }

    fn woke(&mut self, wake: &Wake) -> Option<Handover> {
        let (pid, at_ns) = (wake.header.tgid, wake.header.time_ns);
        let process = self.processes.get_mut(&pid)?;
        let Some(trainer) = &mut process.trainer else {
            // In a process that nobody knows as a trainer yet it may be a worker's result feeder.
            remember(&mut process.ready_ns, at_ns);
            return None;
        };
        if trainer.message.is_none()
            && trainer.enter_ns.is_none()
            && !trainer.feeders.contains(&wake.woken_tid)
        {
            return None;
        }
        trainer.feeders.insert(wake.woken_tid);
        if at_ns < trainer.last_exit_ns {
            // Depth grows with several puts in a row: one handover.
            return None;
        }
        if trainer.pinned && trainer.message.is_some_and(|last| at_ns > last.at_ns + PUT_WITHIN_NS) {
            (trainer.enter_ns, trainer.message) = (None, None);
        }
        let ended = Ended { enter_ns: trainer.enter_ns.unwrap_or(at_ns), exit_ns: at_ns + AFTER_PUT_NS };
        Some(self.hand_over(pid, ended))
    }

    fn ran(&mut self, slice: &Slice) {
        if slice.header.tid == slice.header.tgid
            && let Some(process) = self.processes.get_mut(&slice.header.tgid)
            && let Some(trainer) = &mut process.trainer
            && trainer.message.is_some_and(|message| slice.start_ns >= message.at_ns)
        {
            trainer.cpu_since_message_ns += slice.times.cpu_ns;
        }
    }

    fn hand_over(&mut self, pid: u32, ended: Ended) -> Handover {
        let message = self.processes.get(&pid).and_then(|process| process.trainer.as_ref()?.message);
        let batch = message.and_then(|message| {
            let ready = BatchTimes { start_ns: message.at_ns, ready_ns: message.at_ns };
            self.batch(message).or(message.was_ready.then_some(ready))
        });
        let mut handover = Handover {
            pid,
            loader: 0,
            enter_ns: ended.enter_ns,
            exit_ns: ended.exit_ns,
            producer: message.map_or(Producer::Unknown, |message| Producer::Pid(message.worker)),
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
            trainer.last_exit_ns = ended.exit_ns;
            trainer.enter_ns = None;
            trainer.message = None;
            trainer.cpu_since_message_ns = 0;
            trainer.save_begun_ns = None;
            trainer.saved_bytes = 0;
        }
        handover
    }

    /// When the batch of a message was made: it was the last that its worker had ready.
    fn batch(&self, message: Message) -> Option<BatchTimes> {
        let worker = self.processes.get(&message.worker)?;
        let before =
            |moments: &VecDeque<u64>, at_ns: u64| moments.iter().rev().copied().find(|ns| *ns <= at_ns);
        let ready_ns = before(&worker.ready_ns, message.at_ns)?;
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

impl Trainer {
    /// A new wait begins at `start_ns` though no index was put since the last message: when the main thread
    /// worked for a while between, that message was a handover.
    fn tail(&self, start_ns: u64) -> Option<Ended> {
        let message = self.message.filter(|_| self.cpu_since_message_ns >= OWN_WORK_NS)?;
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
mod tests {
    use super::*;
    use stallscope_abi::kernel::{Header, Kind, Times};

    pub(super) const TRAINER: u32 = 10;
    pub(super) const WORKERS: [u32; 2] = [21, 22];
    pub(super) const FEEDER: u32 = 11;

    pub(super) fn header(kind: Kind, tgid: u32, tid: u32, time_ns: u64) -> Header {
        Header { kind: kind as u16, tid, tgid, time_ns, ..Header::default() }
    }

    pub(super) fn job() -> KernelSteps {
        let mut steps = KernelSteps::default();
        for (pid, ppid) in [(TRAINER, 1), (WORKERS[0], TRAINER), (WORKERS[1], TRAINER)] {
            let new = TaskNew { header: header(Kind::TaskNew, pid, pid, 0), ppid, ..TaskNew::default() };
            assert_eq!(steps.record(&Record::TaskNew(new)), None);
        }
        steps
    }

    pub(super) fn wait(pid: u32, start_ns: u64, end_ns: u64, waker: (u32, u32)) -> Record {
        Record::Wait(Wait {
            header: header(Kind::Wait, pid, pid, end_ns),
            start_ns,
            waker_tgid: waker.0,
            waker_tid: waker.1,
            blocked_in: Blocked::Pipe as u32,
            ..Wait::default()
        })
    }

    pub(super) fn wake(pid: u32, time_ns: u64, woken_tid: u32) -> Record {
        Record::Wake(Wake { header: header(Kind::Wake, pid, pid, time_ns), woken_tid, pad: 0, cpu_ns: 0 })
    }

    fn cpu(pid: u32, start_ns: u64, end_ns: u64) -> Record {
        let times = Times { cpu_ns: end_ns - start_ns, ..Times::default() };
        Record::Slice(Slice {
            header: header(Kind::Slice, pid, pid, end_ns),
            start_ns,
            times,
            ..Slice::default()
        })
    }

    pub(super) const MS: u64 = 1_000_000;

    #[test]
    fn a_put_ends_a_wait_and_the_last_message_names_the_worker() {
        let mut steps = job();
        assert_eq!(steps.record(&wait(WORKERS[1], 0, 2 * MS, (TRAINER, FEEDER))), None);
        steps.record(&wake(WORKERS[1], 40 * MS, 99));
        // A stored batch of the other worker wakes the trainer first.
        steps.record(&wait(TRAINER, 5 * MS, 30 * MS, (WORKERS[0], 98)));
        steps.record(&wait(TRAINER, 30 * MS + 100, 41 * MS, (WORKERS[1], 97)));
        let found = steps.record(&wake(TRAINER, 42 * MS, FEEDER)).unwrap();
        assert_eq!(found.producer, Producer::Pid(WORKERS[1]));
        assert_eq!((found.enter_ns, found.exit_ns), (5 * MS, 42 * MS + AFTER_PUT_NS));
        assert_eq!(found.batch, Some(BatchTimes { start_ns: 2 * MS, ready_ns: 40 * MS }));
        // A batch that was there already: nothing is waited for.
        let found = steps.record(&wake(TRAINER, 60 * MS, FEEDER)).unwrap();
        assert_eq!(found.enter_ns, 60 * MS);
        assert_eq!(found.producer, Producer::Unknown);
    }

    #[test]
    fn an_epochs_tail_has_no_puts_but_work_between_messages() {
        let mut steps = job();
        steps.record(&wait(TRAINER, MS, 3 * MS, (WORKERS[0], 98)));
        steps.record(&cpu(TRAINER, 3 * MS, 9 * MS));
        let found = steps.record(&wait(TRAINER, 9 * MS, 20 * MS, (WORKERS[1], 97))).unwrap();
        assert_eq!((found.enter_ns, found.exit_ns), (MS, 3 * MS + UNPICKLE_NS));
        assert_eq!(found.producer, Producer::Pid(WORKERS[0]));
        let found = steps.record(&wake(TRAINER, 21 * MS, FEEDER)).unwrap();
        assert_eq!(found.enter_ns, 9 * MS, "the wait that followed is still known");
        assert_eq!(found.producer, Producer::Pid(WORKERS[1]));
    }

    #[test]
    fn a_pin_memory_thread_stands_between() {
        let mut steps = job();
        let pin = TRAINER + 5;
        let Record::Wait(mut message) = wait(TRAINER, MS, 8 * MS, (WORKERS[0], 98)) else { unreachable!() };
        message.header.tid = pin;
        steps.record(&Record::Wait(message));
        let mut passed_on = message;
        passed_on.header = header(Kind::Wait, TRAINER, TRAINER, 9 * MS);
        passed_on.start_ns = 2 * MS;
        (passed_on.waker_tgid, passed_on.waker_tid) = (TRAINER, pin);
        passed_on.blocked_in = Blocked::Futex as u32;
        steps.record(&Record::Wait(passed_on));
        let found = steps.record(&wake(TRAINER, 10 * MS, FEEDER)).unwrap();
        assert_eq!(found.producer, Producer::Pid(WORKERS[0]));
        assert!(found.has(wait_flags::PINNED));
        assert_eq!(found.enter_ns, 2 * MS);
    }

    #[test]
    fn the_interpreters_lock_is_no_batch() {
        let mut steps = job();
        let pin = TRAINER + 5;
        let Record::Wait(mut message) = wait(TRAINER, MS, 8 * MS, (WORKERS[0], 98)) else { unreachable!() };
        message.header.tid = pin;
        steps.record(&Record::Wait(message));
        let from_pin = |start_ns, end_ns| {
            let Record::Wait(mut wait) = wait(TRAINER, start_ns, end_ns, (TRAINER, pin)) else {
                unreachable!()
            };
            wait.blocked_in = Blocked::Futex as u32;
            Record::Wait(wait)
        };
        assert_eq!(steps.record(&from_pin(10 * MS, 11 * MS)), None);
        steps.record(&cpu(TRAINER, 11 * MS, 19 * MS));
        assert_eq!(steps.record(&from_pin(19 * MS, 30 * MS)), None, "work between: the first was the lock");
        let found = steps.record(&wake(TRAINER, 31 * MS, FEEDER)).unwrap();
        assert_eq!(found.enter_ns, 19 * MS);
    }

    #[test]
    fn locks_of_other_programs_are_no_batches() {
        let mut steps = job();
        assert_eq!(steps.record(&wake(TRAINER, MS, 77)), None);
        // A pipe from a process that is no descendant.
        steps.record(&wait(TRAINER, MS, 2 * MS, (4000, 4000)));
        assert_eq!(steps.record(&wake(TRAINER, 3 * MS, 77)), None);
    }
}
