//! Where the pool publishes joint miss-ratio curves: in the page of figures, for every client of the space.
//!
//! A sequence lock on atomic words: the pool, which alone writes, makes the sequence odd, then writes, then makes it even.
//! Who reads takes nothing for a curve unless the sequence was even before and the same behind. Acquire of the first
//! load pairs with the release of the last store; the two fences keep the words between them. No word is read and written
//! but atomically, so a torn curve is thrown away, and never undefined.

use super::layout::Seen;
use crate::ghost::CurvePoint;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// Loaders whose curves are published.
pub(crate) const BOARDS: usize = 16;
/// Of each.
pub(crate) const BOARD_WORDS: usize = 24;
const HEAD: usize = 5;
const OF_POINT: usize = 3;
const MOST_POINTS: usize = (BOARD_WORDS - 1 - HEAD) / OF_POINT;
/// The pool writes for less than a microsecond, unless it is interrupted.
const TRIES: u32 = 100;

/// What caches of other sizes would have missed of all uses that ranks of this node made together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JointCurve {
    /// Ranks of several jobs feed it and cannot be distinguished: it has no points.
    pub is_mixed: bool,
    /// The lowest rank that feeds it, which is to show it.
    pub teller: u32,
    /// How many feed it, or have fed it.
    pub ranks: u32,
    /// All samples together, from their size on average.
    pub dataset_bytes: u64,
    /// The smallest size first; empty until caches have had an epoch to fill.
    pub points: Vec<CurvePoint>,
}

/// What a board says of a loader's curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Here(JointCurve),
    Other,
    /// The pool is at it.
    Torn,
}

const THERE: u64 = 1;
const MIXED: u64 = 2;

/// By the pool alone. `None`: the board is free.
pub(crate) fn write(words: &[AtomicU64], published: Option<(u64, &JointCurve)>) {
    let [sequence, rest @ ..] = words else { return };
    let number = sequence.load(Relaxed);
    sequence.store(number.wrapping_add(1), Relaxed);
    fence(Release);
    let mut values = [0; BOARD_WORDS - 1];
    if let Some((loader, curve)) = published {
        let points = &curve.points[..curve.points.len().min(MOST_POINTS)];
        let state = THERE | if curve.is_mixed { MIXED } else { 0 };
        let who = u64::from(curve.teller) | u64::from(curve.ranks) << 32;
        values[..HEAD].copy_from_slice(&[state, loader, who, points.len() as u64, curve.dataset_bytes]);
        for (to, point) in values[HEAD..].chunks_exact_mut(OF_POINT).zip(points) {
            to.copy_from_slice(&[point.capacity_bytes, point.uses, point.misses]);
        }
    }
    rest.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
    sequence.store(number.wrapping_add(2), Release);
}

fn read(words: &[AtomicU64], loader: u64) -> Read {
    let [sequence, rest @ ..] = words else { return Read::Other };
    for _ in 0..TRIES {
        let number = sequence.load(Acquire);
        let mut values = [0; BOARD_WORDS - 1];
        values.iter_mut().zip(rest).for_each(|(value, word)| *value = word.load(Relaxed));
        fence(Acquire);
        if number % 2 == 0 && sequence.load(Relaxed) == number {
            return decoded(&values, loader);
        }
        std::hint::spin_loop();
    }
    Read::Torn
}

fn decoded(values: &[u64; BOARD_WORDS - 1], loader: u64) -> Read {
    let [state, whose, who, count, dataset_bytes, points @ ..] = values;
    if state & THERE == 0 || *whose != loader {
        return Read::Other;
    }
    let point = |of: &[u64]| CurvePoint { capacity_bytes: of[0], uses: of[1], misses: of[2] };
    let count = (*count).min(MOST_POINTS as u64) as usize;
    Read::Here(JointCurve {
        is_mixed: state & MIXED != 0,
        teller: *who as u32,
        ranks: (*who >> 32) as u32,
        dataset_bytes: *dataset_bytes,
        points: points.chunks_exact(OF_POINT).take(count).map(point).collect(),
    })
}

/// Wherever it stands.
pub(crate) fn find(seen: Seen<'_>, loader: u64) -> Read {
    let mut found = Read::Other;
    for nth in 0..BOARDS {
        match read(seen.board(nth), loader) {
            Read::Other => {}
            Read::Torn => found = Read::Torn,
            here => return here,
        }
    }
    found
}
