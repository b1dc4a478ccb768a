//! What memory is worth to a job: the share of its time that it saves with so much. As the job says, and as far as it can be true.

/// Points that are taken.
const MOST: usize = 32;

/// Never falls, and rises ever more slowly: the smallest such curve that no point lies above, from nothing for nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::node_service) struct Curve {
    /// Bytes and share, both rising.
    points: Vec<(u64, f64)>,
}

/// Memory of which each byte is worth the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    /// Of a byte, as a share of the job's time.
    pub(super) worth: f64,
}

impl Curve {
    /// Nobody saves more than all of their time.
    pub(in crate::node_service) fn of(claimed: &[(u64, f64)]) -> Curve {
        let claimed = claimed.iter().take(MOST).filter(|(bytes, saved)| *bytes > 0 && saved.is_finite());
        let mut claimed: Vec<(u64, f64)> =
            claimed.map(|(bytes, saved)| (*bytes, saved.clamp(0.0, 1.0))).collect();
        claimed.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut points: Vec<(u64, f64)> = Vec::new();
        for point in claimed {
            if points.last().is_some_and(|last| last.0 == point.0) {
                continue;
            }
            while let Some(&last) = points.last() {
                let before = points.len().checked_sub(2).map_or((0, 0.0), |at| points[at]);
                if slope(before, last) > slope(last, point) {
                    break;
                }
                points.pop();
            }
            points.push(point);
        }
        // From its highest point on more is worth nothing.
        let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
        let last = points.iter().position(|point| point.1 >= highest).map_or(0, |at| at + 1);
        points.truncate(if highest > 0.0 { last } else { 0 });
        Curve { points }
    }

    /// Share of the job's time that so many bytes save.
    pub(super) fn saved(&self, bytes: u64) -> f64 {
        let mut before = (0, 0.0);
        for point in &self.points {
            if bytes < point.0 {
                return before.1 + slope(before, *point) * (bytes - before.0) as f64;
            }
            before = *point;
        }
        before.1
    }

    /// From `from` bytes to `to`, best first.
    pub(super) fn pieces(&self, from: u64, to: u64) -> impl Iterator<Item = Piece> {
        let starts = std::iter::once((0, 0.0)).chain(self.points.iter().copied());
        starts.zip(self.points.iter().copied()).filter_map(move |(start, end)| {
            let bytes = end.0.min(to).checked_sub(start.0.max(from)).filter(|bytes| *bytes > 0)?;
            Some(Piece { bytes, worth: slope(start, end) })
        })
    }
}

fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (to.1 - from.1) / (to.0 - from.0).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_curve_rises_ever_more_slowly_whatever_was_claimed() {
        let curve =
            Curve::of(&[(30, 0.3), (10, 0.0), (20, 0.4), (20, f64::NAN), (0, 1.0), (40, 7.0), (50, 0.2)]);
        assert_eq!(curve.points, [(40, 1.0)]);
        let curve = Curve::of(&[(10, 0.5), (20, 0.6), (30, 0.6), (40, 0.1)]);
        assert_eq!(curve.points, [(10, 0.5), (20, 0.6)]);
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-12;
        assert!(near(curve.saved(5), 0.25) && near(curve.saved(15), 0.55) && near(curve.saved(99), 0.6));
        let pieces: Vec<Piece> = curve.pieces(5, 15).collect();
        assert_eq!(pieces.iter().map(|piece| piece.bytes).collect::<Vec<_>>(), [5, 5]);
        assert!(near(pieces[0].worth, 0.05) && near(pieces[1].worth, 0.01));
        assert_eq!(Curve::of(&[(10, -1.0), (20, 0.0)]), Curve::default());
    }

    proptest! {
        #[test]
        fn pieces_get_worse_and_add_up(
            claimed in proptest::collection::vec((any::<u64>(), any::<f64>()), 0..50), from: u64, to: u64,
        ) {
            let curve = Curve::of(&claimed);
            prop_assert!(curve.points.len() <= MOST);
            let pieces: Vec<Piece> = curve.pieces(from, to).collect();
            prop_assert!(pieces.windows(2).all(|pair| pair[0].worth >= pair[1].worth), "{pieces:?}");
            let sum: u64 = pieces.iter().map(|piece| piece.bytes).fold(0, u64::saturating_add);
            prop_assert!(sum <= to.saturating_sub(from));
            prop_assert!((0.0..=1.0).contains(&curve.saved(to)));
        }
    }
}
