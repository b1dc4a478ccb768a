#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod recordings;
pub(crate) mod schema;
pub(crate) mod tuning;

use stallscope_model::*;
use stallscope_reports::Style;

pub(crate) const PLAIN: Style = Style { width: 80, colour: false, unicode: true };
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const STARTED_NS: u64 = 1_795_000_000 * S;

/// A phase of `steps`, with milliseconds a step by cause.
pub(crate) fn phase(
    phase: Phase,
    loader: Option<u16>,
    steps: u64,
    a_step_ms: &[(Cause, f64)],
) -> PhaseSummary {
    let mut causes = Causes::default();
    for (cause, ms) in a_step_ms {
        causes[*cause] = (ms * 1e6) as u64 * steps;
    }
    let mean_ns = causes.total_ns() / steps.max(1);
    PhaseSummary {
        phase,
        loader,
        steps,
        samples: steps * 32,
        wall_ns: causes.total_ns(),
        causes,
        hidden_ns: None,
        step_p50_ns: mean_ns * 9 / 10,
        step_p95_ns: mean_ns * 2,
        step_max_ns: mean_ns * 21,
    }
}

fn startup() -> PhaseSummary {
    phase(
        Phase::Startup,
        None,
        1,
        &[(Cause::Compute, 4100.0), (Cause::Unknown, 1900.0), (Cause::Prep, 800.0)],
    )
}

fn loader(workers: u32) -> LoaderFacts {
    LoaderFacts {
        workers,
        batch_size: Some(32),
        prefetch_factor: Some(2),
        pin_memory: true,
        start_method: "fork".into(),
        dataset: "ImageFolder".into(),
        dataset_len: Some(20_000),
        ..LoaderFacts::default()
    }
}

fn worker(pid: u32) -> WorkerLoad {
    WorkerLoad {
        pid,
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

fn file(path: &str, mount: &str, wait_ms: u64, waits: u64) -> FileWait {
    FileWait { path: path.into(), mount: mount.into(), wait_ns: wait_ms * MS, waits }
}

fn rank(number: u32, world_size: u32, phases: Vec<PhaseSummary>) -> RankSummary {
    RankSummary {
        facts: RankFacts {
            workers_at_once: 0,
            rank: number,
            world_size,
            pid: 4821 + number,
            host: "node1".into(),
            torch_version: Some("2.15.0".into()),
            python_version: Some("3.13".into()),
            unavailable: Vec::new(),
            loaders: vec![loader(2)],
        },
        phases,
        workers: vec![worker(4830 + 10 * number), worker(4831 + 10 * number)],
        checkpoints: Checkpoints::default(),
    }
}

fn base() -> RunSummary {
    RunSummary {
        job: JobFacts {
            name: "resnet".into(),
            command: ["python", "train.py", "--data", "/data/imagenette", "--epochs", "3"]
                .map(String::from)
                .into(),
            pid: 4821,
            user: "ada".into(),
            started_wall_ns: STARTED_NS,
            ended_wall_ns: Some(STARTED_NS + 58 * S),
            exit_code: Some(0),
            attached: false,
            cpus: None,
        },
        host: HostFacts { host: "node1".into(), cpus: 16, memory_bytes: 64 << 30, ..HostFacts::default() },
        kernel: EvidenceState::On,
        shim: EvidenceState::On,
        disagreement_share: Some(0.004),
        overhead: Overhead {
            collector_cpu_ns: S / 5,
            start_cpu_ns: S / 10,
            collector_rss_bytes: 21_000_000,
            kernel_cpu_ns: Some(S / 50),
            records: 48_211,
            wall_ns: 58 * S,
        },
        ..RunSummary::default()
    }
}

/// One rank, slow storage, an evaluation, checkpoints.
pub(crate) fn fetch_bound() -> RunSummary {
    let training = phase(
        Phase::Training,
        Some(0),
        1204,
        &[
            (Cause::Compute, 11.0),
            (Cause::Fetch, 22.0),
            (Cause::Prep, 1.6),
            (Cause::Transfer, 0.7),
            (Cause::Persist, 0.9),
            (Cause::Unknown, 0.01),
        ],
    );
    let evaluation = phase(Phase::Evaluation, Some(1), 120, &[(Cause::Fetch, 14.0), (Cause::Compute, 6.0)]);
    let between = phase(Phase::Between, Some(0), 2, &[(Cause::Fetch, 310.0), (Cause::Prep, 48.0)]);
    let saving_ns = training.causes[Cause::Persist];
    let after = phase(Phase::After, None, 1, &[(Cause::Persist, 100.0), (Cause::Compute, 50.0)]);
    let phases = vec![startup(), training, evaluation, between, after];
    let mut only = rank(0, 1, phases.clone());
    only.checkpoints = Checkpoints {
        count: 3,
        files: 12,
        bytes: 137_000_000,
        blocked_ns: saving_ns + 100 * MS,
        blocked_in_ns: [(Phase::Training, saving_ns), (Phase::After, 100 * MS)].into(),
        ..Checkpoints::default()
    };
    RunSummary {
        ranks: vec![only],
        phases,
        diagnoses: vec![
            Diagnosis {
                name: "many-small-files".into(),
                finding: "Every sample opens a file of its own".into(),
                evidence: "38,528 files of 15 kB on average, 0.8 ms each".into(),
                advice: "Pack the files into a few large ones, or keep the data set in memory (301 MB fit)"
                    .into(),
                cause: Some(Cause::Fetch),
                share: 0.61,
                ..Diagnosis::default()
            },
            Diagnosis {
                name: "blocking-checkpoint".into(),
                finding: "Training stands still while checkpoints are written".into(),
                evidence: "3 checkpoints of 46 MB, 333 ms each".into(),
                advice: "Save asynchronously (torch.distributed.checkpoint.async_save)".into(),
                cause: Some(Cause::Persist),
                share: 0.02,
                ..Diagnosis::default()
            },
        ],
        files: vec![
            file("/data/imagenette/…/n03425413/n03425413_12803.JPEG", "/data", 412, 9),
            file("/data/imagenette/…/n03888257/n03888257_44731.JPEG", "/data", 366, 8),
            file("/home/ada/runs/model.pt", "/", 301, 12),
        ],
        mounts: vec![
            MountWait { mount: "/data".into(), fs_type: "nfs4".into(), wait_ns: 61 * S, waits: 75_310 },
            MountWait { mount: "/".into(), fs_type: "overlay".into(), wait_ns: S, waits: 41 },
            MountWait { mount: "unknown".into(), fs_type: String::new(), wait_ns: S / 40, waits: 3 },
        ],
        verdict: Verdict {
            finding: "fetch-bound".into(),
            sentence: "fetch-bound: 61% of training time waits for storage; about 26 of 44 seconds".into(),
        },
        ..base()
    }
}

/// The same, tuned while it ran.
pub(crate) fn tuned() -> RunSummary {
    let mut summary = fetch_bound();
    madeup::tuning::tell(&mut summary);
    summary
}

/// The same with a cache in training, and one in evaluation.
pub(crate) fn cached() -> RunSummary {
    let training = CacheUses {
        hits: 21_961,
        substitutions: 385,
        misses: 16_182,
        prefetched: 4_623,
        late: 310,
        pool_bytes: 2_400_000_000,
        source_bytes: 1_780_000_000,
    };
    let other = CacheUses { misses: 3_840, source_bytes: 422_000_000, ..CacheUses::default() };
    let state =
        CacheState { kept_bytes: 2_040_000_000, capacity_bytes: 2 << 30, evictions: 0, kept_samples: 18_500 };
    let cache = |loader| CacheSummary { loader, ..CacheSummary::default() };
    let mut curve = CacheCurve::new(6 << 30);
    for (quarters, misses) in [(1, 1_880), (2, 1_700), (4, 1_360), (8, 720), (12, 0)] {
        curve.push(CachePoint { capacity_bytes: (2 << 30) / 4 * quarters, uses: 2_048, misses });
    }
    RunSummary {
        caches: vec![
            CacheSummary { training, state: Some(state), curve, ..cache(0) },
            CacheSummary { other, ..cache(1) },
        ],
        ..fetch_bound()
    }
}

/// Two ranks of a host that draw from one cache, each a part of the samples: one tells the curve of both.
pub(crate) fn divided() -> RunSummary {
    let mut summary = cached();
    let first = CacheSummary { curve: summary.caches[0].curve.of_ranks(2), ..summary.caches[0] };
    summary.caches = vec![first, CacheSummary { rank: 1, curve: CacheCurve::default(), ..first }];
    summary.ranks.truncate(1);
    summary.ranks[0].facts.world_size = 2;
    summary.ranks.push(summary.ranks[0].clone());
    summary.ranks[1].facts.rank = 1;
    summary
}

/// The same beside another job that uses the cache, too.
pub(crate) fn mixed() -> RunSummary {
    let mut summary = divided();
    summary.caches[0].curve = CacheCurve::mixed();
    summary
}

/// Two loaders in training, each with a cache and a curve of its own.
pub(crate) fn two_caches() -> RunSummary {
    let mut summary = cached();
    summary.caches = vec![summary.caches[0], CacheSummary { loader: 1, ..summary.caches[0] }];
    summary
}

pub(crate) fn compute_bound() -> RunSummary {
    let training = phase(
        Phase::Training,
        Some(0),
        9000,
        &[(Cause::Compute, 118.0), (Cause::Transfer, 0.3), (Cause::Preempted, 0.02), (Cause::Unknown, 0.9)],
    );
    let mut training = training;
    training.hidden_ns = Some(S);
    let phases = vec![startup(), training];
    let mut summary = RunSummary {
        ranks: vec![rank(0, 1, phases.clone())],
        phases,
        verdict: Verdict {
            finding: "compute-bound".into(),
            sentence: "compute-bound: 99% of training time is the job's own work; no data stall".into(),
        },
        ..base()
    };
    summary.job.ended_wall_ns = Some(STARTED_NS + 1080 * S);
    summary.overhead.wall_ns = 1080 * S;
    summary
}

/// Ranks of which the third reads from slow storage.
pub(crate) fn straggler(world_size: u32) -> RunSummary {
    let waiting =
        [(Cause::Compute, 140.0), (Cause::Peer, 245.0), (Cause::Transfer, 3.0), (Cause::Unknown, 2.0)];
    let slow = [(Cause::Compute, 141.0), (Cause::Fetch, 232.0), (Cause::Prep, 14.0), (Cause::Unknown, 3.0)];
    let of = |number: u32| {
        let causes = if number == 2 { &slow } else { &waiting };
        rank(number, world_size, vec![startup(), phase(Phase::Training, Some(0), 400, causes)])
    };
    RunSummary {
        ranks: (0..world_size).map(of).collect(),
        phases: vec![startup(), phase(Phase::Training, Some(0), 400, &slow)],
        diagnoses: vec![Diagnosis {
            name: "slow-rank".into(),
            finding: "Rank 2 makes the others wait".into(),
            evidence: "its workers read for 232 ms a step, the others' for 3 ms".into(),
            advice: "Look at the storage of rank 2: its shards lie on another mount".into(),
            cause: Some(Cause::Fetch),
            share: 0.59,
            ..Diagnosis::default()
        }],
        verdict: Verdict {
            finding: "fetch-bound by one rank".into(),
            sentence: "fetch-bound by one rank: rank 2 waits for storage 59% of its time, and the others wait for it"
                .into(),
        },
        ..base()
    }
}

pub(crate) fn shim_only() -> RunSummary {
    RunSummary {
        kernel: EvidenceState::Missing(
            "no collector with the privilege is running; start one with `sudo stallscope collect`, or use `run --kernel`"
                .into(),
        ),
        disagreement_share: None,
        files: Vec::new(),
        mounts: Vec::new(),
        overhead: Overhead { kernel_cpu_ns: None, ..base().overhead },
        ..fetch_bound()
    }
}

/// Attached to from outside, still running.
pub(crate) fn kernel_only() -> RunSummary {
    let mut summary = fetch_bound();
    summary.job.attached = true;
    summary.job.exit_code = None;
    summary.shim = EvidenceState::Off;
    summary.disagreement_share = None;
    summary.losses = vec![
        Loss { reason: "kernel ring full".into(), count: 312 },
        Loss { reason: "no slot".into(), count: 0 },
        Loss { reason: "recording: disk full".into(), count: 4 },
    ];
    for phase in summary.phases.iter_mut().chain(&mut summary.ranks[0].phases) {
        phase.samples = 0;
    }
    summary.ranks[0].facts.loaders.clear();
    summary
}

pub(crate) fn no_steps() -> RunSummary {
    RunSummary {
        kernel: EvidenceState::Partial(
            "fsync is not distinguished from other waits: raw tracepoint sys_enter is not there".into(),
        ),
        shim: EvidenceState::Missing("the interpreter was started with -I, which ignores PYTHONPATH".into()),
        disagreement_share: None,
        verdict: Verdict {
            finding: "not measured".into(),
            sentence: "not measured: the process has no DataLoader that could be seen".into(),
        },
        // The process itself is no worker.
        ranks: vec![RankSummary { workers: vec![worker(4821)], ..rank(0, 1, Vec::new()) }],
        ..base()
    }
}

pub(crate) fn killed() -> RunSummary {
    let mut summary = fetch_bound();
    summary.job.exit_code = Some(137);
    summary.disagreement_share = Some(0.081);
    summary
}

pub(crate) fn long_names() -> RunSummary {
    let mut summary = fetch_bound();
    summary.job.name =
        "a-very-long-name-that-somebody-generated-from-all-the-hyper-parameters-lr-0.1-wd-1e-4".into();
    summary.job.command =
        vec!["python".into(), "-c".into(), "print('\x1b[2J')\nörgerlich".into(), "x".repeat(300)];
    summary.files[0].path = format!("/data/\x1b[2J{}/shard\u{202e}.tar", "deep/".repeat(40));
    summary.mounts[0].mount = format!("/{}", "m".repeat(200));
    summary.ranks[0].facts.loaders[0].dataset = "ConcatDataset\u{202e}tesataD".into();
    summary.ranks[0].facts.unavailable = vec![
        "torch.save is not the function it was in any known torch: its checkpoints are not distinguished"
            .into(),
    ];
    summary
}

pub(crate) fn two_loaders() -> RunSummary {
    let mut summary = fetch_bound();
    let second = phase(Phase::Training, Some(1), 400, &[(Cause::Compute, 8.0), (Cause::Starved, 30.0)]);
    summary.phases.push(second.clone());
    summary.phases.push(phase(Phase::Evaluation, Some(2), 40, &[(Cause::Compute, 8.0)]));
    summary.ranks[0].phases.push(second);
    summary.ranks[0].facts.loaders.push(LoaderFacts {
        loader: 1,
        dataset: "TensorDataset".into(),
        ..LoaderFacts::default()
    });
    summary
}
