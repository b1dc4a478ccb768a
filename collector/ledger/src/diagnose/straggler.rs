//! A rank that the others wait for.

use super::{WORTH, diagnosis, other};
use crate::summary::Figures;
use stallscope_model::{Cause, Diagnosis};
use stallscope_units::percent_in_words;

/// The rank that others wait for most of the time, if there is one: index into `figures.ranks`.
pub(crate) fn straggler(figures: &Figures<'_>) -> Option<usize> {
    let slow = (0..figures.slowest_share.len())
        .max_by(|a, b| figures.slowest_share[*a].total_cmp(&figures.slowest_share[*b]))?;
    let alone = figures.slowest_share[slow] >= 0.6 && figures.training.len() > 1;
    (alone && others_wait(figures, slow) >= WORTH).then_some(slow)
}

fn others_wait(figures: &Figures<'_>, slow: usize) -> f64 {
    let others = figures.training.iter().enumerate().filter(|(rank, _)| *rank != slow);
    let shares: Vec<f64> = others.map(|(_, causes)| causes.share(Cause::Peer)).collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

/// How much more of its time than the others the slow rank spends on what, most first.
fn excess(figures: &Figures<'_>, slow: usize) -> (Cause, f64) {
    let of = |cause: Cause| {
        let others = figures.training.iter().enumerate().filter(|(rank, _)| *rank != slow);
        let (sum, number) = others.fold((0.0, 0), |(sum, n), (_, causes)| (sum + causes.share(cause), n + 1));
        figures.training[slow].share(cause) - sum / f64::from(number.max(1))
    };
    let own = Cause::ALL.into_iter().filter(|cause| *cause != Cause::Peer);
    own.map(|cause| (cause, of(cause))).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Cause::Unknown, 0.0))
}

/// "the other ranks wait 50% of their time for rank 1, which spends it on compute".
pub(crate) fn straggles(figures: &Figures<'_>, slow: usize) -> String {
    format!(
        "the other ranks wait {} of their time for rank {}, which spends it on {}",
        percent_in_words(others_wait(figures, slow)),
        figures.ranks[slow].facts.rank,
        excess(figures, slow).0.name()
    )
}

pub(super) fn straggler_rank(figures: &Figures<'_>) -> Option<Diagnosis> {
    let slow = straggler(figures)?;
    let (cause, excess) = excess(figures, slow);
    let rank = figures.ranks.get(slow)?.facts.rank;
    let evidence = format!(
        "rank {rank} was the slowest in {} of the time; {} takes {} more of its time than of the others'",
        percent_in_words(figures.slowest_share[slow]),
        cause.name(),
        percent_in_words(excess)
    );
    let advice = format!(
        "Look at rank {rank} alone: its {} decides the speed of all; compare its data, host and neighbours",
        cause.name()
    );
    let share = others_wait(figures, slow);
    Some(diagnosis("straggler-rank", cause, share, straggles(figures, slow), evidence, other(advice)))
}
