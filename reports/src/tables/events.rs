//! What is one row something that happened or was found.

use super::{Table, Value, count, flag, loader, phase_name, real, text};

pub(crate) const CHECKPOINTS: Table = Table {
    name: "checkpoints",
    columns: || {
        vec![
            count("rank"),
            count("start_wall_ns"),
            count("end_wall_ns"),
            text("saver"),
            text("cause"),
            flag("background"),
            count("bytes"),
        ]
    },
    rows: |run, each| {
        run.checkpoints.iter().try_for_each(|saved| {
            each(&[
                saved.rank.into(),
                saved.start_ns.into(),
                saved.end_ns.into(),
                Value::foreign(&saved.saver),
                Value::word(saved.cause.name()),
                saved.background.into(),
                (saved.bytes > 0).then_some(saved.bytes).into(),
            ])
        })
    },
};

/// A row a piece: of the critical path where there is a cause, of what a task did where there is none.
pub(super) const SLOW_STEPS: Table = Table {
    name: "slow_steps",
    columns: || {
        vec![
            count("rank"),
            count("loader"),
            text("phase"),
            count("index"),
            count("lane"),
            text("role"),
            count("pid"),
            count("start_wall_ns"),
            count("end_wall_ns"),
            text("cause"),
            text("doing"),
        ]
    },
    rows: |run, each| {
        run.details.iter().try_for_each(|step| {
            let mut piece = |lane: usize, start_ns: u64, end_ns: u64, cause: Value<'_>, doing: Value<'_>| {
                let task = step.lanes.get(lane);
                each(&[
                    step.rank.into(),
                    loader(step.loader).into(),
                    Value::word(phase_name(step.phase)),
                    step.index.into(),
                    (lane as u64).into(),
                    task.map_or(Value::Empty, |task| Value::foreign(&task.role)),
                    task.map(|task| task.pid).into(),
                    start_ns.into(),
                    end_ns.into(),
                    cause,
                    doing,
                ])
            };
            for at in &step.critical {
                piece(at.lane, at.start_ns, at.end_ns, Value::word(at.cause.name()), Value::Empty)?;
            }
            for (lane, task) in step.lanes.iter().enumerate() {
                for at in &task.segments {
                    piece(lane, at.start_ns, at.end_ns, Value::Empty, Value::word(at.doing.name()))?;
                }
            }
            Ok(())
        })
    },
};

pub(super) const LOSSES: Table = Table {
    name: "losses",
    columns: || vec![text("reason"), count("count")],
    rows: |run, each| {
        let losses = &run.summary.losses;
        losses.iter().try_for_each(|loss| each(&[Value::foreign(&loss.reason), loss.count.into()]))
    },
};

pub(super) const DIAGNOSES: Table = Table {
    name: "diagnoses",
    columns: || {
        vec![text("name"), text("finding"), text("evidence"), text("advice"), text("cause"), real("share")]
    },
    rows: |run, each| {
        run.summary.diagnoses.iter().try_for_each(|found| {
            each(&[
                Value::foreign(&found.name),
                Value::foreign(&found.finding),
                Value::foreign(&found.evidence),
                Value::foreign(&found.advice),
                found.cause.map_or(Value::Empty, |cause| Value::word(cause.name())),
                found.share.into(),
            ])
        })
    },
};
