//! Another capacity for a space, up or down, while it is used.

use super::super::blocks::Run;
use super::super::slots::Data;
use super::{Space, Stored};
use std::sync::atomic::Ordering;

/// A reader that was copying while its sample went may touch pages after they were given back, and so take them again.
const READERS_MS: u64 = 1000;

impl Space {
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
    pub(super) fn punch(&mut self) {
        let end = u64::from(self.blocks.end()) * u64::from(self.block_bytes);
        self.data.punch(end, self.layout.data_bytes as u64);
    }

    /// Blocks beyond `end` move to free ones below it. The policy has let go of as much as that takes.
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
            let Some(free) = self.blocks.take(above) else {
                self.forget(id);
                continue;
            };
            let new = replaced(&old, end, free);
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
}

fn blocks_of(runs: &[Run]) -> impl Iterator<Item = u32> + '_ {
    runs.iter().flat_map(|run| run.first..run.end())
}

/// `runs` with `free` in place of what lies beyond `end`, in the same order.
fn replaced(runs: &[Run], end: u32, free: Vec<Run>) -> Vec<Run> {
    let mut free = free.into_iter();
    let mut rest = None;
    let mut new = Vec::new();
    for run in runs {
        let below = end.min(run.end()).saturating_sub(run.first);
        if below > 0 {
            new.push(Run { first: run.first, blocks: below });
        }
        let mut above = run.blocks - below;
        while above > 0 {
            let Some(next): Option<Run> = rest.take().or_else(|| free.next()) else { break };
            let part = next.blocks.min(above);
            new.push(Run { first: next.first, blocks: part });
            above -= part;
            if part < next.blocks {
                rest = Some(Run { first: next.first + part, blocks: next.blocks - part });
            }
        }
    }
    new
}

/// Says of each block which one follows. That of the last is never asked for.
pub(super) fn link(data: Data<'_>, runs: &[Run]) {
    let mut blocks = blocks_of(runs).peekable();
    while let Some(block) = blocks.next() {
        if let (Some(next), Some(word)) = (blocks.peek(), data.next.get(block as usize)) {
            word.store(*next, Ordering::Relaxed);
        }
    }
}
