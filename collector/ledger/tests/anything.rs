//! Whatever arrives: causes add up, steps come in order, sums agree, and nothing panics.

use proptest::prelude::*;
use stallscope_abi::kernel::{self, BLOCKED_KINDS, Header, TaskSlot, Times};
use stallscope_abi::lane;
use stallscope_ledger::{Config, Ledger, ProcessFacts, ProcessKind};
use stallscope_model::{PhaseSummary, StepLedger};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Event {
    Kernel(kernel::Record),
    Slot(Box<TaskSlot>),
    Lane(u32, lane::Record),
    Greet(u32, u8),
    Gone(u32),
    Advance,
}

/// Mostly moments within a second, close enough to each other to cross; sometimes nonsense.
fn moment() -> impl Strategy<Value = u64> {
    prop_oneof![20 => 0..1_000_000_000u64, 1 => any::<u64>(), 1 => Just(1 << 56)]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![10 => 0..50_000_000u64, 1 => any::<u64>()]
}

fn pid() -> impl Strategy<Value = u32> {
    prop_oneof![10 => 100..105u32, 1 => any::<u32>()]
}

fn times() -> impl Strategy<Value = Times> {
    (
        length(),
        length(),
        length(),
        prop::collection::vec(prop_oneof![3 => Just(0), 1 => length()], BLOCKED_KINDS),
    )
        .prop_map(|(cpu_ns, cpu_read_ns, runnable_ns, blocked)| {
            let mut blocked_ns = [0; BLOCKED_KINDS];
            blocked_ns.copy_from_slice(&blocked);
            Times { cpu_ns, cpu_read_ns, runnable_ns, blocked_ns }
        })
}

fn kernel_record() -> impl Strategy<Value = kernel::Record> {
    (0..7u8, pid(), pid(), moment(), length(), times(), pid()).prop_map(
        |(kind, tid, tgid, time_ns, span_ns, times, other)| {
            let header = Header { kind: 0, size: 0, slot: 0, tid, tgid, time_ns };
            let start_ns = time_ns.saturating_sub(span_ns);
            match kind {
                0 | 1 => kernel::Record::Slice(kernel::Slice {
                    header: Header { tid: tgid, ..header },
                    start_ns,
                    times,
                    sibling_cpu_ns: span_ns,
                    rchar: span_ns,
                    read_bytes: span_ns,
                }),
                2 => kernel::Record::Wait(kernel::Wait {
                    header,
                    start_ns,
                    waker_tid: other,
                    waker_tgid: other,
                    blocked_in: (other % 16),
                    pad: 0,
                }),
                3 => kernel::Record::Wake(kernel::Wake { header, woken_tid: other, pad: 0, cpu_ns: span_ns }),
                4 => kernel::Record::BatchRead(kernel::BatchRead { header, fd: other % 8, pad: 0 }),
                5 => kernel::Record::TaskNew(kernel::TaskNew { header, ppid: other, ..Default::default() }),
                _ => kernel::Record::TaskExit(kernel::TaskExit { header, ..Default::default() }),
            }
        },
    )
}

fn lane_record() -> impl Strategy<Value = lane::Record> {
    let small = || prop_oneof![5 => 0..8u64, 1 => any::<u64>()];
    let field = || prop_oneof![3 => moment(), 3 => small()];
    (moment(), 0..12u16, 0..3u16, prop_oneof![pid(), 0..5u32], length(), field(), small(), field(), 0..40u64)
        .prop_map(|(time_ns, kind, loader, id, span_ns, a, b, c, d)| {
            // Times of what began are before it was complete, most of the time.
            let a = if a % 3 == 0 { a } else { time_ns.saturating_sub(span_ns) };
            lane::Record { time_ns, kind, loader, id, a, b, c, d }
        })
}

fn event() -> impl Strategy<Value = Event> {
    let slot = (pid(), moment(), times(), 0..6u8, any::<u8>()).prop_map(
        |(pid, since_ns, total, state, blocked_in)| {
            let slice_start_ns = since_ns / 2;
            Event::Slot(Box::new(TaskSlot {
                tid: pid,
                tgid: pid,
                since_ns,
                slice_start_ns,
                total,
                state,
                blocked_in,
                ..Default::default()
            }))
        },
    );
    prop_oneof![
        10 => kernel_record().prop_map(Event::Kernel),
        2 => slot,
        20 => (100..105u32, lane_record()).prop_map(|(pid, record)| Event::Lane(pid, record)),
        1 => (100..105u32, 0..3u8).prop_map(|(pid, kind)| Event::Greet(pid, kind)),
        1 => (100..105u32).prop_map(Event::Gone),
        3 => Just(Event::Advance),
    ]
}

fn greet(ledger: &mut Ledger, pid: u32, kind: u8) {
    let kind = [ProcessKind::Trainer, ProcessKind::Worker, ProcessKind::Other][usize::from(kind)];
    let (rank, world_size) = (pid, 2);
    ledger.process(ProcessFacts {
        pid,
        ns_pid: pid,
        ppid: 100,
        kind,
        rank,
        world_size,
        ..Default::default()
    });
}

fn run(events: &[Event]) -> (Vec<StepLedger>, Ledger) {
    let mut ledger = Ledger::new(Config::default());
    ledger.root(100, 0);
    (100..105).for_each(|pid| greet(&mut ledger, pid, (pid % 3) as u8));
    let mut steps = Vec::new();
    let mut now_ns = 0;
    for event in events {
        match event {
            Event::Kernel(record) => {
                ledger.kernel(record);
                // A new process under a known number: it says again which rank it is.
                if let kernel::Record::TaskNew(task) = record
                    && (100..105).contains(&task.header.tgid)
                {
                    greet(&mut ledger, task.header.tgid, (task.ppid % 3) as u8);
                }
            }
            Event::Slot(slot) => ledger.open_slot(slot, now_ns),
            Event::Lane(pid, record) => ledger.lane(*pid, record),
            Event::Greet(pid, kind) => greet(&mut ledger, *pid, *kind),
            Event::Gone(pid) => ledger.gone(*pid, now_ns),
            Event::Advance => {
                now_ns += 100_000_000;
                steps.extend(ledger.advance(now_ns));
            }
        }
    }
    steps.extend(ledger.finish(now_ns));
    (steps, ledger)
}

fn adds_up(phase: &PhaseSummary) -> bool {
    phase.causes.total_ns() == phase.wall_ns
        && phase.step_p50_ns <= phase.step_p95_ns
        && phase.step_p95_ns <= phase.step_max_ns
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn causes_add_up_and_steps_come_in_order(events in prop::collection::vec(event(), 0..200)) {
        let (steps, ledger) = run(&events);
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        let mut indices = BTreeMap::new();
        for step in &steps {
            prop_assert!(step.start_ns <= step.end_ns);
            prop_assert_eq!(step.causes.total_ns(), step.end_ns - step.start_ns);
            prop_assert!(step.hidden_ns.is_none_or(|hidden_ns| hidden_ns <= step.end_ns - step.start_ns));
            let end_ns = ends.entry(u64::from(step.rank)).or_default();
            prop_assert!(step.start_ns >= *end_ns, "{:?} begins before the one before it ended", step);
            *end_ns = step.end_ns;
            let index: &mut u64 = indices.entry((step.rank, step.phase)).or_default();
            prop_assert_eq!(step.index, *index);
            *index += 1;
        }
        let summary = ledger.summary();
        prop_assert!(summary.phases.iter().all(adds_up));
        for rank in &summary.ranks {
            prop_assert!(rank.phases.iter().all(adds_up));
            let wall_ns: u64 = rank.phases.iter().map(|phase| phase.wall_ns).sum();
            let stepped_ns: u64 =
                steps.iter().filter(|step| step.rank == rank.facts.rank).map(|step| step.end_ns - step.start_ns).sum();
            prop_assert_eq!(wall_ns, stepped_ns);
        }
        prop_assert!(summary.diagnoses.iter().all(|d| d.share.is_finite() && d.share >= 0.0));
        prop_assert!(summary.diagnoses.is_sorted_by(|a, b| a.share >= b.share));
    }

    #[test]
    fn the_same_evidence_gives_the_same_ledger(events in prop::collection::vec(event(), 0..100)) {
        let (first, second) = (run(&events), run(&events));
        prop_assert_eq!(first.0, second.0);
        prop_assert_eq!(first.1.summary(), second.1.summary());
    }
}
