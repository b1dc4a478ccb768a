//! What is known of the run by now, in the form that screens and reports show.

use crate::attribute::ByKind;
use crate::ledger::Ledger;
use crate::own_cpu::Wanted;
use crate::process::{Process, ProcessKind};
use crate::rank::{Compared, Rank, owner};
use crate::tally::Tally;
use crate::{at_once, diagnose, main_threads, verdict};
use stallscope_model::{
    CacheSummary, Cause, Causes, Diagnosis, Expected, LoaderEpochs, Loss, MainThreads, Phase, PhaseSummary,
    RankFacts, RankSummary, Rates, Verdict, WorkerLoad,
};
use std::collections::BTreeMap;

const MAX_WORKERS_SHOWN: usize = 256;

/// The ledger's part of a [`RunSummary`](stallscope_model::RunSummary).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// By rank. Where no training was seen: the root of the job, with the loads of its processes.
    pub ranks: Vec<RankSummary>,
    pub phases: Vec<PhaseSummary>,
    pub disagreement_share: Option<f64>,
    pub losses: Vec<Loss>,
    pub diagnoses: Vec<Diagnosis>,
    pub verdict: Verdict,
    pub caches: Vec<CacheSummary>,
    pub epochs: Vec<LoaderEpochs>,
    pub main_threads: MainThreads,
    /// See `RunSummary::spare_cpus`.
    pub spare_cpus: Option<f64>,
}

/// The figures that diagnoses and the verdict are made from.
#[derive(Debug)]
pub(crate) struct Figures<'a> {
    /// The job's own training; its evaluation where it never trained.
    pub(crate) total: Tally,
    pub(crate) phase: Phase,
    /// No loader handed over the batches: the loop reads by itself.
    pub(crate) reads_itself: bool,
    pub(crate) main_threads: MainThreads,
    /// Processes of the job that were seen.
    pub(crate) processes: usize,
    pub(crate) ranks: &'a [RankSummary],
    /// Training causes of each of `ranks`.
    pub(crate) training: Vec<Causes>,
    /// Share of the job's training time in which each of `ranks` was the slowest.
    pub(crate) slowest_share: Vec<f64>,
    pub(crate) unexplained: ByKind,
    /// What training was blocked in for data that it reads by itself; with several collectors, main threads at any time.
    pub(crate) own_reading: MainThreads,
    /// Of training time of a loop that reads by itself: asleep until threads of its own were done.
    pub(crate) asleep_for_threads_share: f64,
    pub(crate) transfer_behind_fault_share: f64,
    pub(crate) disagreement_share: Option<f64>,
    pub(crate) kernel_seen: bool,
    pub(crate) shim_seen: bool,
    pub(crate) attached: bool,
    pub(crate) cpus: u32,
    /// That the job itself keeps busy while it trains, or while its main threads are watched where no step shows; `None`
    /// where nobody saw.
    pub(crate) own_cores: Option<f64>,
    /// CPUs that a trainer's own work keeps busy at once; `None` where it was not counted.
    pub(crate) trainer_threads: Option<f64>,
    pub(crate) storage_sets_the_pace: bool,
    /// Of all CPUs' time, what the machine's host gave to others.
    pub(crate) stolen_share: f64,
    /// Its threads that want a CPU.
    pub(crate) wanted: Wanted,
    /// See `RunSummary::spare_cpus`.
    pub(crate) spare_cpus: Option<f64>,
    pub(crate) memory_bytes: u64,
    pub(crate) caches: &'a [CacheSummary],
    pub(crate) epochs: &'a [LoaderEpochs],
    pub(crate) expected: &'a [Expected],
}

impl Figures<'_> {
    /// Share of the time of interest that goes to a cause: a wait that a busy device hid is no stall.
    pub(crate) fn share(&self, cause: Cause) -> f64 {
        let share = self.total.causes.share(cause);
        if cause.is_data_stall() { share * self.exposed() } else { share }
    }

    /// Part of the waits for data during which the device ran dry; 1 where no device was watched.
    pub(crate) fn exposed(&self) -> f64 {
        let stall_ns = self.total.causes.data_stall_ns();
        match self.total.hidden_ns {
            Some(hidden_ns) if stall_ns > 0 => 1.0 - hidden_ns.min(stall_ns) as f64 / stall_ns as f64,
            _ => 1.0,
        }
    }

    pub(crate) fn data_stall_share(&self) -> f64 {
        Cause::ALL.iter().filter(|cause| cause.is_data_stall()).map(|cause| self.share(*cause)).sum()
    }

    /// Of training time, what neither kernel nor shim saw.
    pub(crate) fn unseen_share(&self) -> f64 {
        let unseen_ns = self.unexplained.unseen_ns().min(self.total.causes[Cause::Unknown]);
        unseen_ns as f64 / self.total.wall_ns.max(1) as f64
    }

    /// "training time", or what stands for it.
    pub(crate) fn time(&self) -> &'static str {
        if self.phase == Phase::Training { "training time" } else { "evaluation time" }
    }
}

impl Ledger {
    /// Everything known up to the last [`Ledger::advance`].
    pub fn summary(&self) -> Summary {
        self.summary_with(&[], &[])
    }

    /// The same, with advice that goes by what the model of the job expects of single changes, and by what was counted of ranks.
    pub fn summary_with(&self, expected: &[Expected], rates: &[Rates]) -> Summary {
        summarise(self, expected, rates)
    }
}

/// Of the rate at which workers read, what a job reaches that waits for nothing else; and what the trainer's own has to be beyond it.
const SAME_PACE: f64 = 0.93;
const FASTER: f64 = 1.2;

fn summarise(ledger: &Ledger, expected: &[Expected], rates: &[Rates]) -> Summary {
    let ranks: Vec<&Rank> = {
        let mut ranks: Vec<&Rank> = ledger.ranks.values().collect();
        ranks.sort_by_key(|rank| (rank.number, rank.pid));
        ranks
    };
    let mut summaries: Vec<RankSummary> = {
        let mut workers = workers(ledger);
        ranks
            .iter()
            .map(|rank| of_rank(ledger, rank, workers.remove(&rank.pid).unwrap_or_default()))
            .collect()
    };
    let tallies = match ranks.as_slice() {
        [alone] => &alone.tallies,
        _ => &ledger.job.tallies,
    };
    if summaries.is_empty() {
        summaries.extend(of_root(ledger));
    }
    let disagreement_share = disagreement(ranks.iter().map(|rank| &rank.compared));
    let mut unexplained = ByKind::default();
    ranks.iter().for_each(|rank| unexplained.add(&rank.unexplained));
    let mut own_reading = ByKind::default();
    ranks.iter().for_each(|rank| own_reading.add(&rank.own_reading));
    let for_threads_ns: u64 = ranks.iter().map(|rank| rank.asleep_for_threads_ns).sum();
    let training_ns: u64 = ranks.iter().map(|rank| rank.tallies.phase(Phase::Training).wall_ns).sum();
    let behind_ns: u64 = ranks.iter().map(|rank| rank.transfer_behind_fault_ns).sum();
    let training: Vec<Causes> = ranks.iter().map(|rank| rank.tallies.phase(Phase::Training).causes).collect();
    let transfer_ns: u64 = training.iter().map(|causes| causes[Cause::Transfer]).sum();
    let slowest_ns: u64 = ledger.job.slowest_ns.values().sum();
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let total = tallies.phase(Phase::Training);
    let (phase, total) = match total.steps {
        0 => (Phase::Evaluation, tallies.phase(Phase::Evaluation)),
        _ => (Phase::Training, total),
    };
    let caches = ledger.caches.summaries(&ledger.ranks);
    let epochs = ledger.epochs.summaries(&ledger.ranks, &ledger.processes);
    let main_threads = main_threads::of(ledger);
    let (own_cores, threads) = match total.steps {
        0 => main_threads::own_cpu(ledger),
        _ => (ledger.own_cpu.cores(), ledger.own_cpu.trainer_threads()),
    };
    let figures = Figures {
        total,
        phase,
        reads_itself: tallies.is_without_loader(phase),
        main_threads,
        processes: ledger
            .processes
            .values()
            .filter(|process| process.greeted || process.load().wall_ns > 0)
            .count(),
        ranks: &summaries,
        training,
        slowest_share: ranks
            .iter()
            .map(|rank| share(ledger.job.slowest_ns.get(&rank.pid).copied().unwrap_or(0), slowest_ns))
            .collect(),
        unexplained,
        own_reading: main_threads::blocked_in(|kind| own_reading.0[kind as usize]),
        asleep_for_threads_share: share(for_threads_ns, training_ns),
        transfer_behind_fault_share: share(behind_ns, transfer_ns),
        disagreement_share,
        kernel_seen: ledger.kernel_seen,
        shim_seen: ledger.processes.values().any(|process| process.greeted)
            || ranks.iter().any(|rank| rank.shim_handovers > 0),
        attached: ledger.config.attached,
        cpus: ledger.config.cpus,
        own_cores,
        // Where the collector counts, it has all threads; the ledger those that the kernel or the shim reports.
        trainer_threads: most_threads(rates).or(threads),
        storage_sets_the_pace: rates.iter().any(storage_sets_the_pace),
        stolen_share: ledger.host_cpus.stolen_share,
        wanted: ledger.host_cpus.wanted,
        spare_cpus: ledger.host_cpus.spare(own_cores, ledger.config.cpus),
        memory_bytes: ledger.config.memory_bytes,
        caches: &caches,
        epochs: &epochs,
        expected,
    };
    let (diagnoses, verdict) = (diagnose::all(&figures), verdict::of(&figures));
    let spare_cpus = figures.spare_cpus;
    Summary {
        phases: tallies.summaries(),
        ranks: summaries,
        disagreement_share,
        losses: losses(ledger),
        diagnoses,
        verdict,
        caches,
        epochs,
        main_threads,
        spare_cpus,
    }
}

/// Whether the job goes as fast as its workers read, and the trainer could go faster with the CPU that it gets: while it waits for a CPU
/// they read on, so that more of it brings nothing.
pub(crate) fn storage_sets_the_pace(rates: &Rates) -> bool {
    let reading = [&rates.fetch, &rates.storage].into_iter().flatten().map(|rate| rate.value);
    let reading = reading.fold(f64::INFINITY, f64::min);
    let value = |rate: &Option<stallscope_model::Estimate>| rate.as_ref().map_or(0.0, |rate| rate.value);
    value(&rates.actual) >= SAME_PACE * reading && value(&rates.compute) >= FASTER * reading
}

/// What was counted of the rank that has most.
pub(crate) fn most_threads(rates: &[Rates]) -> Option<f64> {
    rates.iter().filter_map(|rates| rates.trainer_threads).max_by(f64::total_cmp)
}

fn of_rank(ledger: &Ledger, rank: &Rank, workers: Vec<&Process>) -> RankSummary {
    let facts = ledger.processes.get(&rank.pid).map(|process| process.facts.clone()).unwrap_or_default();
    RankSummary {
        facts: RankFacts {
            rank: rank.number,
            world_size: facts.world_size.max(1),
            pid: rank.pid,
            host: facts.host,
            torch_version: facts.torch_version,
            python_version: facts.python_version,
            unavailable: facts.unavailable,
            loaders: rank.loaders.values().cloned().collect(),
            workers_at_once: rank.workers_at_once.max(at_once::most(&workers)),
        },
        phases: rank.tallies.summaries(),
        workers: loads(rank, workers),
        checkpoints: rank.calls.checkpoints.clone(),
    }
}

/// The workers of every rank, by the rank's pid.
pub(crate) fn workers(ledger: &Ledger) -> BTreeMap<u32, Vec<&Process>> {
    let mut workers: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    let is_worker = |process: &Process| process.facts.kind == ProcessKind::Worker;
    for (pid, process) in ledger.processes.iter().filter(|(_, process)| is_worker(process)) {
        if let Some(rank) = owner(*pid, &ledger.processes, |pid| ledger.ranks.contains_key(&pid)) {
            workers.entry(rank).or_default().push(process);
        }
    }
    workers
}

fn loads(rank: &Rank, workers: Vec<&Process>) -> Vec<WorkerLoad> {
    let mut by_place: BTreeMap<(u16, u32), WorkerLoad> = rank.retired.clone();
    for process in workers {
        *by_place.entry(process.place()).or_default() += &process.load();
    }
    by_place.into_values().take(MAX_WORKERS_SHOWN).collect()
}

/// Without any training there is still the account of the job's processes, the root's first.
fn of_root(ledger: &Ledger) -> Option<RankSummary> {
    let (root, _) = ledger.root?;
    let process = ledger.processes.get(&root)?;
    let mut workers: Vec<WorkerLoad> = ledger.processes.values().map(|process| process.load()).collect();
    workers.retain(|load| load.wall_ns > 0);
    if workers.is_empty() && !process.greeted {
        return None;
    }
    workers.sort_by_key(|load| (load.pid != root, std::cmp::Reverse(load.wall_ns)));
    workers.truncate(MAX_WORKERS_SHOWN);
    let facts = RankFacts {
        world_size: 1,
        pid: root,
        host: process.facts.host.clone(),
        torch_version: process.facts.torch_version.clone(),
        python_version: process.facts.python_version.clone(),
        unavailable: process.facts.unavailable.clone(),
        ..RankFacts::default()
    };
    Some(RankSummary { facts, phases: Vec::new(), workers, checkpoints: Default::default() })
}

/// The most that the shim alone would blame on a cause beyond the ledger, over the training time that both saw, as far as it
/// can see at all: what it calls unknown the kernel may know.
fn disagreement<'a>(compared: impl Iterator<Item = &'a Compared>) -> Option<f64> {
    let (mut fused, mut shim) = (Causes::default(), Causes::default());
    for of_rank in compared {
        fused += &of_rank.fused;
        shim += &of_rank.shim;
    }
    let whole_ns = fused.total_ns();
    let named = Cause::ALL.iter().filter(|cause| **cause != Cause::Unknown);
    let most = named.map(|cause| shim[*cause].saturating_sub(fused[*cause])).max()?;
    (whole_ns > 0).then(|| most as f64 / whole_ns as f64)
}

fn losses(ledger: &Ledger) -> Vec<Loss> {
    let ranks = || ledger.ranks.values();
    let processes = ledger.processes.values().map(|process| process.history_dropped());
    let lost = &ledger.lost;
    let counts = [
        ("record that makes no sense", lost.malformed),
        ("record of an unknown kind", lost.unknown_kind),
        ("slice that overlaps another", lost.overlapping),
        ("wait reported twice or too late", lost.late_waits),
        (
            "history dropped before its step was closed",
            lost.history + processes.sum::<u64>() + ranks().map(|rank| rank.calls.dropped).sum::<u64>(),
        ),
        ("wait whose batch nobody saw being made", ranks().map(|rank| rank.batches_unseen).sum()),
        ("step of a rank too late for the job's ledger", ledger.job.unaligned),
        ("step that nobody took", lost.steps_not_taken),
        ("process too many", lost.processes),
        ("loader too many", lost.loaders),
        ("report of a trainer too many", lost.trainers),
        ("checkpoint that nobody took", ranks().map(|rank| rank.calls.events_dropped).sum()),
        ("cache figures of a batch that belongs to no rank", ledger.caches.unplaced),
        ("cache figures over time that nobody took", ledger.caches.periods_dropped),
    ];
    counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| Loss { reason: reason.to_owned(), count })
        .collect()
}
