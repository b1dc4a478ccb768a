//! iCACHE's L-cache (HPCA 2023), from descriptions of the paper and of its authors' program: of what an epoch draws, samples of high importance are left
//! to the H-cache (policy/icache.rs), and those of low importance come from a small cache of their own, which is filled by
//! packages.
//!
//! As published, labels belong to other samples, so that they are random in effect; a low draw gets whatever comes next in a
//! shuffled order of all samples, even where its own is kept; and that order is read sample by sample, as no package is ever
//! written. Corrected, labels are right; a low sample that was read is written to a package of those that are drawn next to
//! it, which is one request then; and nothing else is given for it, but where [`crate::Substitutes`] allows that.

mod labels;
mod packages;

use crate::draws::Selection;
use crate::policy::Use;
use crate::random::Random;
use packages::Packages;
use std::collections::HashSet;

/// As published, of the cache.
const SHARE: f64 = 0.1;
/// A chunk's, of a pack.
const PACKAGE_BYTES: u64 = 4 << 20;

/// Which of an epoch's draws are of low importance, by the corrected rule. `score`: how important a sample is, where that is known.
pub(crate) fn low(draws: &[u32], score: &dyn Fn(u32) -> Option<f64>) -> Vec<u32> {
    labels::low(draws, Selection::Corrected, score).into_iter().collect()
}

/// What was read for a use, and which sample that gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) id: u32,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl Fetched {
    /// The sample itself, by a request of its own.
    pub(crate) fn alone(used: &Use) -> Fetched {
        Fetched { id: used.id, requests: 1, bytes: used.bytes.into() }
    }
}

#[derive(Debug)]
pub(crate) struct LCache {
    bytes: u64,
    samples: u32,
    /// Of this epoch's draws.
    low: HashSet<u32>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    AsPublished(Stream),
    Corrected(Packages),
}

impl LCache {
    /// That of a cache of `cache_bytes`.
    pub(crate) fn new(selection: Selection, cache_bytes: u64, samples: u32, seed: u64) -> LCache {
        let part = (SHARE * cache_bytes as f64) as u64;
        let (bytes, source) = match selection {
            Selection::AsPublished => (part, Source::AsPublished(Stream::new(samples, seed))),
            Selection::Corrected => {
                // One that is drawn from, and one that is fetched meanwhile.
                let package_bytes = PACKAGE_BYTES.min(part / 2);
                (2 * package_bytes, Source::Corrected(Packages::new(package_bytes)))
            }
        };
        LCache { bytes, samples, low: HashSet::new(), source }
    }

    /// What it takes of the cache.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An epoch begins that draws these. `score`: how important a sample is, where that is known.
    pub(crate) fn begin(&mut self, draws: &[u32], score: &dyn Fn(u32) -> Option<f64>) {
        self.low = match self.source {
            // What draws everything labels nothing.
            Source::AsPublished(_) if draws.len() == self.samples as usize => HashSet::new(),
            Source::AsPublished(_) => labels::low(draws, Selection::AsPublished, score),
            Source::Corrected(_) => labels::low(draws, Selection::Corrected, score),
        };
    }

    pub(crate) fn is_low(&self, id: u32) -> bool {
        self.low.contains(&id)
    }

    /// How a sample comes to its use; `None`: from the H-cache, where it `is_kept`.
    pub(crate) fn fetch(&mut self, used: &Use, is_kept: bool) -> Option<Fetched> {
        let is_low = self.is_low(used.id);
        match &mut self.source {
            Source::AsPublished(stream) if is_low => {
                Some(Fetched { id: stream.next(), ..Fetched::alone(used) })
            }
            _ if is_kept => None,
            Source::AsPublished(_) => Some(Fetched::alone(used)),
            Source::Corrected(packages) => {
                let fetched = packages.fetch(used);
                if is_low {
                    packages.add(used);
                }
                Some(fetched)
            }
        }
    }

    /// Whether the sample of a draw may be replaced: a low one that no package brings.
    pub(crate) fn may_be_replaced(&self, id: u32, is_kept: bool) -> bool {
        match &self.source {
            Source::AsPublished(_) => false,
            Source::Corrected(packages) => self.is_low(id) && !is_kept && !packages.has(id),
        }
    }

    /// Whether a sample may be given for another: a low one that came in a package, and is still to be drawn.
    pub(crate) fn may_be_given(&self, id: u32) -> bool {
        match &self.source {
            Source::AsPublished(_) => false,
            Source::Corrected(packages) => self.is_low(id) && packages.is_waiting(id),
        }
    }

    /// An epoch is over, the last of whose draws was `at`: writes packages for the next, and gives their bytes.
    pub(crate) fn end(&mut self, at: u64) -> Vec<u64> {
        match &mut self.source {
            Source::AsPublished(_) => Vec::new(),
            Source::Corrected(packages) => packages.write(at),
        }
    }
}

/// All samples in a shuffled order, again and again.
#[derive(Debug)]
struct Stream {
    random: Random,
    order: Vec<u32>,
    at: usize,
}

impl Stream {
    fn new(samples: u32, seed: u64) -> Stream {
        Stream { random: Random::new(seed, "l-cache"), order: (0..samples).collect(), at: 0 }
    }

    fn next(&mut self) -> u32 {
        if self.at == 0 {
            self.random.shuffle(&mut self.order);
        }
        let id = self.order[self.at];
        self.at = (self.at + 1) % self.order.len();
        id
    }
}

#[cfg(test)]
mod tests;
