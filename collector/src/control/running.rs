//! A controller at work on a job: its observations, and the actions that it asks for.

use crate::engine::Engine;
use crate::reporting::Controlled;
use crate::usage::{Machine, Usage, node_state};
use crate::{host, procfs};
use stallscope_control::{
    Action, Controller, NodeState, Observation, Outcome, RankObservation, SharedStorage,
};
use stallscope_model::{Budgets, CacheSummary, Knob, KnobRequest, Phase, TuneMode};
use stallscope_wire::Beside;
use std::collections::BTreeMap;

/// Decisions whose numbers are remembered.
const DECISIONS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Running {
    controller: Controller,
    /// The connection whose end ends it; `None`: the session's own.
    pub(crate) connection: Option<u64>,
    /// The person or session that began it.
    pub(crate) by: String,
    pub(crate) mode: TuneMode,
    /// A rule of the node's began it, which grants its caches memory.
    pub(crate) is_of_node: bool,
    usage: Usage,
    machine: Machine,
    /// As of the last look at which there was a trainer: where there is none it says nothing of the job's limits.
    node: Option<NodeState>,
    phases: BTreeMap<u32, Phase>,
    /// The session's numbers of its decisions: people's requests are numbered along with them.
    decisions: BTreeMap<u64, u64>,
}

impl Running {
    pub(crate) fn new(mode: TuneMode, budgets: Budgets, by: String, connection: Option<u64>) -> Running {
        // Any seed will do: with it a decision can be made again from the observations.
        let controller = Controller::new(mode, budgets, host::wall_ns());
        Running {
            controller,
            connection,
            by,
            mode,
            is_of_node: false,
            usage: Usage::default(),
            machine: Machine::default(),
            node: None,
            phases: BTreeMap::new(),
            decisions: BTreeMap::new(),
        }
    }

    /// Tells the controller what is new. `beside`: what other jobs of the node read from the same storage, where that is known.
    pub(crate) fn observe(&mut self, engine: &mut Engine, beside: Option<Beside>) -> Outcome {
        let mut observation = self.observation(engine);
        observation.node.storage = beside.filter(|_| self.is_of_node).map(|beside| SharedStorage {
            own_bytes: engine.read_bytes(),
            others: beside.jobs,
            others_bytes_per_s: beside.bytes_per_s,
        });
        self.controller.observe(&observation)
    }

    /// What the node grants its caches from now on, all together.
    pub(crate) fn grant(&mut self, cache_bytes: u64) {
        if self.is_of_node {
            self.controller.grant_caches(cache_bytes);
        }
    }

    /// What the node's service is to know of it.
    pub(crate) fn controlled(&mut self) -> Controlled {
        let caches = if self.is_of_node { self.controller.cache_wants() } else { None };
        Controlled { frozen_until_ns: self.controller.frozen_until_ns(), caches }
    }

    /// Ends it; the outcome undoes what was not proven.
    pub(crate) fn stop(&mut self) -> Outcome {
        self.controller.stop(host::now_ns())
    }

    fn observation(&mut self, engine: &mut Engine) -> Observation {
        let now_ns = host::now_ns();
        let members = engine.members(now_ns);
        let processes: Vec<(u32, Vec<u32>)> =
            members.iter().map(|member| (member.rank, member.pids.clone())).collect();
        let mut caches: BTreeMap<u32, Vec<CacheSummary>> = BTreeMap::new();
        for cache in engine.caches() {
            caches.entry(cache.rank).or_default().push(cache);
        }
        let mut usage = self.usage.look(&processes, kept_bytes(&caches));
        let trainers: Vec<u32> = members.iter().map(|member| member.pid).collect();
        let mut knobs: BTreeMap<u32, Vec<Knob>> = BTreeMap::new();
        for knob in engine.knobs.state() {
            knobs.entry(knob.rank).or_default().push(knob);
        }
        let mut fresh = std::mem::take(&mut engine.fresh);
        let ranks = members
            .into_iter()
            .map(|member| {
                let rank = member.rank;
                let steps = fresh.steps.remove(&rank).unwrap_or_default();
                if let Some(step) = steps.last() {
                    self.phases.insert(rank, step.phase);
                }
                let used = usage.remove(&rank).unwrap_or_default();
                RankObservation {
                    rank,
                    seen_until_ns: member.seen_until_ns,
                    phase: self.phases.get(&rank).copied().unwrap_or(Phase::Startup),
                    steps,
                    services: fresh.services.remove(&rank).unwrap_or_default(),
                    knobs: knobs.remove(&rank).unwrap_or_default(),
                    caches: caches.remove(&rank).unwrap_or_default(),
                    checkpoints: member.checkpoints,
                    memory_bytes: used.memory_bytes,
                    worker_bytes: used.worker_bytes,
                    cpu_ns: used.cpu_ns,
                    descriptors: procfs::descriptors(member.pid).unwrap_or(0),
                }
            })
            .collect();
        if self.node.is_none() || !trainers.is_empty() {
            self.node = Some(node_state(&trainers));
        }
        let machine = self.machine.look(now_ns);
        Observation { now_ns, ranks, node: NodeState { machine, ..self.node.clone().unwrap_or_default() } }
    }

    /// The session's number of a decision of the controller's; `next` makes one.
    pub(crate) fn decision(&mut self, of_controller: u64, next: impl FnOnce() -> u64) -> u64 {
        if let Some(number) = self.decisions.get(&of_controller) {
            return *number;
        }
        if self.decisions.len() == DECISIONS {
            self.decisions.pop_first();
        }
        let number = next();
        self.decisions.insert(of_controller, number);
        number
    }
}

/// What the job's caches keep. Ranks share what they keep of one data set, and each says how much that is.
fn kept_bytes(caches: &BTreeMap<u32, Vec<CacheSummary>>) -> u64 {
    let mut by_loader: BTreeMap<u16, u64> = BTreeMap::new();
    for cache in caches.values().flatten() {
        let kept = by_loader.entry(cache.loader).or_default();
        *kept = cache.state.map_or(0, |state| state.kept_bytes).max(*kept);
    }
    by_loader.values().sum()
}

/// What the controller wants done, as a request.
pub(crate) fn request(action: &Action) -> KnobRequest {
    KnobRequest {
        rank: Some(action.rank),
        loader: action.loader,
        knob: action.knob.clone(),
        value: action.value,
    }
}
