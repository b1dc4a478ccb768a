//! Draws made ahead, so that each sample's next use is known as far as anybody can know it.
//!
//! A planner has three places in the order of uses: what is before `first` has been let go, what is before `taken` was
//! given to somebody who may still be at work on it, and what is before [`Planner::drawn`] is planned. A simulation takes
//! and lets go at once ([`Planner::next`]). A loader takes what it reads ahead, and plans and lets go by what training has
//! been handed ([`Planner::plan`], [`Planner::take`], [`Planner::let_go`]), so that draws do not depend on how far it reads
//! ahead.

use crate::draws::state::{Read, Written};
use crate::draws::{Draw, DrawKind, Draws, World};
use crate::lcache;
use crate::policy::{Policy, Use};
use std::collections::VecDeque;

const STATE: &[u8] = b"stallscope draws 1";

/// A draw with its place in the order of uses and that of its sample's next use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    pub draw: Draw,
    pub at: u64,
    pub next_at: u64,
    /// The last draw of its epoch.
    pub ends_epoch: bool,
}

/// A sample that was taken before its next use was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateUse {
    pub id: u32,
    /// The use that was taken.
    pub at: u64,
    pub next_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Coming {
    draw: Draw,
    next_at: u64,
}

#[derive(Debug)]
pub struct Planner {
    kind: DrawKind,
    draws: Box<dyn Draws>,
    /// From `first` on.
    coming: VecDeque<Coming>,
    first: u64,
    taken: u64,
    /// Where those chunks end that end behind `first`, and which the first of them is.
    ends: VecDeque<u64>,
    first_chunk: u64,
    /// By sample, its last planned use.
    last_use: Vec<u64>,
    late_uses: VecDeque<LateUse>,
    /// By sample, whether it was trained on since this planner was made.
    trained: Vec<bool>,
}

impl Planner {
    /// `samples` is at least 1.
    pub fn new(kind: DrawKind, samples: u32, seed: u64) -> Planner {
        Planner {
            kind,
            draws: kind.make(samples, seed),
            coming: VecDeque::new(),
            first: 0,
            taken: 0,
            ends: VecDeque::new(),
            first_chunk: 0,
            last_use: vec![Use::UNKNOWN; samples as usize],
            late_uses: VecDeque::new(),
            trained: vec![false; samples as usize],
        }
    }

    /// The class of each sample, as numbers from 0 on without gaps.
    pub fn classes(&mut self, of: &[u32]) {
        self.draws.classes(of);
    }

    /// The next use. Plans more where too little is planned; `policy` hears of next uses that become known.
    pub fn next(&mut self, policy: &mut dyn Policy) -> Planned {
        loop {
            {
                let policy: &dyn Policy = policy;
                self.plan_for(self.taken, &World { resident: &|id| policy.contains(id) });
            }
            while let Some(late) = self.late_uses.pop_front() {
                policy.planned(late.id, late.next_at);
            }
            if let Some(planned) = self.at(self.taken) {
                self.let_go(self.taken + 1);
                return planned;
            }
        }
    }

    /// Plans as far as draws are made ahead of `place`, which is what has been handed over; whether anything had to be
    /// planned for it.
    pub fn plan(&mut self, place: u64) -> bool {
        self.plan_for(place, &World { resident: &|_| false })
    }

    /// Plans up to `place` at least.
    pub fn reach(&mut self, place: u64) {
        while self.drawn() < place {
            self.plan_chunk(&World { resident: &|_| false });
        }
    }

    /// Whether [`Planner::plan`] would plan.
    pub fn has_to_plan(&self, place: u64) -> bool {
        self.ends.iter().filter(|end| **end > place).count() <= self.draws.ahead() as usize
    }

    fn plan_for(&mut self, place: u64, world: &World<'_>) -> bool {
        let mut planned = false;
        while self.has_to_plan(place) {
            self.plan_chunk(world);
            planned = true;
        }
        planned
    }

    /// What is before it was let go.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How many draws are planned, those that were let go included.
    pub fn drawn(&self) -> u64 {
        self.first + self.coming.len() as u64
    }

    /// Where a chunk ends; `None` where it was let go, or is not planned.
    pub fn chunk_end(&self, chunk: u64) -> Option<u64> {
        self.ends.get(usize::try_from(chunk.checked_sub(self.first_chunk)?).ok()?).copied()
    }

    /// Up to `count` draws from `place` on, as planned; none that was let go.
    pub fn take(&mut self, place: u64, count: usize) -> Vec<Planned> {
        let end = place.saturating_add(count as u64).min(self.drawn());
        self.taken = self.taken.max(end);
        (place..end).filter_map(|place| self.at(place)).collect()
    }

    /// The samples of up to `count` draws from `place` on, which nobody takes.
    pub fn ids(&self, place: u64, count: usize) -> Vec<u32> {
        let Some(first) = place.checked_sub(self.first).and_then(|first| usize::try_from(first).ok()) else {
            return Vec::new();
        };
        self.coming.iter().skip(first).take(count).map(|coming| coming.draw.id).collect()
    }

    /// The samples of all draws from `place` on that are planned of its epoch.
    pub fn rest_of_epoch(&self, place: u64) -> Vec<u32> {
        let mut ids = Vec::new();
        for planned in (place..).map_while(|place| self.at(place)) {
            ids.push(planned.draw.id);
            if planned.ends_epoch {
                break;
            }
        }
        ids
    }

    fn at(&self, place: u64) -> Option<Planned> {
        let coming = self.coming.get(usize::try_from(place.checked_sub(self.first)?).ok()?)?;
        let chunk = self.ends.iter().position(|end| *end == place + 1);
        let ends_epoch = chunk.is_some_and(|chunk| {
            (self.first_chunk + chunk as u64 + 1).is_multiple_of(u64::from(self.draws.chunks_an_epoch()))
        });
        Some(Planned { draw: coming.draw, at: place, next_at: coming.next_at, ends_epoch })
    }

    /// What was taken behind `place` has not been used, and is taken again.
    pub fn give_back(&mut self, place: u64) {
        self.taken = place;
    }

    /// All before `place` has been used.
    pub fn let_go(&mut self, place: u64) {
        let count = place.saturating_sub(self.first).min(self.coming.len() as u64);
        self.coming.drain(..count as usize);
        self.first += count;
        self.taken = self.taken.max(self.first);
        while self.ends.front().is_some_and(|end| *end <= self.first) {
            self.ends.pop_front();
            self.first_chunk += 1;
        }
    }

    /// Next uses of samples whose last use is before `place`, that were planned after it was taken: at most `most`
    /// are looked at.
    pub fn late_uses(&mut self, place: u64, most: usize) -> Vec<LateUse> {
        let mut ready = Vec::new();
        for _ in 0..most.min(self.late_uses.len()) {
            let Some(late) = self.late_uses.pop_front() else { break };
            if late.at < place {
                ready.push(late);
            } else {
                self.late_uses.push_back(late);
            }
        }
        ready
    }

    /// A batch was trained on: see [`Draws::trained`]. `policy` hears of the samples' importance.
    pub fn trained(&mut self, place: usize, ids: &[u32], losses: &[f32], policy: &mut dyn Policy) {
        self.learn(place, ids, losses);
        for id in ids {
            if let Some(score) = self.draws.score(*id) {
                policy.scored(*id, score);
            }
        }
    }

    /// [`Planner::trained`] without a policy; see [`Planner::score`].
    pub fn learn(&mut self, place: usize, ids: &[u32], losses: &[f32]) {
        self.draws.trained(place, ids, losses);
        for id in ids {
            if let Some(trained) = self.trained.get_mut(*id as usize) {
                *trained = true;
            }
        }
    }

    /// The samples of low importance of `count` draws from `place` on, in no order: none that was not trained on.
    pub fn low(&self, place: u64, count: usize) -> Vec<u32> {
        // A score above 0 was learned, perhaps before a resume; one of 0 may be that of a sample nobody knows.
        let is_known = |id: u32, score: f64| score > 0.0 || self.trained.get(id as usize) == Some(&true);
        lcache::low(&self.ids(place, count), &|id| self.score(id).filter(|score| is_known(id, *score)))
    }

    /// See [`Draws::score`].
    pub fn score(&self, id: u32) -> Option<f64> {
        self.draws.score(id)
    }

    fn plan_chunk(&mut self, world: &World<'_>) {
        for draw in self.draws.chunk(world) {
            let at = self.drawn();
            let Some(last_use) = self.last_use.get_mut(draw.id as usize) else { continue };
            let before = std::mem::replace(last_use, at);
            if before != Use::UNKNOWN {
                let coming = before.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
                if let Some(coming) = coming.and_then(|place| self.coming.get_mut(place)) {
                    coming.next_at = at;
                }
                if before < self.taken {
                    self.late_uses.push_back(LateUse { id: draw.id, at: before, next_at: at });
                }
            }
            self.coming.push_back(Coming { draw, next_at: Use::UNKNOWN });
        }
        self.ends.push_back(self.drawn());
    }

    /// All that the draws to come depend on, from `first` on, as bytes. Classes are not in it.
    pub fn save(&self) -> Vec<u8> {
        let mut state = Written::default();
        state.bytes(STATE);
        state.bytes(format!("{:?} of {}", self.kind, self.last_use.len()).as_bytes());
        self.draws.save(&mut state);
        state.u64(self.first);
        state.u64(self.first_chunk);
        state.u64(self.ends.len() as u64);
        self.ends.iter().for_each(|end| state.u64(*end));
        state.u32s(self.coming.iter().map(|coming| coming.draw.id));
        let plain = self.coming.iter().all(|coming| coming.draw.weight == 1.0);
        let weighted = self.coming.range(..if plain { 0 } else { self.coming.len() });
        state.u32s(weighted.map(|coming| coming.draw.weight.to_bits()));
        state.into_bytes()
    }

    /// A planner that goes on where [`Planner::save`] was called, of the same kind and seed. `None`: the bytes are of other
    /// draws, or damaged. What was used before is not known to it: no next use of that is planned.
    pub fn resumed(kind: DrawKind, samples: u32, seed: u64, bytes: &[u8]) -> Option<Planner> {
        let mut planner = Planner::new(kind, samples, seed);
        let mut state = Read::new(bytes);
        let of = format!("{kind:?} of {samples}");
        if state.bytes()? != STATE || state.bytes()? != of.as_bytes() {
            return None;
        }
        planner.draws.load(&mut state)?;
        (planner.first, planner.first_chunk) = (state.u64()?, state.u64()?);
        planner.taken = planner.first;
        for _ in 0..state.u64()? {
            planner.ends.push_back(state.u64()?);
        }
        let (ids, mut weights) = (state.ids(samples as usize)?, state.u32s()?);
        if weights.is_empty() {
            weights = vec![1.0f32.to_bits(); ids.len()];
        }
        let in_range = planner.first < u64::MAX / 2 && planner.first_chunk < u64::MAX / 2;
        let sound =
            weights.iter().map(|bits| f32::from_bits(*bits)).all(|weight| weight.is_finite() && weight > 0.0);
        if !in_range || !sound || ids.len() != weights.len() || !state.is_at_end() {
            return None;
        }
        let whole = planner.ends.back().copied().unwrap_or(planner.first) == planner.first + ids.len() as u64;
        if !whole
            || !planner.ends.iter().is_sorted()
            || planner.ends.front() <= Some(&planner.first) && !ids.is_empty()
        {
            return None;
        }
        for (id, weight) in ids.into_iter().zip(weights.iter().copied().map(f32::from_bits)) {
            let at = planner.drawn();
            let before = std::mem::replace(planner.last_use.get_mut(id as usize)?, at);
            if before != Use::UNKNOWN {
                planner.coming.get_mut((before - planner.first) as usize)?.next_at = at;
            }
            let draw = Draw { id, weight };
            planner.coming.push_back(Coming { draw, next_at: Use::UNKNOWN });
        }
        Some(planner)
    }
}

#[cfg(test)]
mod tests;
