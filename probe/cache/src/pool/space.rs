//! One data set's part of the pool: what is kept of it, and where.

mod fill;
mod resize;

use super::blocks::{Blocks, Run};
use super::claims::{Answers, Claims, Who};
use super::error::Result;
use super::joint::{Joints, Size};
use super::layout::{Figure, Layout, Seen};
use super::memory::Owned;
use super::message::{Answer, Greeting, Joint};
use crate::policy::{Policy, Use};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A fill whose bytes do not come is given up.
const PATIENCE_MS: u64 = 10_000;

/// Where a sample lies that is kept, or on its way.
#[derive(Debug)]
struct Stored {
    tag: u64,
    bytes: u64,
    runs: Vec<Run>,
}

/// A sample that is being filled.
#[derive(Debug)]
struct Arriving {
    stored: Stored,
    received: u64,
    until_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Space {
    greeting: Greeting,
    policy: Box<dyn Policy>,
    layout: Layout,
    index: Owned,
    data: Owned,
    capacity_bytes: u64,
    /// 0 until the first sample came.
    block_bytes: u32,
    blocks: Blocks,
    kept: HashMap<u32, Stored>,
    arriving: HashMap<(u32, Who), Arriving>,
    claims: Claims,
    joints: Joints,
    kept_bytes: u64,
    evictions: u64,
    fills: u64,
    refused: u64,
    clients: u64,
    /// Filled by policies.
    evicted: Vec<u32>,
    /// When to give back again what lies beyond the capacity.
    punch_ms: Option<u64>,
}

impl Space {
    pub(crate) fn new(greeting: Greeting, layout: Layout) -> Result<Space> {
        let space = Space {
            policy: greeting.policy.make(0),
            layout,
            index: Owned::create("stallscope-pool-index", layout.index_bytes())?,
            data: Owned::create("stallscope-pool-data", layout.data_bytes)?,
            capacity_bytes: greeting.capacity_bytes,
            joints: Joints::new(greeting.samples),
            greeting,
            block_bytes: 0,
            blocks: Blocks::new(0),
            kept: HashMap::new(),
            arriving: HashMap::new(),
            claims: Claims::default(),
            kept_bytes: 0,
            evictions: 0,
            fills: 0,
            refused: 0,
            clients: 0,
            evicted: Vec::new(),
            punch_ms: None,
        };
        space.publish();
        Ok(space)
    }

    /// Whether a client that says this means this space.
    pub(crate) fn is_meant(&self, greeting: &Greeting) -> bool {
        let ours = &self.greeting;
        (&ours.key, ours.samples, ours.policy) == (&greeting.key, greeting.samples, greeting.policy)
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.layout.data_bytes as u64
    }

    pub(crate) fn clients(&self) -> u64 {
        self.clients
    }

    pub(crate) fn index(&self) -> &Owned {
        &self.index
    }

    pub(crate) fn data(&self) -> &Owned {
        &self.data
    }

    pub(crate) fn joined(&mut self) {
        self.clients += 1;
        self.publish();
    }

    /// A client is gone: what it was to read or fill is somebody else's.
    pub(crate) fn left(&mut self, client: u64, now_ms: u64, answers: &mut Answers) {
        self.clients = self.clients.saturating_sub(1);
        let lost: Vec<(u32, Who)> =
            self.arriving.keys().filter(|(_, (other, _))| *other == client).copied().collect();
        for (id, who) in lost {
            self.abandon(id, who);
        }
        self.claims.gone(client, now_ms, answers);
        let seen = Seen { layout: self.layout, index: &self.index.memory, data: &self.data.memory };
        self.joints.left(client, self.greeting.policy, seen);
        self.publish();
    }

    /// The pool leaves: who still looks knows that nothing comes any more.
    pub(crate) fn close(&self) {
        self.seen().figure(Figure::Left).store(1, Ordering::Relaxed);
    }

    pub(crate) fn claim(
        &mut self,
        (id, tag): (u32, Option<u64>),
        who: Who,
        now_ms: u64,
        limit_ms: u32,
        answers: &mut Answers,
    ) {
        let there = self.kept.get(&id).is_some_and(|kept| tag.is_none_or(|tag| tag == kept.tag));
        if there || u64::from(id) >= self.greeting.samples {
            answers.push((who, Answer::No));
        } else {
            self.claims.claim(id, who, now_ms, limit_ms, answers);
        }
    }

    /// Who claimed it does not read it, or does not wait any more.
    pub(crate) fn give_up(&mut self, id: u32, who: Who, now_ms: u64, answers: &mut Answers) {
        self.abandon(id, who);
        self.claims.give_up(id, who, now_ms, answers);
    }

    fn charge(&self, runs: &[Run]) -> u64 {
        runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>() * u64::from(self.block_bytes)
    }

    /// What is kept or on its way of a sample is gone; the policy knows.
    fn drop_stored(&mut self, id: u32) -> bool {
        let mut found = Vec::new();
        if let Some(stored) = self.kept.remove(&id) {
            if let Some(slot) = self.seen().slot(u64::from(id)) {
                slot.clear();
            }
            self.kept_bytes -= self.charge(&stored.runs);
            found.push(stored);
        }
        let arriving: Vec<(u32, Who)> =
            self.arriving.keys().filter(|(other, _)| *other == id).copied().collect();
        found.extend(
            arriving.iter().filter_map(|key| self.arriving.remove(key)).map(|arriving| arriving.stored),
        );
        for run in found.iter().flat_map(|stored| &stored.runs) {
            self.blocks.give(*run);
        }
        !found.is_empty()
    }

    fn forget(&mut self, id: u32) {
        if self.drop_stored(id) {
            self.policy.forget(id);
        }
    }

    fn abandon(&mut self, id: u32, who: Who) {
        if self.arriving.contains_key(&(id, who)) {
            self.forget(id);
        }
    }

    fn evict(&mut self, evicted: &mut Vec<u32>) {
        for id in evicted.drain(..) {
            self.evictions += 1;
            self.drop_stored(id);
        }
    }

    pub(crate) fn used(&mut self, uses: &[(u32, u64, u64)]) {
        for (id, at, next_at) in uses {
            if let Some(kept) = self.kept.get(id) {
                let bytes = self.charge(&kept.runs) as u32;
                self.policy.hit(&Use { id: *id, bytes, at: *at, next_at: *next_at });
            }
        }
    }

    pub(crate) fn planned(&mut self, planned: &[(u32, u64)]) {
        for (id, next_at) in planned.iter().filter(|(id, _)| u64::from(*id) < self.greeting.samples) {
            self.policy.planned(*id, *next_at);
        }
    }

    pub(crate) fn scored(&mut self, scored: &[(u32, f64)]) {
        for (id, score) in scored.iter().filter(|(id, _)| u64::from(*id) < self.greeting.samples) {
            self.policy.scored(*id, *score);
        }
    }

    pub(crate) fn epoch(&mut self) {
        self.policy.epoch();
    }

    pub(crate) fn joint(&mut self, client: u64, joint: Joint) {
        let size = Size {
            capacity_bytes: self.capacity_bytes,
            kept_bytes: self.kept_bytes,
            kept_samples: self.kept.len() as u64,
        };
        let seen = Seen { layout: self.layout, index: &self.index.memory, data: &self.data.memory };
        self.joints.take(client, joint, self.greeting.policy, size, seen);
    }

    /// Answers and gives up what took too long; when to look again.
    pub(crate) fn expire(&mut self, now_ms: u64, answers: &mut Answers) -> Option<u64> {
        let late: Vec<(u32, Who)> =
            self.arriving.iter().filter(|(_, fill)| fill.until_ms <= now_ms).map(|(key, _)| *key).collect();
        for (id, who) in late {
            self.give_up(id, who, now_ms, answers);
        }
        if self.punch_ms.is_some_and(|punch_ms| punch_ms <= now_ms) {
            self.punch_ms = None;
            self.punch();
        }
        let next_fill = self.arriving.values().map(|fill| fill.until_ms).min();
        let next_claim = self.claims.expire(now_ms, answers);
        [next_fill, next_claim, self.punch_ms].into_iter().flatten().min()
    }

    fn seen(&self) -> Seen<'_> {
        Seen { layout: self.layout, index: &self.index.memory, data: &self.data.memory }
    }

    fn publish(&self) {
        for (figure, value) in [
            (Figure::CapacityBytes, self.capacity_bytes),
            (Figure::KeptBytes, self.kept_bytes),
            (Figure::KeptSamples, self.kept.len() as u64),
            (Figure::Evictions, self.evictions),
            (Figure::Fills, self.fills),
            (Figure::Refused, self.refused),
            (Figure::Clients, self.clients),
        ] {
            self.seen().figure(figure).store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
