//! Which parts of chunks a rank reads into a ring of memory for its share of an epoch, in which order, and when the memory of
//! one is free for the next.

use super::{Epoch, Piece};
use crate::error::Result;
use crate::pack::Pack;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// Of a part's samples at least one in so many is used, or it is not worth reading.
const LEAST_USED: usize = 8;

/// A part of a chunk that is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The number of the chunk.
    pub chunk: u32,
    /// Where in the chunk it begins.
    pub from: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// How many samples are taken from it.
    pub uses: u32,
    /// Which sample of the share is the last one of these.
    pub last: u64,
    /// Where in the ring it lies.
    pub at: u64,
    /// How many of the reads before it have to be used up before this one may begin.
    pub after: usize,
}

/// What a rank reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order.
    pub reads: Vec<Read>,
    /// Samples of the share that are in none of them.
    pub apart: usize,
}

/// A part, and when its samples are used.
#[derive(Clone)]
struct Used {
    piece: Piece,
    first: usize,
    last: usize,
    uses: usize,
    /// When it or one that is read after it is used first: memory that is in use then cannot be waited for.
    needed: usize,
}

impl Plan {
    /// For `places` as `epoch` gave them, of which the first `skip` were used before, with a ring of so many bytes.
    pub fn of(epoch: &Epoch<'_>, places: &[u32], skip: usize, ring: u64, pack: &Pack) -> Result<Plan> {
        // Lanes have about as many samples, and not as many chunks.
        let lanes = epoch.lanes.values().flat_map(|lane| {
            let end = lane.pieces.iter().map(|piece| piece.closes).fold(1.0, f64::max);
            lane.pieces.iter().map(move |piece| {
                let (opens, closes) = (piece.opens / end, piece.closes / end);
                Piece { opens, closes, ..piece.clone() }
            })
        });
        let mut used: Vec<Used> =
            lanes.map(|piece| Used { piece, first: usize::MAX, last: 0, uses: 0, needed: 0 }).collect();
        used.sort_unstable_by_key(|one| one.piece.places.start);
        for (at, place) in places.iter().enumerate().skip(skip) {
            if epoch.layout.empty.binary_search(place).is_ok() {
                continue;
            }
            let number = used.partition_point(|one| one.piece.places.end <= *place);
            let one = &mut used[number];
            (one.first, one.last, one.uses) = (one.first.min(at), at, one.uses + 1);
        }
        used.retain(|one| one.uses > 0);
        // As they are used up, too, so that memory is free in the order in which it was taken.
        used.sort_unstable_by(|one, other| {
            let keys = |one: &Used| (one.piece.opens, one.piece.closes);
            keys(one).partial_cmp(&keys(other)).unwrap_or(Ordering::Equal).then(one.first.cmp(&other.first))
        });
        let mut needed = usize::MAX;
        for one in used.iter_mut().rev() {
            needed = needed.min(one.first);
            one.needed = needed;
        }
        let mut ring = Ring { bytes: ring, head: 0, taken: VecDeque::new(), freed: 0 };
        let mut plan = Plan::default();
        for one in &used {
            let (from, bytes) = extent(epoch, one, pack)?;
            let is_worth = one.uses * LEAST_USED >= one.piece.places.len();
            let at = if is_worth && bytes > 0 { ring.place(bytes, one) } else { None };
            let Some(at) = at else {
                plan.apart += one.uses;
                continue;
            };
            let layout = epoch.layout;
            plan.reads.push(Read {
                chunk: layout.runs[layout.run_of(one.piece.places.start)].chunk,
                from,
                bytes,
                uses: one.uses as u32,
                last: one.last as u64,
                at,
                after: ring.freed,
            });
        }
        Ok(plan)
    }
}

/// Where in its chunk a part begins, and its bytes.
fn extent(epoch: &Epoch<'_>, one: &Used, pack: &Pack) -> Result<(u64, u64)> {
    let entry = |place: u32| pack.snapshot().entry(epoch.layout.record(place) as usize);
    let (first, last) = (entry(one.piece.places.start)?, entry(one.piece.places.end - 1)?);
    let end = last.offset.saturating_add(last.stored_bytes);
    Ok((first.offset, end.saturating_sub(first.offset)))
}

/// Memory that is given out in order and freed in the same order.
struct Ring {
    bytes: u64,
    head: u64,
    /// Begin, end and last use of what has memory.
    taken: VecDeque<(u64, u64, usize)>,
    freed: usize,
}

impl Ring {
    /// Where a part lies; none if what is in use then leaves no place for it.
    fn place(&mut self, bytes: u64, one: &Used) -> Option<u64> {
        if bytes > self.bytes {
            return None;
        }
        let mut at = self.head;
        if self.bytes - at < bytes {
            // What lies behind was read before what lies at the begin.
            while self.taken.front().is_some_and(|(begin, _, _)| *begin >= self.head) {
                self.free(one.needed)?;
            }
            at = 0;
        }
        while self.taken.front().is_some_and(|(begin, end, _)| *begin < at + bytes && at < *end) {
            self.free(one.needed)?;
        }
        self.taken.push_back((at, at + bytes, one.last));
        self.head = at + bytes;
        Some(at)
    }

    fn free(&mut self, needed: usize) -> Option<()> {
        self.taken.front().filter(|(_, _, last)| *last < needed)?;
        self.taken.pop_front();
        self.freed += 1;
        Some(())
    }
}
