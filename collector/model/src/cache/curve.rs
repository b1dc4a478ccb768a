//! What caches of other sizes would have missed.

use serde::{Deserialize, Serialize};

/// What a cache of one size would have missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePoint {
    pub capacity_bytes: u64,
    /// Uses that were counted, of samples that stand for all.
    pub uses: u64,
    pub misses: u64,
}

impl CachePoint {
    /// Share of the uses that would have been missed, 0 to 1.
    pub fn miss_ratio(&self) -> f64 {
        (self.misses as f64 / self.uses.max(1) as f64).min(1.0)
    }
}

/// A cache's miss-ratio curve: what caches of other sizes would have missed of the same uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "CurveParts", into = "CurveParts")]
pub struct CacheCurve {
    ranks: u32,
    is_mixed: bool,
    pub(super) reported_ns: u64,
    dataset_bytes: u64,
    points: [CachePoint; CacheCurve::MOST],
    count: usize,
}

/// A curve as it is written.
#[derive(Serialize, Deserialize)]
struct CurveParts {
    #[serde(default)]
    ranks: u32,
    #[serde(default)]
    is_mixed: bool,
    #[serde(default)]
    #[serde(rename = "told_ns")]
    reported_ns: u64,
    dataset_bytes: u64,
    points: Vec<CachePoint>,
}

impl From<CurveParts> for CacheCurve {
    fn from(parts: CurveParts) -> CacheCurve {
        let mut curve =
            CacheCurve::new(parts.dataset_bytes).of_ranks(parts.ranks).reported_at(parts.reported_ns);
        curve.is_mixed = parts.is_mixed;
        parts.points.into_iter().for_each(|point| curve.push(point));
        curve
    }
}

impl From<CacheCurve> for CurveParts {
    fn from(curve: CacheCurve) -> CurveParts {
        let CacheCurve { ranks, is_mixed, reported_ns, dataset_bytes, .. } = curve;
        CurveParts { ranks, is_mixed, reported_ns, dataset_bytes, points: curve.points().to_vec() }
    }
}

impl CacheCurve {
    /// Points of a curve, at most.
    pub const MOST: usize = 8;

    /// Of a data set of so many bytes, without points.
    pub fn new(dataset_bytes: u64) -> CacheCurve {
        CacheCurve { dataset_bytes, ..CacheCurve::default() }
    }

    /// The curve of a cache that ranks of several jobs use: it counts their uses together, so it is that of no one job.
    pub fn mixed() -> CacheCurve {
        CacheCurve { is_mixed: true, ..CacheCurve::default() }
    }

    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// The same, of the uses of so many ranks of a host.
    #[must_use]
    pub fn of_ranks(self, ranks: u32) -> CacheCurve {
        CacheCurve { ranks, ..self }
    }

    /// The same, reported at this time of its host's clock.
    #[must_use]
    pub fn reported_at(self, reported_ns: u64) -> CacheCurve {
        CacheCurve { reported_ns, ..self }
    }

    /// Whether it is of the uses of several ranks, of which one tells it for all.
    pub fn is_joint(&self) -> bool {
        self.ranks > 1
    }

    /// Adds a larger size; one that is none is left out, as is one too many.
    pub fn push(&mut self, point: CachePoint) {
        let is_larger = self.points().last().is_none_or(|last| last.capacity_bytes < point.capacity_bytes);
        if let Some(free) = self.points.get_mut(self.count).filter(|_| is_larger) {
            *free = point;
            self.count += 1;
        }
    }

    /// The smallest size first; empty where nothing is known.
    pub fn points(&self) -> &[CachePoint] {
        self.points.get(..self.count).unwrap_or_default()
    }

    /// All samples together, from their size on average.
    pub fn dataset_bytes(&self) -> u64 {
        self.dataset_bytes
    }

    /// How many times the present cache a point's is: "0.25" to "4", or "all" where it holds the whole data set. So there are
    /// few names, which stay as they are when the cache is resized; `None` for a point of a cache of before.
    pub fn times(&self, point: &CachePoint, capacity_bytes: u64) -> Option<&'static str> {
        let times = |bytes: u64| bytes as f64 / capacity_bytes.max(1) as f64;
        let named = [(0.25, "0.25"), (0.5, "0.5"), (1.0, "1"), (2.0, "2"), (4.0, "4")];
        let off = |bytes, known: f64| (times(bytes) / known - 1.0).abs();
        let known = named.into_iter().find(|(known, _)| {
            // A data set hardly larger than that many times the cache has a point beside it, which is no second of this name.
            let nearest = self.points().iter().map(|of| off(of.capacity_bytes, *known)).fold(0.01, f64::min);
            off(point.capacity_bytes, *known) <= nearest && nearest < 0.01
        });
        let is_all = point.capacity_bytes >= self.dataset_bytes;
        known.map(|(_, name)| name).or(is_all.then_some("all"))
    }

    /// Share of the uses that a cache of so many bytes would miss, straight from point to point; `None` beyond the last
    /// of them, unless that holds the whole data set.
    pub fn miss_ratio(&self, capacity_bytes: u64) -> Option<f64> {
        let last = self.points().last()?;
        if capacity_bytes >= last.capacity_bytes {
            let known = capacity_bytes == last.capacity_bytes || last.capacity_bytes >= self.dataset_bytes;
            return known.then(|| last.miss_ratio());
        }
        // Without any cache all is missed.
        let mut below = (0, 1.0);
        for point in self.points() {
            let above = (point.capacity_bytes, point.miss_ratio());
            if capacity_bytes < above.0 {
                let part = (capacity_bytes - below.0) as f64 / (above.0 - below.0) as f64;
                return Some(below.1 + part * (above.1 - below.1));
            }
            below = above;
        }
        Some(last.miss_ratio())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_read_between_its_points_and_not_beyond_them() {
        let mut curve = CacheCurve::new(1000);
        assert_eq!(curve.miss_ratio(5), None);
        for (capacity_bytes, misses) in [(100, 90), (200, 70), (200, 1), (50, 2), (400, 50)] {
            curve.push(CachePoint { capacity_bytes, uses: 100, misses });
        }
        assert_eq!(curve.points().len(), 3, "sizes go up");
        for (bytes, ratio) in [(0, 1.0), (50, 0.95), (100, 0.9), (150, 0.8), (400, 0.5)] {
            let found = curve.miss_ratio(bytes).unwrap();
            assert!((found - ratio).abs() < 1e-9, "{found} with {bytes}");
        }
        assert_eq!(curve.miss_ratio(401), None);
        curve.push(CachePoint { capacity_bytes: 1000, uses: 100, misses: 0 });
        assert_eq!(curve.miss_ratio(1 << 40), Some(0.0), "there is no more than all");
        for nth in 0..20 {
            curve.push(CachePoint { capacity_bytes: 2000 + nth, uses: 1, misses: 2 });
        }
        assert_eq!(curve.points().len(), CacheCurve::MOST);
        assert_eq!(curve.miss_ratio(u64::MAX), Some(1.0), "of more misses than uses all are misses");
    }

    #[test]
    fn sizes_are_named_by_the_present_one() {
        let mut curve = CacheCurve::new(530);
        for capacity_bytes in [50, 100, 200, 400, 530] {
            curve.push(CachePoint { capacity_bytes, uses: 100, misses: 1 });
        }
        let named = |capacity_bytes| {
            curve.points().iter().map(|of| curve.times(of, capacity_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(named(200), ["0.25", "0.5", "1", "2", "all"].map(Some));
        assert_eq!(named(800), [None, None, Some("0.25"), Some("0.5"), Some("all")], "after a knob's turn");
        assert_eq!(named(530)[4], Some("1"));
        assert_eq!(named(0)[..4], [None; 4]);
        let mut curve = CacheCurve::new(201);
        for capacity_bytes in [50, 100, 200, 201] {
            curve.push(CachePoint { capacity_bytes, uses: 100, misses: 1 });
        }
        let named = curve.points().iter().map(|of| curve.times(of, 200)).collect::<Vec<_>>();
        assert_eq!(named, ["0.25", "0.5", "1", "all"].map(Some), "each name once");
    }
}
