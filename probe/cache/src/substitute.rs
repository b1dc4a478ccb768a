//! Another sample in place of one that would have to be read, as iCACHE (HPCA 2023) gives for its less important samples.
//! Theirs is any sample that happens to be there. Ours is of the same class, is kept, and was not used in the epoch so
//! far; and no more than a share of the epoch's draws are given another.
//!
//! It is given in the place of the sample that was drawn, with that one's weight, as the donor of a hot-deck imputation
//! stands with the recipient's weight: what each class counts in the loss stays what it was. What does not stay is what
//! counts within a class: samples that are kept stand for those that are not.

use crate::draws::state::{Read, Written};
use crate::random::Random;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::Range;

/// Samples of a class that are looked at for one draw. Of a hundred, 97 draws find one where a twentieth would do.
const MOST_LOOKED_AT: usize = 64;
const NEVER: u32 = u32::MAX;
const STATE: &[u8] = b"stallscope substitutes 1";

/// Draws of this rank in the epoch, and how many of them were given another sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    drawn: u64,
    given: u64,
}

/// Says which draws of a rank are given another sample. All ranks that draw one sequence see each other's draws; which
/// samples a rank may give is divided among them, so that no two give the same.
#[derive(Debug)]
pub struct Substitutes {
    /// By sample.
    class_of: Vec<u32>,
    /// What this rank may give, by class.
    members: Vec<Members>,
    share: f64,
    /// Where the epoch began. What follows counts from there.
    start: u64,
    /// By sample: its first use in the epoch, of any rank, and its last.
    first: Vec<u32>,
    last: Vec<u32>,
    counts: Counts,
    /// Batches that were not handed over yet: where each ends, and the counts behind it.
    under_way: VecDeque<(u64, Counts)>,
    handed: u64,
    handed_counts: Counts,
    /// What the epoch used before is not known.
    is_blind: bool,
}

#[derive(Clone, Debug, Default)]
struct Members {
    /// In an order of the seed's.
    ids: Vec<u32>,
    /// Where the next search begins, so that all of them have their turn.
    at: usize,
}

impl Substitutes {
    /// `class_of`: of each sample. `share`: of the draws of an epoch, how many may be given another sample.
    pub fn new(class_of: Vec<u32>, share: f64, seed: u64, rank: u32, ranks: u32) -> Substitutes {
        let mut members: Vec<Members> = Vec::new();
        for (id, class) in class_of.iter().enumerate() {
            let class = *class as usize;
            if class >= members.len() && class < class_of.len() {
                members.resize(class + 1, Members::default());
            }
            if id as u64 % u64::from(ranks.max(1)) == u64::from(rank)
                && let Some(of) = members.get_mut(class)
            {
                of.ids.push(id as u32);
            }
        }
        let mut random = Random::new(seed, "substitutes");
        members.iter_mut().for_each(|of| random.shuffle(&mut of.ids));
        let samples = class_of.len();
        Substitutes {
            class_of,
            members,
            share: if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 },
            start: 0,
            first: vec![NEVER; samples],
            last: vec![NEVER; samples],
            counts: Counts::default(),
            under_way: VecDeque::new(),
            handed: 0,
            handed_counts: Counts::default(),
            is_blind: false,
        }
    }

    /// An epoch begins, with the draw at `start`. Nothing of it was used.
    pub fn begin(&mut self, start: u64) {
        self.first.fill(NEVER);
        self.last.fill(NEVER);
        (self.start, self.handed) = (start, start);
        (self.counts, self.handed_counts) = (Counts::default(), Counts::default());
        self.under_way.clear();
        self.is_blind = false;
    }

    /// An epoch goes on of whose beginning nothing is known: until the next, no draw is given another sample.
    pub fn begin_blind(&mut self) {
        self.is_blind = true;
    }

    /// A batch of all ranks was `drawn`, the first of them at place `at`; `mine` are this rank's. What is before `handed` was
    /// handed over to training. Gives those of `mine`, by their place in `drawn`, that get another sample, and which.
    ///
    /// To be called once for each batch of the epoch, in order.
    pub fn batch(
        &mut self,
        at: u64,
        drawn: &[u32],
        mine: Range<usize>,
        handed: u64,
        is_kept: &dyn Fn(u32) -> bool,
    ) -> Vec<(usize, u32)> {
        let mut given = Vec::new();
        for (place, id) in drawn.iter().enumerate().filter(|(place, _)| !mine.contains(place)) {
            self.uses(*id, at + place as u64);
        }
        for (place, id) in drawn.iter().enumerate().take(mine.end).skip(mine.start) {
            self.counts.drawn += 1;
            let other = match self.may_give() && !self.is_under_way(*id, handed) && !is_kept(*id) {
                true => self.find(*id, drawn, is_kept),
                false => None,
            };
            self.uses(other.unwrap_or(*id), at + place as u64);
            if let Some(other) = other {
                self.counts.given += 1;
                given.push((place, other));
            }
        }
        self.under_way.push_back((at + drawn.len() as u64, self.counts));
        given
    }

    /// All before `place` has been handed over.
    pub fn handed_over(&mut self, place: u64) {
        self.handed = self.handed.max(place);
        while let Some((_, counts)) = self.under_way.pop_front_if(|(end, _)| *end <= place) {
            self.handed_counts = counts;
        }
    }

    /// Whether one more keeps the quota, of the draws up to now: so it is never spent at the epoch's beginning.
    fn may_give(&self) -> bool {
        !self.is_blind && (self.counts.given + 1) as f64 <= self.share * self.counts.drawn as f64
    }

    /// Whether somebody is reading it, for a batch that was not handed over yet.
    fn is_under_way(&self, id: u32, handed: u64) -> bool {
        let last = self.last.get(id as usize).copied().unwrap_or(NEVER);
        last != NEVER && self.start + u64::from(last) >= handed
    }

    fn uses(&mut self, id: u32, place: u64) {
        let place = place.saturating_sub(self.start).min(u64::from(NEVER - 1)) as u32;
        if let (Some(first), Some(last)) = (self.first.get_mut(id as usize), self.last.get_mut(id as usize)) {
            if *first == NEVER {
                *first = place;
            }
            *last = place;
        }
    }

    /// A sample of the same class that is kept and was not used, nor is in this batch.
    fn find(&mut self, id: u32, drawn: &[u32], is_kept: &dyn Fn(u32) -> bool) -> Option<u32> {
        let class = *self.class_of.get(id as usize)?;
        let of = self.members.get_mut(class as usize)?;
        for _ in 0..of.ids.len().min(MOST_LOOKED_AT) {
            let other = *of.ids.get(of.at)?;
            of.at = (of.at + 1) % of.ids.len();
            let is_unused = self.first.get(other as usize) == Some(&NEVER);
            if is_unused && is_kept(other) && !drawn.contains(&other) {
                return Some(other);
            }
        }
        None
    }

    /// What the epoch has used and given until what was handed over last, as bytes.
    pub fn save(&self) -> Vec<u8> {
        let mut state = Written::default();
        state.bytes(STATE);
        state.u64(self.first.len() as u64);
        state.u64(self.start);
        state.u64(self.handed);
        state.u64(self.handed_counts.drawn);
        state.u64(self.handed_counts.given);
        state.u64(self.is_blind.into());
        let handed = self.handed.saturating_sub(self.start);
        let is_used = |first: &u32| *first != NEVER && u64::from(*first) < handed;
        let bits: Vec<u8> = self
            .first
            .chunks(8)
            .map(|some| {
                some.iter().enumerate().fold(0, |bits, (bit, first)| bits | u8::from(is_used(first)) << bit)
            })
            .collect();
        state.bytes(&bits);
        state.into_bytes()
    }

    /// Goes on where [`Substitutes::save`] was called. `None`: that is not what it wrote of as many samples.
    pub fn load(&mut self, bytes: &[u8]) -> Option<()> {
        let mut state = Read::new(bytes);
        let samples = self.first.len();
        if state.bytes()? != STATE || state.u64()? != samples as u64 {
            return None;
        }
        let (start, handed) = (state.u64()?, state.u64()?);
        let counts = Counts { drawn: state.u64()?, given: state.u64()? };
        let is_blind = state.u64()? != 0;
        let bits = state.bytes()?;
        if handed < start
            || counts.given > counts.drawn
            || bits.len() != samples.div_ceil(8)
            || !state.is_at_end()
        {
            return None;
        }
        self.begin(start);
        for (id, first) in self.first.iter_mut().enumerate() {
            if bits.get(id / 8)? >> (id % 8) & 1 == 1 {
                *first = 0;
            }
        }
        (self.handed, self.is_blind) = (handed, is_blind);
        (self.counts, self.handed_counts) = (counts, counts);
        Some(())
    }
}

#[cfg(test)]
mod tests;
