//! Knobs that were set differently: what else may be why two runs differ.

use crate::Run;
use serde::Serialize;
use stallscope_look::tuning::{Became, amount, turns};
use stallscope_model::Knob;
use stallscope_units as units;
use std::collections::BTreeMap;

/// A knob of one rank that was not the same at the end of both runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnobDiff {
    pub rank: u32,
    pub loader: Option<u16>,
    pub knob: String,
    pub unit: String,
    pub a: u64,
    pub b: u64,
}

/// Those that both runs have and that differ, by rank, loader and name.
pub(super) fn between(a: &Run, b: &Run) -> Vec<KnobDiff> {
    let key = |knob: &Knob| (knob.rank, knob.loader, knob.name.clone());
    let before: BTreeMap<_, u64> = a.summary.knobs.iter().map(|knob| (key(knob), knob.value)).collect();
    let after: BTreeMap<_, &Knob> = b.summary.knobs.iter().map(|knob| (key(knob), knob)).collect();
    after
        .into_iter()
        .filter_map(|(key, knob)| {
            let was = *before.get(&key)?;
            (was != knob.value).then(|| KnobDiff {
                rank: knob.rank,
                loader: knob.loader,
                knob: knob.name.clone(),
                unit: knob.unit.clone(),
                a: was,
                b: knob.value,
            })
        })
        .collect()
}

/// "workers was 2 in A and is 4 in B, on 8 ranks", a sentence for all ranks that changed alike.
pub(super) fn in_words(knobs: &[KnobDiff]) -> Vec<String> {
    let mut alike: BTreeMap<(&str, &str, u64, u64), u64> = BTreeMap::new();
    for knob in knobs {
        *alike.entry((&knob.knob, &knob.unit, knob.a, knob.b)).or_default() += 1;
    }
    alike
        .into_iter()
        .map(|((knob, unit, a, b), count)| {
            let places = if count > 1 { format!(", in {count} places") } else { String::new() };
            format!("{knob} was {} in A and {} in B{places}", amount(a, unit), amount(b, unit))
        })
        .collect()
}

/// A run whose knobs were turned is two runs in one.
pub(super) fn note(run: &Run) -> Option<String> {
    let turns = turns(&run.audit).iter().filter(|turn| turn.became != Became::Refused).count();
    (turns > 0).then(|| {
        format!(
            "its knobs were turned {} while it ran: its figures are of before and after",
            units::counted(turns as u64, "time")
        )
    })
}
