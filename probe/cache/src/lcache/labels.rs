//! Which of an epoch's draws are of low importance.

use crate::draws::Selection;
use std::collections::HashSet;

/// As published, of the draws.
const HIGH_SHARE: f64 = 0.7;

/// Those below the upper seven tenths. As published, a place in the order gets the label of the sample whose number is that
/// place. Corrected, it gets that of its own sample, and one whose importance nobody knows yet is not low.
pub(super) fn low(draws: &[u32], selection: Selection, score: &dyn Fn(u32) -> Option<f64>) -> HashSet<u32> {
    let mut by_importance: Vec<(f64, u32)> = (0..)
        .zip(draws)
        .map(|(place, id)| match selection {
            Selection::AsPublished => (score(place).unwrap_or(0.0), *id),
            Selection::Corrected => (score(*id).unwrap_or(f64::INFINITY), *id),
        })
        .collect();
    by_importance.sort_by(|one, other| other.0.total_cmp(&one.0));
    let high = (HIGH_SHARE * draws.len() as f64).ceil() as usize;
    by_importance
        .split_off(high)
        .into_iter()
        .filter(|(score, _)| score.is_finite())
        .map(|(_, id)| id)
        .collect()
}
