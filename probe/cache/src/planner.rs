//! Draws made ahead, so that each sample's next use is known as far as anybody can know it.

use crate::draws::{Draw, DrawKind, Draws, World};
use crate::policy::{Policy, Use};
use std::collections::{HashMap, VecDeque};

/// A draw with its place in the order of uses and that of its sample's next use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    pub draw: Draw,
    pub at: u64,
    pub next_at: u64,
    /// The last draw of its epoch.
    pub ends_epoch: bool,
}

#[derive(Debug)]
pub struct Planner {
    draws: Box<dyn Draws>,
    ahead: usize,
    /// Planned and not taken yet.
    coming: VecDeque<Planned>,
    /// Lengths of the chunks in `coming`, the first without what was taken of it.
    chunks: VecDeque<usize>,
    /// By sample, its last planned use.
    last_use: HashMap<u32, u64>,
    drawn: u64,
    chunks_drawn: u32,
}

impl Planner {
    pub fn new(kind: DrawKind, samples: u32, seed: u64) -> Planner {
        Planner::with(kind.make(samples, seed))
    }

    fn with(draws: Box<dyn Draws>) -> Planner {
        Planner {
            ahead: draws.ahead() as usize,
            draws,
            coming: VecDeque::new(),
            chunks: VecDeque::new(),
            last_use: HashMap::new(),
            drawn: 0,
            chunks_drawn: 0,
        }
    }

    /// The next use. Plans more where too little is planned; `policy` hears of next uses that become known.
    pub fn next(&mut self, policy: &mut dyn Policy) -> Planned {
        loop {
            while self.chunks.len() <= self.ahead {
                self.plan(policy);
            }
            if self.chunks.front() == Some(&0) {
                self.chunks.pop_front();
                continue;
            }
            if let (Some(left), Some(planned)) = (self.chunks.front_mut(), self.coming.pop_front()) {
                *left -= 1;
                return planned;
            }
        }
    }

    /// A batch was trained on: see [`Draws::trained`]. `policy` hears of the samples' importance.
    pub fn trained(&mut self, place: usize, ids: &[u32], losses: &[f32], policy: &mut dyn Policy) {
        self.draws.trained(place, ids, losses);
        for id in ids {
            if let Some(score) = self.draws.score(*id) {
                policy.scored(*id, score);
            }
        }
    }

    fn plan(&mut self, policy: &mut dyn Policy) {
        let chunk = {
            let policy: &dyn Policy = policy;
            self.draws.chunk(&World { resident: &|id| policy.contains(id) })
        };
        self.chunks_drawn += 1;
        let ends_epoch = self.chunks_drawn.is_multiple_of(self.draws.chunks_an_epoch());
        let first_coming = self.drawn - self.coming.len() as u64;
        self.chunks.push_back(chunk.len());
        let last = chunk.len().saturating_sub(1);
        for (place, draw) in chunk.into_iter().enumerate() {
            let at = self.drawn;
            self.drawn += 1;
            if let Some(before) = self.last_use.insert(draw.id, at) {
                match before.checked_sub(first_coming).and_then(|place| self.coming.get_mut(place as usize)) {
                    Some(planned) => planned.next_at = at,
                    None => policy.planned(draw.id, at),
                }
            }
            let ends_epoch = ends_epoch && place == last;
            self.coming.push_back(Planned { draw, at, next_at: Use::UNKNOWN, ends_epoch });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    #[test]
    fn every_next_use_is_that_of_the_same_sample_and_none_lies_between() {
        let kinds = [
            DrawKind::Plain,
            DrawKind::Importance,
            DrawKind::Reuse { uses: 3, window_share: 0.2, pinned_share: 0.1 },
        ];
        for kind in kinds {
            let mut planner = Planner::new(kind, 40, 5);
            let mut policy = PolicyKind::Min.make(10);
            let uses: Vec<Planned> = (0..400).map(|_| planner.next(policy.as_mut())).collect();
            let mut known = 0;
            for (at, planned) in uses.iter().enumerate() {
                assert_eq!(planned.at, at as u64);
                let next = uses[at + 1..].iter().find(|later| later.draw.id == planned.draw.id);
                if planned.next_at != Use::UNKNOWN && planned.next_at < 400 {
                    known += 1;
                    assert_eq!(next.map(|next| next.at), Some(planned.next_at), "{kind:?}");
                }
            }
            assert!(known > 100, "{kind:?} knows {known} next uses");
        }
    }

    #[test]
    fn what_becomes_known_later_is_told_to_the_policy() {
        #[derive(Debug)]
        struct Told(Vec<(u32, u64)>);
        impl Policy for Told {
            fn contains(&self, _: u32) -> bool {
                false
            }
            fn used_bytes(&self) -> u64 {
                0
            }
            fn hit(&mut self, _: &Use) {}
            fn miss(&mut self, _: &Use, _: &mut Vec<u32>) -> bool {
                false
            }
            fn planned(&mut self, id: u32, next_at: u64) {
                self.0.push((id, next_at));
            }
            fn forget(&mut self, _: u32) {}
            fn resize(&mut self, _: u64, _: &mut Vec<u32>) {}
        }
        let mut planner = Planner::new(DrawKind::Importance, 30, 1);
        let mut told = Told(Vec::new());
        let uses: Vec<Planned> = (0..90).map(|_| planner.next(&mut told)).collect();
        assert!(!told.0.is_empty());
        for (id, at) in told.0 {
            if let Some(planned) = uses.get(at as usize) {
                assert_eq!(planned.draw.id, id);
            }
        }
    }
}
