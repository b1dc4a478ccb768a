//! What merged recordings say beside their steps.

use super::called;
use crate::run::Run;
use stallscope_model::{
    Act, Advice, EvidenceState, FileWait, HostFacts, JobFacts, Loss, MainThreads, MountWait, Overhead, Probe,
    RankSummary, RunSummary,
};
use std::collections::{BTreeMap, HashMap};

/// Everything but the job's own ledger and what follows from it.
pub(super) fn merged(runs: &[Run]) -> RunSummary {
    let mut ranks: Vec<RankSummary> = runs.iter().flat_map(|run| run.summary.ranks.clone()).collect();
    ranks.sort_by_key(|rank| rank.facts.rank);
    RunSummary {
        job: job(runs),
        host: host(&hosts(runs)),
        ranks,
        kernel: evidence(runs, |summary| &summary.kernel),
        shim: evidence(runs, |summary| &summary.shim),
        disagreement_share: runs
            .iter()
            .filter_map(|run| run.summary.disagreement_share)
            .max_by(f64::total_cmp),
        losses: losses(runs),
        main_threads: main_threads(runs),
        overhead: overhead(runs),
        probes: probes(runs),
        files: files(runs),
        mounts: mounts(runs),
        knobs: of_ranks(runs, |summary| &summary.knobs, |knob| knob.rank),
        rates: of_ranks(runs, |summary| &summary.rates, |rates| rates.rank),
        advice: advice(runs),
        expected: of_ranks(runs, |summary| &summary.expected, |expected| expected.rank),
        tune: runs.iter().find_map(|run| run.summary.tune),
        acts: acts(runs),
        caches: of_ranks(runs, |summary| &summary.caches, |cache| cache.rank),
        // Of an attached job there is one recording.
        held: runs.iter().find_map(|run| run.summary.held.clone()),
        epochs: of_ranks(runs, |summary| &summary.epochs, |epochs| epochs.rank),
        // Unknown where it is of one of them.
        spare_cpus: runs.iter().map(|run| run.summary.spare_cpus).sum(),
        ..RunSummary::default()
    }
}

/// What each collector says of its own ranks, by rank.
fn of_ranks<T: Clone>(runs: &[Run], of: fn(&RunSummary) -> &Vec<T>, rank: fn(&T) -> u32) -> Vec<T> {
    let mut all: Vec<T> = runs.iter().flat_map(|run| of(&run.summary)).cloned().collect();
    all.sort_by_key(rank);
    all
}

fn main_threads(runs: &[Run]) -> MainThreads {
    let mut sum = MainThreads::default();
    runs.iter().for_each(|run| sum += &run.summary.main_threads);
    sum
}

/// Best first, as each collector has it.
fn advice(runs: &[Run]) -> Vec<Advice> {
    let mut all: Vec<Advice> = runs.iter().flat_map(|run| run.summary.advice.clone()).collect();
    all.sort_by(|a, b| b.gain.value.total_cmp(&a.gain.value));
    all
}

fn acts(runs: &[Run]) -> BTreeMap<Act, u64> {
    let mut sums: BTreeMap<Act, u64> = BTreeMap::new();
    for (act, count) in runs.iter().flat_map(|run| &run.summary.acts) {
        let sum = sums.entry(*act).or_default();
        *sum = sum.saturating_add(*count);
    }
    sums
}

/// The machines, each once.
pub(super) fn hosts(runs: &[Run]) -> Vec<HostFacts> {
    let mut hosts: Vec<HostFacts> = Vec::new();
    for run in runs {
        if !hosts.iter().any(|host| host.host == run.summary.host.host) {
            hosts.push(run.summary.host.clone());
        }
    }
    hosts
}

/// All machines as one: names in a row, sums of what can be added up.
fn host(hosts: &[HostFacts]) -> HostFacts {
    let listed = |of: fn(&HostFacts) -> &String| {
        let mut texts: Vec<&str> = Vec::new();
        for text in hosts.iter().map(of).filter(|text| !text.is_empty()) {
            if !texts.contains(&text.as_str()) {
                texts.push(text);
            }
        }
        texts.join(", ")
    };
    HostFacts {
        host: listed(|host| &host.host),
        kernel: listed(|host| &host.kernel),
        cpus: hosts.iter().fold(0, |sum, host| sum.saturating_add(host.cpus)),
        cpu_model: listed(|host| &host.cpu_model),
        memory_bytes: hosts.iter().fold(0, |sum, host| sum.saturating_add(host.memory_bytes)),
        gpus: hosts.iter().flat_map(|host| host.gpus.clone()).collect(),
    }
}

/// The job as the recording of its lowest rank knows it, from the first start to the last end.
fn job(runs: &[Run]) -> JobFacts {
    let lowest = |run: &&Run| run.summary.ranks.iter().map(|rank| rank.facts.rank).min().unwrap_or(u32::MAX);
    let jobs = || runs.iter().map(|run| &run.summary.job);
    let codes: Option<Vec<i32>> = jobs().map(|job| job.exit_code).collect();
    JobFacts {
        started_wall_ns: jobs().map(|job| job.started_wall_ns).min().unwrap_or(0),
        ended_wall_ns: jobs()
            .map(|job| job.ended_wall_ns)
            .collect::<Option<Vec<u64>>>()
            .and_then(|ends| ends.into_iter().max()),
        exit_code: codes.map(|codes| codes.into_iter().find(|code| *code != 0).unwrap_or(0)),
        attached: jobs().any(|job| job.attached),
        cpus: cpus(runs),
        ..runs.iter().min_by_key(lowest).map(|run| run.summary.job.clone()).unwrap_or_default()
    }
}

/// For each machine, the facts of the recording that has most of them.
fn cpus(runs: &[Run]) -> Option<f64> {
    let mut of_hosts: BTreeMap<&str, f64> = BTreeMap::new();
    for run in runs {
        let most = of_hosts.entry(&run.summary.host.host).or_default();
        *most = run.summary.job.cpus?.max(*most);
    }
    Some(of_hosts.values().sum())
}

/// On where it is on everywhere; else whose is not, and why.
fn evidence(runs: &[Run], of: fn(&RunSummary) -> &EvidenceState) -> EvidenceState {
    let states: Vec<&EvidenceState> = runs.iter().map(|run| of(&run.summary)).collect();
    match states.split_first() {
        None => EvidenceState::Off,
        Some((first, others)) if others.iter().all(|state| state == first) => (*first).clone(),
        Some(_) => {
            let lacking: Vec<String> = runs
                .iter()
                .filter_map(|run| {
                    let why = match of(&run.summary) {
                        EvidenceState::On => return None,
                        EvidenceState::Off => "not used",
                        EvidenceState::Partial(why) | EvidenceState::Missing(why) => why,
                    };
                    Some(format!("{}: {why}", run.sources.first().map(called).unwrap_or_default()))
                })
                .collect();
            EvidenceState::Partial(lacking.join("; "))
        }
    }
}

fn losses(runs: &[Run]) -> Vec<Loss> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for loss in runs.iter().flat_map(|run| &run.summary.losses) {
        let sum = sums.entry(&loss.reason).or_default();
        *sum = sum.saturating_add(loss.count);
    }
    sums.into_iter().map(|(reason, count)| Loss { reason: reason.to_owned(), count }).collect()
}

/// Sums, over the longest of the runs.
fn overhead(runs: &[Run]) -> Overhead {
    let mut sum = Overhead::default();
    for overhead in runs.iter().map(|run| &run.summary.overhead) {
        sum.collector_cpu_ns = sum.collector_cpu_ns.saturating_add(overhead.collector_cpu_ns);
        sum.start_cpu_ns = sum.start_cpu_ns.saturating_add(overhead.start_cpu_ns);
        sum.collector_rss_bytes = sum.collector_rss_bytes.saturating_add(overhead.collector_rss_bytes);
        sum.records = sum.records.saturating_add(overhead.records);
        sum.wall_ns = sum.wall_ns.max(overhead.wall_ns);
        if let Some(ns) = overhead.kernel_cpu_ns {
            sum.kernel_cpu_ns = Some(sum.kernel_cpu_ns.unwrap_or(0).saturating_add(ns));
        }
    }
    sum
}

/// On where it is on everywhere; else whose is not, and why.
fn probes(runs: &[Run]) -> Vec<Probe> {
    let mut merged: Vec<Probe> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for run in runs {
        let whose = run.sources.first().map(called).unwrap_or_default();
        for probe in &run.summary.probes {
            let reason = if probe.on { String::new() } else { format!("{whose}: {}", probe.reason) };
            match places.get(probe.name.as_str()).and_then(|place| merged.get_mut(*place)) {
                None => {
                    places.insert(&probe.name, merged.len());
                    merged.push(Probe { reason, ..probe.clone() });
                }
                Some(known) => {
                    known.on &= probe.on;
                    let both = !known.reason.is_empty() && !reason.is_empty();
                    known.reason.push_str(if both { "; " } else { "" });
                    known.reason.push_str(&reason);
                }
            }
        }
    }
    merged
}

/// The same path on two hosts is one line: data sets are shared, or copied to like places.
fn files(runs: &[Run]) -> Vec<FileWait> {
    let mut sums: BTreeMap<(&str, &str), FileWait> = BTreeMap::new();
    for file in runs.iter().flat_map(|run| &run.summary.files) {
        let sum = sums.entry((&file.mount, &file.path)).or_insert_with(|| FileWait {
            path: file.path.clone(),
            mount: file.mount.clone(),
            ..FileWait::default()
        });
        sum.wait_ns = sum.wait_ns.saturating_add(file.wait_ns);
        sum.waits = sum.waits.saturating_add(file.waits);
    }
    let mut files: Vec<FileWait> = sums.into_values().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.wait_ns));
    files
}

fn mounts(runs: &[Run]) -> Vec<MountWait> {
    let mut sums: BTreeMap<(&str, &str), MountWait> = BTreeMap::new();
    for mount in runs.iter().flat_map(|run| &run.summary.mounts) {
        let sum = sums.entry((&mount.mount, &mount.fs_type)).or_insert_with(|| MountWait {
            mount: mount.mount.clone(),
            fs_type: mount.fs_type.clone(),
            ..MountWait::default()
        });
        sum.wait_ns = sum.wait_ns.saturating_add(mount.wait_ns);
        sum.waits = sum.waits.saturating_add(mount.waits);
    }
    let mut mounts: Vec<MountWait> = sums.into_values().collect();
    mounts.sort_by_key(|mount| std::cmp::Reverse(mount.wait_ns));
    mounts
}
