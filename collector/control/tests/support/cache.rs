//! What the job's cache keeps: as it is drawn, until it is full.

use stallscope_control::Random;
use stallscope_model::{CacheCurve, CacheState, CacheSummary, CacheUses};

#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) samples: u64,
    pub(crate) sample_bytes: u64,
    /// For each sample that is read.
    pub(crate) read_ns: u64,
    /// It keeps no more, whatever it may.
    pub(crate) most_bytes: u64,
    /// None of what is kept is drawn again.
    pub(crate) drawn_once: bool,
    pub(crate) curve: CacheCurve,
    /// Of the samples that are missing, what one process that reads ahead has in time.
    pub(crate) read_ahead: f64,
    /// As many samples are drawn again and again, and all others once; 0: each once in a pass.
    pub(crate) favourites: u64,
    drawn: u64,
    kept: u64,
    /// At the beginning of this pass: what is drawn of them hits.
    kept_before: u64,
    random: Random,
    uses: CacheUses,
}

impl Cache {
    pub(crate) fn of(samples: u64, sample_bytes: u64, read_ns: u64) -> Cache {
        Cache {
            samples,
            sample_bytes,
            read_ns,
            most_bytes: u64::MAX,
            drawn_once: false,
            curve: CacheCurve::default(),
            read_ahead: 0.0,
            favourites: 0,
            drawn: 0,
            kept: 0,
            kept_before: 0,
            random: Random::new(5),
            uses: CacheUses::default(),
        }
    }

    /// In a pass that is not its first, with as many samples.
    pub(crate) fn starts_with(&mut self, kept: u64) {
        (self.kept, self.kept_before) = (kept, kept);
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept * self.sample_bytes
    }

    /// Reads of one batch of 32.
    pub(crate) fn batch(&mut self, capacity_bytes: u64, fetchers: u64) -> u64 {
        let most = capacity_bytes.min(self.most_bytes) / self.sample_bytes;
        self.kept = self.kept.min(most);
        self.kept_before = self.kept_before.min(self.kept);
        let mut reads = 0;
        for _ in 0..32 {
            if self.drawn == self.samples {
                (self.drawn, self.kept_before) = (0, self.kept);
            }
            self.drawn += 1;
            if !self.drawn_once && self.random.unit() < self.hits() {
                self.uses.hits += 1;
                continue;
            }
            let ahead = (self.read_ahead * fetchers as f64).min(0.95);
            if ahead > 0.0 && self.random.unit() < ahead {
                self.uses.hits += 1;
                self.uses.prefetched += 1;
            } else {
                reads += 1;
                self.uses.misses += 1;
            }
            self.kept = (self.kept + 1).min(most).min(self.samples);
        }
        reads
    }

    fn hits(&self) -> f64 {
        match self.favourites {
            0 => self.kept_before as f64 / self.samples as f64,
            // They are all that is worth keeping.
            favourites => 0.5 * (self.kept_before as f64 / favourites as f64).min(1.0),
        }
    }

    pub(crate) fn summary(&self, capacity_bytes: u64) -> CacheSummary {
        let state = CacheState {
            kept_bytes: self.kept_bytes(),
            capacity_bytes,
            evictions: 0,
            kept_samples: self.kept,
        };
        CacheSummary { training: self.uses, state: Some(state), curve: self.curve, ..CacheSummary::default() }
    }
}
