//! Whatever the controller observes, it asks for nothing out of bounds or beyond a budget, turns one knob at a time, and
//! each request has an end.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use stallscope_control::{Controller, MachineCpus, NodeState, Observation, RankObservation, SharedStorage};
use stallscope_model::{
    Act, BatchService, Budgets, CONTROLLED_KNOBS, CacheCurve, CachePoint, CacheState, CacheSummary,
    CacheUses, Cause, Causes, CheckpointAccount, CheckpointRule, EvidenceKinds, Knob, KnobState, Phase,
    StepLedger, TuneMode,
};
use std::collections::{BTreeMap, BTreeSet};

const SECOND_NS: u64 = 1_000_000_000;

/// A second as somebody hostile would tell it.
#[derive(Clone, Debug)]
struct Observed {
    /// Of the clock; may run backwards.
    ahead_ns: i64,
    steps: Vec<(u64, u64, u8)>,
    services: Vec<(u64, u64)>,
    knobs: Vec<(u64, u64, u64, u8, u8)>,
    caches: Vec<(u64, u64, u64, u64)>,
    memory: u64,
    cpu_ns: u64,
    seen_late_ns: u64,
    available: u64,
    pressure: Option<u8>,
    ranks: u8,
}

fn huge() -> impl Strategy<Value = u64> {
    prop_oneof![0..3u64, 0..SECOND_NS, 0..(1u64 << 40), Just(u64::MAX), any::<u64>()]
}

fn observed() -> impl Strategy<Value = Observed> {
    let clock =
        prop_oneof![8 => Just(SECOND_NS as i64), 1 => -5_000_000_000..5_000_000_000i64, 1 => 0..1i64 << 50];
    (
        (clock, proptest::collection::vec((huge(), huge(), any::<u8>()), 0..12)),
        proptest::collection::vec((huge(), huge()), 0..6),
        (
            proptest::collection::vec((0..12u64, 0..6u64, 0..70u64, any::<u8>(), any::<u8>()), 0..3),
            proptest::collection::vec((huge(), huge(), huge(), huge()), 0..2),
        ),
        (huge(), huge(), huge(), huge()),
        (proptest::option::of(any::<u8>()), 0..4u8),
    )
        .prop_map(
            |(
                (ahead_ns, steps),
                services,
                (knobs, caches),
                (memory, cpu_ns, seen_late_ns, available),
                (pressure, ranks),
            )| Observed {
                ahead_ns,
                steps,
                services,
                knobs,
                caches,
                memory,
                cpu_ns,
                seen_late_ns,
                available,
                pressure,
                ranks,
            },
        )
}

fn observation(observed: &Observed, now_ns: u64) -> Observation {
    let step = |(length, stall, kind): &(u64, u64, u8)| {
        let mut causes = Causes::default();
        causes[Cause::Fetch] = *stall;
        causes[Cause::Compute] = *length;
        StepLedger {
            rank: 0,
            loader: u16::from(kind % 3),
            phase: Phase::ALL[usize::from(kind % 4)],
            index: 0,
            part: false,
            start_ns: now_ns.wrapping_sub(*stall),
            end_ns: now_ns.wrapping_sub(*stall).wrapping_add(*length),
            causes,
            hidden_ns: None,
            producer: None,
            samples: u32::from(*kind),
            evidence: EvidenceKinds::default(),
        }
    };
    let service = |(start, length): &(u64, u64)| BatchService {
        start_ns: *start,
        ready_ns: start.wrapping_add(*length),
        cpu_ns: *length,
        read_bytes: Some(*start),
        ..BatchService::default()
    };
    let states = [KnobState::Applied, KnobState::Pending, KnobState::Refused, KnobState::Unavailable];
    let knob = |(value, min, max, state, who): &(u64, u64, u64, u8, u8)| Knob {
        loader: (who % 4 < 3).then_some(u16::from(who % 2)),
        name: CONTROLLED_KNOBS[usize::from(who % 5)].to_owned(),
        value: *value,
        initial: *value,
        min: *min,
        max: *max,
        requested: (who % 5 == 0).then_some(*value),
        state: states[usize::from(state % 4)],
        set_by: ["", "controller", "alice"][usize::from(state % 3)].to_owned(),
        ..Knob::default()
    };
    let cache_of = |(hits, misses, bytes, capacity): &(u64, u64, u64, u64)| {
        let mut curve = CacheCurve::new(*bytes);
        curve.push(CachePoint { capacity_bytes: *hits, uses: *misses, misses: *bytes });
        CacheSummary {
            training: CacheUses { hits: *hits, misses: *misses, prefetched: *bytes, ..CacheUses::default() },
            state: Some(CacheState {
                kept_bytes: *bytes,
                capacity_bytes: *capacity,
                evictions: *hits,
                kept_samples: *misses,
            }),
            curve,
            ..CacheSummary::default()
        }
    };
    let account_of = |(spent_ns, trained_ns, budget, length): &(u64, u64, u64, u64)| CheckpointAccount {
        spent_ns: *spent_ns,
        trained_ns: *trained_ns,
        budget_ppm: (budget % 2 == 0).then_some(*budget),
        rule: Some(CheckpointRule {
            cost_ns: *spent_ns,
            persist_ns: *length,
            mtbf_ns: *budget,
            interval_ns: *length,
        }),
    };
    let rank = |number: u32| RankObservation {
        rank: number,
        seen_until_ns: now_ns.saturating_sub(observed.seen_late_ns),
        phase: Phase::Training,
        steps: observed.steps.iter().map(step).collect(),
        services: observed.services.iter().map(service).collect(),
        knobs: observed.knobs.iter().map(knob).map(|knob| Knob { rank: number, ..knob }).collect(),
        caches: observed
            .caches
            .iter()
            .map(|cache| CacheSummary { rank: number, ..cache_of(cache) })
            .collect(),
        checkpoints: observed.caches.first().map(account_of),
        memory_bytes: observed.memory,
        worker_bytes: vec![observed.memory, observed.cpu_ns, observed.available],
        cpu_ns: observed.cpu_ns,
        descriptors: observed.cpu_ns,
    };
    Observation {
        now_ns,
        ranks: (0..u32::from(observed.ranks)).map(rank).collect(),
        node: NodeState {
            cpus: 8.0,
            memory_available_bytes: observed.available,
            memory_limit_bytes: observed.available.saturating_mul(2),
            memory_pressure_share: observed.pressure.map(|share| f64::from(share) / 255.0),
            shm_free_bytes: Some(observed.available),
            descriptor_limit: 1024,
            machine: observed.pressure.map(|idle| MachineCpus { idle: f64::from(idle) / 32.0, busy: 8.0 }),
            storage: observed.pressure.map(|others| SharedStorage {
                own_bytes: observed.cpu_ns,
                others: u32::from(others % 4),
                others_bytes_per_s: observed.memory,
            }),
        },
    }
}

/// A job that is slow enough for probes, and misbehaves now and then.
#[derive(Clone, Debug)]
enum Event {
    Goes(u16),
    Refuses(bool),
    Answers(bool),
    User(u8),
    Granted(u8),
    Cache(u8),
    Pressed(bool),
    Frozen(bool),
    Slower(u8),
    Evaluates(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..60u16).prop_map(Event::Goes),
        1 => any::<bool>().prop_map(Event::Refuses),
        1 => any::<bool>().prop_map(Event::Answers),
        1 => (1..9u8).prop_map(Event::User),
        1 => any::<u8>().prop_map(Event::Granted),
        1 => (1..255u8).prop_map(Event::Cache),
        1 => any::<bool>().prop_map(Event::Pressed),
        1 => any::<bool>().prop_map(Event::Frozen),
        2 => (1..20u8).prop_map(Event::Slower),
        1 => any::<bool>().prop_map(Event::Evaluates),
    ]
}

use crate::support::Job;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_that_it_observes_makes_it_panic_or_ask_out_of_bounds(
        seconds in proptest::collection::vec(observed(), 1..80),
        cores in proptest::option::of(prop_oneof![Just(f64::NAN), -1.0..64.0f64]),
        memory_bytes in proptest::option::of(huge()),
    ) {
        let budgets = Budgets { cores, memory_bytes, spare_cores_only: cores.is_none(), ..Budgets::default() };
        let mut controller = Controller::new(TuneMode::Act, budgets, 3);
        let mut now_ns = 1000 * SECOND_NS;
        for observed in &seconds {
            now_ns = now_ns.saturating_add_signed(observed.ahead_ns);
            let observed = observation(observed, now_ns);
            let out = controller.observe(&observed);
            let wants = controller.cache_wants().unwrap_or_default();
            let is_a_share = |(_, saved): &(u64, f64)| (0.0..=1.0).contains(saved);
            prop_assert!(wants.benefit.iter().all(is_a_share), "{wants:?}");
            controller.grant_caches(observed.now_ns.rotate_left(17));
            for action in &out.actions {
                let knobs = observed.ranks.iter().flat_map(|rank| &rank.knobs);
                let mut same = knobs.filter(|knob| {
                    (knob.rank, knob.loader, &knob.name) == (action.rank, action.loader, &action.knob)
                });
                prop_assert!(same.clone().count() > 0, "a knob that is not there: {action:?}");
                // A value that was in force before may be put back, whatever the bounds are now.
                let back = out.audit.iter().any(|event| event.act == Act::Undo);
                prop_assert!(
                    back || same.any(|knob| (knob.min..=knob.max).contains(&action.value)),
                    "{action:?} of {:?}", observed.ranks
                );
            }
        }
        controller.stop(now_ns);
    }

    #[test]
    fn one_knob_at_a_time_and_each_request_has_an_end(
        events in proptest::collection::vec(event(), 4..20),
        cached in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut job = if cached { Job::cached(20_000_000) } else { Job::slow() };
        let mut controller = Controller::new(TuneMode::Act, Budgets { memory_bytes: Some(6 << 30), ..Budgets::default() }, seed);
        let (mut open, mut audit) = (None, Vec::new());
        for event in events.into_iter().chain([Event::Goes(60)]) {
            let seconds = match event {
                Event::Goes(seconds) => seconds,
                Event::Refuses(is) => { job.refuses = is.then_some("not now"); 1 }
                Event::Answers(is) => { job.answers = is; 1 }
                Event::User(workers) => { job.user_sets("workers", workers.into()); 1 }
                Event::Granted(mib) => { controller.grant_caches(u64::from(mib) << 20); 1 }
                Event::Cache(mib) => { job.user_sets("cache.bytes", u64::from(mib) << 20); 1 }
                Event::Pressed(is) => { job.pressure = if is { 0.4 } else { 0.0 }; 5 }
                Event::Frozen(is) => { job.frozen = is; 1 }
                Event::Slower(tenths) => { job.service_ns = u64::from(tenths) * SECOND_NS / 10; 1 }
                Event::Evaluates(is) => { job.phase = if is { Phase::Evaluation } else { Phase::Training }; 1 }
            };
            for _ in 0..seconds {
                let out = controller.observe(&job.second());
                let decisions: BTreeSet<u64> = out.actions.iter().map(|action| action.decision).collect();
                prop_assert!(decisions.len() <= 1, "two decisions in one second: {:?}", out.actions);
                for action in &out.actions {
                    let most = if action.knob == "cache.bytes" { 16 << 30 } else { 64 };
                    prop_assert!((1..=most).contains(&action.value));
                    if action.knob == "workers" {
                        // What is known of the job's memory: 2 GiB and 100 MiB a worker.
                        prop_assert!((2 << 30) + action.value * (100 << 20) <= 6 << 30);
                    }
                }
                // A cache fills for a pass or two, beside which others are tried.
                for event in &out.audit {
                    match event.act {
                        Act::Request | Act::Release if event.knob == "cache.bytes" => {}
                        Act::Request | Act::Release => {
                            prop_assert!(open.is_none_or(|open| open == event.decision), "{:?}", event);
                            open = Some(event.decision);
                        }
                        Act::Keep | Act::Undo | Act::Refused if open == Some(event.decision) => open = None,
                        _ => {}
                    }
                }
                audit.extend(out.audit);
                job.take(&out.actions);
            }
        }
        audit.extend(controller.stop(job.now_ns).audit);
        let mut begun = BTreeMap::new();
        for event in &audit {
            match event.act {
                Act::Request | Act::Release => { begun.entry(event.decision).or_insert(false); }
                Act::Keep | Act::Undo | Act::Refused => { begun.insert(event.decision, true); }
                _ => {}
            }
            if matches!(event.act, Act::Keep | Act::Undo | Act::Refused | Act::Hold | Act::Freeze) {
                prop_assert!(!event.why.is_empty(), "{event:?}");
            }
        }
        prop_assert!(begun.values().all(|ended| *ended), "{begun:?} {audit:#?}");
    }
}
