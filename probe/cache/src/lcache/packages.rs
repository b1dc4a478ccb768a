//! Samples that are drawn next to each other, in one piece of storage.

use super::Fetched;
use crate::policy::Use;
use std::collections::{HashMap, HashSet};

/// Packages for the epoch under way, and what will be in those for the next.
///
/// They are written when an epoch is over, in the order of the next draws, and so they are read in that order, too, each
/// once: what is left of one when the next is read has had its draw.
#[derive(Debug)]
pub(super) struct Packages {
    package_bytes: u64,
    /// By next draw: sample and its bytes.
    added: Vec<(u64, u32, u32)>,
    unread: Vec<Vec<(u32, u32)>>,
    /// Which of `unread` a sample is in.
    place: HashMap<u32, usize>,
    waiting: HashSet<u32>,
}

impl Packages {
    /// None is larger than `package_bytes`.
    pub(super) fn new(package_bytes: u64) -> Packages {
        Packages {
            package_bytes,
            added: Vec::new(),
            unread: Vec::new(),
            place: HashMap::new(),
            waiting: HashSet::new(),
        }
    }

    /// Whether a sample is in memory, or comes by a package.
    pub(super) fn has(&self, id: u32) -> bool {
        self.is_waiting(id) || self.place.contains_key(&id)
    }

    /// Whether it was read with others, and was not used yet.
    pub(super) fn is_waiting(&self, id: u32) -> bool {
        self.waiting.contains(&id)
    }

    /// A sample from memory, else by its package, else by itself.
    pub(super) fn fetch(&mut self, used: &Use) -> Fetched {
        if self.waiting.remove(&used.id) {
            return Fetched { id: used.id, requests: 0, bytes: 0 };
        }
        let Some(package) = self.place.get(&used.id).and_then(|place| self.unread.get_mut(*place)) else {
            return Fetched::alone(used);
        };
        let package = std::mem::take(package);
        self.waiting = package.iter().map(|(id, _)| *id).collect();
        self.waiting.iter().for_each(|id| _ = self.place.remove(id));
        self.waiting.remove(&used.id);
        Fetched { id: used.id, requests: 1, bytes: bytes(&package) }
    }

    /// A sample was read, and is written for its next draw, if that is known.
    pub(super) fn add(&mut self, used: &Use) {
        if used.next_at != Use::UNKNOWN {
            self.added.push((used.next_at, used.id, used.bytes));
        }
    }

    /// Writes what was added and is drawn after `at`, and gives the bytes of each package. One of a single sample would save
    /// no request, and is not written.
    pub(super) fn write(&mut self, at: u64) -> Vec<u64> {
        let mut added = std::mem::take(&mut self.added);
        added.retain(|(next_at, ..)| *next_at > at);
        added.sort_unstable();
        self.waiting.clear();
        self.unread = vec![Vec::new()];
        for (_, id, size) in added {
            let last =
                self.unread.last_mut().filter(|last| bytes(last) + u64::from(size) <= self.package_bytes);
            match last {
                Some(last) => last.push((id, size)),
                None => self.unread.push(vec![(id, size)]),
            }
        }
        self.unread.retain(|package| package.len() > 1);
        self.place = (0..)
            .zip(&self.unread)
            .flat_map(|(place, package)| package.iter().map(move |(id, _)| (*id, place)))
            .collect();
        self.unread.iter().map(|package| bytes(package)).collect()
    }
}

fn bytes(package: &[(u32, u32)]) -> u64 {
    package.iter().map(|(_, bytes)| u64::from(*bytes)).sum()
}
