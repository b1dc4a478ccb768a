//! Workers of one loader that share their work badly.

use crate::diagnose::{Used, WORTH, other};
use crate::summary::Figures;
use stallscope_model::{Diagnosis, RankSummary, WorkerLoad};
use stallscope_units::percent_in_words;
use std::collections::BTreeMap;

/// Of an even share, what the busiest worker does at least.
const UNEVEN: f64 = 1.75;
/// Loaders of a rank that are looked at: a recording may say anything.
const MOST_LOADERS: usize = 256;

pub(crate) fn uneven_workers(figures: &Figures<'_>) -> Option<Diagnosis> {
    let stall = figures.data_stall_share();
    if stall < WORTH {
        return None;
    }
    figures.ranks.iter().find_map(|rank| {
        let (most, times, number) = busiest(rank, figures)?;
        // Were all as busy, the batches would be made so much sooner.
        let share = stall * (1.0 - 1.0 / times);
        if times < UNEVEN || share < WORTH {
            return None;
        }
        let finding = format!(
            "one of the {number} workers of rank {} is at work for {} of its time",
            rank.facts.rank,
            percent_in_words(at_work(most))
        );
        let evidence = format!(
            "{times:.1} times what they are on average: worker {} made {} batches",
            most.pid,
            most.batches.unwrap_or(0)
        );
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

/// The part of its life that a worker was not idle. Shares of the work would not do: workers that come later, as a controller
/// adds some, do less of it.
fn at_work(load: &WorkerLoad) -> f64 {
    load.wall_ns.saturating_sub(load.idle_ns) as f64 / load.wall_ns.max(1) as f64
}

/// Of the workers of one loader, as those of an evaluation do other work: the one that is at work most, how many times the
/// average that is, and how many they are.
fn busiest<'a>(rank: &'a RankSummary, figures: &Figures<'_>) -> Option<(&'a WorkerLoad, f64, usize)> {
    let used = Used::of(rank, figures);
    let mut loaders: BTreeMap<Option<u16>, Vec<&WorkerLoad>> = BTreeMap::new();
    rank.workers.iter().for_each(|load| loaders.entry(load.loader).or_default().push(load));
    // One that never handed a batch over may be anybody's.
    let anybodys = loaders.get(&None).cloned().unwrap_or_default();
    loaders
        .into_iter()
        .filter(|(loader, _)| loader.is_none_or(|loader| used.has(loader)))
        .take(MOST_LOADERS)
        .filter_map(|(loader, mut team)| {
            if loader.is_some() {
                team.extend(&anybodys);
            }
            // The kernel alone does not know who made batches, and when a worker began.
            team.iter().find(|load| load.batches.is_some_and(|batches| batches > 0))?;
            let mut all = WorkerLoad::default();
            team.iter().for_each(|load| all += *load);
            // One that was just added is at work throughout.
            let longest_ns = team.iter().map(|load| load.wall_ns).max()?;
            let number = team.len();
            let settled = team.into_iter().filter(|load| load.wall_ns >= longest_ns / 2);
            let most = settled.max_by(|a, b| at_work(a).total_cmp(&at_work(b))).filter(|_| number > 1)?;
            Some((most, at_work(most) / at_work(&all).max(f64::MIN_POSITIVE), number))
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))
}
