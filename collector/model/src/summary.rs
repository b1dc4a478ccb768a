use crate::{
    Act, Advice, CacheSummary, Cause, Causes, Expected, FileWait, HeldSummary, HostFacts, JobFacts, Knob,
    LoaderEpochs, MainThreads, MountWait, Phase, Probe, PythonFrame, RankFacts, Rates, Remedy, TuneMode,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

impl RunSummary {
    /// CPUs that the job may use; all those of its machines where they were not determined, 0 when unknown.
    pub fn cpus(&self) -> f64 {
        self.job.cpus.unwrap_or(f64::from(self.host.cpus))
    }

    /// Whether twice the CPUs would be as good as those of now.
    pub fn more_cpus_are_spare(&self) -> bool {
        are_spare(self.spare_cpus, self.cpus())
    }

    /// A figure of one loader is not the job's.
    pub fn several_loaders_train(&self) -> bool {
        let training = self.phases.iter().filter(|phase| phase.phase == Phase::Training && phase.steps > 0);
        let loaders: BTreeSet<Option<u16>> = training.map(|phase| phase.loader).collect();
        loaders.len() > 1
    }

    /// What the `workers` of the ranks are. Where no step was seen, the job's processes, its root's among them.
    pub fn workers_heading(&self) -> &'static str {
        let has_steps = !self.phases.is_empty() || self.ranks.iter().any(|rank| !rank.phases.is_empty());
        if self.ranks.is_empty() || has_steps { "Workers" } else { "Processes" }
    }

    /// In words, with those of the machines where the job may not use all; `None` when unknown.
    pub fn cpus_in_words(&self) -> Option<String> {
        let (cpus, all) = (self.cpus(), self.host.cpus);
        let noun = if all.max(cpus.ceil() as u32) == 1 { "CPU" } else { "CPUs" };
        // Quotas are in hundredths.
        let cpus = (100.0 * cpus).round() / 100.0;
        match cpus < f64::from(all) {
            _ if cpus <= 0.0 => None,
            true => Some(format!("{cpus} of {all} {noun}")),
            false => Some(format!("{cpus} {noun}")),
        }
    }
}

/// Everything one screen, report or client needs to know of a run, live or recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub job: JobFacts,
    pub host: HostFacts,
    /// By rank. Where no step was seen: the root of the job without phases, its processes' loads as workers.
    pub ranks: Vec<RankSummary>,
    /// The job's own ledger: ranks aligned by step, the slowest rank's causes. For one rank the same as its own.
    pub phases: Vec<PhaseSummary>,
    pub kernel: EvidenceState,
    pub shim: EvidenceState,
    /// The most that the shim alone blames on one cause beyond what the ledger does with the kernel, as a share of training
    /// time; what it leaves unknown, or what only the kernel sees of helper threads, is no difference. `None` where only one of
    /// them saw the job.
    pub disagreement_share: Option<f64>,
    pub losses: Vec<Loss>,
    pub diagnoses: Vec<Diagnosis>,
    pub verdict: Verdict,
    pub overhead: Overhead,
    /// Every source of evidence that was tried.
    #[serde(default)]
    pub probes: Vec<Probe>,
    /// The files waited for longest, longest first, and all mounts.
    #[serde(default)]
    pub files: Vec<FileWait>,
    #[serde(default)]
    pub mounts: Vec<MountWait>,
    /// By rank, loader and name.
    #[serde(default)]
    pub knobs: Vec<Knob>,
    /// Rates of each rank's training loader, as far as they are known.
    #[serde(default)]
    pub rates: Vec<Rates>,
    /// What is expected to help, best first. Made now and then, and at the end.
    #[serde(default)]
    pub advice: Vec<Advice>,
    /// What single changes are expected to bring, those that bring nothing included. Made together with `advice`.
    #[serde(default)]
    pub expected: Vec<Expected>,
    /// What a controller may do in this job now; `None`: there is none.
    #[serde(default)]
    pub tune: Option<TuneMode>,
    /// Lines of the audit so far, by what they say.
    #[serde(default)]
    pub acts: BTreeMap<Act, u64>,
    /// By rank and loader, of those that have a cache.
    #[serde(default)]
    pub caches: Vec<CacheSummary>,
    /// Of the job's files in the page cache; `None` where nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldSummary>,
    /// By rank and loader, of those that were iterated in training.
    #[serde(default)]
    pub epochs: Vec<LoaderEpochs>,
    /// Of trainers; where there is none, of the processes next to the job's root that work themselves.
    #[serde(default)]
    pub main_threads: MainThreads,
    /// CPUs that the job could have beside those of now: what of its machine's was idle; as many as it has, where it has the machine to
    /// itself and would be given a larger one. `None` where nobody looked.
    #[serde(default)]
    pub spare_cpus: Option<f64>,
}

/// Whether of as many `spare` CPUs as a job has most would be its own, were it given twice as many: what is expected of more of them is for such.
pub fn are_spare(spare: Option<f64>, cpus: f64) -> bool {
    spare.is_some_and(|spare| 2.0 * spare >= cpus)
}

/// The first line of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Two or three words: "fetch-bound", "compute-bound", "not measured".
    pub finding: String,
    /// The whole line, the finding included.
    pub sentence: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseSummary {
    pub phase: Phase,
    /// Which loader; `None` where the phase has none (start-up).
    pub loader: Option<u16>,
    pub steps: u64,
    pub samples: u64,
    pub wall_ns: u64,
    /// Adds up to `wall_ns`.
    pub causes: Causes,
    /// See `StepLedger::hidden_ns`; `None` where no device was watched.
    pub hidden_ns: Option<u64>,
    pub step_p50_ns: u64,
    pub step_p95_ns: u64,
    pub step_max_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankSummary {
    pub facts: RankFacts,
    pub phases: Vec<PhaseSummary>,
    pub workers: Vec<WorkerLoad>,
    pub checkpoints: Checkpoints,
}

impl RankSummary {
    /// Loader workers, where those that came after others do not count again: `num_workers`, or its sum over
    /// all loaders that were iterated together.
    pub fn workers_at_once(&self) -> u64 {
        let listed = self.workers.len() as u64;
        // Recordings of before do not know.
        if self.facts.workers_at_once > 0 { listed.min(self.facts.workers_at_once.into()) } else { listed }
    }
}

/// How a worker spent its time, whether or not the trainer waited for it: load, not stall.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerLoad {
    pub pid: u32,
    /// The loader that it works for; `None` where that is not known.
    #[serde(default)]
    pub loader: Option<u16>,
    /// `None` where no shim counted them: the kernel alone does not see how many a worker makes.
    pub batches: Option<u64>,
    pub samples: Option<u64>,
    pub wall_ns: u64,
    pub fetch_ns: u64,
    pub cpu_ns: u64,
    pub runnable_ns: u64,
    pub idle_ns: u64,
    pub read_bytes: u64,
}

/// Adds the later load of the same worker number; its process may have been replaced since.
impl AddAssign<&WorkerLoad> for WorkerLoad {
    fn add_assign(&mut self, later: &WorkerLoad) {
        self.pid = later.pid;
        self.loader = later.loader.or(self.loader);
        self.batches = together(self.batches, later.batches);
        self.samples = together(self.samples, later.samples);
        self.wall_ns = self.wall_ns.saturating_add(later.wall_ns);
        self.fetch_ns = self.fetch_ns.saturating_add(later.fetch_ns);
        self.cpu_ns = self.cpu_ns.saturating_add(later.cpu_ns);
        self.runnable_ns = self.runnable_ns.saturating_add(later.runnable_ns);
        self.idle_ns = self.idle_ns.saturating_add(later.idle_ns);
        self.read_bytes = self.read_bytes.saturating_add(later.read_bytes);
    }
}

/// The sum of what is known.
fn together(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.zip(other).map(|(one, other)| one.saturating_add(other)).or(one).or(other)
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Times that the trainer saved: calls with no step between them are one checkpoint.
    pub count: u64,
    /// Of these, those that other threads took and the trainer did not wait for.
    #[serde(default)]
    pub in_background: u64,
    /// Calls that saved, each to a file or folder of its own; 0 in recordings of before.
    #[serde(default)]
    pub files: u64,
    pub bytes: u64,
    /// Saves of `stallscope.Checkpointer` that failed: there is no such checkpoint. Those that came as far as to copy
    /// their tensors are in `count`.
    #[serde(default)]
    pub failed: u64,
    /// Time the trainer was blocked: the sum of `blocked_in_ns`.
    pub blocked_ns: u64,
    /// `snapshot` and `persist` of the ledger, by phase: all of training's, and of other phases what follows the first
    /// call that saved. Empty in recordings of before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blocked_in_ns: BTreeMap<Phase, u64>,
    /// Time spent in other threads or processes.
    pub background_ns: u64,
    /// Where `stallscope.Checkpointer` saves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<CheckpointAccount>,
}

impl Checkpoints {
    /// How long one blocked the trainer, of those that did.
    pub fn blocked_each_ns(&self) -> u64 {
        self.blocked_ns / self.count.saturating_sub(self.in_background).max(1)
    }
}

/// What checkpoints cost beside what they may, in all runs of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointAccount {
    /// Time that they blocked training, and by which they slowed its steps down.
    pub spent_ns: u64,
    /// All steps together.
    pub trained_ns: u64,
    /// The part of the time that they may cost, in millionths; `None` where an interval was set instead.
    pub budget_ppm: Option<u64>,
    /// `None` in recordings of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<CheckpointRule>,
}

/// What the checkpointer's own rule goes by, also where a fixed interval is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRule {
    /// What a save costs, by the recent ones: blocked, and steps slowed down.
    pub cost_ns: u64,
    /// From its beginning until it is durable, by the recent ones.
    pub persist_ns: u64,
    /// Mean time between failures.
    pub mtbf_ns: u64,
    /// The interval of the rule.
    pub interval_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvidenceState {
    #[default]
    Off,
    On,
    /// Some of it, with what is missing.
    Partial(String),
    /// None of it, with the reason and the way to get it.
    Missing(String),
}

/// Something that was seen and could not be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// "kernel ring full", "lane full", "unknown record", …
    pub reason: String,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Stable kebab-case name, like a lint's.
    pub name: String,
    /// One sentence.
    pub finding: String,
    /// The figures behind it.
    pub evidence: String,
    /// What to do: the sentences of `remedies`, or one that says why there is nothing to do.
    pub advice: String,
    pub cause: Option<Cause>,
    /// Share of training time at stake; diagnoses are sorted by it, those of what the verdict names first.
    pub share: f64,
    /// What may be done, without what is expected to bring nothing and what another finding names already.
    #[serde(default)]
    pub remedies: Vec<Remedy>,
    /// Of the process that it is about, the innermost function first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<PythonFrame>,
}

/// What the measurement itself cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    pub collector_cpu_ns: u64,
    /// The part of it before measuring began: most of it loads the kernel programs, once a run.
    #[serde(default)]
    pub start_cpu_ns: u64,
    pub collector_rss_bytes: u64,
    /// CPU time of the kernel programs, where the kernel counts it.
    pub kernel_cpu_ns: Option<u64>,
    pub records: u64,
    pub wall_ns: u64,
}

impl Overhead {
    /// Of one core while it measured.
    pub fn collector_share(&self) -> f64 {
        let ns = self.collector_cpu_ns.saturating_sub(self.start_cpu_ns);
        if self.wall_ns == 0 { 0.0 } else { ns as f64 / self.wall_ns as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_a_job_may_not_use_are_shown() {
        let of = |cpus: Option<f64>, all: u32| RunSummary {
            job: JobFacts { cpus, ..JobFacts::default() },
            host: HostFacts { cpus: all, ..HostFacts::default() },
            ..RunSummary::default()
        };
        let words = |cpus, all| of(cpus, all).cpus_in_words().unwrap_or_default();
        assert_eq!((words(Some(1.0), 2), of(Some(1.0), 2).cpus()), ("1 of 2 CPUs".to_owned(), 1.0));
        assert_eq!(
            (words(Some(1.5), 2), words(Some(2.0), 2)),
            ("1.5 of 2 CPUs".to_owned(), "2 CPUs".to_owned())
        );
        assert_eq!((words(None, 1), words(None, 0)), ("1 CPU".to_owned(), String::new()));
    }
}
