//! The cache of a simulated job: what it keeps, what of the draws hits, and what it reports.

use stallscope_model::{CacheCurve, CachePoint, CacheState, CacheSummary, CacheUses};

/// A data set and the cache that the script has for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) dataset_bytes: u64,
    pub(crate) sample_bytes: u64,
    /// The script's.
    pub(crate) own_bytes: u64,
    /// Share of the draws that hit, by the share of the data that is kept.
    pub(crate) hits: fn(f64) -> f64,
    /// Whether at this moment, in seconds, what is drawn is drawn for the only time.
    pub(crate) drawn_once: fn(f64) -> bool,
    /// Processes that read ahead, where the loader has them: the script's.
    pub(crate) fetchers: Option<u32>,
}

/// Each sample is drawn once a pass.
pub(crate) fn plain(share: f64) -> f64 {
    share
}

/// A few samples are drawn much more often than the others.
pub(crate) fn concentrated(share: f64) -> f64 {
    share.powf(0.35)
}

/// Of which a third of the data has nine draws in ten.
pub(crate) fn a_third(share: f64) -> f64 {
    if share < 1.0 / 3.0 { 2.7 * share } else { 0.9 + 0.15 * (share - 1.0 / 3.0) }
}

pub(crate) fn never(_: f64) -> bool {
    false
}

/// What of a batch's samples need not be read by a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spared {
    /// They are kept.
    pub(crate) kept: f64,
    /// They are not, and were read ahead.
    pub(crate) ahead: f64,
}

pub(crate) struct Cache {
    of: Kept,
    capacity_bytes: u64,
    kept_bytes: u64,
    /// At the beginning of this pass: what came in since is not drawn again before the next.
    seen_bytes: u64,
    drawn_bytes: u64,
    passes: u32,
    uses: CacheUses,
}

impl Cache {
    pub(crate) fn new(of: Kept, capacity_bytes: u64) -> Cache {
        Cache {
            of,
            capacity_bytes,
            kept_bytes: 0,
            seen_bytes: 0,
            drawn_bytes: 0,
            passes: 0,
            uses: CacheUses::default(),
        }
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// What a smaller one had to let go is let go at once.
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
        self.kept_bytes = self.kept_bytes.min(bytes);
        self.seen_bytes = self.seen_bytes.min(bytes);
    }

    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.of.dataset_bytes.max(1) as f64
    }

    /// Share of the draws that hit at this moment.
    pub(crate) fn hits(&self, t: f64) -> f64 {
        if (self.of.drawn_once)(t) { 0.0 } else { (self.of.hits)(self.share(self.seen_bytes).min(1.0)) }
    }

    /// A batch was made of so many samples, of which a worker read `missed`.
    pub(crate) fn made(&mut self, samples: u64, missed: u64, spared: Spared) {
        let hits = samples.saturating_sub(missed);
        let share = spared.ahead / (spared.kept + spared.ahead).max(1e-9);
        let ahead = (hits as f64 * share).round() as u64;
        self.uses.hits += hits;
        self.uses.prefetched += ahead;
        self.uses.misses += samples - hits;
        let read_bytes = (samples - hits + ahead) * self.of.sample_bytes;
        let most = self.capacity_bytes.min(self.of.dataset_bytes);
        self.kept_bytes = (self.kept_bytes + read_bytes).min(most).max(self.kept_bytes.min(most));
        self.drawn_bytes += samples * self.of.sample_bytes;
        if self.drawn_bytes >= self.of.dataset_bytes {
            self.drawn_bytes -= self.of.dataset_bytes;
            self.seen_bytes = self.kept_bytes;
            self.passes += 1;
        }
    }

    pub(crate) fn summary(&self, t: f64) -> CacheSummary {
        let state = CacheState {
            kept_bytes: self.kept_bytes,
            capacity_bytes: self.capacity_bytes,
            evictions: 0,
            kept_samples: self.kept_bytes / self.of.sample_bytes.max(1),
        };
        CacheSummary {
            training: self.uses,
            state: Some(state),
            curve: self.curve(t),
            ..CacheSummary::default()
        }
    }

    /// As the loader's: from a quarter to four times the present size, once the first pass is over.
    fn curve(&self, t: f64) -> CacheCurve {
        let mut curve = CacheCurve::new(self.of.dataset_bytes);
        if self.passes == 0 {
            return CacheCurve::default();
        }
        for times in [0.25, 0.5, 1.0, 2.0, 4.0] {
            let bytes = ((self.capacity_bytes as f64 * times) as u64).min(self.of.dataset_bytes);
            let hits = if (self.of.drawn_once)(t) { 0.0 } else { (self.of.hits)(self.share(bytes)) };
            let uses = 100_000;
            curve.push(CachePoint {
                capacity_bytes: bytes,
                uses,
                misses: ((1.0 - hits) * uses as f64).round() as u64,
            });
        }
        curve
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept {
        dataset_bytes: 1000,
        sample_bytes: 1,
        own_bytes: 100,
        hits: plain,
        drawn_once: |t| t > 10.0,
        fetchers: None,
    };

    #[test]
    fn what_is_kept_hits_from_the_next_pass_on() {
        let mut cache = Cache::new(KEPT, 400);
        let none = Spared::default();
        for _ in 0..9 {
            cache.made(100, 100, none);
        }
        assert_eq!((cache.kept_bytes(), cache.hits(0.0)), (400, 0.0));
        assert!(cache.summary(0.0).curve.points().is_empty());
        cache.made(100, 100, none);
        assert_eq!((cache.hits(0.0), cache.hits(11.0)), (0.4, 0.0));
        let curve = cache.summary(0.0).curve;
        assert_eq!((curve.miss_ratio(100), curve.miss_ratio(1000)), (Some(0.9), Some(0.0)));
        cache.resize(100);
        assert_eq!((cache.kept_bytes(), cache.hits(0.0)), (100, 0.1));
    }

    #[test]
    fn what_was_read_ahead_is_no_read_that_was_saved() {
        let mut cache = Cache::new(KEPT, 400);
        cache.made(100, 25, Spared { kept: 0.25, ahead: 0.5 });
        let uses = cache.summary(0.0).training;
        assert_eq!((uses.hits, uses.prefetched, uses.misses, uses.reuses()), (75, 50, 25, 25));
    }
}
