//! How a sample comes into a space: offered, taken or not, received in pieces, and only then to be seen.

use super::super::blocks::Run;
use super::super::claims::{Answers, Who};
use super::super::layout::Figure;
use super::super::message::Answer;
use super::super::slots::{LARGEST_BLOCK, write_words};
use super::resize::link;
use super::{Arriving, PATIENCE_MS, Space, Stored};
use crate::policy::Use;
use std::sync::atomic::Ordering;

/// Of a sample, some thirtieth may be lost in its last block.
const BLOCKS_A_SAMPLE: u64 = 32;

impl Space {
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
        let Some(runs) = self.blocks_for((id, at, next_at), bytes, now_ms) else {
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
    fn blocks_for(
        &mut self,
        (id, at, next_at): (u32, u64, u64),
        bytes: u64,
        now_ms: u64,
    ) -> Option<Vec<Run>> {
        if self.block_bytes == 0 {
            let fitting = (bytes / BLOCKS_A_SAMPLE).next_power_of_two().min(u64::from(LARGEST_BLOCK)) as u32;
            self.block_bytes = fitting.max(self.layout.smallest_block());
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
        let Some(taken) = &runs else {
            self.policy.forget(id);
            return None;
        };
        let bytes_before = |block: u32| block as usize * self.block_bytes as usize;
        let last = taken.iter().map(|run| run.end()).max().unwrap_or(0);
        self.data.make_huge(bytes_before(last), bytes_before(self.blocks.end()));
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
}
