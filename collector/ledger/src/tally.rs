//! Sums over closed steps, by phase and loader.

use crate::steps::NO_LOADER;
use histogram::Histogram;
use stallscope_model::{Causes, Phase, PhaseSummary, StepLedger};
use std::collections::BTreeMap;

/// Buckets are within 1.6% of the value, up to 19 hours.
const GROUPING_POWER: u8 = 6;
const MAX_VALUE_POWER: u8 = 46;
/// Sums of single loaders, with 21 KB of buckets each. From 64 loaders on the shim uses numbers of those that are gone again.
const MOST_LOADERS: usize = 128;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) steps: u64,
    pub(crate) samples: u64,
    pub(crate) wall_ns: u64,
    pub(crate) causes: Causes,
    pub(crate) hidden_ns: Option<u64>,
    /// Of what counts as no step since the last one: it is the next one's, which an evaluation has cut in two.
    begun_ns: u64,
    max_ns: u64,
    walls: Option<Histogram>,
}

impl Tally {
    /// `count` times a step, or an interval that counts as none: `steps` is 1 or 0.
    pub(crate) fn add(
        &mut self,
        count: u64,
        steps: u64,
        wall_ns: u64,
        samples: u64,
        causes: &Causes,
        hidden_ns: Option<u64>,
    ) {
        let times = |one: u64| one.saturating_mul(count);
        self.steps = self.steps.saturating_add(times(steps));
        self.samples = self.samples.saturating_add(times(samples));
        self.wall_ns = self.wall_ns.saturating_add(times(wall_ns));
        self.causes += &Causes(causes.0.map(times));
        if let Some(ns) = hidden_ns {
            let hidden_ns = self.hidden_ns.get_or_insert(0);
            *hidden_ns = hidden_ns.saturating_add(times(ns));
        }
        if steps == 0 {
            self.begun_ns = self.begun_ns.saturating_add(wall_ns);
            return;
        }
        let wall_ns = wall_ns.saturating_add(std::mem::take(&mut self.begun_ns));
        self.max_ns = self.max_ns.max(wall_ns);
        if self.walls.is_none() {
            self.walls = Histogram::new(GROUPING_POWER, MAX_VALUE_POWER).ok();
        }
        if let Some(walls) = &mut self.walls {
            // Longer ones count as the longest that has a bucket.
            let _ = walls.add(wall_ns.min((1 << MAX_VALUE_POWER) - 1), count);
        }
    }

    fn quantile_ns(&self, quantile: f64) -> u64 {
        let bucket = self.walls.as_ref().and_then(|walls| walls.quantile_bucket(quantile).ok().flatten());
        bucket.map_or(0, |bucket| bucket.end().min(self.max_ns))
    }

    /// Both together, without their distribution.
    pub(crate) fn join(&mut self, other: &Tally) {
        self.steps += other.steps;
        self.samples = self.samples.saturating_add(other.samples);
        self.wall_ns = self.wall_ns.saturating_add(other.wall_ns);
        self.causes += &other.causes;
        if let Some(ns) = other.hidden_ns {
            let hidden_ns = self.hidden_ns.get_or_insert(0);
            *hidden_ns = hidden_ns.saturating_add(ns);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tallies(BTreeMap<(Phase, Option<u16>), Tally>);

impl Tallies {
    pub(crate) fn step(&mut self, step: &StepLedger) {
        let wall_ns = step.end_ns - step.start_ns;
        self.of(step.phase, step.loader).add(
            1,
            step.steps(),
            wall_ns,
            step.samples.into(),
            &step.causes,
            step.hidden_ns,
        );
    }

    pub(crate) fn of(&mut self, phase: Phase, loader: u16) -> &mut Tally {
        let loader = match phase {
            Phase::Startup | Phase::Between | Phase::After => None,
            Phase::Training | Phase::Evaluation => Some(loader).filter(|loader| *loader != NO_LOADER),
        };
        // Further ones count together, as those of a loader that is not known.
        let has_place = self.0.len() < MOST_LOADERS || self.0.contains_key(&(phase, loader));
        self.0.entry((phase, loader.filter(|_| has_place))).or_default()
    }

    /// All loaders of a phase together.
    pub(crate) fn phase(&self, phase: Phase) -> Tally {
        let mut sum = Tally::default();
        self.0.iter().filter(|((of, _), _)| *of == phase).for_each(|(_, tally)| sum.join(tally));
        sum
    }

    /// Whether no loader handed over what the steps of a phase worked on.
    pub(crate) fn is_without_loader(&self, phase: Phase) -> bool {
        let mut of_phase = self.0.keys().filter(|(of, _)| *of == phase).peekable();
        of_phase.peek().is_some() && of_phase.all(|(_, loader)| loader.is_none())
    }

    pub(crate) fn summaries(&self) -> Vec<PhaseSummary> {
        let summary = |(&(phase, loader), tally): (&(Phase, Option<u16>), &Tally)| PhaseSummary {
            phase,
            loader,
            steps: tally.steps,
            samples: tally.samples,
            wall_ns: tally.wall_ns,
            causes: tally.causes,
            hidden_ns: tally.hidden_ns,
            step_p50_ns: tally.quantile_ns(0.5),
            step_p95_ns: tally.quantile_ns(0.95),
            step_max_ns: tally.max_ns,
        };
        self.0.iter().map(summary).collect()
    }
}
