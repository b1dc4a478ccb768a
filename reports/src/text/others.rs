//! What is beside the training ledger: other phases, the workers' load, checkpoints.

use super::{Page, causes_in_words, training};
use crate::style::{Line, left, right};
use stallscope_model::{Phase, PhaseSummary, RankSummary, RunSummary, WorkerLoad};
use stallscope_units as units;
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    phases(summary, page);
    workers(summary, page);
    checkpoints(summary, page);
}

fn phases(summary: &RunSummary, page: &mut Page<'_>) {
    let mut others: Vec<&PhaseSummary> =
        summary.phases.iter().filter(|phase| phase.phase != Phase::Training && phase.wall_ns > 0).collect();
    if others.is_empty() {
        return;
    }
    others.sort_by_key(|other| (other.phase, other.loader));
    let names = names(others.iter().map(|other| (other.phase, other.loader)));
    let rows: Vec<[String; 4]> = others
        .iter()
        .zip(names)
        .map(|(other, name)| {
            let steps = match other.phase {
                Phase::Evaluation => units::counted(other.steps, "step"),
                _ => String::new(),
            };
            [name, units::duration(other.wall_ns), steps, causes_in_words(&other.causes)]
        })
        .collect();
    page.heading("Other phases", "");
    let [name, time, steps] =
        [0, 1, 2].map(|column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0));
    for row in &rows {
        let steps = match steps {
            0 => String::new(),
            width => format!("  {}", right(&row[2], width)),
        };
        let figures = format!("  {}  {}{steps}  ", left(&row[0], name), right(&row[1], time));
        let columns = page.style.columns().saturating_sub(figures.width());
        page.line(Line::new(figures).plain(page.style.clip(&row[3], columns)));
    }
}

/// With the loader, where there are several of the phase. Goes through them twice: a foreign recording may have a hundred thousand.
fn names(phases: impl Iterator<Item = (Phase, Option<u16>)> + Clone) -> Vec<String> {
    let mut loaders: BTreeMap<Phase, usize> = BTreeMap::new();
    phases.clone().for_each(|(phase, _)| *loaders.entry(phase).or_default() += 1);
    let name = |(phase, loader): (Phase, Option<u16>)| match loader {
        Some(loader) if loaders[&phase] > 1 => format!("{}, loader {loader}", phase.name()),
        _ => phase.name().to_owned(),
    };
    phases.map(name).collect()
}

/// Workers listed one by one at most; more are added up by rank.
const WORKERS: usize = 6;

fn workers(summary: &RunSummary, page: &mut Page<'_>) {
    let ranks: Vec<&RankSummary> = summary.ranks.iter().filter(|rank| !rank.workers.is_empty()).collect();
    if ranks.is_empty() {
        return;
    }
    let all: usize = ranks.iter().map(|rank| rank.workers.len()).sum();
    let mut rows: Vec<(String, WorkerLoad)> = Vec::new();
    for rank in &ranks {
        let of_rank = if ranks.len() > 1 { format!("rank {}, ", rank.facts.rank) } else { String::new() };
        if all <= WORKERS {
            rows.extend(rank.workers.iter().map(|load| (format!("{of_rank}pid {}", load.pid), load.clone())));
        } else {
            rows.extend(added_up(rank).into_iter().map(|(label, load)| (format!("{of_rank}{label}"), load)));
        }
    }
    let left_out = rows.len().saturating_sub(2 * WORKERS);
    if left_out > 0 {
        let idle = |load: &WorkerLoad| units::share(load.idle_ns, load.wall_ns);
        let mut idlest: Vec<f64> = rows.iter().map(|(_, load)| idle(load)).collect();
        idlest.sort_by(f64::total_cmp);
        let limit = idlest[2 * WORKERS - 1];
        rows.retain(|(_, load)| idle(load) <= limit);
        rows.truncate(2 * WORKERS);
    }

    let (heading, load) = (summary.workers_heading(), "whether or not training waited for it");
    // Threads that a job reads with are not in it.
    let whose = if heading == "Processes" { "their main threads' load" } else { "their load" };
    page.heading(heading, &format!("{whose}, {load}"));
    let label = rows.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
    let columns = page.style.columns().saturating_sub(label);
    let wide = columns >= 58;
    let heading = match columns {
        58.. => "  reading   on CPU  no CPU    idle   batches    read",
        35.. => "  reading  on CPU  no CPU    idle",
        _ => "  reading  on CPU    idle",
    };
    page.line(Line::default().dim(format!("  {}{heading}", left("", label))));
    for (name, load) in &rows {
        let part = |ns: u64, columns: usize| right(&units::percent(units::share(ns, load.wall_ns)), columns);
        let figures = match wide {
            true => format!(
                "{}{}{}{}{}{}",
                part(load.fetch_ns, 9),
                part(load.cpu_ns, 9),
                part(load.runnable_ns, 8),
                part(load.idle_ns, 8),
                right(&load.batches.map_or("unknown".to_owned(), units::count), 10),
                right(&units::bytes(load.read_bytes), 8)
            ),
            false => {
                let no_cpu = if columns >= 35 { part(load.runnable_ns, 8) } else { String::new() };
                format!("{}{}{no_cpu}{}", part(load.fetch_ns, 9), part(load.cpu_ns, 8), part(load.idle_ns, 8))
            }
        };
        page.line(Line::new(format!("  {}{figures}", left(name, label))));
    }
    if left_out > 0 {
        page.line(Line::default().dim(format!("  and {left_out} more, which were no busier")));
    }
}

/// By loader: those of an evaluation do other work than those of training, at other times.
fn added_up(rank: &RankSummary) -> Vec<(String, WorkerLoad)> {
    let mut loaders: BTreeMap<Option<u16>, (u64, WorkerLoad)> = BTreeMap::new();
    for load in &rank.workers {
        let (listed, total) = loaders.entry(load.loader).or_default();
        *listed += 1;
        *total += load;
    }
    if loaders.len() <= 1 {
        let count = units::counted(rank.workers_at_once(), "worker");
        return loaders.into_values().map(|(_, total)| (count.clone(), total)).collect();
    }
    let mut workers = BTreeMap::new();
    for facts in &rank.facts.loaders {
        workers.entry(facts.loader).or_insert(u64::from(facts.workers));
    }
    let named = |(loader, (listed, total)): (Option<u16>, (u64, WorkerLoad))| {
        let at_once = loader.and_then(|loader| workers.get(&loader).copied()).filter(|workers| *workers > 0);
        let count = units::counted(listed.min(at_once.unwrap_or(listed)), "worker");
        let label =
            loader.map_or(format!("{count} without a batch"), |loader| format!("loader {loader}, {count}"));
        (label, total)
    };
    loaders.into_iter().map(named).collect()
}

fn checkpoints(summary: &RunSummary, page: &mut Page<'_>) {
    if let Some(text) = saved_in_words(summary) {
        page.heading("Checkpoints", &text);
    }
}

/// How long the trainer stood still for its checkpoints, and in which phases: the ledger's own figures.
fn stood_still(rank: &RankSummary) -> String {
    let saved = &rank.checkpoints;
    let of_training = |ns: u64| match training(&rank.phases) {
        Some(total) => format!(" ({})", units::percent_exact(units::share(ns, total.wall_ns))),
        None => String::new(),
    };
    let each = units::duration(saved.blocked_each_ns());
    let all = units::duration(saved.blocked_ns);
    // Recordings of before do not know the phases.
    if saved.blocked_in_ns.keys().all(|phase| *phase == Phase::Training) {
        return format!("; training stood still for {all}{}, {each} each", of_training(saved.blocked_ns));
    }
    let part = |(phase, ns): (&Phase, &u64)| match phase {
        Phase::Training => format!("{} in training{}", units::duration(*ns), of_training(*ns)),
        Phase::Startup | Phase::Evaluation => format!("{} in {}", units::duration(*ns), phase.name()),
        Phase::Between | Phase::After => format!("{} {}", units::duration(*ns), phase.name()),
    };
    let parts: Vec<String> = saved.blocked_in_ns.iter().map(part).collect();
    format!("; the job stood still for {all}, {each} each: {}", parts.join(", "))
}

/// How many checkpoints there were, and what training paid for them; `None` where there was none.
pub(crate) fn saved_in_words(summary: &RunSummary) -> Option<String> {
    let saved = summary.ranks.iter().filter(|rank| rank.checkpoints.count > 0);
    // Ranks save together: the one that was blocked longest is what the job paid, and one that fails fails for all.
    let failed = summary.ranks.iter().map(|rank| rank.checkpoints.failed).max().filter(|failed| *failed > 0);
    let failed =
        failed.map(|failed| format!("{} failed, see what the job printed", units::counted(failed, "save")));
    let Some(rank) = saved.max_by_key(|rank| rank.checkpoints.blocked_ns) else {
        return failed;
    };
    let saved = &rank.checkpoints;
    let mut text = units::count(saved.count);
    if let Some(failed) = failed {
        text = format!("{failed}; {text}");
    }
    if saved.bytes > 0 {
        text.push_str(&format!(" of {}", units::bytes(saved.bytes / saved.count.max(1))));
    }
    if saved.files > saved.count {
        text.push_str(&format!(" in {} files", units::count(saved.files)));
    }
    text.push_str(&stood_still(rank));
    if saved.background_ns > 0 {
        text.push_str(&format!("; {} in the background", units::duration(saved.background_ns)));
    }
    if let Some(account) = &saved.account {
        let cost = units::percent_exact(units::share(account.spent_ns, account.trained_ns));
        text.push_str(&format!("; with what they slow down they cost {cost} of the job's time"));
        if let Some(budget_ppm) = account.budget_ppm {
            let budget = units::percent_exact(units::share(budget_ppm, 1_000_000));
            text.push_str(&format!(", of a budget of {budget}"));
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{Checkpoints, LoaderFacts, Phase, RankFacts};
    use std::cell::Cell;

    /// Seen: "7 workers" of a job with 6 for training and 6 for an evaluation, some of which lived at once.
    #[test]
    fn many_workers_of_two_loaders_are_added_up_by_loader() {
        let load = |loader| WorkerLoad {
            loader: Some(loader),
            batches: Some(2),
            wall_ns: 10,
            ..WorkerLoad::default()
        };
        let workers = [0; 6].into_iter().chain([1; 6]).map(load).collect();
        let loaders = (0..2).map(|loader| LoaderFacts { loader, workers: 6, ..LoaderFacts::default() });
        let facts = RankFacts { workers_at_once: 7, loaders: loaders.collect(), ..RankFacts::default() };
        let rank = RankSummary { facts, workers, phases: Vec::new(), checkpoints: Checkpoints::default() };
        let rows: Vec<(String, Option<u64>)> =
            added_up(&rank).into_iter().map(|(label, load)| (label, load.batches)).collect();
        let six = |loader: u8| (format!("loader {loader}, 6 workers"), Some(12));
        assert_eq!(rows, [six(0), six(1)]);
        let one = RankSummary { workers: rank.workers[..6].to_vec(), ..rank };
        assert_eq!(added_up(&one)[0].0, "6 workers");
    }

    /// As a foreign recording may have them: 30,000 had taken a minute.
    #[test]
    fn phases_in_the_ten_thousands_are_gone_through_twice() {
        let looks = Cell::new(0);
        let all = (0..60_000_u16).map(|loader| (Phase::Evaluation, Some(loader)));
        let found = names(all.inspect(|_| looks.set(looks.get() + 1)));
        assert_eq!(found.last().map(String::as_str), Some("evaluation, loader 59999"));
        assert_eq!(looks.get(), 120_000);
        assert_eq!(names([(Phase::Startup, Some(0))].into_iter()), [Phase::Startup.name()]);
    }
}
