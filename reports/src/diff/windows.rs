//! A run cut into windows, each as the job lived through it: the causes of the rank that the others waited for.

use super::figure::Totals;
use crate::{Error, Run};
use stallscope_model::{Cause, Causes, Phase};
use std::collections::BTreeMap;

/// A run whose roll-ups make fewer windows than this is cut finer, from its steps.
const FEW: usize = 30;
const SECOND_NS: u64 = 1_000_000_000;

/// What a run's phases were in each window, in order of time.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) length_ns: u64,
    by_phase: BTreeMap<Phase, Vec<Totals>>,
}

impl Windows {
    /// The windows of `run`: its roll-ups, or seconds where there are few of those.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub(crate) fn of(run: &Run) -> Result<Windows, Error> {
        let coarse = from_rollups(run);
        if coarse.of_phase(Phase::Training).len() >= FEW { Ok(coarse) } else { from_steps(run) }
    }

    pub(crate) fn of_phase(&self, phase: Phase) -> &[Totals] {
        self.by_phase.get(&phase).map_or(&[], Vec::as_slice)
    }
}

fn from_rollups(run: &Run) -> Windows {
    let length_ns = run.rollups.first().map_or(0, |rollup| rollup.period.ns());
    let mut cells = Cells::default();
    for rollup in &run.rollups {
        let cell = cells.at(rollup.phase, rollup.start_ns / length_ns.max(1), rollup.rank);
        cell.add(rollup.steps, rollup.samples, &rollup.causes);
        let alone = cell.totals.steps == rollup.steps;
        cell.totals.step_p50_ns = alone.then_some(rollup.step_p50_ns);
        cell.totals.step_p95_ns = alone.then_some(rollup.step_p95_ns);
    }
    cells.windows(length_ns)
}

fn from_steps(run: &Run) -> Result<Windows, Error> {
    let mut cells = Cells::default();
    run.each_step(|row| {
        let cell = cells.at(row.step.phase, row.step.end_ns / SECOND_NS, row.step.rank);
        cell.add(row.merged, row.step.samples.into(), &row.step.causes);
        if row.merged == 1 {
            cell.durations_ns.push(row.step.end_ns.saturating_sub(row.step.start_ns));
        }
        Ok(())
    })?;
    for cell in cells.0.values_mut().flat_map(BTreeMap::values_mut) {
        cell.durations_ns.sort_unstable();
        let quantile = |share: f64| {
            let place = (share * cell.durations_ns.len().saturating_sub(1) as f64).round() as usize;
            cell.durations_ns.get(place).copied()
        };
        (cell.totals.step_p50_ns, cell.totals.step_p95_ns) = (quantile(0.50), quantile(0.95));
    }
    Ok(cells.windows(SECOND_NS))
}

/// By phase and window, what each rank did in it.
#[derive(Default)]
struct Cells(BTreeMap<(Phase, u64), BTreeMap<u32, Cell>>);

#[derive(Default)]
struct Cell {
    totals: Totals,
    durations_ns: Vec<u64>,
}

impl Cell {
    fn add(&mut self, steps: u64, samples: u64, causes: &Causes) {
        self.totals.steps = self.totals.steps.saturating_add(steps);
        self.totals.samples = self.totals.samples.saturating_add(samples);
        self.totals.causes += causes;
    }
}

impl Cells {
    fn at(&mut self, phase: Phase, window: u64, rank: u32) -> &mut Cell {
        self.0.entry((phase, window)).or_default().entry(rank).or_default()
    }

    /// In each window the rank with most time that is no wait for others, as in the job's own ledger; samples of
    /// all of them.
    fn windows(self, length_ns: u64) -> Windows {
        let mut windows = Windows { length_ns, ..Windows::default() };
        for ((phase, _), ranks) in self.0 {
            let samples = ranks.values().fold(0u64, |sum, cell| sum.saturating_add(cell.totals.samples));
            let own_ns = |cell: &Cell| cell.totals.causes.total_ns() - cell.totals.causes[Cause::Peer];
            if let Some(slowest) = ranks.into_values().max_by_key(own_ns) {
                windows.by_phase.entry(phase).or_default().push(Totals { samples, ..slowest.totals });
            }
        }
        windows
    }
}
