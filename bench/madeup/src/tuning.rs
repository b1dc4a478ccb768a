//! A controller at work, made up: what it turned, what it proved, what it undid, and what a person did meanwhile.

use crate::S;
use stallscope_model::*;

/// When the change that helped is in force, in seconds since the run's beginning.
pub const KEPT_S: u64 = 42;

/// Knobs as they stand once [`audit`] is over, two a rank.
pub fn knobs(ranks: u32) -> Vec<Knob> {
    let knob = |rank, name: &str, unit: &str| Knob {
        rank,
        loader: Some(0),
        name: name.into(),
        unit: unit.into(),
        min: 1,
        ..Knob::default()
    };
    (0..ranks)
        .flat_map(|rank| {
            let prefetch = Knob {
                value: 8,
                initial: 4,
                max: 64,
                requested: Some(8),
                set_by: "ada".into(),
                ..knob(rank, "prefetch", "batches")
            };
            let workers = match rank {
                0 => Knob {
                    value: 4,
                    initial: 2,
                    max: 8,
                    requested: Some(6),
                    state: KnobState::Pending,
                    reason: "the two new workers are started with the next batch".into(),
                    set_by: "controller".into(),
                    ..knob(rank, "workers", "workers")
                },
                _ => Knob {
                    value: 2,
                    initial: 2,
                    max: 2,
                    state: KnobState::Unavailable,
                    reason: "the loader was given a multiprocessing context that cannot start workers later"
                        .into(),
                    ..knob(rank, "workers", "workers")
                },
            };
            [prefetch, workers]
        })
        .collect()
}

fn estimate(value: f64, low: f64, high: f64) -> Option<Estimate> {
    Some(Estimate { value, low, high })
}

/// Storage is the narrowest; of later ranks little is known.
pub fn rates(ranks: u32) -> Vec<Rates> {
    (0..ranks)
        .map(|rank| match rank {
            0 => Rates {
                rank,
                workers: 4,
                prefetch: 8,
                actual: estimate(131.0, 127.0, 135.0),
                compute: estimate(412.0, 405.0, 419.0),
                prep: estimate(286.0, 262.0, 310.0),
                fetch: estimate(168.0, 150.0, 186.0),
                storage: estimate(140.0, 121.0, 166.0),
                cache: estimate(1900.0, 1500.0, 2300.0),
                ..Rates::default()
            },
            _ => Rates {
                rank,
                workers: 2,
                prefetch: 4,
                actual: estimate(64.0, 60.0, 68.0),
                compute: estimate(410.0, 400.0, 420.0),
                fetch: estimate(71.0, 66.0, 78.0),
                unknown: vec![
                    "how fast storage is with more workers is not known: it was never read by more than two"
                        .into(),
                ],
                ..Rates::default()
            },
        })
        .collect()
}

pub fn advice() -> Vec<Advice> {
    let advice = |knob: &str, now, to, gain: Option<Estimate>, why: &str| Advice {
        rank: 0,
        loader: Some(0),
        knob: knob.into(),
        now,
        to,
        gain: gain.unwrap_or_default(),
        why: why.into(),
    };
    vec![
        advice(
            "workers",
            4,
            6,
            estimate(0.18, 0.09, 0.24),
            "reads are waited for one after another: six workers keep storage busy",
        ),
        advice(
            "prefetch",
            8,
            12,
            estimate(0.02, 0.0, 0.05),
            "a slow read is hidden by more finished batches",
        ),
    ]
}

/// What happened, in seconds since the run's beginning; `time_ns` counts from `begin_ns`.
pub fn audit(begin_ns: u64) -> Vec<AuditEvent> {
    let controller = |at_s: u64, decision: u64, act: Act| AuditEvent {
        time_ns: begin_ns + at_s * S,
        decision,
        act,
        by: "controller".into(),
        ..AuditEvent::default()
    };
    let turn = |at_s, decision, act, knob: &str, from, to| AuditEvent {
        rank: Some(0),
        loader: Some(0),
        knob: knob.into(),
        from: Some(from),
        to: Some(to),
        ..controller(at_s, decision, act)
    };
    let (more, hoped) = (estimate(0.31, 0.24, 0.38), estimate(0.12, 0.02, 0.22));
    let (proven, nothing) = (estimate(0.29, 0.25, 0.33), estimate(0.01, -0.02, 0.03));
    let mut lines = vec![
        AuditEvent {
            by: "ada".into(),
            why: "acts, with at most 8 cores and 4.0 GB of memory".into(),
            ..controller(6, 0, Act::Mode)
        },
        AuditEvent {
            saw: "12 steps since the first one".into(),
            why: "too few steps to tell anything yet".into(),
            ..controller(12, 1, Act::Hold)
        },
        AuditEvent {
            saw: "fetch takes 61% of training time; 2 workers read 74% of theirs".into(),
            predicted: more,
            why: "storage answers more reads at once than two workers ask for".into(),
            ..turn(40, 2, Act::Request, "workers", 2, 4)
        },
        turn(42, 2, Act::Applied, "workers", 2, 4),
        AuditEvent {
            saw: "101 samples/s without, 131 samples/s with it".into(),
            why: "back for a while, to see that it was this".into(),
            ..turn(55, 2, Act::Request, "workers", 4, 2)
        },
        AuditEvent {
            why: "once more with it, to be sure".into(),
            ..turn(64, 2, Act::Request, "workers", 2, 4)
        },
        AuditEvent {
            saw: "101 samples/s before, 131 with it, 102 without it again".into(),
            predicted: more,
            measured: proven,
            why: "the lower end of the measured gain is above 3%".into(),
            ..turn(76, 2, Act::Keep, "workers", 2, 4)
        },
        AuditEvent {
            saw: "waits of 480 ms for single batches".into(),
            predicted: hoped,
            why: "a slow read would be hidden by more finished batches".into(),
            ..turn(90, 3, Act::Request, "prefetch", 4, 16)
        },
        turn(91, 3, Act::Applied, "prefetch", 4, 16),
        AuditEvent {
            saw: "131 samples/s before, 132 with it".into(),
            predicted: hoped,
            measured: nothing,
            why: "the gain is not proven: it may be less than nothing".into(),
            ..turn(120, 3, Act::Undo, "prefetch", 4, 16)
        },
        AuditEvent { by: "ada".into(), ..turn(131, 4, Act::Request, "prefetch", 4, 8) },
        AuditEvent { by: "ada".into(), ..turn(132, 4, Act::Applied, "prefetch", 4, 8) },
        AuditEvent {
            saw: "evaluation has begun".into(),
            why: "what was learnt is of training".into(),
            ..controller(140, 5, Act::Drift)
        },
        AuditEvent {
            predicted: estimate(0.18, 0.09, 0.24),
            why: "six workers keep storage busy".into(),
            ..turn(160, 6, Act::Request, "workers", 4, 6)
        },
    ];
    lines.iter_mut().zip(0..).for_each(|(line, nth)| line.line = nth);
    lines
}

/// All of it as part of a summary.
pub fn tell(summary: &mut RunSummary) {
    let ranks = summary.ranks.len() as u32;
    summary.knobs = knobs(ranks);
    summary.rates = rates(ranks);
    summary.advice = advice();
    summary.tune = Some(TuneMode::Act);
    for event in audit(0) {
        *summary.acts.entry(event.act).or_default() += 1;
    }
}
