//! Whether the wall clocks of hosts agree: ranks that meet at every step are at the same step at the same time.

use super::called;
use crate::run::Run;
use stallscope_model::{Phase, StepLedger};
use stallscope_units as units;
use std::collections::BTreeMap;

/// One step in so many is compared.
const EVERY: u64 = 16;
/// Steps compared at most.
const COMPARED: usize = 4096;
/// Clocks that differ by less do no harm.
const WORTH_NS: i128 = 1_000_000_000;

/// When a recording's steps ended, by their index; of the rank that came first.
#[derive(Debug, Default)]
pub(super) struct Ends {
    rank: Option<u32>,
    by_index: BTreeMap<u64, u64>,
}

impl Ends {
    pub(super) fn add(&mut self, step: &StepLedger, merged: u64) {
        let wanted = step.phase == Phase::Training && step.index.is_multiple_of(EVERY) && merged == 1;
        if wanted && self.by_index.len() < COMPARED && *self.rank.get_or_insert(step.rank) == step.rank {
            self.by_index.insert(step.index, step.end_ns);
        }
    }
}

/// Sentences on hosts whose clocks are apart from the first one's.
pub(super) fn notes(runs: &[Run], ends: &[Ends]) -> Vec<String> {
    // Where a job was attached to, the numbers of steps say nothing.
    if runs.iter().any(|run| run.summary.job.attached) {
        return Vec::new();
    }
    let Some((first, others)) = ends.split_first() else { return Vec::new() };
    let apart = others.iter().map(|other| apart_ns(first, other));
    let name = |run: &Run| run.sources.first().map(called).unwrap_or_default();
    apart
        .zip(&runs[1..])
        .filter_map(|(apart_ns, run)| {
            Some(format!(
                "at the same steps the clock of {} is {} {} that of {}: times of the two do not belong together",
                name(run),
                units::duration(apart_ns?.unsigned_abs().try_into().unwrap_or(u64::MAX)),
                if apart_ns? > 0 { "ahead of" } else { "behind" },
                name(&runs[0])
            ))
        })
        .collect()
}

/// How much later `other` has the same steps, where that is always the same and enough to matter.
fn apart_ns(one: &Ends, other: &Ends) -> Option<i128> {
    let mut apart: Vec<i128> = one
        .by_index
        .iter()
        .filter_map(|(index, ns)| Some(i128::from(*other.by_index.get(index)?) - i128::from(*ns)))
        .collect();
    apart.sort_unstable();
    let quantile = |quarters: usize| apart.get(apart.len() * quarters / 4).copied();
    let (low, middle, high) = (quantile(1)?, quantile(2)?, quantile(3)?);
    (apart.len() > 4 && middle.abs() > WORTH_NS && high - low < middle.abs() / 10).then_some(middle)
}
