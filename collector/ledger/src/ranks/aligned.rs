//! What ranks have delivered of a phase, in line: unit by unit. A rank's first unit is a leaf of a tree, and what is to be known of all
//! ranks' is at its root. So a unit costs the logarithm of the ranks' number, once: where each one that was settled took a look at
//! every rank, two recordings of a few megabytes with 20,000 ranks kept `report` busy for a minute.

use super::Unit;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Units a rank may be ahead of another before the job's ledger goes on without that one.
pub(super) const MAX_AHEAD: u64 = 4096;

#[derive(Debug, Default)]
pub(super) struct Aligned {
    /// Units that are settled, of every rank.
    pub(super) settled: u64,
    /// Ranks with a queue that have not ended.
    pub(super) live: usize,
    /// Units of the rank that delivered most.
    furthest: u64,
    /// Of a rank's queue, and of its leaf among the leaves.
    places: BTreeMap<u32, usize>,
    queues: Vec<Queue>,
    /// Node 1 is the root, below node `n` are `2 * n` and `2 * n + 1`, and the second half are the leaves.
    tree: Vec<Option<Front>>,
}

#[derive(Debug)]
struct Queue {
    pid: u32,
    is_live: bool,
    /// Units that were delivered, those that came too late among them.
    next: u64,
    /// Units in a row that are alike, and the number that follows them: a recorded row may stand for thousands of steps.
    runs: VecDeque<(u64, Unit)>,
}

/// First units of ranks that have one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    /// Up to this number each rank's are like its first.
    alike_until: u64,
    pub(super) oldest_ns: u64,
    slowest: Slowest,
    pub(super) steps: u64,
    pub(super) samples: u64,
    /// Ranks that have not ended.
    pub(super) live: usize,
}

/// In this order; of equals the rank with the lowest pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slowest {
    slowness: (u64, Reverse<u64>),
    pid: Reverse<u32>,
    place: usize,
}

impl Front {
    fn of(queue: &Queue, place: usize) -> Option<Front> {
        #[cfg(test)]
        super::tests::looked();
        let (alike_until, unit) = queue.runs.front()?;
        Some(Front {
            alike_until: *alike_until,
            oldest_ns: unit.end_ns,
            slowest: Slowest { slowness: unit.slowness(), pid: Reverse(queue.pid), place },
            steps: unit.steps,
            samples: unit.samples,
            live: usize::from(queue.is_live),
        })
    }

    fn and(self, other: Front) -> Front {
        Front {
            alike_until: self.alike_until.min(other.alike_until),
            oldest_ns: self.oldest_ns.min(other.oldest_ns),
            slowest: self.slowest.max(other.slowest),
            steps: self.steps.max(other.steps),
            samples: self.samples.saturating_add(other.samples),
            live: self.live + other.live,
        }
    }
}

impl Aligned {
    /// Gives how many of them came when the job had gone on without them.
    pub(super) fn push(&mut self, pid: u32, is_live: bool, unit: Unit, count: u64) -> u64 {
        let place = match self.places.get(&pid) {
            Some(place) => *place,
            None => self.add(pid, is_live),
        };
        let queue = &mut self.queues[place];
        let late = self.settled.saturating_sub(queue.next).min(count);
        queue.next += count;
        if count > late {
            self.furthest = self.furthest.max(queue.next);
            queue.runs.push_back((queue.next, unit));
            if queue.runs.len() == 1 {
                self.look_at(place);
            }
        }
        late
    }

    /// Whether that rank is waited for.
    pub(super) fn set_live(&mut self, pid: u32, is_live: bool) {
        let Some(place) = self.places.get(&pid).copied() else { return };
        self.live = self.live - usize::from(self.queues[place].is_live) + usize::from(is_live);
        self.queues[place].is_live = is_live;
        self.look_at(place);
    }

    /// `None`: no rank has a unit.
    pub(super) fn front(&self) -> Option<Front> {
        *self.tree.get(1)?
    }

    /// Units by which a rank is further ahead than any may be.
    pub(super) fn ahead(&self) -> u64 {
        self.furthest.saturating_sub(self.settled).saturating_sub(MAX_AHEAD)
    }

    /// Settles up to `most` units, as many as are alike in each rank: how many, and the slowest rank with its unit.
    pub(super) fn settle(&mut self, front: &Front, most: u64) -> (u64, Option<(u32, Unit)>) {
        let count = most.min(front.alike_until - self.settled);
        let queue = &self.queues[front.slowest.place];
        let slowest = queue.runs.front().map(|(_, unit)| (queue.pid, *unit));
        self.settled += count;
        self.go_on(1);
        (count, slowest)
    }

    fn add(&mut self, pid: u32, is_live: bool) -> usize {
        let place = self.queues.len();
        self.places.insert(pid, place);
        self.queues.push(Queue { pid, is_live, next: 0, runs: VecDeque::new() });
        self.live += usize::from(is_live);
        let leaves = self.queues.len().next_power_of_two();
        if 2 * leaves > self.tree.len() {
            self.tree = vec![None; leaves];
            self.tree.extend(self.queues.iter().zip(0..).map(|(queue, place)| Front::of(queue, place)));
            self.tree.resize(2 * leaves, None);
            (1..leaves).rev().for_each(|node| self.join(node));
        }
        place
    }

    /// Its queue has another first unit, or has one of another rank.
    fn look_at(&mut self, place: usize) {
        let mut node = self.tree.len() / 2 + place;
        self.tree[node] = Front::of(&self.queues[place], place);
        while node > 1 {
            node /= 2;
            self.join(node);
        }
    }

    /// Takes from queues below this node what is settled.
    fn go_on(&mut self, node: usize) {
        if self.tree[node].is_none_or(|front| front.alike_until > self.settled) {
            return;
        }
        match node.checked_sub(self.tree.len() / 2) {
            Some(place) => {
                self.queues[place].runs.pop_front();
                self.tree[node] = Front::of(&self.queues[place], place);
            }
            None => {
                self.go_on(2 * node);
                self.go_on(2 * node + 1);
                self.join(node);
            }
        }
    }

    fn join(&mut self, node: usize) {
        #[cfg(test)]
        super::tests::looked();
        self.tree[node] = match (self.tree[2 * node], self.tree[2 * node + 1]) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
    }
}
