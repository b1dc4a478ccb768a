//! Whatever a recording says, the screen keeps to the terminal it is for.

mod support;

use proptest::prelude::*;
use stallscope_model::*;
use stallscope_reports::{Run, Style, json, list, progress, text};
use std::path::Path;
use unicode_width::UnicodeWidthStr;

fn words() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[ a-z0-9]{0,60}",
        any::<String>(),
        "[\u{0}-\u{1f}\u{7f}-\u{9f}\u{202a}-\u{202e}\u{4e00}-\u{4e20}\u{300}a ]{0,40}",
        "x{0,300}",
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..100u64, 0..100_000_000_000u64, any::<u64>()]
}

fn any_phase() -> impl Strategy<Value = PhaseSummary> {
    (prop::sample::select(&Phase::ALL[..]), prop::option::of(0..4u16), [(); 18].map(|()| number())).prop_map(
        |(phase, loader, numbers)| {
            let [steps, samples, wall_ns, hidden_ns, step_p50_ns, step_p95_ns, step_max_ns, odd, causes @ ..] = numbers;
            PhaseSummary {
                phase,
                loader,
                steps,
                samples,
                wall_ns,
                causes: Causes(causes),
                hidden_ns: (odd % 2 == 1).then_some(hidden_ns),
                step_p50_ns,
                step_p95_ns,
                step_max_ns,
            }
        },
    )
}

fn any_rank() -> impl Strategy<Value = RankSummary> {
    let loaders = prop::collection::vec((words(), words(), number()), 0..3);
    let workers = prop::collection::vec([(); 7].map(|()| number()), 0..9);
    (prop::collection::vec(any_phase(), 0..4), loaders, workers, number(), words()).prop_map(
        |(phases, loaders, workers, number, unavailable)| RankSummary {
            facts: RankFacts {
                rank: number as u32,
                unavailable: vec![unavailable],
                loaders: loaders
                    .into_iter()
                    .map(|(dataset, start_method, number)| LoaderFacts {
                        workers: number as u32,
                        dataset,
                        start_method,
                        dataset_len: Some(number),
                        batch_size: Some(number as u32),
                        ..LoaderFacts::default()
                    })
                    .collect(),
                ..RankFacts::default()
            },
            phases,
            workers: workers
                .into_iter()
                .map(|[batches, wall_ns, fetch_ns, cpu_ns, runnable_ns, idle_ns, read_bytes]| WorkerLoad {
                    pid: batches as u32,
                    loader: None,
                    batches: Some(batches),
                    samples: None,
                    wall_ns,
                    fetch_ns,
                    cpu_ns,
                    runnable_ns,
                    idle_ns,
                    read_bytes,
                })
                .collect(),
            checkpoints: Checkpoints {
                count: number,
                in_background: number,
                files: number,
                bytes: number,
                failed: number,
                blocked_ns: number,
                blocked_in_ns: Phase::ALL.into_iter().map(|phase| (phase, number)).collect(),
                background_ns: number,
                account: Some(CheckpointAccount {
                    spent_ns: number,
                    trained_ns: 7,
                    budget_ppm: Some(number),
                    rule: None,
                }),
            },
        },
    )
}

fn any_caches(number: u64) -> Vec<CacheSummary> {
    let uses = CacheUses {
        hits: number,
        substitutions: number / 2,
        misses: number / 3,
        prefetched: number / 5,
        late: number,
        pool_bytes: number,
        source_bytes: number,
    };
    let state = CacheState {
        kept_bytes: number,
        capacity_bytes: number / 2,
        evictions: number,
        kept_samples: number,
    };
    let cache = CacheSummary {
        rank: number as u32,
        loader: 0,
        training: uses,
        other: uses,
        state: Some(state),
        ..CacheSummary::default()
    };
    let mut cache = cache;
    cache.curve.push(CachePoint { capacity_bytes: number, uses: number / 7, misses: number });
    cache.curve.push(CachePoint { capacity_bytes: number.saturating_mul(2), uses: 7, misses: number % 8 });
    let half = CacheSummary { loader: 1, training: CacheUses::default(), ..cache };
    [cache, half].into_iter().take(number as usize % 3).collect()
}

fn any_evidence() -> impl Strategy<Value = EvidenceState> {
    prop_oneof![
        Just(EvidenceState::Off),
        Just(EvidenceState::On),
        words().prop_map(EvidenceState::Partial),
        words().prop_map(EvidenceState::Missing),
    ]
}

fn any_run() -> impl Strategy<Value = RunSummary> {
    let diagnosis =
        ([(); 4].map(|()| words()), any::<f64>()).prop_map(|([name, finding, evidence, advice], share)| {
            Diagnosis { name, finding, evidence, advice, share, ..Diagnosis::default() }
        });
    (
        (words(), words(), words(), prop::collection::vec(words(), 0..4), any::<Option<i32>>(), number()),
        prop::collection::vec(any_phase(), 0..8),
        prop::collection::vec(any_rank(), 0..5),
        (any_evidence(), any_evidence(), any::<Option<f64>>()),
        prop::collection::vec((words(), number()), 0..4),
        prop::collection::vec(diagnosis, 0..3),
        prop::collection::vec((words(), words(), number()), 0..8),
    )
        .prop_map(
            |(texts, phases, ranks, (kernel, shim, disagreement_share), losses, diagnoses, waits)| {
                let probe = |(name, reason, number): &(String, String, u64)| Probe {
                    name: name.clone(),
                    on: number % 2 == 0,
                    reason: reason.clone(),
                };
                let file = |(path, mount, number): &(String, String, u64)| FileWait {
                    path: path.clone(),
                    mount: mount.clone(),
                    wait_ns: *number,
                    waits: *number,
                };
                let mount = |(mount, fs_type, number): &(String, String, u64)| MountWait {
                    mount: mount.clone(),
                    fs_type: fs_type.clone(),
                    wait_ns: *number,
                    waits: *number,
                };
                let (name, host, sentence, command, exit_code, number) = texts;
                let mut summary = RunSummary {
                    job: JobFacts {
                        name,
                        command,
                        exit_code,
                        ended_wall_ns: (number % 2 == 1).then_some(number),
                        started_wall_ns: number / 2,
                        ..JobFacts::default()
                    },
                    host: HostFacts { host, cpus: number as u32, ..HostFacts::default() },
                    ranks,
                    phases,
                    kernel,
                    shim,
                    disagreement_share,
                    losses: losses.into_iter().map(|(reason, count)| Loss { reason, count }).collect(),
                    diagnoses,
                    verdict: Verdict { finding: String::new(), sentence },
                    overhead: Overhead {
                        collector_cpu_ns: number,
                        start_cpu_ns: number / 2,
                        collector_rss_bytes: number,
                        kernel_cpu_ns: Some(number),
                        records: number,
                        wall_ns: number / 3,
                    },
                    probes: waits.iter().map(probe).collect(),
                    files: waits.iter().map(file).collect(),
                    mounts: waits.iter().map(mount).collect(),
                    ..RunSummary::default()
                };
                let mut names = waits.iter().cycle().map(|(name, ..)| name.clone());
                let figure = summary.disagreement_share.unwrap_or(0.3);
                let mut name = || names.next().unwrap_or_default();
                support::tuning::of_summary(&mut summary, &mut name, number, figure);
                summary.caches = any_caches(number);
                summary
            },
        )
}

/// `text` without what sets colours; nothing else may begin with an escape.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split('\x1b');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_once('m').unwrap_or_default();
        assert!(code.strip_prefix('[').is_some_and(|code| code.parse::<u8>().is_ok()), "{piece:?}");
        plain.push_str(rest);
    }
    plain
}

fn check(text: &str, style: &Style) -> Result<(), TestCaseError> {
    prop_assert!(style.colour || !text.contains('\x1b'));
    let plain = without_colours(text);
    for line in plain.lines() {
        prop_assert!(line.width() <= style.width, "{} columns: {line:?}", line.width());
        prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        prop_assert!(style.unicode || line.is_ascii(), "{line:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_output_fits_its_terminal(
        run in any_run(),
        width in prop_oneof![0..30usize, 30..130usize, Just(400)],
        colour: bool,
        unicode: bool,
    ) {
        let style = Style { width, colour, unicode };
        check(&text::screen(&run, Some(Path::new(&run.job.name)), &style), &style)?;
        let progress = progress::line(&run, width);
        check(&progress, &Style { width, colour: false, unicode: false })?;
        prop_assert!(!progress.contains('\n'));
        let row = list::Row {
            name: run.job.name.clone(),
            state: run.host.host.clone(),
            verdict: run.verdict.sentence.clone(),
            started_wall_ns: Some(run.overhead.records),
            duration_ns: Some(run.overhead.records),
            pid: Some(run.job.pid),
        };
        check(&list::table(&[row], run.overhead.wall_ns, &style), &style)?;
let mut run = Run::of_summary(run);
        let (name, number) = (run.summary.job.name.clone(), run.summary.overhead.records);
        support::tuning::put(&mut run, &mut || name.clone(), number, 0.1);
        check(&text::report(&run, &style), &style)?;
        let mut bytes = Vec::new();
        json::write(&run, &mut bytes).unwrap();
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
    }
}
