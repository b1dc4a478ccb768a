//! One worker of the pipeline: the batches given to it, and what it is doing for the first of them.

use super::{Conditions, Demand};
use crate::random::Random;
use std::collections::VecDeque;

/// Reading and preparing alternate sample by sample in a real loader; more turns than that change nothing that
/// shows in a step, and cost events.
const MAX_TURNS: u32 = 16;
/// Of all workers together: each event looks at all of them, and many workers are out of step with one another anyway. A
/// recording of 64 workers was simulated for 18 s, one that says 4,096 for minutes.
const MAX_TURNS_OF_ALL: u32 = 256;
/// Requests of a batch that are drawn one by one; of more, the expected share is cached.
const MAX_DRAWS: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Time that neither CPU nor storage is asked for.
    Blocked,
    /// The part of a read that others' reads don't slow down.
    Latency,
    /// The part that shares the storage.
    Transfer,
    /// Reading what is cached: as fast for everybody.
    Cached,
    Cpu,
}

impl Kind {
    pub(super) fn reads(self) -> bool {
        matches!(self, Kind::Latency | Kind::Transfer | Kind::Cached)
    }
}

/// One piece of the making of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) kind: Kind,
    /// Share that is left to do, 1 to 0.
    pub(super) left: f64,
    /// How much there is of it: nanoseconds (CPU, blocked), requests, bytes.
    ns: f64,
    requests: f64,
    bytes: f64,
}

impl Stage {
    /// Nanoseconds that the whole of it takes alone under `conditions`.
    pub(super) fn alone_ns(&self, conditions: &Conditions) -> f64 {
        let storage = &conditions.storage;
        match self.kind {
            Kind::Blocked | Kind::Cpu => self.ns,
            Kind::Latency => self.ns + self.requests * storage.latency_ns,
            Kind::Transfer => {
                (self.bytes / storage.bytes_per_s).max(self.requests / storage.requests_per_s) * 1e9
            }
            Kind::Cached => self.bytes / storage.cache_bytes_per_s * 1e9,
        }
    }
}

/// A batch that is being made, and where its time went so far.
#[derive(Clone, Debug)]
pub(super) struct Making {
    pub(super) index: u64,
    pub(super) demand: Demand,
    pub(super) start_ns: f64,
    /// The next one last.
    pub(super) stages: Vec<Stage>,
    pub(super) fetch_ns: f64,
    pub(super) cpu_ns: f64,
    pub(super) runnable_ns: f64,
    pub(super) read_bytes: f64,
    /// Requests that storage is asked for.
    pub(super) missed: f64,
    /// Integrals over the reading time and over all of it.
    pub(super) readers_ns: f64,
    pub(super) makers_ns: f64,
}

impl Making {
    pub(super) fn new(
        index: u64,
        demand: Demand,
        start_ns: f64,
        conditions: &Conditions,
        workers: usize,
        random: &mut Random,
    ) -> Making {
        let mut making = Making {
            index,
            demand,
            start_ns,
            stages: Vec::new(),
            fetch_ns: 0.0,
            cpu_ns: 0.0,
            runnable_ns: 0.0,
            read_bytes: 0.0,
            missed: 0.0,
            readers_ns: 0.0,
            makers_ns: 0.0,
        };
        let most_turns = (MAX_TURNS_OF_ALL / workers.max(1) as u32).clamp(1, MAX_TURNS);
        making.plan(conditions.storage.cached_share.clamp(0.0, 1.0), most_turns, random);
        making
    }

    /// Cuts the demand into turns of random length, so that workers don't fall into step with one another.
    fn plan(&mut self, cached_share: f64, most_turns: u32, random: &mut Random) {
        let demand = &self.demand;
        let missed = missed(demand.requests, cached_share, random);
        let requests = f64::from(demand.requests.max(1));
        let turns = demand.requests.clamp(1, most_turns);
        let mut weights: Vec<f64> = (0..turns).map(|_| 0.5 + random.unit()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        (self.missed, self.read_bytes) = (missed, demand.bytes * missed / requests);
        let mut add = |kind: Kind, ns: f64, requests: f64, bytes: f64| {
            if ns + requests + bytes > 0.0 {
                self.stages.push(Stage { kind, left: 1.0, ns, requests, bytes });
            }
        };
        for weight in weights {
            // In reverse: the last is done first.
            let part = |whole: f64| whole * weight;
            add(Kind::Cpu, part(demand.cpu_ns), 0.0, 0.0);
            add(Kind::Blocked, part(demand.blocked_ns), 0.0, 0.0);
            let (from_storage, from_cache) = (missed / requests, 1.0 - missed / requests);
            add(Kind::Cached, 0.0, 0.0, part(demand.bytes * from_cache));
            add(Kind::Transfer, 0.0, part(missed), part(demand.bytes * from_storage));
            add(Kind::Latency, part(demand.latency_ns * from_storage), part(missed), 0.0);
        }
    }
}

fn missed(requests: u32, cached_share: f64, random: &mut Random) -> f64 {
    if cached_share <= 0.0 || requests == 0 {
        return f64::from(requests);
    }
    if requests > MAX_DRAWS {
        return f64::from(requests) * (1.0 - cached_share);
    }
    (0..requests).filter(|_| random.unit() >= cached_share).count() as f64
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    /// Its number within the loader.
    pub(super) number: u32,
    /// Batches given to it and not begun, in order.
    pub(super) queue: VecDeque<(u64, Demand)>,
    pub(super) making: Option<Making>,
    /// Gets no more batches, and goes when it has made those that it has.
    pub(super) retiring: bool,
}

impl Worker {
    pub(super) fn new(number: u32) -> Worker {
        Worker { number, queue: VecDeque::new(), making: None, retiring: false }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.making.is_none() && self.queue.is_empty()
    }

    pub(super) fn doing(&self) -> Option<Kind> {
        self.making.as_ref().and_then(|making| making.stages.last()).map(|stage| stage.kind)
    }

    pub(super) fn has(&self, index: u64) -> bool {
        self.making.as_ref().is_some_and(|making| making.index == index)
            || self.queue.iter().any(|(queued, _)| *queued == index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workers_make_no_more_turns_than_some() {
        let demand = Demand {
            requests: 1000,
            bytes: 1.0,
            latency_ns: 1.0,
            cpu_ns: 1.0,
            blocked_ns: 1.0,
            ..Demand::default()
        };
        let stages = |workers: usize| {
            let (conditions, random) = (Conditions::default(), &mut Random::new(1));
            Making::new(0, demand, 0.0, &conditions, workers, random).stages.len()
        };
        assert_eq!(stages(1), stages(16));
        let all = |workers: usize| workers * stages(workers);
        assert!([32, 64, 128, 256].iter().all(|workers| all(*workers) <= all(16)));
        assert!(stages(1000) > 0);
    }
}
