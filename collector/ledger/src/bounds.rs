//! Memory stays bounded, however much arrives and however seldom somebody takes it.

use crate::ledger::{MAX_PROCESSES, MAX_STEPS_OUT};
use crate::process::{ProcessFacts, ProcessKind};
use crate::rank::MAX_PENDING;
use crate::trainers::MAX_RANKS;
use crate::{Config, Ledger};
use stallscope_abi::kernel::{self, Header, Slice, TaskExit, TaskNew, Times};
use stallscope_abi::lane;

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

fn batch(start_ns: u64, index: u64) -> lane::Batch {
    lane::Batch { loader: 0, worker: 0, start_ns, batch: index, collate_ns: 0, cpu_ns: 0 }
}

fn wait(enter_ns: u64, index: u64) -> lane::Wait {
    lane::Wait { loader: 0, worker: WORKER, enter_ns, batch: index, samples: 0, flags: 0 }
}

#[test]
fn records_that_nobody_takes_pile_up_to_a_bound() {
    let mut ledger = ledger();
    for step in 0..20_000u64 {
        let at = step * 1000;
        let end_ns = at + 900;
        let sample = lane::Sample { loader: 0, count: 8, start_ns: at, batch: step, read_ns: 0 };
        let checkpoint = lane::Checkpoint {
            saver: lane::Saver::Other,
            began_ns: at,
            stage: lane::Stage::Persist,
            bytes: 0,
            caller: lane::Caller::MainThread,
        };
        ledger.kernel(&slice(WORKER, at, at + 900));
        ledger.lane(WORKER, &sample.encode(end_ns));
        ledger.lane(WORKER, &batch(at, step).encode(end_ns));
        ledger.lane(TRAINER, &wait(at + 100, step).encode(end_ns));
        ledger.lane(TRAINER, &checkpoint.encode(end_ns));
        ledger.lane(TRAINER, &lane::DeviceIdle { idle_ns: 1, wait_exit_ns: end_ns }.encode(end_ns));
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

/// As of a script that trains again and again, or of one that says so.
#[test]
fn trainers_that_come_and_go_pile_up_to_a_bound() {
    let mut ledger = ledger();
    let too_many = 500;
    for pid in 10..(10 - 1 + MAX_RANKS + too_many) as u32 {
        ledger.process(ProcessFacts { pid, kind: ProcessKind::Trainer, ..ProcessFacts::default() });
        ledger.lane(pid, &wait(100, 0).encode(900));
        ledger.gone(pid, 4000);
    }
    assert_eq!(ledger.ranks.len(), MAX_RANKS);
    ledger.finish(5000);
    let summary = ledger.summary();
    assert_eq!(summary.ranks.len(), MAX_RANKS);
    let lost = summary.losses.iter().find(|loss| loss.reason == "report of a trainer too many");
    assert!(lost.is_some_and(|loss| loss.count >= too_many as u64), "{:?}", summary.losses);
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
    ledger.lane(WORKER, &batch(0, 0).encode(whole_ns));
    ledger.lane(TRAINER, &wait(0, 0).encode(whole_ns));
    let steps = ledger.finish(whole_ns);
    assert_eq!(steps[0].causes[stallscope_model::Cause::Prep], whole_ns, "what got coarser still adds up");
}

/// What a shim says of loaders is in each summary, which is written once a second.
#[test]
fn what_shims_report_of_loaders_is_bounded() {
    let mut ledger = ledger();
    for loader in 0..5000 {
        ledger.loader(TRAINER, stallscope_model::LoaderFacts { loader, ..Default::default() });
        ledger.unavailable(TRAINER, format!("no hook {loader}"));
    }
    let summary = ledger.summary();
    let facts = &summary.ranks[0].facts;
    let lost =
        summary.losses.iter().find(|loss| loss.reason == "loader too many").map_or(0, |loss| loss.count);
    assert!(facts.loaders.len() <= 1024 && facts.unavailable.len() <= 16, "{}", facts.loaders.len());
    assert_eq!(facts.loaders.len() as u64 + lost, 5000);
    ledger.process(ProcessFacts {
        pid: 77,
        kind: ProcessKind::Trainer,
        unavailable: vec!["x".into(); 5000],
        ..ProcessFacts::default()
    });
    assert!(ledger.processes[&77].facts.unavailable.capacity() <= 16);
}
