//! Recordings of a synthetic job, whose summary says exactly what their steps do.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use stallscope_model::*;
use stallscope_store::{ClockAnchor, Options, Recorder};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1000 * MS;
/// 20 November 2026, when every synthetic job begins.
pub(crate) const BEGUN_WALL_NS: u64 = 1_795_000_000 * S;

/// What one collector sees of a job: its ranks of a synchronous job on one host.
#[derive(Clone, Debug)]
pub(crate) struct Synthetic {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    pub(crate) user: String,
    pub(crate) host: String,
    pub(crate) ranks: Vec<u32>,
    pub(crate) world_size: u32,
    /// The rank that the others wait for: it fetches six times as long.
    pub(crate) slow_rank: u32,
    /// Training steps; a tenth as many in evaluation follow.
    pub(crate) steps: u64,
    pub(crate) step_ms: u64,
    pub(crate) workers: u32,
    /// When the job begins on the monotonic clock, which differs from host to host.
    pub(crate) begun_ns: u64,
    pub(crate) begun_wall_ns: u64,
    /// By how many seconds the wall clock is set after half of the steps.
    pub(crate) clock_set_by_s: i64,
    /// False: its writer was killed.
    pub(crate) finished: bool,
    /// Rows of steps before the oldest are merged.
    pub(crate) step_rows: u64,
}

impl Default for Synthetic {
    fn default() -> Synthetic {
        Synthetic {
            name: "resnet".into(),
            command: ["python", "train.py", "--data", "/data/imagenette"].map(String::from).into(),
            user: "ada".into(),
            host: "node1".into(),
            ranks: vec![0],
            world_size: 1,
            slow_rank: 0,
            steps: 200,
            step_ms: 100,
            workers: 2,
            begun_ns: 5000 * S,
            begun_wall_ns: BEGUN_WALL_NS,
            clock_set_by_s: 0,
            finished: true,
            step_rows: 1_000_000,
        }
    }
}

/// Two hosts with two ranks each of one job; the slow rank is on the second.
pub(crate) fn two_hosts() -> [Synthetic; 2] {
    let first = Synthetic { ranks: vec![0, 1], world_size: 4, slow_rank: 3, ..Synthetic::default() };
    let second =
        Synthetic { host: "node2".into(), ranks: vec![2, 3], begun_ns: 812_345 * MS, ..first.clone() };
    [first, second]
}

impl Synthetic {
    /// Records the job in `folder`.
    pub(crate) fn record(&self, folder: &Path, file: &str) -> PathBuf {
        let options =
            Options { spool: Some(folder.join("spool")), step_rows: self.step_rows, ..Options::default() };
        let summary = self.summary();
        let mut recorder = Recorder::create(&folder.join(file), &summary.job, options);
        let path = recorder.path().unwrap().to_path_buf();
        for (nth, steps) in self.all_steps().chunks(5000).enumerate() {
            for step in steps {
                recorder.anchor(self.anchor(step.end_ns));
                recorder.step(step.clone());
            }
            if nth == 0 {
                self.events(&mut recorder);
            }
            recorder.flush(&summary);
        }
        recorder.anchor(self.anchor(self.ended_ns()));
        if self.finished {
            return recorder.finish(&summary).path.unwrap();
        }
        recorder.flush(&RunSummary {
            job: JobFacts { ended_wall_ns: None, exit_code: None, ..summary.job.clone() },
            ..summary
        });
        path
    }

    /// The summary that belongs to the steps.
    pub(crate) fn summary(&self) -> RunSummary {
        let steps = self.all_steps();
        let mut by_rank: BTreeMap<u32, Vec<&StepLedger>> = BTreeMap::new();
        steps.iter().for_each(|step| by_rank.entry(step.rank).or_default().push(step));
        let ranks: Vec<RankSummary> = by_rank.into_iter().map(|(rank, own)| self.rank(rank, &own)).collect();
        let slow = ranks.iter().find(|rank| rank.facts.rank == self.slow_rank).or(ranks.first());
        let mut losses = vec![Loss { reason: "lane full".into(), count: 3 }];
        losses.retain(|_| !ranks.is_empty());
        RunSummary {
            job: JobFacts {
                name: self.name.clone(),
                command: self.command.clone(),
                pid: 4821,
                user: self.user.clone(),
                started_wall_ns: self.begun_wall_ns,
                ended_wall_ns: Some(self.wall_ns(self.ended_ns())),
                exit_code: Some(0),
                attached: false,
                cpus: None,
            },
            host: HostFacts {
                host: self.host.clone(),
                kernel: "6.18.0".into(),
                cpus: 16,
                cpu_model: "Xeon".into(),
                memory_bytes: 64 << 30,
                gpus: vec!["H200".into()],
            },
            phases: slow.map(|rank| rank.phases.clone()).unwrap_or_default(),
            ranks,
            kernel: EvidenceState::On,
            shim: EvidenceState::On,
            disagreement_share: Some(0.004),
            losses,
            diagnoses: vec![Diagnosis {
                name: "fetch-bound".into(),
                finding: "60% of training time waits for storage".into(),
                evidence: format!("of {} steps", self.steps),
                advice: "Keep more reads in flight with a larger num_workers".into(),
                cause: Some(Cause::Fetch),
                share: 0.6,
                ..Diagnosis::default()
            }],
            verdict: Verdict {
                finding: "fetch-bound".into(),
                sentence: "fetch-bound: 60% of training time waits for storage".into(),
            },
            overhead: Overhead {
                collector_cpu_ns: S / 5,
                start_cpu_ns: S / 10,
                collector_rss_bytes: 21_000_000,
                kernel_cpu_ns: Some(S / 50),
                records: 48_211,
                wall_ns: self.ended_ns() - self.begun_ns,
            },
            probes: vec![
                Probe { name: "sched_switch".into(), on: true, reason: String::new() },
                Probe { name: "sys_enter".into(), on: false, reason: "nobody asked for it".into() },
            ],
            files: vec![FileWait {
                path: "train/n01/x.jpg".into(),
                mount: "/data".into(),
                wait_ns: 3 * S,
                waits: 40,
            }],
            knobs: madeup::tuning::knobs(self.world_size)
                .into_iter()
                .filter(|knob| self.ranks.contains(&knob.rank))
                .collect(),
            rates: madeup::tuning::rates(self.world_size)
                .into_iter()
                .filter(|rates| self.ranks.contains(&rates.rank))
                .collect(),
            advice: if self.ranks.contains(&0) { madeup::tuning::advice() } else { Vec::new() },
            tune: Some(TuneMode::Act),
            caches: CacheSummary::of_periods(&self.cache_periods()),
            mounts: vec![
                MountWait { mount: "/data".into(), fs_type: "nfs4".into(), wait_ns: 9 * S, waits: 120 },
                MountWait { mount: "/".into(), fs_type: "ext4".into(), wait_ns: S, waits: 9 },
            ],
            ..RunSummary::default()
        }
    }

    /// Every step, as they end: start-up, training, evaluation.
    pub(crate) fn all_steps(&self) -> Vec<StepLedger> {
        let mut steps = Vec::new();
        let each_rank = self.ranks.iter();
        steps.extend(each_rank.clone().map(|rank| {
            let causes = [(Cause::Compute, 1500 * MS), (Cause::Unknown, 500 * MS)];
            self.step(*rank, Phase::Startup, 0, self.begun_ns, &causes)
        }));
        let mut at_ns = self.begun_ns + 2 * S;
        for (phase, number) in [(Phase::Training, self.steps), (Phase::Evaluation, self.steps / 10)] {
            for index in 0..number {
                // Some jitter that all ranks share, as they meet at every step.
                let wall_ns = self.step_ms * MS + (index * 7919 % 13) * self.step_ms * MS / 100;
                steps.extend(
                    each_rank
                        .clone()
                        .map(|rank| self.step(*rank, phase, index, at_ns, &self.causes(*rank, wall_ns))),
                );
                at_ns += wall_ns;
            }
        }
        steps
    }

    fn causes(&self, rank: u32, wall_ns: u64) -> [(Cause, u64); 4] {
        let percent = wall_ns / 100;
        let (fetch, peer) = if rank == self.slow_rank { (60, 0) } else { (10, 50) };
        let compute_ns = wall_ns - (fetch + peer + 2) * percent;
        [
            (Cause::Compute, compute_ns),
            (Cause::Fetch, fetch * percent),
            (Cause::Prep, 2 * percent),
            (Cause::Peer, peer * percent),
        ]
    }

    fn step(
        &self,
        rank: u32,
        phase: Phase,
        index: u64,
        start_ns: u64,
        by_cause: &[(Cause, u64)],
    ) -> StepLedger {
        let mut causes = Causes::default();
        by_cause.iter().for_each(|(cause, ns)| causes[*cause] = *ns);
        let in_loader = phase != Phase::Startup;
        StepLedger {
            rank,
            loader: u16::from(phase == Phase::Evaluation),
            phase,
            index,
            part: false,
            start_ns,
            end_ns: start_ns + causes.total_ns(),
            causes,
            hidden_ns: None,
            producer: (in_loader && self.workers > 0)
                .then(|| self.worker_pid(rank, index as u32 % self.workers)),
            samples: if in_loader { 32 } else { 0 },
            evidence: EvidenceKinds { kernel: true, shim: true },
        }
    }

    /// What a controller did with the first rank; the same took minutes elsewhere.
    fn audit(&self) -> impl Iterator<Item = AuditEvent> {
        let first = self.ranks.first().copied();
        let begun_ns = self.begun_ns;
        madeup::tuning::audit(0).into_iter().map(move |event| AuditEvent {
            time_ns: begun_ns + event.time_ns / 10,
            rank: event.rank.and(first),
            ..event
        })
    }

    /// A first epoch that fills the cache, and a second one; on each host all ranks keep the same.
    pub(crate) fn cache_periods(&self) -> Vec<CachePeriod> {
        let first_ns = self.begun_ns - self.begun_ns % WorkerPeriod::LENGTH_NS;
        let mut periods = Vec::new();
        for (nth, hits) in [(0, 0), (1, 400)] {
            for rank in &self.ranks {
                let uses = CacheUses {
                    hits,
                    substitutions: hits / 20,
                    misses: 640 - hits,
                    prefetched: hits / 8,
                    late: hits / 40,
                    pool_bytes: 1000 * hits,
                    source_bytes: 1000 * (640 - hits),
                };
                let state = CacheState {
                    kept_bytes: 300_000 * (nth + 1),
                    capacity_bytes: 1 << 20,
                    evictions: 3 * nth,
                    kept_samples: 300 * (nth + 1),
                };
                let start_ns = first_ns + nth * WorkerPeriod::LENGTH_NS;
                let of_rank = CachePeriod {
                    start_ns,
                    rank: *rank,
                    loader: 0,
                    phase: Phase::Training,
                    uses,
                    state: Some(state),
                };
                let uses = CacheUses { misses: 32, ..CacheUses::default() };
                let evaluation =
                    CachePeriod { loader: 1, phase: Phase::Evaluation, uses, state: None, ..of_rank };
                periods.extend([of_rank, evaluation]);
            }
        }
        periods
    }

    /// Two checkpoints, worker periods of the first minute and the details of a few steps.
    fn events(&self, recorder: &mut Recorder) {
        let steps = self.all_steps();
        for event in self.audit() {
            recorder.audit(event);
        }
        self.cache_periods().into_iter().for_each(|period| recorder.cache_period(period));
        for rank in &self.ranks {
            for at_ns in [self.begun_ns + 5 * S, self.begun_ns + 9 * S] {
                recorder.checkpoint(CheckpointEvent {
                    rank: *rank,
                    start_ns: at_ns,
                    end_ns: at_ns + 150 * MS,
                    saver: "torch.save".into(),
                    cause: Cause::Persist,
                    background: false,
                    bytes: 309_000,
                });
            }
            for worker in 0..self.workers {
                let start_ns = self.begun_ns - self.begun_ns % WorkerPeriod::LENGTH_NS;
                let load = WorkerLoad { wall_ns: 10 * S, ..self.load(*rank, worker) };
                let period = WorkerPeriod { start_ns, rank: *rank, loader: 0, worker, load };
                recorder.worker_period(WorkerPeriod { start_ns: start_ns + 10 * S, ..period.clone() });
                recorder.worker_period(period);
            }
        }
        let worth = steps.iter().filter(|step| step.phase == Phase::Training && step.index % 50 == 12);
        for step in worth.take(100) {
            recorder.step_detail(detail(step));
        }
    }

    fn rank(&self, rank: u32, own: &[&StepLedger]) -> RankSummary {
        let own = |phase: Phase| own.iter().copied().filter(move |step| step.phase == phase);
        let phases = [Phase::Startup, Phase::Training, Phase::Evaluation];
        RankSummary {
            facts: RankFacts {
                workers_at_once: 0,
                rank,
                world_size: self.world_size,
                pid: 4821 + 100 * rank,
                host: self.host.clone(),
                torch_version: Some("2.15.0".into()),
                python_version: Some("3.13".into()),
                unavailable: Vec::new(),
                loaders: vec![LoaderFacts {
                    workers: self.workers,
                    batch_size: Some(32),
                    prefetch_factor: Some(2),
                    pin_memory: true,
                    start_method: "fork".into(),
                    dataset: "ImageFolder".into(),
                    dataset_len: Some(20_000),
                    ..LoaderFacts::default()
                }],
            },
            phases: phases.into_iter().filter_map(|phase| sums(phase, own(phase))).collect(),
            workers: (0..self.workers).map(|worker| self.load(rank, worker)).collect(),
            checkpoints: Checkpoints {
                count: 2,
                files: 2,
                bytes: 618_000,
                blocked_ns: 300 * MS,
                ..Checkpoints::default()
            },
        }
    }

    fn load(&self, rank: u32, worker: u32) -> WorkerLoad {
        WorkerLoad {
            pid: self.worker_pid(rank, worker),
            loader: Some(0),
            batches: Some(602),
            samples: Some(602 * 32),
            wall_ns: 45 * S,
            fetch_ns: 31 * S,
            cpu_ns: 11 * S,
            runnable_ns: S / 5,
            idle_ns: 3 * S,
            read_bytes: 301_000_000,
        }
    }

    fn worker_pid(&self, rank: u32, worker: u32) -> u32 {
        4822 + 100 * rank + worker
    }

    pub(crate) fn ended_ns(&self) -> u64 {
        self.all_steps().last().map_or(self.begun_ns, |step| step.end_ns)
    }

    /// The wall clock as the host shows it at a moment.
    fn wall_ns(&self, monotonic_ns: u64) -> u64 {
        let half_ns = self.begun_ns + 2 * S + self.steps / 2 * self.step_ms * MS;
        let set_by_s = if monotonic_ns > half_ns { self.clock_set_by_s } else { 0 };
        (self.begun_wall_ns + (monotonic_ns - self.begun_ns)).saturating_add_signed(set_by_s * S as i64)
    }

    fn anchor(&self, monotonic_ns: u64) -> ClockAnchor {
        ClockAnchor { monotonic_ns, boottime_ns: monotonic_ns, wall_ns: self.wall_ns(monotonic_ns) }
    }
}

fn sums<'a>(phase: Phase, steps: impl Iterator<Item = &'a StepLedger>) -> Option<PhaseSummary> {
    let mut causes = Causes::default();
    let (mut samples, mut walls, mut loader) = (0, Vec::new(), None);
    for step in steps {
        causes += &step.causes;
        samples += u64::from(step.samples);
        walls.push(step.end_ns - step.start_ns);
        loader = (phase != Phase::Startup).then_some(step.loader);
    }
    walls.sort_unstable();
    let step_max_ns = *walls.last()?;
    Some(PhaseSummary {
        phase,
        loader,
        steps: walls.len() as u64,
        samples,
        wall_ns: causes.total_ns(),
        causes,
        hidden_ns: None,
        step_p50_ns: walls[walls.len() / 2],
        step_p95_ns: walls[walls.len() * 95 / 100],
        step_max_ns,
    })
}

/// The trainer waited for its worker's reading, then decoding, then computed.
fn detail(step: &StepLedger) -> StepDetail {
    let fetched_ns = step.start_ns + step.causes[Cause::Fetch];
    let made_ns = fetched_ns + step.causes[Cause::Prep];
    let (start_ns, end_ns) = (step.start_ns, step.end_ns);
    let segment = |start_ns, end_ns, doing| Segment { start_ns, end_ns, doing };
    let piece = |start_ns, end_ns, cause, lane| CriticalPiece { start_ns, end_ns, cause, lane };
    StepDetail {
        rank: step.rank,
        loader: step.loader,
        phase: step.phase,
        index: step.index,
        start_ns,
        end_ns,
        lanes: vec![
            StepLane {
                pid: 4821 + 100 * step.rank,
                role: "trainer".into(),
                segments: vec![
                    segment(start_ns, made_ns, Doing::Waiting),
                    segment(made_ns, end_ns, Doing::Computing),
                ],
            },
            StepLane {
                pid: step.producer.unwrap_or(0),
                role: "worker".into(),
                segments: vec![
                    segment(start_ns - 3 * MS, fetched_ns, Doing::Reading),
                    segment(fetched_ns, made_ns, Doing::Computing),
                ],
            },
        ],
        critical: vec![
            piece(start_ns, fetched_ns, Cause::Fetch, 1),
            piece(fetched_ns, made_ns, Cause::Prep, 1),
            piece(made_ns, end_ns, Cause::Compute, 0),
        ],
    }
}
