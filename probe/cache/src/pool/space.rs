//! One data set's part of the pool: what is kept of it, and where.

use super::blocks::{Blocks, Run};
use super::claims::{Answers, Claims, Who};
use super::error::Result;
use super::layout::{Figure, Layout, Seen};
use super::memory::Owned;
use super::message::{Answer, Greeting};
use super::slots::{Data, LARGEST_BLOCK, write_words};
use crate::policy::{Policy, Use};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A fill whose bytes do not come is given up.
const PATIENCE_MS: u64 = 10_000;

/// A reader that was copying while its sample went may touch pages after they were given back, and so take them again.
const READERS_MS: u64 = 1000;

/// Of a sample, some thirtieth may be lost in its last block.
const BLOCKS_A_SAMPLE: u64 = 32;

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

    /// Somebody has read a sample, of `bytes` bytes.
    pub(crate) fn fill(
        &mut self,
        used: (u32, u64, u64),
        (tag, bytes): (u64, u64),
        who: Who,
        now_ms: u64,
        answers: &mut Answers,
    ) {
        let (id, at, next_at) = used;
        if u64::from(id) >= self.greeting.samples || self.claims.is_of_another(id, who) {
            answers.push((who, Answer::No));
            return;
        }
        if self.kept.get(&id).is_some_and(|kept| kept.tag == tag) {
            answers.push((who, Answer::Yes));
            self.claims.settle(id, answers);
            return;
        }
        self.forget(id);
        let Some(runs) = self.room((id, at, next_at), bytes, now_ms) else {
            self.refused += 1;
            self.publish();
            answers.push((who, Answer::No));
            self.claims.settle(id, answers);
            return;
        };
        let stored = Stored { tag, bytes, runs };
        if bytes == 0 {
            self.keep(id, stored);
            answers.push((who, Answer::Yes));
            self.claims.settle(id, answers);
            return;
        }
        self.arriving.insert((id, who), Arriving { stored, received: 0, until_ms: now_ms + PATIENCE_MS });
        self.publish();
        answers.push((who, Answer::Send));
    }

    /// Blocks for a sample, if it is to be kept.
    fn room(&mut self, (id, at, next_at): (u32, u64, u64), bytes: u64, now_ms: u64) -> Option<Vec<Run>> {
        if self.block_bytes == 0 {
            let wished = (bytes / BLOCKS_A_SAMPLE).next_power_of_two().min(u64::from(LARGEST_BLOCK)) as u32;
            self.block_bytes = wished.max(self.layout.smallest_block());
            self.seen().figure(Figure::BlockBytes).store(u64::from(self.block_bytes), Ordering::Relaxed);
            self.resize(self.capacity_bytes, now_ms);
        }
        let blocks = u32::try_from(bytes.div_ceil(u64::from(self.block_bytes))).ok()?;
        let charged = blocks.checked_mul(self.block_bytes)?;
        let mut evicted = std::mem::take(&mut self.evicted);
        let kept = self.policy.miss(&Use { id, bytes: charged, at, next_at }, &mut evicted);
        self.evict(&mut evicted);
        self.evicted = evicted;
        if !kept {
            return None;
        }
        let runs = self.blocks.take(blocks);
        if runs.is_none() {
            self.policy.forget(id);
        }
        runs
    }

    /// How many bytes of a fill are still to come; `None`: that fill is not under way.
    pub(crate) fn missing(&self, id: u32, who: Who) -> Option<u64> {
        let arriving = self.arriving.get(&(id, who))?;
        Some(arriving.stored.bytes - arriving.received)
    }

    /// The last byte of a fill came that has lost its place meanwhile.
    pub(crate) fn in_vain(&mut self, id: u32, who: Who, answers: &mut Answers) {
        answers.push((who, Answer::No));
        if !self.claims.is_of_another(id, who) {
            self.claims.settle(id, answers);
        }
    }

    /// Bytes of a fill, whole words up to its last piece; false: that fill is not under way any more.
    pub(crate) fn receive(
        &mut self,
        id: u32,
        who: Who,
        piece: &[u8],
        now_ms: u64,
        answers: &mut Answers,
    ) -> bool {
        let Some(mut arriving) = self.arriving.remove(&(id, who)) else { return false };
        let mut piece = piece;
        let mut skip = arriving.received;
        if let Some(data) = self.seen().blocks() {
            for run in &arriving.stored.runs {
                let run_bytes = u64::from(run.blocks) * data.block_bytes as u64;
                if skip >= run_bytes {
                    skip -= run_bytes;
                    continue;
                }
                let here = piece.len().min((run_bytes - skip) as usize);
                let at = run.first as usize * data.block_bytes + skip as usize;
                write_words(data.words, at / 8, &piece[..here]);
                arriving.received += here as u64;
                piece = &piece[here..];
                skip = 0;
            }
        }
        if arriving.received < arriving.stored.bytes {
            arriving.until_ms = now_ms + PATIENCE_MS;
            self.arriving.insert((id, who), arriving);
            return true;
        }
        self.keep(id, arriving.stored);
        answers.push((who, Answer::Yes));
        self.claims.settle(id, answers);
        true
    }

    fn keep(&mut self, id: u32, stored: Stored) {
        if let Some(data) = self.seen().blocks() {
            link(data, &stored.runs);
        }
        if let Some(slot) = self.seen().slot(u64::from(id)) {
            slot.set(stored.tag, stored.bytes, stored.runs.first().map_or(0, |run| run.first));
        }
        self.fills += 1;
        self.kept_bytes += self.charge(&stored.runs);
        self.kept.insert(id, stored);
        self.publish();
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

    pub(crate) fn resize(&mut self, capacity_bytes: u64, now_ms: u64) {
        self.capacity_bytes = capacity_bytes;
        if self.block_bytes == 0 {
            self.publish();
            return;
        }
        let most = self.layout.data_bytes as u64 / u64::from(self.block_bytes);
        let end = (capacity_bytes / u64::from(self.block_bytes)).min(most) as u32;
        let mut evicted = std::mem::take(&mut self.evicted);
        self.policy.resize(u64::from(end) * u64::from(self.block_bytes), &mut evicted);
        self.evict(&mut evicted);
        self.evicted = evicted;
        let before = self.blocks.end();
        if end < before {
            self.blocks.shrink(end);
            self.move_down(end);
            self.punch();
            self.punch_ms = Some(now_ms + READERS_MS);
        } else {
            self.blocks.grow(end);
        }
        self.publish();
    }

    /// Gives back what lies beyond the capacity.
    fn punch(&self) {
        let end = u64::from(self.blocks.end()) * u64::from(self.block_bytes);
        self.data.punch(end, self.layout.data_bytes as u64);
    }

    /// Blocks beyond `end` move to free ones below it. The policy has let go as much as makes room.
    fn move_down(&mut self, end: u32) {
        let Some(block_bytes) = self.seen().blocks().map(|data| data.block_bytes) else { return };
        let beyond = |stored: &Stored| stored.runs.iter().any(|run| run.end() > end);
        let kept: Vec<u32> = self.kept.iter().filter(|(_, kept)| beyond(kept)).map(|(id, _)| *id).collect();
        let arriving: Vec<u32> =
            self.arriving.iter().filter(|(_, fill)| beyond(&fill.stored)).map(|((id, _), _)| *id).collect();
        // A fill under way starts anew with somebody else: that is simpler than to move what is half there.
        for id in arriving {
            self.forget(id);
        }
        for id in kept {
            let Some(stored) = self.kept.get(&id) else { continue };
            let old = stored.runs.clone();
            let above = old.iter().map(|run| run.end().saturating_sub(run.first.max(end))).sum();
            let Some(room) = self.blocks.take(above) else {
                self.forget(id);
                continue;
            };
            let new = replaced(&old, end, room);
            let (seen, first) = (self.seen(), new.first().map_or(0, |run| run.first));
            if let (Some(data), Some(slot)) = (seen.blocks(), seen.slot(u64::from(id))) {
                let words = block_bytes / 8;
                for (from, to) in blocks_of(&old).zip(blocks_of(&new)).filter(|(from, to)| from != to) {
                    for word in 0..words {
                        let value = data.words[from as usize * words + word].load(Ordering::Relaxed);
                        data.words[to as usize * words + word].store(value, Ordering::Relaxed);
                    }
                }
                slot.moved(first, || link(data, &new));
            }
            if let Some(stored) = self.kept.get_mut(&id) {
                stored.runs = new;
            }
        }
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

fn blocks_of(runs: &[Run]) -> impl Iterator<Item = u32> + '_ {
    runs.iter().flat_map(|run| run.first..run.end())
}

/// `runs` with `room` in place of what lies beyond `end`, in the same order.
fn replaced(runs: &[Run], end: u32, room: Vec<Run>) -> Vec<Run> {
    let mut room = room.into_iter();
    let mut rest = None;
    let mut new = Vec::new();
    for run in runs {
        let below = end.min(run.end()).saturating_sub(run.first);
        if below > 0 {
            new.push(Run { first: run.first, blocks: below });
        }
        let mut above = run.blocks - below;
        while above > 0 {
            let Some(free): Option<Run> = rest.take().or_else(|| room.next()) else { break };
            let part = free.blocks.min(above);
            new.push(Run { first: free.first, blocks: part });
            above -= part;
            if part < free.blocks {
                rest = Some(Run { first: free.first + part, blocks: free.blocks - part });
            }
        }
    }
    new
}

/// Says of each block which one follows. That of the last is never asked for.
fn link(data: Data<'_>, runs: &[Run]) {
    let mut blocks = blocks_of(runs).peekable();
    while let Some(block) = blocks.next() {
        if let (Some(next), Some(word)) = (blocks.peek(), data.next.get(block as usize)) {
            word.store(*next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
