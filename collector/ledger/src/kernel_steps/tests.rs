//! Hand-overs as the kernel sees them.

use super::*;
use stallscope_abi::kernel::{BatchRead, Header, Kind, Times};

pub(super) const TRAINER: u32 = 10;
pub(super) const WORKERS: [u32; 2] = [21, 22];
pub(super) const FEEDER: u32 = 11;
const PIN: u32 = TRAINER + 5;

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

/// Every hand-over that the record makes certain.
fn all(steps: &mut KernelSteps, record: &Record) -> Vec<Handover> {
    let found = steps.record(record);
    let mut all: Vec<Handover> = std::iter::from_fn(|| steps.certain(TRAINER)).collect();
    all.extend(found);
    all
}

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
    let mut found = all(&mut steps, &wake(TRAINER, 60 * MS, FEEDER));
    found.extend(all(&mut steps, &cpu(TRAINER, 60 * MS, 80 * MS)));
    let [found] = found[..] else { panic!("{found:?}") };
    assert_eq!(found.enter_ns, 60 * MS);
    assert_eq!(found.producer, Producer::Unknown);
}

/// torch sleeps for 5 s in one go, looks at its workers, and sleeps on.
#[test]
fn a_wait_that_is_slept_in_several_goes_is_one() {
    for pinned in [false, true] {
        let mut steps = job();
        let got = |steps: &mut KernelSteps, start_ns: u64, end_ns: u64, worker: u32| {
            if pinned {
                steps.record(&pin_got(start_ns, end_ns, worker, Blocked::Pipe));
                steps.record(&from_pin(start_ns, end_ns));
            } else {
                steps.record(&wait(TRAINER, start_ns, end_ns, (worker, 98)));
            }
            steps.record(&wake(TRAINER, end_ns + MS, FEEDER)).expect("a hand-over")
        };
        got(&mut steps, 0, MS, WORKERS[0]);
        steps.record(&cpu(TRAINER, 2 * MS, 500 * MS));
        let slept = |start_ns: u64, end_ns: u64| {
            let mut times = Times { cpu_ns: MS, ..Times::default() };
            let kind = if pinned { Blocked::Futex } else { Blocked::Pipe };
            times.blocked_ns[kind as usize] = end_ns - start_ns - MS;
            let header = header(Kind::Slice, TRAINER, TRAINER, end_ns);
            Record::Slice(Slice { header, start_ns, times, ..Slice::default() })
        };
        let ends = [5_500 * MS, 10_500 * MS].map(|end_ns| steps.record(&slept(end_ns - 5_000 * MS, end_ns)));
        assert_eq!(ends, [None, None]);
        let found = got(&mut steps, 10_500 * MS, 12_000 * MS, WORKERS[1]);
        assert_eq!((found.enter_ns, found.producer), (501 * MS, Producer::Pid(WORKERS[1])));
        // The next begins by itself.
        steps.record(&cpu(TRAINER, 12_001 * MS, 12_400 * MS));
        let found = got(&mut steps, 12_400 * MS, 13_000 * MS, WORKERS[0]);
        assert_eq!(found.enter_ns, 12_400 * MS);
    }
}

/// An evaluation in the midst of an epoch: a worker has taken its first index when the iterator puts the second.
#[test]
fn the_first_indices_of_new_workers_are_no_batches() {
    let mut steps = job();
    steps.record(&wait(TRAINER, MS, 3 * MS, (WORKERS[0], 98)));
    steps.record(&wake(TRAINER, 4 * MS, FEEDER)).unwrap();
    let (worker, feeder) = (31, 14);
    let new = TaskNew {
        header: header(Kind::TaskNew, worker, worker, 50 * MS),
        ppid: TRAINER,
        ..TaskNew::default()
    };
    steps.record(&Record::TaskNew(new));
    let mut found = all(&mut steps, &wait(worker, 60 * MS, 70 * MS, (TRAINER, feeder)));
    found.extend(all(&mut steps, &wake(TRAINER, 71 * MS, feeder)));
    found.extend(all(&mut steps, &cpu(TRAINER, 71 * MS, 90 * MS)));
    found.extend(all(&mut steps, &wait(TRAINER, 90 * MS, 150 * MS, (worker, 32))));
    assert_eq!(found, []);
    let found = all(&mut steps, &wake(TRAINER, 151 * MS, feeder));
    let [found] = found[..] else { panic!("{found:?}") };
    assert_eq!((found.enter_ns, found.flags), (90 * MS, wait_flags::FIRST));
    // Later ones are.
    let mut found = all(&mut steps, &wake(TRAINER, 171 * MS, feeder));
    found.extend(all(&mut steps, &cpu(TRAINER, 171 * MS, 190 * MS)));
    assert_eq!(found.len(), 1);
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

/// Batches of the tail that were there already: the main thread sleeps for their tensors' handles alone.
#[test]
fn at_an_epochs_tail_each_batch_that_was_there_is_one() {
    let mut steps = job();
    let handles = |start_ns, end_ns, worker| {
        let Record::Wait(mut got) = wait(TRAINER, start_ns, end_ns, (worker, 98)) else { unreachable!() };
        got.blocked_in = Blocked::Unix as u32;
        Record::Wait(got)
    };
    steps.record(&wait(TRAINER, MS, 3 * MS, (WORKERS[0], 97)));
    steps.record(&handles(3 * MS + 100, 3 * MS + 200, WORKERS[0]));
    // The second tensor of the batch is no second batch.
    assert_eq!(steps.record(&handles(3 * MS + 300, 3 * MS + 400, WORKERS[0])), None);
    let first = steps.record(&handles(90 * MS, 91 * MS, WORKERS[1])).unwrap();
    assert_eq!((first.enter_ns, first.producer), (MS, Producer::Pid(WORKERS[0])));
    assert_eq!(first.exit_ns, 3 * MS + UNPICKLE_NS);
    let second = steps.record(&handles(180 * MS, 181 * MS, WORKERS[0])).unwrap();
    assert_eq!((second.enter_ns, second.producer), (90 * MS, Producer::Pid(WORKERS[1])));
}

/// The main thread, or its pin-memory thread, reads the header of a message.
fn read(tid: u32, time_ns: u64) -> Record {
    Record::BatchRead(BatchRead { header: header(Kind::BatchRead, TRAINER, tid, time_ns), fd: 5, pad: 0 })
}

/// With syscall hooks all batches of the tail show, and the last of them ends before what ends the epoch.
#[test]
fn the_tails_batches_that_were_there_are_read_one_by_one_until_the_workers_end() {
    let mut steps = job();
    // One that was waited for: its header is no second message.
    steps.record(&wait(TRAINER, MS, 3 * MS, (WORKERS[0], 97)));
    assert_eq!(steps.record(&read(TRAINER, 3 * MS + 10)), None);
    let put = steps.record(&wake(TRAINER, 3 * MS + 500_000, FEEDER)).unwrap();
    assert_eq!((put.enter_ns, put.producer), (MS, Producer::Pid(WORKERS[0])));
    for at_ns in [90 * MS, 180 * MS] {
        steps.record(&cpu(TRAINER, at_ns - 80 * MS, at_ns));
        let before = steps.record(&read(TRAINER, at_ns));
        assert_eq!(before.map(|before| before.enter_ns), (at_ns > 90 * MS).then_some(90 * MS));
    }
    steps.record(&cpu(TRAINER, 181 * MS, 270 * MS));
    let last = steps.record(&wake(TRAINER, 270 * MS, FEEDER)).unwrap();
    assert_eq!((last.enter_ns, last.exit_ns), (180 * MS, 180 * MS + UNPICKLE_NS));
    assert_eq!(steps.record(&wake(TRAINER, 270 * MS + 50_000, FEEDER + 1)), None);
}

/// A batch of large arrays takes the main thread long to unpickle, which is no step.
#[test]
fn what_is_unpickled_for_long_is_one_batch() {
    let mut steps = job();
    for step in 1..5 {
        let at_ns = 100 * step * MS;
        steps.record(&wait(TRAINER, at_ns, at_ns + 3 * MS, (WORKERS[0], 97)));
        steps.record(&cpu(TRAINER, at_ns + 3 * MS, at_ns + 9 * MS));
        let found = steps.record(&wake(TRAINER, at_ns + 9 * MS, FEEDER)).unwrap();
        let put_ns = at_ns + 9 * MS + AFTER_PUT_NS;
        assert!(step == 1 || found.exit_ns == put_ns, "step {step}: {found:?}");
    }
    // Nor is one that had been read before it was its turn.
    steps.record(&wait(TRAINER, 500 * MS, 503 * MS, (WORKERS[1], 97)));
    steps.record(&cpu(TRAINER, 503 * MS, 509 * MS));
    assert_eq!(steps.record(&read(TRAINER, 509 * MS)), None);
    assert_eq!(steps.record(&wait(TRAINER, 509 * MS, 520 * MS, (WORKERS[0], 97))), None);
}

#[test]
fn a_pin_memory_thread_stands_between() {
    let mut steps = job();
    steps.record(&pin_got(MS, 8 * MS, WORKERS[0], Blocked::Pipe));
    steps.record(&from_pin(2 * MS, 9 * MS));
    let found = steps.record(&wake(TRAINER, 10 * MS, FEEDER)).unwrap();
    assert_eq!(found.producer, Producer::Pid(WORKERS[0]));
    assert!(found.has(wait_flags::PINNED));
    assert_eq!(found.enter_ns, 2 * MS);
}

#[test]
fn locks_of_other_programs_are_no_batches() {
    let mut steps = job();
    assert_eq!(steps.record(&wake(TRAINER, MS, 77)), None);
    // A pipe from a process that is no descendant.
    steps.record(&wait(TRAINER, MS, 2 * MS, (4000, 4000)));
    assert_eq!(steps.record(&wake(TRAINER, 3 * MS, 77)), None);
}

/// What the pin-memory thread waited for, from a worker.
fn pin_got(start_ns: u64, end_ns: u64, worker: u32, blocked_in: Blocked) -> Record {
    let Record::Wait(mut got) = wait(TRAINER, start_ns, end_ns, (worker, 98)) else { unreachable!() };
    (got.header.tid, got.blocked_in) = (PIN, blocked_in as u32);
    Record::Wait(got)
}

/// The main thread waited for the pin-memory thread.
fn from_pin(start_ns: u64, end_ns: u64) -> Record {
    let Record::Wait(mut passed_on) = wait(TRAINER, start_ns, end_ns, (TRAINER, PIN)) else { unreachable!() };
    passed_on.blocked_in = Blocked::Futex as u32;
    Record::Wait(passed_on)
}

#[test]
fn a_pinned_batch_that_is_not_the_awaited_one_ends_no_wait_however_long_the_threads_get_no_cpu() {
    let mut steps = job();
    steps.record(&pin_got(MS, 8 * MS, WORKERS[0], Blocked::Pipe));
    assert_eq!(steps.record(&from_pin(2 * MS, 9 * MS)), None);
    // The main thread gets a CPU 3 ms later, stores it and waits on.
    let times = Times { runnable_ns: 3 * MS, ..Times::default() };
    steps.record(&Record::Slice(Slice {
        header: header(Kind::Slice, TRAINER, TRAINER, 12 * MS),
        start_ns: 9 * MS,
        times,
        ..Slice::default()
    }));
    steps.record(&pin_got(9 * MS, 30 * MS, WORKERS[1], Blocked::Pipe));
    assert_eq!(steps.record(&from_pin(12 * MS, 31 * MS)), None);
    let found = steps.record(&wake(TRAINER, 40 * MS, FEEDER)).unwrap();
    assert_eq!((found.enter_ns, found.producer), (2 * MS, Producer::Pid(WORKERS[1])));
}

#[test]
fn the_pin_memory_thread_reads_a_message_that_was_there() {
    let mut steps = job();
    steps.record(&wake(WORKERS[1], 7 * MS, 99));
    steps.record(&pin_got(MS, 8 * MS, WORKERS[0], Blocked::Pipe));
    steps.record(&read(PIN, 8 * MS + 100));
    steps.record(&from_pin(2 * MS, 9 * MS));
    steps.record(&read(PIN, 10 * MS));
    // Its tensors' handles come from the other worker.
    steps.record(&pin_got(10 * MS, 11 * MS, WORKERS[1], Blocked::Unix));
    steps.record(&from_pin(9 * MS, 12 * MS));
    let found = steps.record(&wake(TRAINER, 13 * MS, FEEDER)).unwrap();
    assert_eq!(found.producer, Producer::Pid(WORKERS[1]));
    assert_eq!(found.batch.map(|batch| batch.ready_ns), Some(7 * MS));
    // The main thread leaves a lock that the pin-memory thread waits for: no index was put.
    steps.record(&from_pin(20 * MS, 21 * MS));
    assert_eq!(steps.record(&wake(TRAINER, 22 * MS, PIN)), None);
}

#[test]
fn the_thread_that_puts_the_next_index_names_the_worker_whose_batch_freed_a_place() {
    let mut steps = job();
    let mut at_ns = 0;
    let mut step = |worker: u32, feeder: u32| {
        at_ns += 10 * MS;
        steps.record(&wait(TRAINER, at_ns - 5 * MS, at_ns, (worker, 98)));
        steps.record(&wake(TRAINER, at_ns + MS, feeder)).unwrap().producer
    };
    for _ in 0..4 {
        assert_eq!(step(WORKERS[0], FEEDER), Producer::Pid(WORKERS[0]));
        assert_eq!(step(WORKERS[1], FEEDER + 1), Producer::Pid(WORKERS[1]));
    }
    // A stored batch of the other worker was the last that the main thread slept for.
    assert_eq!(step(WORKERS[1], FEEDER), Producer::Pid(WORKERS[0]));
}

fn exit(worker: u32, time_ns: u64) -> Record {
    let header = header(Kind::TaskExit, worker, worker, time_ns);
    Record::TaskExit(kernel::TaskExit { header, ..kernel::TaskExit::default() })
}

/// A batch is looked at and worked with; then its iterator is dropped, which puts an end into each worker's queue.
#[test]
fn puts_that_end_workers_are_no_steps() {
    let mut steps = job();
    let mut found = Vec::new();
    for (worker, feeder) in [(WORKERS[0], FEEDER), (WORKERS[1], FEEDER + 1)] {
        found.extend(all(&mut steps, &wait(worker, 0, MS, (TRAINER, feeder))));
    }
    found.extend(all(&mut steps, &wait(TRAINER, 2 * MS, 30 * MS, (WORKERS[0], 98))));
    found.extend(all(&mut steps, &wake(TRAINER, 31 * MS, FEEDER)));
    assert_eq!(found.len(), 1, "{found:?}");
    let mut dropped = all(&mut steps, &cpu(TRAINER, 32 * MS, 90 * MS));
    for (worker, feeder) in [(WORKERS[0], FEEDER), (WORKERS[1], FEEDER + 1)] {
        dropped.extend(all(&mut steps, &wake(TRAINER, 90 * MS + u64::from(feeder) * 1000, feeder)));
        dropped.extend(all(&mut steps, &wait(worker, 40 * MS, 91 * MS, (TRAINER, feeder))));
    }
    dropped.extend(all(&mut steps, &cpu(TRAINER, 90 * MS, 92 * MS)));
    for worker in WORKERS {
        dropped.extend(all(&mut steps, &exit(worker, 95 * MS)));
    }
    dropped.extend(all(&mut steps, &cpu(TRAINER, 100 * MS, 200 * MS)));
    assert_eq!(dropped, [], "an iterator was dropped");
}

/// A batch that was there already, before an iterator of another loader is dropped.
#[test]
fn a_put_for_a_worker_that_lives_on_is_a_step() {
    let mut steps = job();
    steps.record(&wait(TRAINER, 2 * MS, 30 * MS, (WORKERS[0], 98)));
    steps.record(&wake(TRAINER, 31 * MS, FEEDER)).unwrap();
    for (worker, feeder) in [(WORKERS[0], FEEDER), (WORKERS[1], FEEDER + 1)] {
        steps.record(&wait(worker, 31 * MS, 32 * MS, (TRAINER, feeder)));
    }
    let mut found = all(&mut steps, &wake(TRAINER, 50 * MS, FEEDER));
    found.extend(all(&mut steps, &wake(TRAINER, 52 * MS, FEEDER + 1)));
    found.extend(all(&mut steps, &exit(WORKERS[1], 60 * MS)));
    found.extend(all(&mut steps, &wait(TRAINER, 70 * MS, 80 * MS, (WORKERS[0], 98))));
    assert_eq!(found.iter().map(|found| found.enter_ns).collect::<Vec<_>>(), [50 * MS]);
}

/// `next(iter(loader))`: what closes the queues behind the workers of a dropped iterator is no batch.
#[test]
fn an_iterator_that_is_dropped_closes_its_queues_without_a_step() {
    let mut steps = job();
    for (worker, feeder) in [(WORKERS[0], FEEDER), (WORKERS[1], FEEDER + 1)] {
        steps.record(&wait(worker, 0, MS, (TRAINER, feeder)));
    }
    steps.record(&wait(TRAINER, 2 * MS, 30 * MS, (WORKERS[0], 98)));
    steps.record(&wake(TRAINER, 31 * MS, FEEDER)).unwrap();
    for worker in WORKERS {
        steps.record(&exit(worker, 80 * MS));
    }
    assert_eq!(steps.record(&wake(TRAINER, 81 * MS, FEEDER)), None);
    assert_eq!(steps.record(&wake(TRAINER, 82 * MS, FEEDER + 1)), None);
    // The training loader's next batch is a step again.
    let new = TaskNew { header: header(Kind::TaskNew, 23, 23, 83 * MS), ppid: TRAINER, ..TaskNew::default() };
    steps.record(&Record::TaskNew(new));
    steps.record(&wait(TRAINER, 90 * MS, 95 * MS, (23, 97)));
    let next = steps.record(&wake(TRAINER, 96 * MS, FEEDER + 2)).unwrap();
    assert_eq!((next.enter_ns, next.producer), (90 * MS, Producer::Pid(23)));
}

/// The feeder of a worker that is always ahead never shows by a sleep of that worker's.
#[test]
fn a_worker_that_is_always_ahead_makes_steps_of_its_own() {
    let mut steps = job();
    let (its_feeder, pool, log) = (FEEDER + 1, FEEDER + 2, FEEDER + 3);
    steps.record(&wait(WORKERS[0], 0, MS, (TRAINER, FEEDER)));
    let mut found = Vec::new();
    for cycle in 0..20 {
        let at = (10 + 100 * cycle) * MS;
        // Its batch comes first and is kept, and the other one's is handed over.
        found.extend(all(&mut steps, &read(TRAINER, at)));
        found.extend(all(&mut steps, &wait(TRAINER, at + MS, at + 20 * MS, (WORKERS[0], 98))));
        found.extend(all(&mut steps, &read(TRAINER, at + 20 * MS + 10)));
        found.extend(all(&mut steps, &wake(TRAINER, at + 21 * MS, FEEDER)));
        for (step_ns, put) in [(at + 22 * MS, Some(its_feeder)), (at + 60 * MS, None)] {
            for nth in 0..3 {
                found.extend(all(&mut steps, &wake(TRAINER, step_ns + nth * MS, pool)));
            }
            found.extend(all(&mut steps, &wake(TRAINER, step_ns + 4 * MS, log)));
            found.extend(all(&mut steps, &cpu(TRAINER, step_ns, step_ns + 30 * MS)));
            if let Some(put) = put {
                found.extend(all(&mut steps, &wake(TRAINER, step_ns + 31 * MS, put)));
            }
        }
    }
    // Known after some cycles; the last one's waits for what follows.
    assert!((36..=40).contains(&found.len()), "{} steps of 40", found.len());
    let exits = || found.iter().map(|step| step.exit_ns / MS % 100);
    assert!(exits().all(|ms| ms == 31 || ms == 63), "{:?}", exits().collect::<Vec<_>>());
}

/// Environments of reinforcement learning, a decoder: children of the loop that answer through a pipe or a socket.
#[test]
fn what_a_childs_main_thread_writes_is_no_batch() {
    for kind in [Blocked::Pipe, Blocked::Unix] {
        let mut steps = job();
        for turn in 0..8 {
            let Record::Wait(mut answered) =
                wait(TRAINER, turn * 10 * MS, turn * 10 * MS + 3 * MS, (WORKERS[0], WORKERS[0]))
            else {
                unreachable!()
            };
            answered.blocked_in = kind as u32;
            assert_eq!(steps.record(&Record::Wait(answered)), None, "{kind:?}");
            let work = cpu(TRAINER, turn * 10 * MS + 3 * MS, (turn + 1) * 10 * MS);
            assert_eq!(all(&mut steps, &work), [], "{kind:?}");
        }
    }
}
