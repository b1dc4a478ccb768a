//! Recordings made by code, the same every time.

use stallscope_model::*;
use stallscope_store::{ClockAnchor, Options, Recorder};
use std::path::{Path, PathBuf};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
/// Start of the run, by each clock.
const BEGIN_NS: u64 = 1000 * S;
const WALL_NS: u64 = 1_795_000_000 * S;

/// What a step of rank 2, which reads from slow storage, is made of, and of the ranks that wait for it.
fn causes(rank: u32, nth: u64) -> Causes {
    let mut causes = Causes::default();
    let slow = nth.is_multiple_of(40) && nth > 0;
    causes[Cause::Compute] = 140 * MS;
    causes[Cause::Prep] = 20 * MS;
    match rank {
        2 => causes[Cause::Fetch] = if slow { 1400 * MS } else { 300 * MS },
        _ => {
            causes[Cause::Fetch] = 30 * MS;
            causes[Cause::Peer] = if slow { 1370 * MS } else { 270 * MS };
        }
    }
    if nth.is_multiple_of(100) && nth > 0 {
        causes[Cause::Persist] = 350 * MS;
    }
    causes
}

fn job(name: &str) -> JobFacts {
    JobFacts {
        name: name.into(),
        command: vec!["python".into(), "train.py".into()],
        pid: 4821,
        user: "ada".into(),
        started_wall_ns: WALL_NS,
        ..JobFacts::default()
    }
}

fn load(worker: u32) -> WorkerLoad {
    WorkerLoad {
        pid: 4830 + worker,
        loader: Some(0),
        batches: Some(12),
        samples: Some(384),
        wall_ns: 10 * S,
        fetch_ns: if worker == 0 { 7 * S } else { 2 * S },
        cpu_ns: if worker == 0 { S } else { 6 * S },
        runnable_ns: S,
        idle_ns: S,
        read_bytes: 3_000_000,
    }
}

fn rank(number: u32) -> RankSummary {
    RankSummary {
        facts: RankFacts {
            rank: number,
            world_size: 4,
            pid: 4821 + number,
            host: "node1".into(),
            loaders: vec![LoaderFacts {
                workers: 2,
                batch_size: Some(32),
                prefetch_factor: Some(2),
                start_method: "fork".into(),
                dataset: "ImageFolder".into(),
                ..LoaderFacts::default()
            }],
            ..RankFacts::default()
        },
        phases: Vec::new(),
        workers: (0..2).map(load).collect(),
        checkpoints: Checkpoints {
            count: 3,
            files: 3,
            bytes: 90_000_000,
            blocked_ns: S,
            ..Checkpoints::default()
        },
    }
}

fn summary(name: &str) -> RunSummary {
    RunSummary {
        job: job(name),
        host: HostFacts { host: "node1".into(), cpus: 16, ..HostFacts::default() },
        kernel: EvidenceState::On,
        shim: EvidenceState::On,
        disagreement_share: Some(0.004),
        verdict: Verdict {
            finding: "fetch-bound".into(),
            sentence: "fetch-bound by one rank: rank 2 waits for storage 65% of its time, and the others wait for it"
                .into(),
        },
        diagnoses: vec![
            Diagnosis {
                name: "slow-rank".into(),
                finding: "Rank 2 makes the others wait".into(),
                evidence: "its workers read for 300 ms a step, the others' for 30 ms".into(),
                advice: "Look at the storage of rank 2: its shards lie on another mount".into(),
                cause: Some(Cause::Fetch),
                share: 0.59,
                ..Diagnosis::default()
            },
            Diagnosis {
                name: "blocking-checkpoint".into(),
                finding: "Training stands still while checkpoints are written".into(),
                evidence: "3 checkpoints of 30 MB, 350 ms each".into(),
                advice: "Save asynchronously (torch.distributed.checkpoint.async_save)".into(),
                cause: Some(Cause::Persist),
                share: 0.02,
                ..Diagnosis::default()
            },
        ],
        ranks: (0..4).map(rank).collect(),
        overhead: Overhead {
            collector_cpu_ns: S,
            start_cpu_ns: S / 2,
            collector_rss_bytes: 31_000_000,
            kernel_cpu_ns: Some(S / 10),
            records: 48_211,
            wall_ns: 180 * S,
        },
        losses: vec![Loss { reason: "kernel ring full".into(), count: 312 }],
        probes: vec![
            Probe { name: "sched_switch".into(), on: true, reason: String::new() },
            Probe { name: "sys_enter".into(), on: false, reason: "not asked for; --syscalls hooks it".into() },
        ],
        files: vec![
            FileWait { path: "/mnt/slow/shards/train-0017.tar".into(), mount: "/mnt/slow".into(), wait_ns: 41 * S, waits: 9120 },
            FileWait { path: "/data/train-0001.tar".into(), mount: "/data".into(), wait_ns: 3 * S, waits: 802 },
        ],
        mounts: vec![
            MountWait { mount: "/data".into(), fs_type: "ext4".into(), wait_ns: 4 * S, waits: 1011 },
            MountWait { mount: "/mnt/slow".into(), fs_type: "nfs4".into(), wait_ns: 52 * S, waits: 11_900 },
        ],
        ..RunSummary::default()
    }
}

fn detail(rank: u32, index: u64, start_ns: u64, took_ns: u64) -> StepDetail {
    let (reading_ns, end_ns) = (start_ns + took_ns * 3 / 4, start_ns + took_ns);
    let segment = |start_ns: u64, end_ns: u64, doing: Doing| Segment { start_ns, end_ns, doing };
    StepDetail {
        rank,
        loader: 0,
        phase: Phase::Training,
        index,
        start_ns,
        end_ns,
        lanes: vec![
            StepLane {
                pid: 4821 + rank,
                role: "trainer".into(),
                segments: vec![
                    segment(start_ns, start_ns + took_ns / 8, Doing::Computing),
                    segment(start_ns + took_ns / 8, end_ns, Doing::Waiting),
                ],
            },
            StepLane {
                pid: 4830,
                role: "worker".into(),
                segments: vec![
                    segment(start_ns - took_ns / 4, reading_ns, Doing::Reading),
                    segment(reading_ns, end_ns, Doing::Computing),
                ],
            },
        ],
        critical: vec![
            CriticalPiece { start_ns, end_ns: start_ns + took_ns / 8, cause: Cause::Compute, lane: 0 },
            CriticalPiece {
                start_ns: start_ns + took_ns / 8,
                end_ns: reading_ns,
                cause: Cause::Fetch,
                lane: 1,
            },
            CriticalPiece { start_ns: reading_ns, end_ns, cause: Cause::Prep, lane: 1 },
        ],
    }
}

/// Three minutes of four ranks, rank 2 slow.
pub(super) fn four_ranks(dir: &Path) -> PathBuf {
    of_four_ranks(dir, |_, _| {})
}

/// The same with a cache that fills in the first epoch; rank 0 evaluates with another one.
pub(super) fn cached(dir: &Path) -> PathBuf {
    cached_in(dir, 4)
}

/// The same with a cache in one rank alone, which has a miss-ratio curve.
pub(super) fn with_curve(dir: &Path) -> PathBuf {
    cached_in(dir, 1)
}

/// The same with a holder of its files.
pub(super) fn held(dir: &Path) -> PathBuf {
    of_four_ranks(dir, |summary, _| {
        summary.held = Some(HeldSummary {
            budget_bytes: 8 << 30,
            target_bytes: 8 << 30,
            bytes: 6 << 30,
            files: 61_000,
            known_files: 90_000,
            brought_bytes: 7 << 30,
            ..HeldSummary::default()
        });
    })
}

fn cached_in(dir: &Path, ranks: u32) -> PathBuf {
    of_four_ranks(dir, |summary, recorder| {
        let mut periods = Vec::new();
        for nth in 0..18 {
            let state = CacheState {
                kept_bytes: (nth.min(9) * 200) << 20,
                capacity_bytes: 2 << 30,
                evictions: 0,
                kept_samples: nth.min(9) * 1000,
            };
            for rank in 0..ranks {
                let hits = nth.saturating_sub(4).min(9) * 40;
                let uses = CacheUses {
                    hits,
                    substitutions: 10,
                    misses: 600 - hits,
                    prefetched: hits / 5,
                    late: hits / 40,
                    pool_bytes: hits * 110_000,
                    source_bytes: (600 - hits) * 110_000,
                };
                let start_ns = BEGIN_NS + nth * WorkerPeriod::LENGTH_NS;
                let phase = Phase::Training;
                periods.push(CachePeriod { start_ns, rank, loader: 0, phase, uses, state: Some(state) });
            }
            let uses = CacheUses { hits: 50, ..CacheUses::default() };
            let start_ns = BEGIN_NS + nth * WorkerPeriod::LENGTH_NS;
            periods.push(CachePeriod {
                start_ns,
                rank: 0,
                loader: 1,
                phase: Phase::Evaluation,
                uses,
                state: None,
            });
        }
        summary.caches = CacheSummary::of_periods(&periods);
        let mut curve = CacheCurve::new(6 << 30);
        for (quarters, misses) in [(1, 1_880), (2, 1_700), (4, 1_360), (8, 720), (12, 0)] {
            curve.push(CachePoint { capacity_bytes: (2 << 30) / 4 * quarters, uses: 2_048, misses });
        }
        if ranks == 1 {
            summary.caches[0].curve = curve;
        }
        periods.into_iter().for_each(|period| recorder.cache_period(period));
        summary.knobs.truncate(2);
        summary.knobs.insert(
            0,
            Knob {
                loader: Some(0),
                name: "cache.bytes".into(),
                unit: "bytes".into(),
                value: 2 << 30,
                initial: 1 << 30,
                min: 16 << 20,
                max: 62 << 30,
                requested: Some(2 << 30),
                set_by: "ada".into(),
                ..Knob::default()
            },
        );
    })
}

fn of_four_ranks(dir: &Path, more: impl FnOnce(&mut RunSummary, &mut Recorder)) -> PathBuf {
    let mut summary = summary("resnet");
    madeup::tuning::tell(&mut summary);
    let mut recorder = Recorder::create(&dir.join("resnet.stall"), &summary.job, Options::default());
    recorder.anchor(ClockAnchor { monotonic_ns: BEGIN_NS, boottime_ns: BEGIN_NS, wall_ns: WALL_NS });
    let mut training = Causes::default();
    for rank in 0..4 {
        let mut at_ns = BEGIN_NS;
        let mut startup = Causes::default();
        startup[Cause::Compute] = 4 * S;
        recorder.step(step(rank, Phase::Startup, 0, at_ns, startup));
        at_ns += 4 * S;
        let mut index = 0;
        while at_ns < BEGIN_NS + 180 * S {
            let causes = causes(rank, index);
            training += &causes;
            let step = step(rank, Phase::Training, index, at_ns, causes);
            if step.end_ns - step.start_ns > 600 * MS {
                recorder.step_detail(detail(rank, index, step.start_ns, step.end_ns - step.start_ns));
            }
            if rank == 0 && causes[Cause::Persist] > 0 {
                recorder.checkpoint(CheckpointEvent {
                    rank,
                    start_ns: step.end_ns - 350 * MS,
                    end_ns: step.end_ns,
                    saver: "torch.save".into(),
                    cause: Cause::Persist,
                    background: false,
                    bytes: 30_000_000,
                });
            }
            at_ns = step.end_ns;
            recorder.step(step);
            index += 1;
        }
        for period in 0..18 {
            for worker in 0..2 {
                let start_ns = BEGIN_NS + period * 10 * S;
                let load = if period % 5 == 4 { load(1) } else { load(worker) };
                recorder.worker_period(WorkerPeriod { start_ns, rank, loader: 0, worker, load });
            }
        }
    }
    for event in madeup::tuning::audit(BEGIN_NS) {
        recorder.audit(event);
    }
    more(&mut summary, &mut recorder);
    summary.phases = vec![PhaseSummary {
        phase: Phase::Training,
        loader: Some(0),
        steps: 360,
        samples: 360 * 32,
        wall_ns: training.total_ns(),
        causes: training,
        hidden_ns: None,
        step_p50_ns: 460 * MS,
        step_p95_ns: 1560 * MS,
        step_max_ns: 1560 * MS,
    }];
    finish(recorder, summary)
}

fn step(rank: u32, phase: Phase, index: u64, start_ns: u64, causes: Causes) -> StepLedger {
    StepLedger {
        rank,
        loader: 0,
        phase,
        index,
        part: false,
        start_ns,
        end_ns: start_ns + causes.total_ns(),
        causes,
        hidden_ns: None,
        producer: Some(4830),
        samples: 32,
        evidence: EvidenceKinds { kernel: true, shim: true },
    }
}

fn finish(recorder: Recorder, mut summary: RunSummary) -> PathBuf {
    summary.job.ended_wall_ns = Some(WALL_NS + 180 * S);
    summary.job.exit_code = Some(0);
    recorder.finish(&summary).path.expect("a recording in a folder of ours")
}

/// A run in which no step was seen.
pub(super) fn no_steps(dir: &Path) -> PathBuf {
    let recorder = Recorder::create(&dir.join("empty.stall"), &job("empty"), Options::default());
    let summary = RunSummary {
        job: job("empty"),
        kernel: EvidenceState::Missing(
            "no collector with the privilege is running; start one with `sudo stallscope collect`".into(),
        ),
        shim: EvidenceState::Missing("no process of the job loaded it".into()),
        ..RunSummary::default()
    };
    finish(recorder, summary)
}

/// A running run with the first `lines` lines of an audit; the recorder takes more.
pub(super) fn growing(dir: &Path, lines: usize) -> (Recorder, PathBuf) {
    let mut recorder = Recorder::create(&dir.join("grows.stall"), &job("grows"), Options::default());
    recorder.anchor(ClockAnchor { monotonic_ns: BEGIN_NS, boottime_ns: BEGIN_NS, wall_ns: WALL_NS });
    recorder.step(step(0, Phase::Training, 0, BEGIN_NS, causes(2, 1)));
    more(&mut recorder, 0, lines);
    let path = recorder.path().expect("a recording in a folder of ours").to_path_buf();
    (recorder, path)
}

/// Further lines of its audit, written at once.
pub(super) fn more(recorder: &mut Recorder, from: usize, lines: usize) {
    for event in madeup::tuning::audit(BEGIN_NS).into_iter().skip(from).take(lines) {
        recorder.audit(event);
    }
    recorder.flush(&summary("grows"));
}

/// A run whose every name tries to steer the terminal.
pub(super) fn hostile(dir: &Path) -> PathBuf {
    let evil = "\x1b[2J\x1b]0;pwned\x07\u{202e}\r\n\t\u{9b}31m<b>";
    let mut summary = summary(evil);
    summary.host.host = evil.into();
    summary.verdict.sentence = evil.into();
    summary.kernel = EvidenceState::Partial(evil.into());
    for diagnosis in &mut summary.diagnoses {
        for text in
            [&mut diagnosis.name, &mut diagnosis.finding, &mut diagnosis.evidence, &mut diagnosis.advice]
        {
            *text = evil.into();
        }
    }
    summary.losses[0].reason = evil.into();
    summary.probes[1].name = evil.into();
    summary.probes[1].reason = evil.into();
    summary.files[0].path = evil.into();
    summary.mounts[0].mount = evil.into();
    summary.mounts[0].fs_type = evil.into();
    madeup::tuning::tell(&mut summary);
    for knob in &mut summary.knobs {
        for text in [&mut knob.name, &mut knob.unit, &mut knob.reason, &mut knob.set_by] {
            *text = evil.into();
        }
    }
    for advice in &mut summary.advice {
        (advice.knob, advice.why) = (evil.into(), evil.into());
    }
    summary.rates[0].unknown = vec![evil.into()];
    let mut recorder = Recorder::create(&dir.join("hostile.stall"), &summary.job, Options::default());
    for event in madeup::tuning::audit(BEGIN_NS) {
        let text = || evil.to_owned();
        recorder.audit(AuditEvent { by: text(), knob: text(), saw: text(), why: text(), ..event });
    }
    let mut detail = detail(0, 7, BEGIN_NS + 10 * S, S);
    detail.lanes.iter_mut().for_each(|lane| lane.role = evil.into());
    recorder.step_detail(detail);
    recorder.step(step(0, Phase::Training, 7, BEGIN_NS + 10 * S, causes(2, 7)));
    finish(recorder, summary)
}
