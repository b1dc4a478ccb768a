//! How many bytes a folder may take, and what is evicted first: decisions alone, on numbers that are passed in.

use std::cmp::Reverse;

/// Of a file system, which part is left free where no limit is given: one in so many bytes.
const FREE_PART: u64 = 10;

/// What is evicted at once is enough for some chunks that follow as well, as all files are looked at for it.
const EVICTED_AT_ONCE: u64 = 256 << 20;
/// And of a limit no more than one part in so many.
const EVICTED_PART: u64 = 32;

/// How many bytes the chunks in a folder may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Bytes(u64),
    /// A tenth of the file system stays free.
    LeaveFree,
}

/// Bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) all: u64,
    pub(super) free: u64,
}

impl Limit {
    /// How many bytes have to go before so many `more` may come to those that are `taken`; none where they can never.
    pub(super) fn excess(self, taken: u64, space: Space, more: u64) -> Option<u64> {
        match self {
            Limit::Bytes(limit) if more > limit => None,
            Limit::Bytes(limit) => Some(taken.saturating_add(more).saturating_sub(limit)),
            Limit::LeaveFree => {
                let needed =
                    (space.all / FREE_PART).checked_add(more).filter(|needed| *needed <= space.all)?;
                Some(needed.saturating_sub(space.free))
            }
        }
    }

    /// How many bytes are evicted where so many are needed.
    pub(super) fn evicted_for(self, needed: u64) -> u64 {
        let at_once = match self {
            Limit::Bytes(limit) => EVICTED_AT_ONCE.min(limit / EVICTED_PART),
            Limit::LeaveFree => EVICTED_AT_ONCE,
        };
        needed.max(at_once)
    }
}

/// A chunk in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// When it was kept, nanoseconds since 1970.
    pub(super) at: i128,
}

/// The chunks of one state of a pack, and when that was opened last, nanoseconds since 1970; 0 where that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    pub(super) opened: i128,
    pub(super) kept: Vec<Kept>,
}

/// The states in the order in which they are evicted: the one first that was opened longest ago.
pub(super) fn oldest_first<K: Ord>(states: &mut [(K, Chunks)]) {
    states.sort_by(|one, other| (one.1.opened, &one.0).cmp(&(other.1.opened, &other.0)));
    for (_, chunks) in states {
        // The last is taken first.
        chunks.kept.sort_by_key(|kept| (Reverse(kept.at), Reverse(kept.name.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Space = Space { all: 1000, free: 300 };

    #[test]
    fn what_is_above_the_limit_has_to_go() {
        let limit = Limit::Bytes(100);
        for (taken, more, excess) in
            [(0, 100, 0), (60, 40, 0), (60, 41, 1), (250, 50, 200), (u64::MAX, 1, u64::MAX - 100)]
        {
            assert_eq!(limit.excess(taken, SPACE, more), Some(excess), "{taken} {more}");
        }
        assert_eq!(limit.excess(0, SPACE, 101), None, "it never fits");
    }

    #[test]
    fn a_tenth_of_the_file_system_stays_free() {
        for (more, excess) in
            [(0, Some(0)), (200, Some(0)), (201, Some(1)), (900, Some(700)), (901, None), (u64::MAX, None)]
        {
            assert_eq!(Limit::LeaveFree.excess(7, SPACE, more), excess, "{more}");
        }
        assert_eq!(Limit::LeaveFree.excess(0, Space { all: 1000, free: 40 }, 0), Some(60), "others fill it");
        assert_eq!(Limit::LeaveFree.excess(0, Space { all: 0, free: 0 }, 1), None);
    }

    #[test]
    fn the_state_goes_first_whose_opening_is_longest_ago() {
        let kept = |name: &str, at| Kept { name: name.into(), bytes: 1, at };
        let of = |opened, kept| Chunks { opened, kept };
        let mut states = vec![
            ('c', of(5, vec![kept("c1", 1), kept("c0", 0), kept("c2", 2)])),
            ('b', of(9, vec![kept("b", 0)])),
            ('a', of(5, vec![])),
        ];
        oldest_first(&mut states);
        assert_eq!(states.iter().map(|(name, _)| *name).collect::<String>(), "acb");
        let names: Vec<_> = states[1].1.kept.iter().rev().map(|kept| &*kept.name).collect();
        assert_eq!(names, ["c0", "c1", "c2"]);
    }
}
