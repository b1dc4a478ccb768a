//! Knobs and an audit in which every name and figure comes from elsewhere.

use stallscope_model::*;
use stallscope_reports::Run;

/// Puts them into a run; `number` and `figure` stand for every figure.
pub(crate) fn put(run: &mut Run, name: &mut dyn FnMut() -> String, number: u64, figure: f64) {
    run.audit = audit(name, number, figure);
    of_summary(&mut run.summary, name, number, figure);
}

pub(crate) fn of_summary(
    summary: &mut RunSummary,
    name: &mut dyn FnMut() -> String,
    number: u64,
    figure: f64,
) {
    let some = Estimate { value: figure, low: -figure, high: figure * 2.0 };
    let knob = |name: &mut dyn FnMut() -> String, state| Knob {
        rank: number as u32,
        loader: Some(number as u16),
        name: name(),
        unit: name(),
        value: number,
        initial: number / 2,
        min: number,
        max: 0,
        requested: Some(number),
        state,
        reason: name(),
        set_by: name(),
    };
    summary.knobs = vec![knob(name, KnobState::Refused), knob(name, KnobState::Unavailable)];
    summary.rates = vec![Rates {
        actual: Some(some),
        compute: Some(some),
        storage: Some(Estimate { value: 1.0, low: f64::NEG_INFINITY, high: f64::INFINITY }),
        unknown: vec![name(), name()],
        ..Rates::default()
    }];
    let advice = |name: &mut dyn FnMut() -> String| Advice {
        knob: name(),
        now: number,
        to: number / 3,
        gain: some,
        why: name(),
        ..Advice::default()
    };
    summary.advice = vec![advice(name), advice(name)];
    summary.tune = Some(TuneMode::Advise);
    summary.acts = Act::ALL.map(|act| (act, number)).into();
}

/// A line of each act.
fn audit(name: &mut dyn FnMut() -> String, number: u64, figure: f64) -> Vec<AuditEvent> {
    let some = Some(Estimate { value: figure, low: -figure, high: figure * 2.0 });
    Act::ALL
        .into_iter()
        .zip(0..)
        .map(|(act, line)| AuditEvent {
            line,
            time_ns: number,
            decision: number,
            act,
            by: name(),
            rank: Some(number as u32),
            loader: None,
            knob: name(),
            from: Some(number),
            to: Some(number / 2),
            saw: name(),
            predicted: some,
            measured: some,
            why: name(),
        })
        .collect()
}
