//! Tables with one row for each interval of time: steps, and sums over periods.

use super::summary::{load, load_columns};
use super::{Table, Value, cause_columns, count, flag, loader, phase_name, text};

pub(super) const STEPS: Table = Table {
    name: "steps",
    columns: || {
        let mut columns = vec![
            count("rank"),
            count("loader"),
            text("phase"),
            count("index"),
            count("start_wall_ns"),
            count("end_wall_ns"),
        ];
        columns.extend(cause_columns());
        columns.extend([
            count("hidden_ns"),
            count("producer"),
            count("samples"),
            flag("kernel"),
            flag("shim"),
            count("merged"),
        ]);
        columns
    },
    rows: |run, each| {
        run.each_step(|row| {
            let step = &row.step;
            let mut cells = vec![
                step.rank.into(),
                loader(step.loader).into(),
                Value::word(phase_name(step.phase)),
                step.index.into(),
                step.start_ns.into(),
                step.end_ns.into(),
            ];
            cells.extend(Value::causes(&step.causes));
            cells.extend([
                step.hidden_ns.into(),
                step.producer.into(),
                step.samples.into(),
                step.evidence.kernel.into(),
                step.evidence.shim.into(),
                row.merged.into(),
            ]);
            each(&cells)
        })
    },
};

pub(crate) const ROLLUPS: Table = Table {
    name: "rollups",
    columns: || {
        let mut columns = vec![
            count("period_s"),
            count("start_wall_ns"),
            count("rank"),
            count("loader"),
            text("phase"),
            count("steps"),
            count("samples"),
        ];
        columns.extend(cause_columns());
        columns.extend(["step_p50_ns", "step_p95_ns", "step_max_ns"].map(count));
        columns
    },
    rows: |run, each| {
        run.rollups.iter().try_for_each(|rollup| {
            let mut cells = vec![
                rollup.period.seconds().into(),
                rollup.start_ns.into(),
                rollup.rank.into(),
                loader(rollup.loader).into(),
                Value::word(phase_name(rollup.phase)),
                rollup.steps.into(),
                rollup.samples.into(),
            ];
            cells.extend(Value::causes(&rollup.causes));
            cells.extend([rollup.step_p50_ns, rollup.step_p95_ns, rollup.step_max_ns].map(Value::from));
            each(&cells)
        })
    },
};

pub(super) const WORKER_PERIODS: Table = Table {
    name: "worker_periods",
    columns: || {
        let mut columns = ["period_s", "start_wall_ns", "rank", "loader", "worker"].map(count).to_vec();
        columns.extend(load_columns());
        columns
    },
    rows: |run, each| {
        let period_s = run.period.seconds();
        run.workers.iter().try_for_each(|period| {
            let mut cells = vec![
                period_s.into(),
                period.start_ns.into(),
                period.rank.into(),
                loader(period.loader).into(),
                period.worker.into(),
            ];
            cells.extend(load(&period.load));
            each(&cells)
        })
    },
};
