//! Which samples stand for all.

/// About so many samples stand for all.
pub(super) const MOST: u64 = 2048;
/// Up to so many ids are hashed one by one, to know exactly how many are chosen.
const COUNTED: u64 = 1 << 24;
/// In place of a threshold where all are chosen.
const ALL: u64 = u64::MAX;

/// The ids whose hash is low: the same in every process.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    threshold: u64,
    pub(super) count: u64,
}

impl Tracked {
    /// Of ids below `samples`.
    pub fn of(samples: u64) -> Tracked {
        if samples <= MOST {
            return Tracked { threshold: ALL, count: samples.max(1) };
        }
        let threshold = ((u128::from(MOST) << 64) / u128::from(samples)) as u64;
        let counted = || (0..samples as u32).filter(|id| hash(*id) < threshold).count() as u64;
        Tracked { threshold, count: if samples <= COUNTED { counted().max(1) } else { MOST } }
    }

    pub fn has(&self, id: u32) -> bool {
        self.threshold == ALL || hash(id) < self.threshold
    }
}

/// SplitMix64's finalizer (Steele, Lea and Flood, 2014).
fn hash(id: u32) -> u64 {
    let mut mixed = (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
