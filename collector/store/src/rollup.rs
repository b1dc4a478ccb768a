//! Roll-ups per ten seconds and per minute, made while steps come in.

use crate::rows::{Rollup, RollupPeriod};
use stallscope_model::{Causes, Phase, StepLedger};
use std::collections::BTreeMap;

type Key = (u32, u16, Phase, RollupPeriod);

/// Roll-ups under way and those not written yet.
#[derive(Debug, Default)]
pub(crate) struct Rollups {
    open: BTreeMap<Key, Open>,
    closed: Vec<Rollup>,
    /// Roll-ups that were dropped because too many waited.
    pub(crate) dropped: u64,
}

#[derive(Debug)]
struct Open {
    start_ns: u64,
    steps: u64,
    samples: u64,
    causes: Causes,
    durations: Durations,
    dirty: bool,
}

/// Closed roll-ups that wait for a disk that cannot be written to; more are dropped.
const WAITING: usize = 20_000;

impl Rollups {
    /// Counts a step in the period it ended in; a step that comes late, in the one under way.
    pub(crate) fn add(&mut self, step: &StepLedger) {
        for period in RollupPeriod::ALL {
            let start_ns = step.end_ns - step.end_ns % period.ns();
            let key = (step.rank, step.loader, step.phase, period);
            if let Some(open) = self.open.get(&key)
                && open.start_ns < start_ns
                && let Some(open) = self.open.remove(&key)
                && open.dirty
            {
                if self.closed.len() < WAITING {
                    self.closed.push(open.row(key));
                } else {
                    self.dropped += 1;
                }
            }
            let open = self.open.entry(key).or_insert_with(|| Open {
                start_ns,
                steps: 0,
                samples: 0,
                causes: Causes::default(),
                durations: Durations::default(),
                dirty: true,
            });
            open.steps += step.steps();
            open.samples += u64::from(step.samples);
            open.causes += &step.causes;
            if !step.part {
                open.durations.add(step.end_ns.saturating_sub(step.start_ns));
            }
            open.dirty = true;
        }
    }

    /// Everything that is not in the file as it stands now.
    pub(crate) fn unwritten(&self) -> Vec<Rollup> {
        let open = self.open.iter().filter(|(_, open)| open.dirty).map(|(key, open)| open.row(*key));
        self.closed.iter().cloned().chain(open).collect()
    }

    /// To be called once [`Self::unwritten`] is committed.
    pub(crate) fn written(&mut self) {
        self.closed.clear();
        self.open.values_mut().for_each(|open| open.dirty = false);
    }
}

impl Open {
    fn row(&self, (rank, loader, phase, period): Key) -> Rollup {
        let mut kept = self.durations.kept.clone();
        let mut quantile = |share: f64| {
            let place = (share * kept.len().saturating_sub(1) as f64).round() as usize;
            if kept.is_empty() { 0 } else { *kept.select_nth_unstable(place).1 }
        };
        Rollup {
            period,
            start_ns: self.start_ns,
            rank,
            loader,
            phase,
            steps: self.steps,
            samples: self.samples,
            causes: self.causes,
            step_p50_ns: quantile(0.50),
            step_p95_ns: quantile(0.95),
            step_max_ns: self.durations.max_ns,
        }
    }
}

/// All durations up to a thousand or two, then every second one, every fourth, …: bounded memory and near enough.
#[derive(Debug, Default)]
struct Durations {
    kept: Vec<u64>,
    max_ns: u64,
    seen: u64,
    halvings: u32,
}

impl Durations {
    const KEPT: usize = 2048;

    fn add(&mut self, duration_ns: u64) {
        self.max_ns = self.max_ns.max(duration_ns);
        if self.seen.is_multiple_of(1 << self.halvings) {
            self.kept.push(duration_ns);
        }
        self.seen += 1;
        if self.kept.len() >= Self::KEPT {
            let mut even = false;
            self.kept.retain(|_| {
                even = !even;
                even
            });
            self.halvings += 1;
        }
    }
}
