//! Recordings of a made-up job: written by the real recorder, of any length, the same for the same shape.

pub mod tuning;

use stallscope_model::*;
use stallscope_store::{ClockAnchor, Options, Recorder};
use std::path::{Path, PathBuf};

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1000 * MS;
/// When the job begins, on the monotonic and on the wall clock.
pub const START_NS: u64 = 5000 * S;
pub const START_WALL_NS: u64 = 1_795_000_000 * S;
const EPOCH_STEPS: u64 = 5000;
const BETWEEN_MS: f64 = 400.0;

/// What job to make up.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub seconds: u64,
    pub ranks: u32,
    /// Mean milliseconds a step.
    pub compute_ms: f64,
    pub fetch_ms: f64,
    pub prep_ms: f64,
    /// How much each of them varies from step to step, as a part of it.
    pub spread: f64,
    pub seed: u64,
    /// A checkpoint every so many seconds; 0: none.
    pub checkpoint_seconds: u64,
    /// Rows of steps before the oldest are merged.
    pub step_rows: u64,
    /// A controller acts as [`tuning::audit`] says, and reads take less time from then on.
    pub tuned: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            name: "resnet",
            seconds: 60,
            ranks: 1,
            compute_ms: 60.0,
            fetch_ms: 25.0,
            prep_ms: 10.0,
            spread: 0.3,
            seed: 1,
            checkpoint_seconds: 20,
            step_rows: Options::default().step_rows,
            tuned: false,
        }
    }
}

/// Records the job at `path`, or beside it where there is something; the path.
///
/// # Panics
/// When the recording cannot be written.
pub fn record(path: &Path, shape: &Shape) -> PathBuf {
    let mut summary = summary(shape);
    let mut recorder =
        Recorder::create(path, &summary.job, Options { step_rows: shape.step_rows, ..Options::default() });
    let mut ranks: Vec<Rank> = (0..shape.ranks).map(|rank| Rank::new(rank, shape)).collect();
    let end_ns = START_NS + shape.seconds * S;
    let mut audit = if shape.tuned { tuning::audit(START_NS) } else { Vec::new() }.into_iter().peekable();
    let mut now_ns = START_NS;
    while now_ns < end_ns {
        recorder.anchor(ClockAnchor {
            monotonic_ns: now_ns,
            boottime_ns: now_ns + S,
            wall_ns: now_ns - START_NS + START_WALL_NS,
        });
        now_ns += S;
        for rank in &mut ranks {
            rank.run_until(now_ns.min(end_ns), shape, &mut recorder);
        }
        summary.ranks = ranks.iter().map(|rank| rank.summary.clone()).collect();
        summary.phases = summary.ranks[0].phases.clone();
        for (phase, at) in summary.phases.iter_mut().zip(0..) {
            phase.samples = summary.ranks.iter().map(|rank| rank.phases[at].samples).sum();
        }
        summary.overhead.wall_ns = now_ns - START_NS;
        if shape.tuned {
            tuning::tell(&mut summary);
        }
        while let Some(event) = audit.next_if(|event| event.time_ns < now_ns) {
            recorder.audit(event);
        }
        recorder.flush(&summary);
    }
    summary.job.ended_wall_ns = Some(START_WALL_NS + shape.seconds * S);
    summary.job.exit_code = Some(0);
    recorder.finish(&summary).path.expect("the recording can be written")
}

fn summary(shape: &Shape) -> RunSummary {
    RunSummary {
        job: JobFacts {
            name: shape.name.into(),
            command: ["python", "train.py", "--data", "/data/imagenet"].map(String::from).into(),
            pid: 4000,
            user: "ada".into(),
            started_wall_ns: START_WALL_NS,
            ..JobFacts::default()
        },
        host: HostFacts { host: "node1".into(), cpus: 64, memory_bytes: 256 << 30, ..HostFacts::default() },
        kernel: EvidenceState::On,
        shim: EvidenceState::On,
        verdict: Verdict {
            finding: "fetch-bound".into(),
            sentence: "fetch-bound: training waits for storage".into(),
        },
        ..RunSummary::default()
    }
}

struct Rank {
    summary: RankSummary,
    numbers: Numbers,
    at_ns: u64,
    index: u64,
    checkpoints: u64,
}

impl Rank {
    fn new(rank: u32, shape: &Shape) -> Rank {
        let usual_ms = shape.compute_ms + shape.fetch_ms + shape.prep_ms;
        let phase = |phase, usual_ms: f64| PhaseSummary {
            phase,
            loader: Some(0),
            steps: 0,
            samples: 0,
            wall_ns: 0,
            causes: Causes::default(),
            hidden_ns: None,
            step_p50_ns: (usual_ms * 1e6) as u64,
            step_p95_ns: (usual_ms * 1.3e6) as u64,
            step_max_ns: 0,
        };
        let worker = |number| WorkerLoad { pid: 4100 + 10 * rank + number, ..WorkerLoad::default() };
        let facts = RankFacts {
            workers_at_once: 0,
            rank,
            world_size: shape.ranks,
            pid: 4001 + rank,
            host: "node1".into(),
            torch_version: Some("2.15.0".into()),
            python_version: Some("3.13".into()),
            unavailable: Vec::new(),
            loaders: vec![LoaderFacts {
                workers: 2,
                batch_size: Some(32),
                prefetch_factor: Some(2),
                start_method: "fork".into(),
                dataset: "ImageFolder".into(),
                dataset_len: Some(EPOCH_STEPS * 32),
                ..LoaderFacts::default()
            }],
        };
        Rank {
            summary: RankSummary {
                facts,
                phases: vec![phase(Phase::Training, usual_ms), phase(Phase::Between, BETWEEN_MS)],
                workers: vec![worker(0), worker(1)],
                checkpoints: Checkpoints::default(),
            },
            numbers: Numbers(shape.seed << 32 | u64::from(rank)),
            at_ns: START_NS,
            index: 0,
            checkpoints: 0,
        }
    }

    fn run_until(&mut self, until_ns: u64, shape: &Shape, recorder: &mut Recorder) {
        while self.at_ns < until_ns {
            let mut about = |ms: f64| {
                (ms * 1e6 * (1.0 + shape.spread * (2.0 * self.numbers.next() - 1.0))).max(0.0) as u64
            };
            let mut causes = Causes::default();
            causes[Cause::Compute] = about(shape.compute_ms);
            causes[Cause::Prep] = about(shape.prep_ms);
            let faster = shape.tuned && self.at_ns > START_NS + tuning::KEPT_S * S;
            causes[Cause::Fetch] = about(if faster { shape.fetch_ms / 2.0 } else { shape.fetch_ms });
            causes[Cause::Transfer] = about(1.0);
            // Now and then a read takes ten times as long.
            if self.numbers.next() < 0.01 {
                causes[Cause::Fetch] *= 10;
            }
            let ran_ns = self.at_ns - START_NS;
            let due = ran_ns.checked_div(shape.checkpoint_seconds * S).unwrap_or(0);
            if due > self.checkpoints {
                self.checkpoints = due;
                causes[Cause::Persist] = 300 * MS;
                self.checkpoint(recorder);
            }
            self.step(Phase::Training, causes, recorder);
            if self.index.is_multiple_of(EPOCH_STEPS) {
                let mut causes = Causes::default();
                causes[Cause::Prep] = BETWEEN_MS as u64 * MS;
                self.step(Phase::Between, causes, recorder);
            }
        }
    }

    fn checkpoint(&mut self, recorder: &mut Recorder) {
        let rank = self.summary.facts.rank;
        recorder.checkpoint(CheckpointEvent {
            rank,
            start_ns: self.at_ns,
            end_ns: self.at_ns + 300 * MS,
            saver: "torch.save".into(),
            cause: Cause::Persist,
            background: false,
            bytes: 102_000_000,
        });
        let sums = &mut self.summary.checkpoints;
        (sums.count, sums.bytes) = (sums.count + 1, sums.bytes + 102_000_000);
        sums.files += 1;
        sums.blocked_ns += 300 * MS;
        *sums.blocked_in_ns.entry(Phase::Training).or_default() += 300 * MS;
    }

    fn step(&mut self, phase: Phase, causes: Causes, recorder: &mut Recorder) {
        let rank = self.summary.facts.rank;
        let (start_ns, end_ns) = (self.at_ns, self.at_ns + causes.total_ns());
        let worker = (self.index % 2) as usize;
        let pid = self.summary.workers[worker].pid;
        let samples = if phase == Phase::Training { 32 } else { 0 };
        let step = StepLedger {
            rank,
            loader: 0,
            phase,
            index: self.index,
            part: false,
            start_ns,
            end_ns,
            causes,
            hidden_ns: None,
            producer: Some(pid),
            samples,
            evidence: EvidenceKinds { kernel: true, shim: true },
        };
        if causes[Cause::Fetch] > 3 * causes[Cause::Compute] {
            recorder.step_detail(detail(&step, self.summary.facts.pid, pid));
        }
        let load = WorkerLoad {
            pid,
            loader: Some(0),
            batches: Some(1),
            samples: Some(samples.into()),
            wall_ns: end_ns - start_ns,
            fetch_ns: causes[Cause::Fetch],
            cpu_ns: causes[Cause::Prep],
            runnable_ns: 0,
            idle_ns: causes[Cause::Compute],
            read_bytes: 3_500_000,
        };
        self.summary.workers[worker] += &load;
        recorder.worker_period(WorkerPeriod {
            start_ns: end_ns - end_ns % WorkerPeriod::LENGTH_NS,
            rank,
            loader: 0,
            worker: worker as u32,
            load,
        });
        let sums = &mut self.summary.phases[usize::from(phase == Phase::Between)];
        sums.steps += 1;
        sums.samples += u64::from(samples);
        sums.wall_ns += end_ns - start_ns;
        sums.causes += &causes;
        sums.step_max_ns = sums.step_max_ns.max(end_ns - start_ns);
        recorder.step(step);
        self.at_ns = end_ns;
        self.index += u64::from(phase == Phase::Training);
    }
}

/// The step in full: the wait for the batch first, then the work with it.
fn detail(step: &StepLedger, trainer: u32, worker: u32) -> StepDetail {
    let order = [
        (Cause::Fetch, Doing::Reading, 1),
        (Cause::Prep, Doing::Computing, 1),
        (Cause::Transfer, Doing::Waiting, 1),
        (Cause::Compute, Doing::Computing, 0),
        (Cause::Persist, Doing::Writing, 0),
    ];
    let (mut critical, mut lanes) = (Vec::new(), [Vec::new(), Vec::new()]);
    let mut at_ns = step.start_ns;
    for (cause, doing, lane) in order {
        let end_ns = at_ns + step.causes[cause];
        if end_ns > at_ns {
            critical.push(CriticalPiece { start_ns: at_ns, end_ns, cause, lane });
            lanes[lane].push(Segment { start_ns: at_ns, end_ns, doing });
        }
        at_ns = end_ns;
    }
    let waits = Segment {
        start_ns: step.start_ns,
        end_ns: lanes[0].first().map_or(at_ns, |work| work.start_ns),
        doing: Doing::Waiting,
    };
    lanes[0].insert(0, waits);
    let [trainer_did, worker_did] = lanes;
    StepDetail {
        rank: step.rank,
        loader: step.loader,
        phase: step.phase,
        index: step.index,
        start_ns: step.start_ns,
        end_ns: step.end_ns,
        lanes: vec![
            StepLane { pid: trainer, role: "trainer".into(), segments: trainer_did },
            StepLane { pid: worker, role: "worker".into(), segments: worker_did },
        ],
        critical,
    }
}

/// Uniform numbers in 0 to 1 (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}
