//! Memory stays bounded, however much arrives and however seldom somebody takes it.

use crate::ledger::{MAX_PROCESSES, MAX_STEPS_OUT};
use crate::process::{ProcessFacts, ProcessKind};
use crate::rank::MAX_PENDING;
use crate::{Config, Ledger};
use stallscope_abi::kernel::{self, Header, Slice, TaskExit, TaskNew, Times};
use stallscope_abi::lane::{Kind, Record};

const TRAINER: u32 = 1;
const WORKER: u32 = 2;

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Config::default());
    for (pid, kind) in [(TRAINER, ProcessKind::Trainer), (WORKER, ProcessKind::Worker)] {
        ledger.process(ProcessFacts { pid, ns_pid: pid, ppid: TRAINER, kind, ..ProcessFacts::default() });
    }
    ledger
}

fn slice(pid: u32, start_ns: u64, time_ns: u64) -> kernel::Record {
    kernel::Record::Slice(Slice {
        header: Header { tid: pid, tgid: pid, time_ns, ..Header::default() },
        start_ns,
        times: Times { cpu_ns: time_ns - start_ns, ..Times::default() },
        ..Slice::default()
    })
}

#[test]
fn records_that_nobody_takes_pile_up_to_a_bound() {
    let mut ledger = ledger();
    for step in 0..20_000u64 {
        let at = step * 1000;
        let record =
            |kind: Kind| Record { time_ns: at + 900, kind: kind as u16, b: step, ..Record::default() };
        ledger.kernel(&slice(WORKER, at, at + 900));
        ledger.lane(WORKER, &Record { id: 8, a: at, ..record(Kind::Sample) });
        ledger.lane(WORKER, &Record { a: at, ..record(Kind::Batch) });
        ledger.lane(TRAINER, &Record { a: at + 100, id: WORKER, ..record(Kind::Wait) });
        ledger.lane(TRAINER, &Record { a: at, ..record(Kind::Checkpoint) });
        ledger.lane(TRAINER, &Record { a: 1, b: at + 900, ..record(Kind::DeviceIdle) });
        assert!(ledger.ranks[&TRAINER].pending.len() <= MAX_PENDING);
    }
    let worker = &ledger.processes[&WORKER].shim;
    assert!(worker.batches.len() <= 1024, "{}", worker.batches.len());
    assert!(ledger.ranks[&TRAINER].calls.all().len() <= 4096);
    let steps = ledger.finish(0);
    assert!(steps.len() <= MAX_STEPS_OUT, "{}", steps.len());
    // Nothing was lost in silence: steps are in the sums all the same, and what was not taken is counted.
    let summary = ledger.summary();
    let counted: u64 = summary.phases.iter().map(|phase| phase.steps).sum();
    assert_eq!(counted, 20_000);
    let lost = summary
        .losses
        .iter()
        .find(|loss| loss.reason == "step that nobody took")
        .map_or(0, |loss| loss.count);
    assert_eq!(steps.len() as u64 + lost, 20_000);
}

#[test]
fn processes_that_come_and_go_are_forgotten() {
    let mut ledger = ledger();
    for pid in 10..40_000u32 {
        let header = Header { tid: pid, tgid: pid, time_ns: u64::from(pid) * 1000, ..Header::default() };
        ledger.kernel(&kernel::Record::TaskNew(TaskNew { header, ppid: TRAINER, ..TaskNew::default() }));
        if pid % 2 == 0 {
            ledger.kernel(&kernel::Record::TaskExit(TaskExit { header, ..TaskExit::default() }));
        }
    }
    assert!(ledger.processes.len() <= MAX_PROCESSES);
    let lost =
        ledger.summary().losses.iter().find(|loss| loss.reason == "process too many").map_or(0, |l| l.count);
    assert_eq!(lost as usize + ledger.processes.len(), 40_000 - 10 + 2);
}

#[test]
fn a_long_step_keeps_no_more_history_than_a_short_one() {
    let mut ledger = ledger();
    // Ten minutes of a step, sliced every millisecond, and advanced all the while.
    for at_ms in 0..600_000u64 {
        ledger.kernel(&slice(WORKER, at_ms * 1_000_000, (at_ms + 1) * 1_000_000));
        if at_ms % 1000 == 0 {
            ledger.advance(at_ms * 1_000_000);
        }
    }
    let whole_ns = 600_000 * 1_000_000;
    let batch = Record { time_ns: whole_ns, kind: Kind::Batch as u16, ..Record::default() };
    ledger.lane(WORKER, &batch);
    let wait = Record { time_ns: whole_ns, kind: Kind::Wait as u16, id: WORKER, ..Record::default() };
    ledger.lane(TRAINER, &wait);
    let steps = ledger.finish(whole_ns);
    assert_eq!(steps[0].causes[stallscope_model::Cause::Prep], whole_ns, "what got coarser still adds up");
}
