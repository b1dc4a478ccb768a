//! Ways to set the knobs of a running job.

use stallscope_control::{Action, Controller, Observation};
use stallscope_model::{AuditEvent, Budgets, Cause, Phase, TuneMode};

/// Observes once a second, as the controller does.
pub(crate) trait Policy {
    fn observe(&mut self, observation: &Observation) -> Vec<Action>;

    /// All that it wrote down, when the job is over.
    fn end(&mut self, _now_ns: u64) -> Vec<AuditEvent> {
        Vec::new()
    }
}

/// Leaves everything as it is.
pub(crate) struct Nothing;

impl Policy for Nothing {
    fn observe(&mut self, _: &Observation) -> Vec<Action> {
        Vec::new()
    }
}

pub(crate) struct Ours {
    controller: Controller,
    audit: Vec<AuditEvent>,
}

impl Ours {
    pub(crate) fn new(budgets: Budgets, seed: u64) -> Self {
        Ours::of(TuneMode::Act, budgets, seed)
    }

    pub(crate) fn of(mode: TuneMode, budgets: Budgets, seed: u64) -> Self {
        Ours { controller: Controller::new(mode, budgets, seed), audit: Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn audit(&self) -> &[AuditEvent] {
        &self.audit
    }
}

impl Policy for Ours {
    fn observe(&mut self, observation: &Observation) -> Vec<Action> {
        let out = self.controller.observe(observation);
        self.audit.extend(out.audit);
        out.actions
    }

    fn end(&mut self, now_ns: u64) -> Vec<AuditEvent> {
        self.audit.extend(self.controller.stop(now_ns).audit);
        std::mem::take(&mut self.audit)
    }
}

/// Hill climbing as tf.data's documentation tells of it: every so often one more for the slowest stage while the
/// throughput rises, within half of the memory that was free at the beginning; no proof, no way back. A stage is
/// given up when one more of it did not help, and taken up again when the job got slower. Its period doubles from 10 s
/// to 60 s (there from 10 ms). Kinder than the original: no bound by the number of CPUs, and it knows what memory
/// is used.
pub(crate) struct HillClimbing {
    free_bytes: Option<u64>,
    start_bytes: u64,
    samples: f64,
    seconds: u32,
    period_s: u32,
    waits: [f64; 2],
    best: f64,
    /// Turned last, and given up: workers, prefetch.
    last: Option<usize>,
    given_up: [bool; 2],
}

const LONGEST_PERIOD_S: u32 = 60;

impl HillClimbing {
    pub(crate) fn new() -> Self {
        HillClimbing {
            free_bytes: None,
            start_bytes: 0,
            samples: 0.0,
            seconds: 0,
            period_s: 10,
            waits: [0.0; 2],
            best: 0.0,
            last: None,
            given_up: [false; 2],
        }
    }
}

impl Policy for HillClimbing {
    fn observe(&mut self, observation: &Observation) -> Vec<Action> {
        let memory: u64 = observation.ranks.iter().map(|rank| rank.memory_bytes).sum();
        let free = *self.free_bytes.get_or_insert(observation.node.memory_available_bytes);
        if self.start_bytes == 0 {
            self.start_bytes = memory;
        }
        for step in
            observation.ranks.iter().flat_map(|rank| &rank.steps).filter(|step| step.phase == Phase::Training)
        {
            self.samples += f64::from(step.samples);
            self.waits[0] += step.causes.data_stall_ns() as f64;
            self.waits[1] += step.causes.total_ns().saturating_sub(step.causes[Cause::Peer]) as f64;
        }
        self.seconds += 1;
        if self.seconds < self.period_s || self.samples == 0.0 {
            return Vec::new();
        }
        self.period_s = (2 * self.period_s).min(LONGEST_PERIOD_S);
        let pace = self.samples / f64::from(self.seconds);
        let stall = if self.waits[1] > 0.0 { self.waits[0] / self.waits[1] } else { 0.0 };
        (self.samples, self.seconds, self.waits) = (0.0, 0, [0.0; 2]);
        if pace > self.best {
            self.best = pace;
        } else if let Some(last) = self.last.take() {
            self.given_up[last] = true;
        } else if pace < 0.9 * self.best {
            (self.best, self.given_up) = (pace, [false; 2]);
        }
        if stall < 0.01 || memory.saturating_sub(self.start_bytes) > free / 2 {
            return Vec::new();
        }
        let Some(stage) = (0..2).find(|stage| !self.given_up[*stage]) else { return Vec::new() };
        self.last = Some(stage);
        let mut actions = Vec::new();
        for knob in observation.ranks.iter().flat_map(|rank| &rank.knobs) {
            let value = |name: &str| {
                let same = |other: &&stallscope_model::Knob| other.rank == knob.rank && other.name == name;
                observation.ranks.iter().flat_map(|rank| &rank.knobs).find(same).map_or(1, |knob| knob.value)
            };
            let to = match (stage, knob.name.as_str()) {
                (0, "workers") => knob.value + 1,
                // Its buffers double when they run dry; with workers as PyTorch's do.
                (0, _) => knob.value.max(2 * (value("workers") + 1)),
                (_, "prefetch") => knob.value * 2,
                _ => continue,
            };
            let to = to.min(knob.max);
            if to != knob.value {
                let knob = knob.clone();
                actions.push(Action {
                    decision: 0,
                    rank: knob.rank,
                    loader: knob.loader,
                    knob: knob.name,
                    value: to,
                });
            }
        }
        actions
    }
}
