//! The one ledger of the memory that all caches of the node may take together. Jobs ask, with what memory is worth to them by
//! their own curves; each is granted its floor, and the rest goes where it saves most time for each byte, never beyond a job's
//! rule. What is taken back counts as taken until the job says that it holds no more than it is granted. Pure.

mod curve;
#[cfg(test)]
mod tests;

pub(super) use curve::Curve;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Memory is taken from one job for the benefit of others only where that saves them so much more of their time, as a share of one
/// job's: what a cache held has to be read again.
const WORTH: f64 = 0.01;
/// And no sooner after the last time.
const BETWEEN: Duration = Duration::from_secs(30);
/// What a job has not given back by then nobody counts on any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of a job's caches, all together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Left to it whatever others gain.
    pub(super) floor: u64,
    /// Its rule's.
    pub(super) most: u64,
}

#[derive(Debug, Default)]
pub(super) struct Shares {
    budget: u64,
    /// In the order in which they came.
    jobs: BTreeMap<u64, Share>,
    /// What jobs hold that nobody has give anything back.
    kept: BTreeMap<u64, u64>,
    /// When memory was last taken from one job for another's benefit.
    taken: Option<Instant>,
    changed: bool,
    /// Jobs that an earlier service had granted memory may be yet to come.
    waits: bool,
}

#[derive(Debug, Default)]
struct Share {
    bounds: Bounds,
    granted: u64,
    /// What it may hold: not less than it is granted, and more where it has not given back what was taken.
    owed: u64,
    /// What it holds, as it last reported.
    held: Option<u64>,
    /// When something was last taken back.
    taken: Option<Instant>,
    curve: Curve,
    /// Its grant as it was last given out by [`Shares::settle`].
    known: Option<u64>,
}

impl Share {
    fn new(bounds: Bounds) -> Share {
        let floor = bounds.floor.min(bounds.most);
        Share { bounds: Bounds { floor, ..bounds }, ..Share::default() }
    }

    fn grant(&mut self, bytes: u64) {
        self.granted = bytes;
        self.owed = self.owed.max(bytes);
    }

    fn take(&mut self, bytes: u64, now: Instant) {
        self.granted -= bytes;
        self.taken = Some(now);
    }

    /// What it is about to give back.
    fn coming(&self, now: Instant) -> u64 {
        let soon = self.taken.is_some_and(|taken| now.saturating_duration_since(taken) < PATIENCE);
        if soon { self.owed - self.granted } else { 0 }
    }
}

impl Shares {
    /// One whose jobs may have been granted memory by an earlier service: until [`Shares::open`] they have that again, and new ones
    /// their floors.
    pub(super) fn closed(budget: u64) -> Shares {
        Shares { budget, waits: true, ..Shares::default() }
    }

    pub(super) fn open(&mut self) {
        self.waits = false;
    }

    pub(super) fn granted(&self, id: u64) -> Option<u64> {
        self.jobs.get(&id).map(|share| share.granted)
    }

    /// Memory that nobody may hold.
    pub(super) fn free(&self) -> u64 {
        self.grantable()
            .saturating_sub(self.jobs.values().map(|share| share.owed).fold(0, u64::saturating_add))
    }

    fn grantable(&self) -> u64 {
        self.budget.saturating_sub(self.kept.values().copied().fold(0, u64::saturating_add))
    }

    /// A job comes: what is free is its, up to its rule, until it is settled what others would gain by it, but for what is left
    /// to others and they lack. `had`: from an earlier service.
    pub(super) fn enter(&mut self, id: u64, bounds: Bounds, had: Option<u64>) {
        let mut share = Share::new(bounds);
        self.kept.remove(&id);
        let lacked = self.jobs.values().map(|other| other.bounds.floor.saturating_sub(other.owed));
        let free = self.free().saturating_sub(lacked.fold(0, u64::saturating_add));
        let first = match had.filter(|_| self.waits) {
            Some(had) => had.min(self.free()),
            None if self.waits => share.bounds.floor.min(free),
            None => free,
        };
        share.grant(first.min(bounds.most));
        self.jobs.insert(id, share);
        self.changed = true;
    }

    /// A job has gone, and holds nothing any more.
    pub(super) fn leave(&mut self, id: u64) {
        self.changed |= self.jobs.remove(&id).is_some() | self.kept.remove(&id).is_some();
    }

    /// A job is granted nothing any more and has what it holds for as long as it is there.
    pub(super) fn keep(&mut self, id: u64) {
        if let Some(share) = self.jobs.remove(&id) {
            self.kept.insert(id, share.held.unwrap_or(share.owed));
            self.changed = true;
        }
    }

    /// Other rules are in force.
    pub(super) fn rebound(&mut self, id: u64, bounds: Bounds) {
        if let Some(share) = self.jobs.get_mut(&id) {
            share.bounds = Share::new(bounds).bounds;
            share.granted = share.granted.min(share.bounds.most);
            self.changed = true;
        }
    }

    pub(super) fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
        self.changed = true;
        // The newest give back first.
        let mut over = self.granted_in_all().saturating_sub(self.grantable());
        for share in self.jobs.values_mut().rev() {
            let back = over.min(share.granted);
            share.granted -= back;
            over -= back;
        }
    }

    /// A job says what it was last granted, what it holds, and what more or less would be worth.
    pub(super) fn asks(&mut self, id: u64, heard: Option<u64>, held: u64, curve: Curve) {
        let Some(share) = self.jobs.get_mut(&id) else { return };
        // As after a restart of the service. What it says beyond its rule is none of this ledger's.
        let held_here = held.min(share.bounds.most);
        self.changed |= held_here > share.owed;
        share.owed = share.owed.max(held_here);
        share.held = Some(held_here);
        // What it says of a time before it heard of its grant says nothing of now. What its script had set it does not give back.
        let holds = held_here.max(share.granted);
        if heard == Some(share.granted) && share.owed > holds {
            share.owed = holds;
            self.changed = true;
        }
        if curve != share.curve {
            share.curve = curve;
            self.changed = true;
        }
    }

    /// Takes back and grants what follows from all that was asked; the jobs whose grant is another than when this was last asked.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<u64> {
        if self.waits {
            return Vec::new();
        }
        if std::mem::take(&mut self.changed) {
            self.arbitrate(now);
        }
        let mut changed = Vec::new();
        for (id, share) in &mut self.jobs {
            if share.known.replace(share.granted) != Some(share.granted) {
                changed.push(*id);
            }
        }
        changed
    }

    fn arbitrate(&mut self, now: Instant) {
        let targets = self.targets();
        let value = |of: &dyn Fn(&u64, &Share) -> u64| -> f64 {
            self.jobs.iter().map(|(id, share)| share.curve.saved(of(id, share))).sum()
        };
        let gain = value(&|id, _| targets[id]) - value(&|_, share| share.granted);
        let waited = self.taken.is_none_or(|taken| now.saturating_duration_since(taken) >= BETWEEN);
        if gain >= WORTH && waited {
            for (id, share) in &mut self.jobs {
                if targets[id] < share.granted {
                    share.take(share.granted - targets[id], now);
                    self.taken = Some(now);
                }
            }
        } else {
            self.take_for_floors(&targets, now);
            // It is thought of again when it may be.
            self.changed = gain >= WORTH;
        }
        // Neither more than there is, nor what others may still hold.
        let (mut free, mut unheld) = (self.grantable().saturating_sub(self.granted_in_all()), self.free());
        for (id, share) in &mut self.jobs {
            let own = share.owed - share.granted;
            let more = targets[id].saturating_sub(share.granted).min(free).min(own.saturating_add(unheld));
            free -= more;
            unheld -= more.saturating_sub(own);
            share.grant(share.granted + more);
        }
        self.changed |= self.jobs.iter().any(|(id, share)| lacks(share, targets[id]) > 0);
    }

    /// Where jobs lack what is left to them whatever others gain: as much as they lack and no more, from those first that have
    /// most beyond what they would be granted.
    fn take_for_floors(&mut self, targets: &BTreeMap<u64, u64>, now: Instant) {
        let sum = |of: &dyn Fn(u64, &Share) -> u64| {
            self.jobs.iter().map(|(id, share)| of(targets[id], share)).fold(0, u64::saturating_add)
        };
        let lacking = sum(&|target, share| lacks(share, target));
        let coming = sum(&|_, share| share.coming(now)).saturating_add(self.free());
        let mut needed = lacking.saturating_sub(coming);
        let beyond = self.jobs.iter().map(|(id, share)| (share.granted.saturating_sub(targets[id]), *id));
        let mut rich: Vec<(u64, u64)> = beyond.collect();
        rich.sort_unstable_by(|a, b| b.cmp(a));
        for (beyond, id) in rich {
            let back = beyond.min(needed);
            needed -= back;
            if back > 0 {
                self.jobs.entry(id).and_modify(|share| share.take(back, now));
            }
        }
    }

    fn granted_in_all(&self) -> u64 {
        self.jobs.values().map(|share| share.granted).fold(0, u64::saturating_add)
    }

    /// What each would be granted were nobody to hold anything: the floors, in the order in which the jobs came; then memory where
    /// it saves most for each byte; then what is left in equal parts, as nobody knows better.
    fn targets(&self) -> BTreeMap<u64, u64> {
        let mut left = self.grantable();
        let mut targets: BTreeMap<u64, u64> = BTreeMap::new();
        for (id, share) in &self.jobs {
            let floor = share.bounds.floor.min(left);
            left -= floor;
            targets.insert(*id, floor);
        }
        // Pieces of each curve are the less worth the more a job has, so that in this order each comes after those before it.
        let pieces = self.jobs.iter().flat_map(|(id, share)| {
            share.curve.pieces(targets[id], share.bounds.most).map(move |piece| (*id, piece))
        });
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_by(|(_, a), (_, b)| b.worth.total_cmp(&a.worth));
        for (id, piece) in pieces {
            let bytes = piece.bytes.min(left);
            left -= bytes;
            targets.entry(id).and_modify(|target| *target += bytes);
        }
        let mut open: Vec<u64> = self.jobs.keys().copied().collect();
        while left > 0 {
            open.retain(|id| targets[id] < self.jobs[id].bounds.most);
            let each = left / (open.len() as u64).max(1);
            if open.is_empty() || each == 0 {
                break;
            }
            for id in &open {
                let more = each.min(self.jobs[id].bounds.most - targets[id]);
                left -= more;
                targets.entry(*id).and_modify(|target| *target += more);
            }
        }
        targets
    }
}

/// Of what is left to a job whatever others gain, as far as there is enough for all.
fn lacks(share: &Share, target: u64) -> u64 {
    share.bounds.floor.min(target).saturating_sub(share.granted)
}
