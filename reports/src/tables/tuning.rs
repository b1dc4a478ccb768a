//! What is one row a knob, a rank's rates, an advice or a line of the audit.

use super::{Column, Table, Value, count, real, text};
use stallscope_model::{Estimate, Rates};

pub(crate) const KNOBS: Table = Table {
    name: "knobs",
    columns: || {
        vec![
            count("rank"),
            count("loader"),
            text("knob"),
            text("unit"),
            count("value"),
            count("initial"),
            count("min"),
            count("max"),
            count("requested"),
            text("state"),
            text("reason"),
            text("set_by"),
        ]
    },
    rows: |run, each| {
        run.summary.knobs.iter().try_for_each(|knob| {
            each(&[
                knob.rank.into(),
                knob.loader.into(),
                Value::foreign(&knob.name),
                Value::foreign(&knob.unit),
                knob.value.into(),
                knob.initial.into(),
                knob.min.into(),
                knob.max.into(),
                knob.requested.into(),
                Value::word(knob.state.name()),
                Value::foreign(&knob.reason),
                Value::foreign(&knob.set_by),
            ])
        })
    },
};

/// The figures of a row of [`RATES`], each with the ends of its interval.
type Rate = (fn(&Rates) -> Option<Estimate>, [&'static str; 3]);

const OF_PARTS: [Rate; 6] = [
    (|rates| rates.actual, ["actual_per_s", "actual_low_per_s", "actual_high_per_s"]),
    (|rates| rates.compute, ["compute_per_s", "compute_low_per_s", "compute_high_per_s"]),
    (|rates| rates.prep, ["prep_per_s", "prep_low_per_s", "prep_high_per_s"]),
    (|rates| rates.fetch, ["fetch_per_s", "fetch_low_per_s", "fetch_high_per_s"]),
    (|rates| rates.storage, ["storage_per_s", "storage_low_per_s", "storage_high_per_s"]),
    (|rates| rates.cache, ["cache_per_s", "cache_low_per_s", "cache_high_per_s"]),
];

pub(crate) const RATES: Table = Table {
    name: "rates",
    columns: || {
        let mut columns: Vec<Column> = ["rank", "loader", "workers", "prefetch"].map(count).into();
        columns.extend(OF_PARTS.iter().flat_map(|(_, names)| names.map(real)));
        columns.push(text("narrowest"));
        columns.push(text("unknown"));
        columns
    },
    rows: |run, each| {
        run.summary.rates.iter().try_for_each(|rates| {
            let mut row =
                vec![rates.rank.into(), rates.loader.into(), rates.workers.into(), rates.prefetch.into()];
            row.extend(OF_PARTS.iter().flat_map(|(of, _)| estimate(of(rates))));
            let narrowest = stallscope_look::tuning::narrowest(rates);
            row.push(narrowest.map_or(Value::Empty, |part| Value::word(part.name)));
            row.push(Value::foreign(&rates.unknown.join("; ")));
            each(&row)
        })
    },
};

/// Value, low and high; an end that an interval does not have is empty.
fn estimate(estimate: Option<Estimate>) -> [Value<'static>; 3] {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite()).into();
    match estimate {
        Some(estimate) => [estimate.value, estimate.low, estimate.high].map(finite),
        None => [Value::Empty, Value::Empty, Value::Empty],
    }
}

pub(crate) const ADVICE: Table = Table {
    name: "advice",
    columns: || {
        vec![
            count("rank"),
            count("loader"),
            text("knob"),
            count("value"),
            count("to_value"),
            real("gain"),
            real("gain_low"),
            real("gain_high"),
            text("why"),
        ]
    },
    rows: |run, each| {
        run.summary.advice.iter().try_for_each(|advice| {
            let [gain, low, high] = estimate(Some(advice.gain));
            each(&[
                advice.rank.into(),
                advice.loader.into(),
                Value::foreign(&advice.knob),
                advice.now.into(),
                advice.to.into(),
                gain,
                low,
                high,
                Value::foreign(&advice.why),
            ])
        })
    },
};

pub(crate) const AUDIT: Table = Table {
    name: "audit",
    columns: || {
        vec![
            count("line"),
            count("time_wall_ns"),
            count("decision"),
            text("act"),
            text("set_by"),
            count("rank"),
            count("loader"),
            text("knob"),
            count("from_value"),
            count("to_value"),
            text("saw"),
            real("predicted"),
            real("predicted_low"),
            real("predicted_high"),
            real("measured"),
            real("measured_low"),
            real("measured_high"),
            text("why"),
        ]
    },
    rows: |run, each| {
        run.audit.iter().try_for_each(|event| {
            let [predicted, predicted_low, predicted_high] = estimate(event.predicted);
            let [measured, measured_low, measured_high] = estimate(event.measured);
            each(&[
                event.line.into(),
                event.time_ns.into(),
                event.decision.into(),
                Value::word(event.act.name()),
                Value::foreign(&event.by),
                event.rank.into(),
                event.loader.into(),
                Value::foreign(&event.knob),
                event.from.into(),
                event.to.into(),
                Value::foreign(&event.saw),
                predicted,
                predicted_low,
                predicted_high,
                measured,
                measured_low,
                measured_high,
                Value::foreign(&event.why),
            ])
        })
    },
};
