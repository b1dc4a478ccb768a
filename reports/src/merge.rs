//! Several recordings of one job as one run.

mod facts;
mod ledger;
mod skew;

use crate::Error;
use crate::run::{Run, Source, name, took_ns};
use stallscope_model::{RankSummary, RunSummary, WorkerPeriod};
use stallscope_units as units;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Merges what was read from recordings of different ranks of one job.
///
/// Ranks, their workers and checkpoints are listed side by side. The job's ledger, verdict and diagnoses are made
/// again from all steps; findings that only the collector of a rank can make are taken over with its host's name.
/// Losses and costs are sums.
pub(crate) fn all(runs: Vec<Run>) -> Result<Run, Error> {
    one_job(&runs)?;
    different_ranks(&runs)?;
    let mut merged = Run::of_summary(facts::merged(&runs));
    let owned = ledger::make(&mut merged.summary, &runs)?;
    merged.notes.extend(owned);
    merged.notes.push(
        "the job's ledger was made from the steps of all recordings, aligned by their numbers".to_owned(),
    );
    if merged.summary.job.attached {
        merged.notes.push(
            "steps of a job that was attached to are counted from then on: the job's ledger is right as far as all \
             were attached to at the same time"
                .to_owned(),
        );
    }
    merged.hosts = facts::hosts(&runs);
    merged.period = runs.first().map_or(merged.period, |run| run.period);
    for run in runs {
        merged.sources.extend(run.sources);
        merged.notes.extend(run.notes);
        merged.rollups.extend(run.rollups);
        merged.details.extend(run.details);
        merged.checkpoints.extend(run.checkpoints);
        let decided = merged.audit.iter().map(|event| event.decision.saturating_add(1)).max().unwrap_or(0);
        merged.audit.extend(run.audit.into_iter().map(|mut event| {
            event.decision = event.decision.saturating_add(decided);
            event
        }));
        merged.workers.extend(run.workers);
        merged.caches.extend(run.caches);
        merged.step_walls.extend(run.step_walls);
        merged.files.extend(run.files);
    }
    one_period(&mut merged);
    merged.details.sort_by_key(|step| std::cmp::Reverse(step.end_ns.saturating_sub(step.start_ns)));
    merged.checkpoints.sort_by_key(|event| (event.start_ns, event.rank));
    merged.audit.sort_by_key(|event| event.time_ns);
    merged.audit.iter_mut().zip(0..).for_each(|(event, line)| event.line = line);
    merged.step_walls.sort_by_key(|walls| (walls.rank, walls.low_ns));
    Ok(merged)
}

/// Ranks that a job has and no recording here, in a sentence.
pub(crate) fn missing_ranks(ranks: &[RankSummary]) -> Option<String> {
    let size = ranks.iter().map(|rank| rank.facts.world_size).max()?;
    let here = ranks.iter().filter(|rank| rank.facts.rank < size).count();
    let missing = (size as usize).saturating_sub(here);
    (missing > 0 && here > 0).then(|| {
        format!(
            "{} of {} are not here: they were recorded elsewhere, or not at all",
            missing,
            units::counted(size.into(), "rank")
        )
    })
}

fn path(run: &Run) -> PathBuf {
    run.sources.first().map(|source| source.path.clone()).unwrap_or_default()
}

/// Refuses recordings of different jobs: those that did not run at the same time, and those that share neither
/// name nor command line.
fn one_job(runs: &[Run]) -> Result<(), Error> {
    let Some((first, others)) = runs.split_first() else { return Ok(()) };
    for other in others {
        let differ =
            |reason: String| Err(Error::DifferentJobs { one: path(first), other: path(other), reason });
        let (one, two) = (&first.summary.job, &other.summary.job);
        let same_command = !one.command.is_empty() && one.command == two.command;
        if one.name != two.name && !same_command {
            let clean = |text: &str| stallscope_look::clean(text, true);
            return differ(format!("{} and {}", clean(&one.name), clean(&two.name)));
        }
        let sizes = [first, other].map(|run| world_size(&run.summary));
        if sizes[0] != sizes[1] && sizes.iter().all(|size| *size > 1) {
            return differ(format!("of {} and of {} ranks", sizes[0], sizes[1]));
        }
        let [(begun, ended), (other_begun, other_ended)] = [first, other].map(interval);
        if begun > other_ended || other_begun > ended {
            return differ("by their clocks they did not run at the same time".to_owned());
        }
    }
    Ok(())
}

fn world_size(summary: &RunSummary) -> u32 {
    summary.ranks.iter().map(|rank| rank.facts.world_size).max().unwrap_or(0)
}

/// From a run's start to its end, on the wall clock.
fn interval(run: &Run) -> (u64, u64) {
    let started_ns = run.summary.job.started_wall_ns;
    (started_ns, started_ns.saturating_add(took_ns(&run.summary)))
}

fn different_ranks(runs: &[Run]) -> Result<(), Error> {
    let mut seen: BTreeMap<u32, &Run> = BTreeMap::new();
    for run in runs {
        for rank in &run.summary.ranks {
            if let Some(other) = seen.insert(rank.facts.rank, run)
                && !std::ptr::eq(other, run)
            {
                return Err(Error::SameRank { rank: rank.facts.rank, one: path(other), other: path(run) });
            }
        }
    }
    Ok(())
}

/// Lets the periods of all recordings begin at the same moments: each counted from when its machine booted.
fn one_period(run: &mut Run) {
    let nearest = |ns: u64, length_ns: u64| {
        let later = ns.saturating_add(length_ns / 2);
        later - later % length_ns
    };
    for rollup in &mut run.rollups {
        rollup.start_ns = nearest(rollup.start_ns, rollup.period.ns());
    }
    for period in &mut run.workers {
        period.start_ns = nearest(period.start_ns, WorkerPeriod::LENGTH_NS);
    }
    for period in &mut run.caches {
        period.start_ns = nearest(period.start_ns, WorkerPeriod::LENGTH_NS);
    }
    run.caches.sort_by_key(|period| (period.start_ns, period.rank, period.loader, period.phase));
    run.rollups.sort_by_key(|rollup| (rollup.start_ns, rollup.rank, rollup.loader, rollup.phase));
    run.workers.sort_by_key(|period| (period.start_ns, period.rank, period.loader, period.worker));
}

/// How a recording is called in a sentence: by its host, else by its file.
fn called(source: &Source) -> String {
    match source.host.as_str() {
        "" => name(&source.path),
        host => stallscope_look::clean(host, true),
    }
}
