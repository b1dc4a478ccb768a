//! Runs to make pages of, and what a page has to agree with.

use crate::support;
use madeup::{Shape, record};
use serde_json::Value;
use stallscope_model::*;
use stallscope_reports::Run;
use stallscope_reports::{html, json};
use tempfile::TempDir;

/// A run and the folder with its recording, which is read again for single steps.
pub(crate) struct Recorded {
    pub(crate) run: Run,
    _folder: TempDir,
}

/// A minute of some ranks, with something in every section.
pub(crate) fn recorded(ranks: u32) -> Recorded {
    let folder = TempDir::new().expect("a temporary folder");
    let path = record(&folder.path().join("run.stall"), &Shape { ranks, tuned: true, ..Shape::default() });
    let mut run = Run::open(&[path]).expect("a recording");
    let sample = support::fetch_bound();
    let summary = &mut run.summary;
    (summary.files, summary.mounts, summary.diagnoses) = (sample.files, sample.mounts, sample.diagnoses);
    summary.losses = vec![Loss { reason: "lane full".into(), count: 17 }];
    summary.probes = vec![
        Probe { name: "sched_switch".into(), on: true, reason: String::new() },
        Probe { name: "sys_enter".into(), on: false, reason: "nobody asked for it (--syscalls)".into() },
    ];
    summary.overhead = Overhead { records: 48_211, ..sample.overhead };
    run.caches = (0..6)
        .flat_map(|nth| {
            let uses = CacheUses {
                hits: 50 * nth,
                substitutions: nth,
                misses: 320 - 50 * nth,
                prefetched: 10 * nth,
                ..CacheUses::default()
            };
            let state =
                CacheState { kept_bytes: nth << 20, capacity_bytes: 6 << 20, ..CacheState::default() };
            let start_ns = run.rollups[0].start_ns + nth * WorkerPeriod::LENGTH_NS;
            (0..ranks).map(move |rank| CachePeriod {
                start_ns,
                rank,
                loader: 0,
                phase: Phase::Training,
                uses,
                state: Some(state),
            })
        })
        .collect();
    summary.caches = CacheSummary::of_periods(&run.caches);
    summary.caches[0].other.misses = 7;
    if ranks == 1 {
        let mut curve = CacheCurve::new(20 << 20);
        for (quarters, misses) in [(1, 97), (2, 90), (4, 75), (8, 50), (13, 0)] {
            curve.push(CachePoint { capacity_bytes: (6 << 20) / 4 * quarters, uses: 100, misses });
        }
        summary.caches[0].curve = curve;
    }
    if let Some(slow) = summary.ranks.get_mut(1) {
        let phase = &mut slow.phases[0];
        phase.wall_ns += phase.causes[Cause::Fetch];
        phase.causes[Cause::Fetch] *= 2;
    }
    Recorded { run, _folder: folder }
}

/// What would end an element, an attribute, a string or a line, and what turns or hides text.
pub(crate) const HOSTILE: &str = "</script><script>hacked=1</script>'\"><img src=x onerror=hacked=2>]]>--><svg/onload=hacked=3>\u{1b}[2J\u{202e}\u{0}&lt;\r\n{{7*7}}";

/// Puts it everywhere where a name comes from outside.
pub(crate) fn hostile(run: &mut Run) {
    let name = || HOSTILE.to_owned();
    let summary = &mut run.summary;
    (summary.job.name, summary.job.user, summary.job.command) = (name(), name(), vec![name(), name()]);
    (summary.verdict.sentence, summary.verdict.finding) = (name(), name());
    let host = HostFacts {
        host: name(),
        kernel: name(),
        cpu_model: name(),
        gpus: vec![name()],
        ..summary.host.clone()
    };
    (summary.host, run.hosts) = (host.clone(), vec![host]);
    (summary.kernel, summary.shim) = (EvidenceState::Partial(name()), EvidenceState::Missing(name()));
    for rank in &mut summary.ranks {
        rank.facts.host = name();
        (rank.facts.torch_version, rank.facts.python_version) = (Some(name()), Some(name()));
        rank.facts.unavailable = vec![name()];
        for loader in &mut rank.facts.loaders {
            (loader.dataset, loader.start_method) = (name(), name());
        }
    }
    for diagnosis in &mut summary.diagnoses {
        (diagnosis.name, diagnosis.finding) = (name(), name());
        (diagnosis.evidence, diagnosis.advice) = (name(), name());
    }
    for file in &mut summary.files {
        (file.path, file.mount) = (name(), name());
    }
    for mount in &mut summary.mounts {
        (mount.mount, mount.fs_type) = (name(), name());
    }
    summary.probes = vec![Probe { name: name(), on: false, reason: name() }];
    summary.losses = vec![Loss { reason: name(), count: 3 }];
    run.notes = vec![name()];
    support::tuning::put(run, &mut name.clone(), 7, 0.3);
    for source in &mut run.sources {
        (source.path, source.host) = (name().into(), name());
    }
    for event in &mut run.checkpoints {
        event.saver = name();
    }
    for lane in run.details.iter_mut().flat_map(|step| &mut step.lanes) {
        lane.role = name();
    }
}

pub(crate) fn page(run: &Run) -> String {
    let mut page = Vec::new();
    html::write(run, &mut page).expect("a page");
    String::from_utf8(page).expect("UTF-8")
}

/// As `stallscope report --format json` prints it.
pub(crate) fn report(run: &Run) -> Value {
    let mut report = Vec::new();
    json::write(run, &mut report).expect("a report");
    serde_json::from_slice(&report).expect("JSON")
}

/// Figures of a page, each with the pointers whose sum it is, have to be those of the report.
pub(crate) fn agree(figures: &[(String, String)], report: &Value) {
    for (sources, exact) in figures {
        let sum: u64 = sources
            .split(' ')
            .map(|source| {
                report
                    .pointer(source)
                    .and_then(Value::as_u64)
                    .unwrap_or_else(|| panic!("{source} is no number"))
            })
            .sum();
        assert_eq!(&sum.to_string(), exact, "{sources}");
    }
}
