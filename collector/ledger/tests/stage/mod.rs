//! A stage on which a job plays a known part: what its tasks do is written down as the records that the
//! kernel programs and the shim would send. Times are milliseconds.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use stallscope_abi::kernel::{self, Blocked, Header, Slice, TaskExit, TaskNew, TaskSlot, Times, state};
use stallscope_abi::lane::{self, Caller, ClockAt, Record, Saver, wait_flags};
use stallscope_ledger::{Config, Ledger, ProcessFacts, ProcessKind};
use stallscope_model::{Cause, Phase, StepLedger};

pub const MS: u64 = 1_000_000;
pub const TRAINER: u32 = 100;
pub const WORKER: u32 = 101;

/// What a task does for a while.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    Cpu,
    /// On a CPU, and this many milliseconds of it inside reads.
    CpuReading(u64),
    Runnable,
    In(Blocked),
    /// Blocked in a futex while siblings use as many milliseconds of CPU as the first says, until one ends it that was without a
    /// CPU for as many as the second.
    Behind(u64, u64),
    /// Blocked while siblings use this many milliseconds of CPU.
    Helped(Blocked, u64),
}

pub struct Stage {
    pub ledger: Ledger,
    pub steps: Vec<StepLedger>,
}

impl Stage {
    /// A job of one trainer and one worker, both with a shim, launched at 0.
    pub fn new() -> Stage {
        let mut stage = Stage::empty();
        stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
        stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
        stage
    }

    pub fn empty() -> Stage {
        let mut ledger = Ledger::new(Config::default());
        ledger.root(TRAINER, 0);
        Stage { ledger, steps: Vec::new() }
    }

    pub fn greet(&mut self, pid: u32, ppid: u32, kind: ProcessKind, rank: u32, world_size: u32) {
        self.ledger.process(ProcessFacts {
            pid,
            ns_pid: pid,
            ppid,
            kind,
            rank,
            world_size,
            ..Default::default()
        });
    }

    /// The kernel tells that `pid` did this from `start` to `end`.
    pub fn did(&mut self, pid: u32, start: u64, end: u64, does: Does) {
        self.ledger.kernel(&kernel::Record::Slice(slice(pid, start, end, does)));
    }

    /// The same, one thing after the other from `start`; each with its length.
    pub fn does(&mut self, pid: u32, start: u64, parts: &[(u64, Does)]) {
        let mut at = start;
        for (length, does) in parts {
            self.did(pid, at, at + length, *does);
            at += length;
        }
    }

    pub fn new_task(&mut self, pid: u32, ppid: u32, at: u64, comm: &str) {
        let header = header(kernel::Kind::TaskNew, pid, at);
        let mut task = TaskNew { header, ppid, ..Default::default() };
        task.comm[..comm.len()].copy_from_slice(comm.as_bytes());
        self.ledger.kernel(&kernel::Record::TaskNew(task));
    }

    pub fn exits(&mut self, pid: u32, at: u64) {
        let exit = TaskExit { header: header(kernel::Kind::TaskExit, pid, at), ..Default::default() };
        self.ledger.kernel(&kernel::Record::TaskExit(exit));
    }

    pub fn lane(&mut self, pid: u32, record: Record) {
        self.ledger.lane(pid, &record);
    }

    pub fn wait(&mut self, enter: u64, exit: u64, index: u64) {
        self.wait_for(TRAINER, 0, WORKER, enter, exit, index, if index == 0 { wait_flags::FIRST } else { 0 });
    }

    #[expect(clippy::too_many_arguments, reason = "a wait has that many properties")]
    pub fn wait_for(
        &mut self,
        pid: u32,
        loader: u16,
        worker: u32,
        enter: u64,
        exit: u64,
        index: u64,
        flags: u64,
    ) {
        self.lane(pid, wait(loader, worker, enter, exit, index, flags));
    }

    pub fn batch(&mut self, pid: u32, start: u64, ready: u64, index: u64) {
        self.lane(pid, batch(start, ready, index));
    }

    pub fn sample(&mut self, pid: u32, start: u64, end: u64, reading: u64) {
        let (start_ns, read_ns) = (start * MS, reading * MS);
        let sample = lane::Sample { loader: 0, count: 1, start_ns, batch: 0, read_ns };
        self.lane(pid, sample.encode(end * MS));
    }

    /// Thread CPU time, run delay and process CPU time, all since the start.
    pub fn clock(&mut self, pid: u32, at: ClockAt, time: u64, (cpu, delay, process): (u64, u64, u64)) {
        let clock = lane::Clock {
            loader: 0,
            at,
            cpu_ns: cpu * MS,
            run_delay_ns: delay * MS,
            process_cpu_ns: process * MS,
            read_ns: 0,
        };
        self.lane(pid, clock.encode(time * MS));
    }

    pub fn iter_start(&mut self, loader: u16, at: u64, flags: u64) {
        self.lane(TRAINER, lane::IterStart { loader, epoch: 0, flags }.encode(at * MS));
    }

    pub fn iter_end(&mut self, loader: u16, at: u64) {
        self.iter_end_found(loader, 0, at);
    }

    /// The end was found by a `next()` that was entered at `enter`.
    pub fn iter_end_found(&mut self, loader: u16, enter: u64, at: u64) {
        self.lane(TRAINER, lane::IterEnd { loader, batches: 0, enter_ns: enter * MS }.encode(at * MS));
    }

    pub fn checkpoint(&mut self, start: u64, end: u64, saver: Saver, persist: bool, background: bool) {
        let caller = if background { Caller::Thread } else { Caller::MainThread };
        self.lane(TRAINER, saved(start, end, saver, persist, caller));
    }

    pub fn device_idle(&mut self, at: u64, wait_exit: u64, idle: u64) {
        let event = lane::DeviceIdle { idle_ns: idle * MS, wait_exit_ns: wait_exit * MS };
        self.lane(TRAINER, event.encode(at * MS));
    }

    pub fn stepped(&mut self, at: u64, source: lane::StepSource) {
        self.lane(TRAINER, lane::Step { source }.encode(at * MS));
    }

    pub fn says_goodbye(&mut self, pid: u32, at: u64) {
        self.lane(pid, lane::Bye {}.encode(at * MS));
    }

    pub fn advance(&mut self, now: u64) {
        let steps = self.ledger.advance(now * MS);
        self.steps.extend(steps);
        self.check();
    }

    pub fn finish(&mut self, now: u64) -> &[StepLedger] {
        let steps = self.ledger.finish(now * MS);
        self.steps.extend(steps);
        self.check();
        &self.steps
    }

    fn check(&self) {
        for step in &self.steps {
            assert_eq!(step.causes.total_ns(), step.end_ns - step.start_ns, "{step:?} doesn't add up");
        }
    }

    /// The step of a phase with this index.
    pub fn step(&self, phase: Phase, index: u64) -> &StepLedger {
        let found =
            self.steps.iter().find(|step| step.phase == phase && step.index == index && step.rank == 0);
        found.unwrap_or_else(|| panic!("no step {index} of {phase:?} in {:#?}", self.steps))
    }

    /// Asserts all causes of a step, in milliseconds; those left out are 0.
    pub fn expect(&self, phase: Phase, index: u64, causes: &[(Cause, u64)]) {
        expect(self.step(phase, index), causes);
    }
}

pub fn expect(step: &StepLedger, causes: &[(Cause, u64)]) {
    let found: Vec<(Cause, u64)> = step.causes.iter().filter(|(_, ns)| *ns > 0).collect();
    let mut wanted: Vec<(Cause, u64)> = causes.iter().map(|(cause, ms)| (*cause, ms * MS)).collect();
    wanted.sort();
    assert_eq!(found, wanted, "causes of {step:?}");
}

fn header(kind: kernel::Kind, pid: u32, at: u64) -> Header {
    Header { kind: kind as u16, size: 0, slot: 0, tid: pid, tgid: pid, time_ns: at * MS }
}

/// With what siblings had of a CPU, and were without one.
pub fn times(span: u64, does: Does) -> (Times, u64, u64) {
    let mut times = Times::default();
    let (mut sibling, mut without) = (0, 0);
    match does {
        Does::Cpu => times.cpu_ns = span * MS,
        Does::CpuReading(reading) => (times.cpu_ns, times.cpu_read_ns) = (span * MS, reading * MS),
        Does::Runnable => times.runnable_ns = span * MS,
        Does::In(kind) => times.blocked_ns[kind as usize] = span * MS,
        Does::Helped(kind, helped) => {
            times.blocked_ns[kind as usize] = span * MS;
            sibling = helped * MS;
        }
        Does::Behind(helped, late) => {
            times.blocked_ns[Blocked::Futex as usize] = span * MS;
            (sibling, without) = (helped * MS, late * MS);
        }
    }
    (times, sibling, without)
}

pub fn slice(pid: u32, start: u64, end: u64, does: Does) -> Slice {
    let (times, sibling_cpu_ns, sibling_runnable_ns) = times(end - start, does);
    Slice {
        header: header(kernel::Kind::Slice, pid, end),
        start_ns: start * MS,
        times,
        sibling_cpu_ns,
        sibling_runnable_ns,
        rchar: 0,
        read_bytes: 0,
    }
}

/// A slot whose last slice ended at `since` and which holds one state since.
pub fn slot(pid: u32, since: u64, holds: Does) -> TaskSlot {
    let mut slot = TaskSlot {
        tid: pid,
        tgid: pid,
        since_ns: since * MS,
        slice_start_ns: since * MS,
        ..Default::default()
    };
    match holds {
        Does::Cpu | Does::CpuReading(_) => slot.state = state::RUNNING,
        Does::Runnable => slot.state = state::RUNNABLE,
        Does::In(kind) | Does::Helped(kind, _) => {
            (slot.state, slot.blocked_in) = (state::BLOCKED, kind as u8)
        }
        Does::Behind(..) => (slot.state, slot.blocked_in) = (state::BLOCKED, Blocked::Futex as u8),
    }
    slot
}

pub fn wait(loader: u16, worker: u32, enter: u64, exit: u64, index: u64, flags: u64) -> Record {
    lane::Wait { loader, worker, enter_ns: enter * MS, batch: index, samples: 8, flags }.encode(exit * MS)
}

pub fn batch(start: u64, ready: u64, index: u64) -> Record {
    batch_of(start, ready, index, 0)
}

/// A batch whose maker used so many milliseconds of CPU for it.
pub fn batch_of(start: u64, ready: u64, index: u64, cpu: u64) -> Record {
    let (start_ns, cpu_ns) = (start * MS, cpu * MS);
    let batch = lane::Batch { loader: 0, worker: 0, start_ns, batch: index, collate_ns: 0, cpu_ns };
    batch.encode(ready * MS)
}

/// A checkpoint of 1000 bytes.
pub fn saved(start: u64, end: u64, saver: Saver, persist: bool, caller: Caller) -> Record {
    let stage = if persist { lane::Stage::Persist } else { lane::Stage::Snapshot };
    lane::Checkpoint { saver, began_ns: start * MS, stage, bytes: 1000, caller }.encode(end * MS)
}

/// First batch at 100 ms, so that training begins there.
pub fn training() -> Stage {
    let mut stage = Stage::new();
    stage.batch(WORKER, 20, 90, 0);
    stage.wait(50, 100, 0);
    stage
}
