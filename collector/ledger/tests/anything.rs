//! Whatever arrives: causes add up, steps come in order, sums agree, and nothing panics.

use proptest::prelude::*;
use stallscope_abi::kernel::{self, BLOCKED_KINDS, Header, TaskSlot, Times};
use stallscope_abi::lane;
use stallscope_ledger::{Config, Ledger, ProcessFacts, ProcessKind};
use stallscope_model::{Causes, PhaseSummary, StepDetail, StepLedger, WorkerPeriod};
use std::collections::{BTreeMap, BTreeSet};

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
                    sibling_runnable_ns: span_ns / 3,
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
                    errand_start_ns: start_ns,
                    errand_cpu_ns: span_ns / 4,
                    errand_runnable_ns: span_ns / 2,
                    errand_read_ns: span_ns / (1 + u64::from(other % 8)),
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
    (moment(), 0..17u16, 0..3u16, prop_oneof![pid(), 0..5u32], length(), field(), small(), field(), 0..40u64)
        .prop_map(|(time_ns, kind, loader, id, span_ns, a, b, c, d)| {
            // Times of what began are before it was complete, most of the time.
            let a = if a % 3 == 0 { a } else { time_ns.saturating_sub(span_ns) };
            let head = u64::from(kind) | u64::from(loader) << 16 | u64::from(id) << 32;
            lane::Record::from_words([time_ns, head, a, b, c, d])
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

/// Everything that came out, and what is left.
struct Outcome {
    steps: Vec<StepLedger>,
    details: Vec<StepDetail>,
    periods: Vec<WorkerPeriod>,
    ledger: Ledger,
}

fn run(events: &[Event]) -> Outcome {
    let mut ledger = Ledger::new(Config::default());
    ledger.root(100, 0);
    (100..105).for_each(|pid| greet(&mut ledger, pid, (pid % 3) as u8));
    let (mut steps, mut details, mut periods) = (Vec::new(), Vec::new(), Vec::new());
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
                details.extend(ledger.details());
                periods.extend(ledger.worker_periods());
            }
        }
    }
    steps.extend(ledger.finish(now_ns));
    details.extend(ledger.details());
    periods.extend(ledger.worker_periods());
    Outcome { steps, details, periods, ledger }
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
        let Outcome { steps, ledger, .. } = run(&events);
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        let mut indices = BTreeMap::new();
        let summary = ledger.summary();
        // Steps that were closed before their rank greeted bear the number that it had until then.
        let numbers: BTreeSet<u32> = summary.ranks.iter().map(|rank| rank.facts.rank).collect();
        let is_numbered_once = steps.iter().all(|step| numbers.contains(&step.rank));
        for step in &steps {
            prop_assert!(step.start_ns <= step.end_ns);
            prop_assert_eq!(step.causes.total_ns(), step.end_ns - step.start_ns);
            prop_assert!(step.hidden_ns.is_none_or(|hidden_ns| hidden_ns <= step.end_ns - step.start_ns));
            let end_ns = ends.entry(u64::from(step.rank)).or_default();
            prop_assert!(step.start_ns >= *end_ns, "{:?} begins before the one before it ended", step);
            *end_ns = step.end_ns;
            let index: &mut u64 = indices.entry((step.rank, step.phase)).or_default();
            prop_assert!(step.index == *index || !is_numbered_once, "{:?} and not {}", step, index);
            *index += 1;
        }
        prop_assert!(summary.phases.iter().all(adds_up));
        for rank in &summary.ranks {
            prop_assert!(rank.phases.iter().all(adds_up));
        }
        let mut wall_ns: BTreeMap<u32, u64> = BTreeMap::new();
        for rank in &summary.ranks {
            let of = if is_numbered_once { rank.facts.rank } else { 0 };
            *wall_ns.entry(of).or_default() += rank.phases.iter().map(|phase| phase.wall_ns).sum::<u64>();
        }
        let mut stepped_ns: BTreeMap<u32, u64> = wall_ns.keys().map(|rank| (*rank, 0)).collect();
        for step in &steps {
            let of = if is_numbered_once { step.rank } else { 0 };
            *stepped_ns.entry(of).or_default() += step.end_ns - step.start_ns;
        }
        prop_assert_eq!(wall_ns, stepped_ns);
        prop_assert!(summary.diagnoses.iter().all(|d| d.share.is_finite() && d.share >= 0.0));
        prop_assert!(summary.diagnoses.is_sorted_by(|a, b| a.share >= b.share));
    }

    #[test]
    fn the_same_evidence_gives_the_same_ledger(events in prop::collection::vec(event(), 0..100)) {
        let (first, second) = (run(&events), run(&events));
        prop_assert_eq!(first.steps, second.steps);
        prop_assert_eq!(first.details, second.details);
        prop_assert_eq!(first.periods, second.periods);
        prop_assert_eq!(first.ledger.summary(), second.ledger.summary());
    }

    #[test]
    fn a_steps_detail_gives_away_exactly_its_causes(events in prop::collection::vec(event(), 0..200)) {
        let Outcome { steps, details, .. } = run(&events);
        for detail in details {
            let of = |step: &&StepLedger| {
                (step.rank, step.phase, step.index) == (detail.rank, detail.phase, detail.index)
            };
            let step = steps.iter().find(of).unwrap();
            prop_assert_eq!((step.start_ns, step.end_ns), (detail.start_ns, detail.end_ns));
            let (mut causes, mut at_ns) = (Causes::default(), detail.start_ns);
            for piece in &detail.critical {
                prop_assert_eq!(piece.start_ns, at_ns);
                prop_assert!(piece.lane < detail.lanes.len() && piece.end_ns > at_ns);
                causes[piece.cause] += piece.end_ns - piece.start_ns;
                at_ns = piece.end_ns;
            }
            prop_assert_eq!(at_ns, detail.end_ns);
            prop_assert_eq!(causes, step.causes);
            for lane in &detail.lanes {
                prop_assert!(lane.segments.iter().all(|segment| segment.start_ns < segment.end_ns));
                prop_assert!(lane.segments.is_sorted_by(|a, b| a.end_ns <= b.start_ns));
            }
        }
    }

    #[test]
    fn a_worker_has_ten_seconds_in_a_period(events in prop::collection::vec(event(), 0..200)) {
        let mut walls: BTreeMap<(u64, u32), u64> = BTreeMap::new();
        for period in run(&events).periods {
            prop_assert_eq!(period.start_ns % WorkerPeriod::LENGTH_NS, 0);
            let load = &period.load;
            prop_assert_eq!(load.wall_ns, load.fetch_ns + load.cpu_ns + load.runnable_ns + load.idle_ns);
            *walls.entry((period.start_ns, load.pid)).or_default() += load.wall_ns;
        }
        // One process of its pid at a time, but two of them may share a period, as numbers come round.
        prop_assert!(walls.values().all(|ns| *ns <= 2 * WorkerPeriod::LENGTH_NS), "{:?}", walls);
    }
}
