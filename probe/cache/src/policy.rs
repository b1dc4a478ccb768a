//! What is kept in a cache of so many bytes.

mod icache;
mod lru;
mod min;
mod minio;
mod ranking;
mod shade;

use std::fmt::{self, Debug};

/// One use of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    pub id: u32,
    pub bytes: u32,
    /// Place of the use in the order of all uses.
    pub at: u64,
    /// Place of its next use; [`Use::UNKNOWN`] where none is planned so far.
    pub next_at: u64,
}

impl Use {
    pub const UNKNOWN: u64 = u64::MAX;
}

/// Says what is kept. The caller tells every use in order, and reads what is not kept.
pub trait Policy: Debug + Send {
    fn contains(&self, id: u32) -> bool;
    fn used_bytes(&self) -> u64;

    /// A kept sample is used.
    fn hit(&mut self, used: &Use);

    /// A sample was read: whether it is kept from now on. Who had to go for it is added to `evicted`; nobody goes for a
    /// sample that is not kept.
    fn miss(&mut self, used: &Use, evicted: &mut Vec<u32>) -> bool;

    /// A sample that was used is going to be used again at `next_at`, as was planned just now.
    fn planned(&mut self, _id: u32, _next_at: u64) {}

    /// How important a sample is (its loss, a gradient's norm, a rank weight), from now on. What is no positive number
    /// counts as 0.
    fn scored(&mut self, _id: u32, _score: f64) {}

    /// An epoch is over.
    fn epoch(&mut self) {}

    /// A kept sample is gone by itself: what it was read from has changed, or it never arrived.
    fn forget(&mut self, id: u32);

    /// Another size; who has to go for it is added to `evicted`.
    fn resize(&mut self, capacity_bytes: u64, evicted: &mut Vec<u32>);
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    Lru,
    MinIo,
    Shade,
    Icache,
    Min,
}

impl PolicyKind {
    pub const ALL: [PolicyKind; 5] =
        [PolicyKind::Lru, PolicyKind::MinIo, PolicyKind::Shade, PolicyKind::Icache, PolicyKind::Min];

    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::MinIo => "minio",
            PolicyKind::Shade => "shade",
            PolicyKind::Icache => "icache",
            PolicyKind::Min => "min",
        }
    }

    /// One of this kind.
    pub fn make(self, capacity_bytes: u64) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(lru::Lru::new(capacity_bytes)),
            PolicyKind::MinIo => Box::new(minio::MinIo::new(capacity_bytes)),
            PolicyKind::Shade => Box::new(shade::Shade::new(capacity_bytes)),
            PolicyKind::Icache => Box::new(icache::Icache::new(capacity_bytes)),
            PolicyKind::Min => Box::new(min::Min::new(capacity_bytes)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An importance that can be ordered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score(f64);

impl Score {
    pub(crate) fn new(score: f64) -> Score {
        Score(if score > 0.0 { score } else { 0.0 })
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Score {}
impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Score {
    fn cmp(&self, other: &Score) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests;
