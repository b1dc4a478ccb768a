//! The order of an epoch's samples in which chunks are read one after the other and still mix (docs/packs.md, Shuffle).
//!
//! All chunks in random order make a line, which is cut into as many *lanes* as there are ranks. A window slides over each
//! lane, round as over a clock's face, and each sample is drawn at a random moment at which the window is over its chunk. Of
//! the order of all ranks, each rank's batches take their samples lane by lane, so that a rank reads the chunks of its lane.

mod design;
mod random;
mod reading;

pub use design::Classes;
pub use reading::{Plan, Read};

use crate::error::Result;
use crate::pack::Pack;
use random::Random;
use std::collections::HashMap;
use std::ops::Range;

/// How few chunks more than those that are drawn from are in memory: one that was just used up, one that is being read, and
/// what stays free at the end of a ring of memory.
pub const CHUNKS_BESIDE: usize = 3;

/// The samples of a data set as they lie in its pack's chunks.
#[derive(Debug)]
pub struct Layout {
    /// Numbers of records; a *place* is an index here.
    records: Vec<u32>,
    /// In the order of their chunks.
    runs: Vec<Run>,
    /// Bytes of the largest so many runs, summed up.
    largest: Vec<u64>,
    /// Places of samples without any bytes, for which nothing is read.
    empty: Vec<u32>,
}

/// The samples of one chunk.
#[derive(Clone, Debug)]
struct Run {
    chunk: u32,
    places: Range<u32>,
}

/// What an order follows from, beside the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Another one gives another order.
    pub seed: u64,
    /// Into how many the chunks are divided; as many as ranks, at least 1.
    pub lanes: usize,
    /// From how many chunks of a lane samples are drawn at a time, at least 1.
    pub window: usize,
}

/// Which part of an epoch is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Of `world` ranks.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
    /// Samples in a batch of one rank.
    pub batch: usize,
    /// How many samples all ranks together have had of the epoch.
    pub start: usize,
}

/// A part of a chunk and when its samples are drawn, in chunks of its lane.
#[derive(Clone, Debug)]
struct Piece {
    places: Range<u32>,
    opens: f64,
    closes: f64,
}

impl Layout {
    /// Of the records of a pack that are samples.
    pub fn of(pack: &Pack, records: impl Iterator<Item = usize>) -> Result<Layout> {
        let _reads_on = pack.snapshot().read_on();
        let mut lying = records
            .map(|record| {
                let entry = pack.snapshot().entry(record)?;
                Ok((entry.chunk as u32, entry.offset, entry.stored_bytes, record as u32))
            })
            .collect::<Result<Vec<_>>>()?;
        // Empty records may lie at one place.
        lying.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        let mut bytes = Vec::new();
        for (place, (chunk, offset, count, _)) in lying.iter().enumerate() {
            if runs.last().is_none_or(|last| last.chunk != *chunk) {
                runs.push(Run { chunk: *chunk, places: place as u32..place as u32 });
                bytes.push((*offset, 0));
            }
            if let (Some(run), Some((from, all))) = (runs.last_mut(), bytes.last_mut()) {
                run.places.end = place as u32 + 1;
                *all = offset.saturating_add(*count).saturating_sub(*from).max(*all);
            }
        }
        let mut largest: Vec<u64> = bytes.into_iter().map(|(_, all)| all).collect();
        largest.sort_unstable_by(|one, other| other.cmp(one));
        let mut sum = 0_u64;
        for one in &mut largest {
            sum = sum.saturating_add(*one);
            *one = sum;
        }
        let empty =
            (0..).zip(&lying).filter(|(_, (_, _, bytes, _))| *bytes == 0).map(|(place, _)| place).collect();
        let records = lying.into_iter().map(|(_, _, _, record)| record).collect();
        Ok(Layout { records, runs, largest, empty })
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.records.len()
    }

    /// How many chunks they lie in.
    pub fn chunks(&self) -> usize {
        self.runs.len()
    }

    /// The record at a place.
    pub fn record(&self, place: u32) -> u32 {
        self.records[place as usize]
    }

    /// The most bytes that a rank has in memory when it draws from so many chunks at a time.
    pub fn bytes_of(&self, window: usize) -> u64 {
        let most = self.largest.last().copied().unwrap_or(0);
        let chunks = window.saturating_add(CHUNKS_BESIDE);
        match self.largest.get(chunks - 1) {
            Some(bytes) => *bytes,
            // The end of the ring may stay free all the same.
            None => most.saturating_add(self.largest.first().copied().unwrap_or(0)),
        }
    }

    /// Bytes of all samples.
    pub fn bytes(&self) -> u64 {
        self.largest.last().copied().unwrap_or(0)
    }

    fn run_of(&self, place: u32) -> usize {
        self.runs.partition_point(|run| run.places.end <= place)
    }
}

/// An epoch's order.
#[derive(Debug)]
pub struct Epoch<'a> {
    layout: &'a Layout,
    recipe: Recipe,
    number: u64,
    /// Runs in random order, and at which place of the line each of them begins.
    line: Vec<u32>,
    begins: Vec<usize>,
    lanes: HashMap<usize, Lane>,
}

#[derive(Debug)]
struct Lane {
    pieces: Vec<Piece>,
    places: Vec<u32>,
}

impl<'a> Epoch<'a> {
    /// The epoch of this number.
    pub fn new(layout: &'a Layout, recipe: Recipe, number: u64) -> Epoch<'a> {
        let mut line: Vec<u32> = (0..layout.runs.len() as u32).collect();
        Random::new(recipe.seed, number, 0).shuffle(&mut line);
        let mut at = 0;
        let begins = line
            .iter()
            .map(|run| {
                let begin = at;
                at += layout.runs[*run as usize].places.len();
                begin
            })
            .collect();
        // Lanes beyond the last sample have none.
        let lanes = recipe.lanes.clamp(1, layout.samples().max(1));
        let recipe = Recipe { lanes, window: recipe.window.max(1), ..recipe };
        Epoch { layout, recipe, number, line, begins, lanes: HashMap::new() }
    }

    /// The places of a rank's samples from its share's start to the epoch's end, in order.
    pub fn places(&mut self, share: Share) -> Vec<u32> {
        let (lanes, all) = (self.recipe.lanes, self.layout.samples());
        let mut places = Vec::new();
        let mut first = share.start;
        while first < all {
            let count = share.batch.saturating_mul(share.world).max(1).min(all - first);
            let (each, more) = (count / share.world, count % share.world);
            let mut skip = share.rank * each + share.rank.min(more);
            let mut take = each + usize::from(share.rank < more);
            // Sample n of all is number n / lanes of the lane n % lanes. Lanes that have none of these are passed over: there may be
            // more lanes than samples.
            let behind = first % lanes + count.min(lanes);
            for lane in (0..behind.saturating_sub(lanes)).chain(first % lanes..behind.min(lanes)) {
                let from = (first + lanes - 1 - lane) / lanes;
                let to = (first + count + lanes - 1 - lane) / lanes;
                let skipped = skip.min(to - from);
                let taken = take.min(to - from - skipped);
                if taken > 0 {
                    let begin = from + skipped;
                    places.extend_from_slice(&self.lane(lane).places[begin..begin + taken]);
                }
                skip -= skipped;
                take -= taken;
            }
            first += count;
        }
        places
    }

    fn lane(&mut self, number: usize) -> &Lane {
        if !self.lanes.contains_key(&number) {
            let lane = self.draw(number);
            self.lanes.insert(number, lane);
        }
        &self.lanes[&number]
    }

    fn draw(&self, lane: usize) -> Lane {
        let (lanes, all) = (self.recipe.lanes, self.layout.samples());
        let begin_of = |lane: usize| lane * (all / lanes) + lane.min(all % lanes);
        let parts = self.parts(begin_of(lane)..begin_of(lane + 1));
        let mut random = Random::new(self.recipe.seed, self.number, lane as u64 + 1);
        let pieces = pieces(&parts, self.recipe.window, &mut random);
        let mut drawn = Vec::with_capacity(parts.iter().map(Range::len).sum());
        for piece in &pieces {
            for place in piece.places.clone() {
                let at = piece.opens + (piece.closes - piece.opens) * random.unit();
                // Positive numbers are in the order of their bits.
                drawn.push((at.to_bits(), place));
            }
        }
        drawn.sort_unstable();
        Lane { pieces, places: drawn.into_iter().map(|(_, place)| place).collect() }
    }

    /// Which places lie in this part of the line, a range for each chunk.
    fn parts(&self, of: Range<usize>) -> Vec<Range<u32>> {
        if of.is_empty() {
            return Vec::new();
        }
        let first = self.begins.partition_point(|begin| *begin <= of.start) - 1;
        let behind = self.begins.partition_point(|begin| *begin < of.end);
        let part = |at: usize| {
            let (run, begin) = (&self.layout.runs[self.line[at] as usize].places, self.begins[at]);
            let from = of.start.saturating_sub(begin) as u32;
            let to = ((of.end - begin) as u32).min(run.len() as u32);
            run.start + from..run.start + to
        };
        (first..behind).map(part).collect()
    }
}

/// When the samples of a lane's chunks are drawn.
fn pieces(parts: &[Range<u32>], window: usize, random: &mut Random) -> Vec<Piece> {
    let count = parts.len();
    if window >= count {
        let whole = |part: &Range<u32>| Piece { places: part.clone(), opens: 0.0, closes: count as f64 };
        return parts.iter().map(whole).collect();
    }
    let mut pieces = Vec::with_capacity(count + window);
    for (at, part) in parts.iter().enumerate() {
        let over = (at + window).saturating_sub(count);
        // What is over the end is over the begin; rounded at random, so that on average it is as many as it should be.
        let wrapped = (part.len() * over + random.below(window)) / window;
        let middle = part.end - wrapped as u32;
        if wrapped > 0 {
            pieces.push(Piece { places: middle..part.end, opens: 0.0, closes: over as f64 });
        }
        if middle > part.start {
            let closes = (at + window - over) as f64;
            pieces.push(Piece { places: part.start..middle, opens: at as f64, closes });
        }
    }
    pieces
}

#[cfg(test)]
mod tests;
