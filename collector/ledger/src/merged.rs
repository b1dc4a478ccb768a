//! The job's ledger over ranks that several collectors saw, made again from their closed steps.

use crate::attribute::ByKind;
use crate::own_cpu::Wanted;
use crate::rank::Closed;
use crate::ranks::Job;
use crate::steps::NO_LOADER;
use crate::summary::{Figures, most_threads, storage_sets_the_pace};
use crate::{diagnose, verdict};
use stallscope_model::{
    CacheSummary, Cause, Causes, Diagnosis, Expected, LoaderEpochs, MainThreads, Phase, PhaseSummary,
    RankSummary, Rates, StepLedger, Verdict,
};
use std::collections::BTreeMap;

/// Steps between two looks at what every rank has delivered.
const SETTLE_EVERY: u64 = 1024;
/// Findings that need what only the collector of a rank knows; its own are to be shown instead.
pub const OF_ONE_COLLECTOR: [&str; 4] =
    ["unexplained-time", "stolen-cpu", "evidence-disagrees", "evidence-missing"];

/// Aligns the steps of ranks as their collectors would have done together. A recorded step says what it was spent
/// on but not in which order: waits for data count as its wait for a batch, everything else as its work.
#[derive(Debug, Default)]
pub struct Merged {
    job: Job,
    /// The next step's index, by rank and phase.
    next: BTreeMap<(u32, Phase), u64>,
    steps: u64,
    latest_ns: u64,
    patience_ns: u64,
}

/// What is known of the job beside its steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct About<'a> {
    pub disagreement_share: Option<f64>,
    pub kernel_seen: bool,
    pub shim_seen: bool,
    /// Of all hosts, for advice; 0 when unknown.
    pub cpus: u32,
    /// Of the host that has least; 0 when unknown.
    pub memory_bytes: u64,
    /// See `RunSummary::spare_cpus`.
    pub spare_cpus: Option<f64>,
    pub caches: &'a [CacheSummary],
    pub epochs: &'a [LoaderEpochs],
    pub expected: &'a [Expected],
    pub rates: &'a [Rates],
    pub main_threads: MainThreads,
}

/// The job's part of a summary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSummary {
    pub phases: Vec<PhaseSummary>,
    /// Without those [`OF_ONE_COLLECTOR`].
    pub diagnoses: Vec<Diagnosis>,
    pub verdict: Verdict,
}

impl Merged {
    /// Waits for steps of all of `ranks`.
    pub fn new(ranks: impl IntoIterator<Item = u32>) -> Merged {
        let mut job = Job::default();
        ranks.into_iter().for_each(|rank| job.member(rank));
        Merged { job, patience_ns: crate::Config::default().rank_patience_ns, ..Merged::default() }
    }

    /// Takes the next step of a rank, or `count` of them whose sums `step` has. Ranks should come about evenly: one
    /// that is thousands of steps behind the others is left out of the job's ledger.
    pub fn add(&mut self, step: &StepLedger, count: u64) {
        self.latest_ns = self.latest_ns.max(step.end_ns);
        let next = self.next.entry((step.rank, step.phase)).or_default();
        // A hole takes no time, so that what comes after it stays aligned; one beyond all reason is damage.
        let hole = step.index.saturating_sub(*next).min(SETTLE_EVERY);
        *next = step.index.saturating_add(count).max(*next);
        if hole > 0 {
            let empty = StepLedger { causes: Causes::default(), part: true, ..step.clone() };
            self.job.add(step.rank, &share(&empty, 1, true), hole);
        }
        self.job.add(step.rank, &share(step, count, true), 1);
        if count > 1 {
            self.job.add(step.rank, &share(step, count, false), count - 1);
        }
        let before = self.steps;
        self.steps += count;
        if self.steps / SETTLE_EVERY > before / SETTLE_EVERY {
            self.job.settle(self.latest_ns, self.patience_ns);
        }
    }

    /// The rank has no more steps.
    pub fn end(&mut self, rank: u32) {
        self.job.end(rank);
    }

    /// What the job was spent on, whose causes the slowest rank's are, and what follows from it.
    pub fn conclude(mut self, ranks: &[RankSummary], about: &About<'_>) -> JobSummary {
        ranks.iter().for_each(|rank| self.job.end(rank.facts.rank));
        self.job.settle(u64::MAX, 0);
        let training: Vec<Causes> = ranks.iter().map(training).collect();
        let slowest_ns = self.job.slowest_ns.values().copied().fold(0, u64::saturating_add);
        let slowest = |rank: &RankSummary| {
            let own_ns = self.job.slowest_ns.get(&rank.facts.rank).copied().unwrap_or(0);
            if slowest_ns == 0 { 0.0 } else { own_ns as f64 / slowest_ns as f64 }
        };
        let tallies = &self.job.tallies;
        let total = tallies.phase(Phase::Training);
        let (phase, total) = match total.steps {
            0 => (Phase::Evaluation, tallies.phase(Phase::Evaluation)),
            _ => (Phase::Training, total),
        };
        let figures = Figures {
            total,
            phase,
            reads_itself: tallies.is_without_loader(phase),
            main_threads: about.main_threads,
            processes: ranks.len(),
            ranks,
            training,
            slowest_share: ranks.iter().map(slowest).collect(),
            unexplained: ByKind::default(),
            own_reading: about.main_threads,
            asleep_for_threads_share: 0.0,
            transfer_behind_fault_share: 0.0,
            disagreement_share: about.disagreement_share,
            kernel_seen: about.kernel_seen,
            shim_seen: about.shim_seen,
            // Only evidence-missing asks, which is of one collector.
            attached: false,
            cpus: about.cpus,
            own_cores: None,
            trainer_threads: most_threads(about.rates),
            storage_sets_the_pace: about.rates.iter().any(storage_sets_the_pace),
            stolen_share: 0.0,
            wanted: Wanted::default(),
            spare_cpus: about.spare_cpus,
            memory_bytes: about.memory_bytes,
            caches: about.caches,
            epochs: about.epochs,
            expected: about.expected,
        };
        let mut diagnoses = diagnose::all(&figures);
        diagnoses.retain(|found| !OF_ONE_COLLECTOR.contains(&found.name.as_str()));
        JobSummary { phases: tallies.summaries(), diagnoses, verdict: verdict::of(&figures) }
    }
}

/// One of `count` like steps that add up to `step`, of which the first has what does not divide.
fn share(step: &StepLedger, count: u64, first: bool) -> Closed {
    let share = |sum: u64| sum / count + if first { sum % count } else { 0 };
    let causes = Causes(step.causes.0.map(share));
    let (mut own, mut wait) = (causes, Causes::default());
    let is_wait = |cause: Cause| cause.is_data_stall() && step.loader != NO_LOADER;
    for (cause, ns) in causes.iter().filter(|(cause, _)| is_wait(*cause)) {
        (own[cause], wait[cause]) = (0, ns);
    }
    let step = StepLedger {
        start_ns: step.end_ns.saturating_sub(causes.total_ns()),
        end_ns: step.end_ns.max(causes.total_ns()),
        causes,
        hidden_ns: step.hidden_ns.map(share),
        samples: share(step.samples.into()) as u32,
        ..step.clone()
    };
    Closed { step, own, wait }
}

fn training(rank: &RankSummary) -> Causes {
    let mut causes = Causes::default();
    for phase in rank.phases.iter().filter(|phase| phase.phase == Phase::Training) {
        causes += &phase.causes;
    }
    causes
}
