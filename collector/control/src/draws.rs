//! How many of the samples that training draws its caches have, as of now.

use stallscope_model::CacheUses;
use std::collections::VecDeque;

/// What came of draws is looked at over this long at most, and over so many seconds at least.
const WINDOW_NS: u64 = 120_000_000_000;
const SHORTEST: usize = 3;
/// Draws that show how many hit.
const FEWEST_DRAWS: u64 = 200;

/// What training drew of late from its caches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draws {
    /// Cumulative.
    seen: VecDeque<(u64, CacheUses)>,
}

impl Draws {
    pub(crate) fn take(&mut self, now_ns: u64, uses: CacheUses) {
        if self.seen.back().is_some_and(|(last_ns, last)| *last_ns > now_ns || last.draws() > uses.draws()) {
            self.seen.clear();
        }
        self.seen.push_back((now_ns, uses));
        while self.seen.len() > 2 && self.seen[1].0.saturating_add(WINDOW_NS) <= now_ns {
            self.seen.pop_front();
        }
    }

    /// The last of them, as few as suffice; `None` where there are too few.
    pub(crate) fn recent(&self) -> Option<CacheUses> {
        let last = self.seen.len().checked_sub(1)?;
        (SHORTEST..=last).find_map(|seconds| self.between(last - seconds, last))
    }

    /// The last of them, where as many before them hit as often: within the first pass over the data nothing hits, and where the
    /// next one begins what is drawn before says nothing of it.
    pub(crate) fn steady(&self) -> Option<CacheUses> {
        let last = self.seen.len().checked_sub(1)?;
        let (before, after) = (SHORTEST..=last / 2).find_map(|seconds| {
            let middle = last - seconds;
            Some((self.between(middle - seconds, middle)?, self.between(middle, last)?))
        })?;
        let [earlier, later] = [&before, &after].map(|uses| uses.share(uses.reuses()).unwrap_or(0.0));
        let chance = 2.0 * (earlier * (1.0 - earlier) * 2.0 / before.draws() as f64).sqrt();
        ((earlier - later).abs() <= 0.02 + chance).then_some(after)
    }

    fn between(&self, from: usize, to: usize) -> Option<CacheUses> {
        let uses = self.seen.get(to)?.1.since(&self.seen.get(from)?.1);
        (uses.draws() >= FEWEST_DRAWS).then_some(uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_steady_only_within_a_pass() {
        let mut draws = Draws::default();
        let mut uses = CacheUses::default();
        let mut steady = Vec::new();
        for second in 0..40 {
            // The second pass begins after 20 s.
            let hits = if second < 20 { 0 } else { 30 };
            (uses.hits, uses.misses) = (uses.hits + hits, uses.misses + 100 - hits);
            draws.take(second * 1_000_000_000, uses);
            steady.push(draws.steady().and_then(|uses| uses.hit_share()));
        }
        assert_eq!((steady[3], steady[19], steady[39]), (None, Some(0.0), Some(0.3)));
        assert!(steady[20..26].contains(&None), "{steady:?}");
        assert!(steady.iter().flatten().all(|share| *share < 0.11 || *share == 0.3), "{steady:?}");
        // Other uses are counted anew.
        draws.take(41_000_000_000, CacheUses::default());
        assert_eq!(draws.recent(), None);
    }
}
