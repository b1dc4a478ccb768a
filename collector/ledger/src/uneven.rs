//! Workers of one loader that share their work badly.

use crate::diagnose::{WORTH, other, used};
use crate::summary::Figures;
use crate::words::percent;
use stallscope_model::{Diagnosis, RankSummary, WorkerLoad};

/// Of an even share, what the busiest worker does at least.
const UNEVEN: f64 = 1.75;

pub(crate) fn uneven_workers(figures: &Figures<'_>) -> Option<Diagnosis> {
    let stall = figures.data_stall_share();
    if stall < WORTH {
        return None;
    }
    figures.ranks.iter().find_map(|rank| {
        let (most, part, number) = busiest(rank, figures)?;
        let times = part * number as f64;
        // Were all as busy, the batches would be made so much sooner.
        let share = stall * (1.0 - 1.0 / times);
        if times < UNEVEN || share < WORTH {
            return None;
        }
        let finding = format!(
            "one of the {number} workers of rank {} does {} of their work",
            rank.facts.rank,
            percent(part)
        );
        let evidence = format!("worker {} made {} of the batches", most.pid, most.batches.unwrap_or(0));
        let advice = "Give every worker a like share: with an IterableDataset split by get_worker_info(), else look for \
                      samples that are much larger than the rest";
        Some(Diagnosis {
            name: "uneven-workers".to_owned(),
            finding,
            evidence,
            share,
            remedies: other(advice),
            ..Diagnosis::default()
        })
    })
}

/// Of the workers of one loader, as those of an evaluation do other work: the one that does most, its part of their work,
/// and how many they are.
fn busiest<'a>(rank: &'a RankSummary, figures: &Figures<'_>) -> Option<(&'a WorkerLoad, f64, usize)> {
    let busy = |load: &WorkerLoad| load.wall_ns.saturating_sub(load.idle_ns);
    let mut loaders: Vec<Option<u16>> = rank.workers.iter().map(|load| load.loader).collect();
    loaders.sort_unstable();
    loaders.dedup();
    loaders
        .into_iter()
        .filter(|loader| loader.is_none_or(|loader| used(rank, figures, loader)))
        .filter_map(|loader| {
            // One that never handed a batch over may be anybody's.
            let of_it = |load: &&WorkerLoad| load.loader.is_none() || load.loader == loader;
            let team: Vec<&WorkerLoad> = rank.workers.iter().filter(of_it).collect();
            // The kernel alone does not know who made batches, and when a worker began.
            team.iter().find(|load| load.batches.is_some_and(|batches| batches > 0))?;
            let sum_ns = team.iter().map(|load| busy(load)).fold(0, u64::saturating_add);
            let number = team.len();
            let most = team.into_iter().max_by_key(|load| busy(load)).filter(|_| number > 1)?;
            Some((most, busy(most) as f64 / sum_ns.max(1) as f64, number))
        })
        .max_by(|a, b| (a.1 * a.2 as f64).total_cmp(&(b.1 * b.2 as f64)))
}
