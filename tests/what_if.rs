//! `stallscope what-if` as its users see it: what it predicts, and what it says where it can't.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, job, python, text};
use madeup::{Shape, record};
use serde_json::Value;
use stallscope_control::Random;
use stallscope_control::pipeline::{Conditions, Demand, Pipeline, Storage};
use stallscope_model::{
    BatchService, CheckpointAccount, CheckpointRule, Checkpoints, EvidenceState, HostFacts, JobFacts,
    LoaderFacts, Phase, PhaseSummary, RankFacts, RankSummary, RunSummary, StepLedger,
};
use stallscope_store::{ClockAnchor, Options, Recorder};
use std::path::Path;

const WORKERS: u32 = 2;

/// A recording of a job whose two workers each read 32 samples of 2 ms and decode for 6 ms a batch, beside a trainer
/// that computes for 10 ms: 35 ms a step. Its readers don't hold each other up.
fn delayed(path: &Path, steps: u64) {
    let mut random = Random::new(3);
    let draw = move |_| Demand {
        samples: 32,
        requests: 32,
        cpu_ns: 6e6 * (0.8 + 0.4 * random.unit()),
        compute_ns: 10e6,
        ..Demand::default()
    };
    let storage = Storage { latency_ns: 2e6, ..Storage::default() };
    let conditions = Conditions { cores: 8.0, storage, ..Conditions::default() };
    let mut pipeline = Pipeline::new(WORKERS, 2 * WORKERS, conditions, 3, draw);
    let loader = LoaderFacts {
        workers: WORKERS,
        batch_size: Some(32),
        prefetch_factor: Some(2),
        ..LoaderFacts::default()
    };
    let facts = RankFacts { pid: 7, loaders: vec![loader], ..RankFacts::default() };
    let job = JobFacts { name: "made \x1b[31mup".into(), pid: 7, ..JobFacts::default() };
    let summary = RunSummary {
        job: job.clone(),
        host: HostFacts { cpus: 8, ..HostFacts::default() },
        ranks: vec![RankSummary {
            facts,
            phases: Vec::new(),
            workers: Vec::new(),
            checkpoints: Default::default(),
        }],
        ..RunSummary::default()
    };
    let mut recorder = Recorder::create(path, &job, Options::default());
    for index in 0..steps {
        let step = pipeline.next_step();
        for service in step.made {
            // The regression found that a reader more makes no difference.
            recorder.batch_service(BatchService {
                reads: 32,
                readers_spread: 3.0,
                ahead_spread: 3.0,
                ..service
            });
        }
        recorder.step(StepLedger {
            rank: 0,
            loader: 0,
            phase: Phase::Training,
            index,
            part: false,
            start_ns: step.start_ns,
            end_ns: step.end_ns,
            causes: step.causes,
            hidden_ns: None,
            producer: None,
            samples: step.samples,
            evidence: Default::default(),
        });
    }
    let now_ns = pipeline.now_ns();
    recorder.anchor(ClockAnchor { monotonic_ns: now_ns, boottime_ns: now_ns, wall_ns: now_ns });
    recorder.finish(&summary);
}

fn training() -> PhaseSummary {
    PhaseSummary {
        phase: Phase::Training,
        loader: None,
        steps: 9,
        samples: 0,
        wall_ns: 9,
        causes: Default::default(),
        hidden_ns: None,
        step_p50_ns: 1,
        step_p95_ns: 1,
        step_max_ns: 1,
    }
}

/// A recording of a loop that trains without a loader.
fn without_a_loader(path: &Path) {
    let job = JobFacts { name: "loop".into(), pid: 7, ..JobFacts::default() };
    let (facts, phases) = (RankFacts { pid: 7, ..RankFacts::default() }, vec![training()]);
    let rank = RankSummary { facts, phases, workers: Vec::new(), checkpoints: Default::default() };
    let (shim, ranks) = (EvidenceState::On, vec![rank]);
    let summary = RunSummary { job: job.clone(), shim, ranks, ..RunSummary::default() };
    Recorder::create(path, &job, Options::default()).finish(&summary);
}

/// A recording of a loop of 100 s that saved every two seconds, by a Checkpointer whose saves cost 0.4 s each.
fn that_saves(path: &Path) {
    let job = JobFacts { name: "saves".into(), pid: 7, ..JobFacts::default() };
    let rule = CheckpointRule {
        cost_ns: 400_000_000,
        persist_ns: 1_000_000_000,
        mtbf_ns: 86_400_000_000_000,
        interval_ns: 263_000_000_000,
    };
    let account = CheckpointAccount { rule: Some(rule), ..CheckpointAccount::default() };
    let checkpoints = Checkpoints {
        count: 50,
        blocked_ns: 15_000_000_000,
        account: Some(account),
        ..Checkpoints::default()
    };
    let training = PhaseSummary { wall_ns: 100_000_000_000, ..training() };
    let facts = RankFacts { pid: 7, ..RankFacts::default() };
    let rank = RankSummary { facts, phases: vec![training], workers: Vec::new(), checkpoints };
    let summary =
        RunSummary { job: job.clone(), shim: EvidenceState::On, ranks: vec![rank], ..RunSummary::default() };
    Recorder::create(path, &job, Options::default()).finish(&summary);
}

#[test]
fn another_interval_of_checkpoints_is_judged_by_goodput() {
    let sandbox = Sandbox::new("goodput");
    that_saves(&sandbox.path("a.stall"));
    let output = sandbox.run(&["what-if", "a.stall", "--ckpt-interval", "5m"]);
    let page = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for line in
        ["a save every", "saves cost      20%", "goodput         80.0%", "gain", "+25%", "loses least"]
    {
        assert!(page.contains(line), "{line}: {page}");
    }
    let output = sandbox.run(&["what-if", "a.stall", "--mtbf", "10m", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let best_s = document["checkpoints"]["best"]["interval_s"].as_f64().unwrap();
    assert!((20.0..24.0).contains(&best_s), "{document}");
    assert!(document["checkpoints"]["then"].is_null());

    without_a_loader(&sandbox.path("loop.stall"));
    let output = sandbox.run(&["what-if", "loop.stall", "--ckpt-interval", "10m"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no save was seen"), "{}", text(&output.stderr));
    let output = sandbox.run(&["what-if", "a.stall", "--ckpt-interval", "soon"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

fn sandbox(name: &str, steps: u64) -> Sandbox {
    let sandbox = Sandbox::new(name);
    delayed(&sandbox.path("a.stall"), steps);
    sandbox
}

#[test]
fn more_workers_are_predicted_and_the_next_bottleneck_is_named() {
    let sandbox = sandbox("what-if-workers", 300);
    let done = sandbox.run(&["what-if", "a.stall", "--workers", "+2", "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let printed: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&printed["now"]["workers"], &printed["then"]["workers"]), (&2.into(), &4.into()));
    assert_eq!((&printed["now"]["prefetch"], &printed["then"]["prefetch"]), (&4.into(), &8.into()));
    let step_ms = |at: &Value| at["step_ms"]["value"].as_f64().unwrap();
    assert!((step_ms(&printed["now"]) - 35.0).abs() < 1.0, "{printed:#}");
    assert!((step_ms(&printed["then"]) - 17.5).abs() < 1.0, "{printed:#}");
    assert_eq!(printed["now"]["bottleneck"], "reads in flight");
    assert!(printed["gain"]["low"].as_f64().unwrap() > 0.5, "{printed:#}");
    assert!(printed["outlook"]["smallest_useful"]["workers"].as_u64().unwrap() >= 7, "{printed:#}");
    let fewer = sandbox.run(&["what-if", "a.stall", "--workers", "-1", "--json"]);
    let printed: Value = serde_json::from_slice(&fewer.stdout).unwrap();
    assert!((step_ms(&printed["then"]) - 70.0).abs() < 3.0, "{printed:#}");
}

#[test]
fn the_page_says_now_and_then_and_what_would_be_enough() {
    let sandbox = sandbox("what-if-page", 300);
    let shown = |words: &[&str]| {
        let done = sandbox.run(&[&["what-if", "a.stall"], words].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let page = shown(&["--storage", "2x", "--cache", "40%", "--cores", "4"]);
    for printed in
        ["then", "a step", "samples/s", "gain", "held up by", "Smallest that is as good", "ideal loader"]
    {
        assert!(page.contains(printed), "{printed}:\n{page}");
    }
    assert!(!page.contains('\x1b'), "a name from elsewhere reached the terminal raw:\n{page}");
    let page = shown(&[]);
    for printed in ["G compute", "S storage", "one worker more", "storage twice as fast", "reads in flight"] {
        assert!(page.contains(printed), "{printed}:\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
}

#[test]
fn what_is_not_known_is_a_sentence() {
    let young = sandbox("what-if-young", 20);
    let refused = |sandbox: &Sandbox, words: &[&str], code: i32| {
        let done = sandbox.run(words);
        assert_eq!(done.status.code(), Some(code), "{}", text(&done.stdout));
        text(&done.stderr)
    };
    assert!(refused(&young, &["what-if", "a.stall"], 1).contains("let the job run longer"));
    // A recording that knows no single batch.
    record(&young.path("old.stall"), &Shape::default());
    let printed = refused(&young, &["what-if", "old.stall", "--workers", "4"], 1);
    assert!(printed.contains("how single batches were made"), "{printed}");
    without_a_loader(&young.path("loop.stall"));
    assert!(refused(&young, &["what-if", "loop.stall"], 1).contains("trains without a DataLoader"));
    assert!(refused(&young, &["what-if", "none.stall"], 1).contains("none.stall"));
    assert!(refused(&young, &["what-if", "a.stall", "--rank", "9"], 1).contains("rank 9"));
    assert!(refused(&young, &["what-if", "a.stall", "--cache", "140%"], 2).contains("from 0% to 100%"));
    assert!(refused(&young, &["what-if", "a.stall", "--workers", "many"], 2).contains("+2"));
    assert!(refused(&young, &["what-if", "a.stall", "--storage", "fast"], 2).contains("2x"));
}

/// Runs tests/jobs/paced.py under stallscope; the mean of its steps in milliseconds.
fn paced(sandbox: &Sandbox, name: &str, workers: &str, words: &[&str]) -> f64 {
    let (python, script) = (python(), job("paced.py"));
    let job = ["run", "--name", name, "--", &python, &script, "--workers", workers];
    let done = sandbox.run(&[&job[..], words].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    text(&done.stdout).lines().rev().find_map(|line| line.trim().parse().ok()).expect("the mean step")
}

fn predicted(sandbox: &Sandbox, recording: &str, workers: &str) -> Value {
    let done = sandbox.run(&["what-if", recording, "--workers", workers, "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// A job that was really run at both settings. Its waits are sleep, which a busy machine only makes longer.
#[test]
fn a_second_worker_brings_what_was_predicted() {
    let sandbox = Sandbox::new("what-if-slow");
    let now_ms = paced(&sandbox, "one", "1", &[]);
    let really_ms = paced(&sandbox, "two", "2", &[]);
    assert!(really_ms < 0.75 * now_ms, "the job shows no effect: {now_ms} ms, then {really_ms} ms");
    let printed = predicted(&sandbox, "one.stall", "2");
    // One reader alone tells nothing of another one, so that this is the answer for reads that are merely slow.
    let gain = printed["either"]["if_slow"]["value"]
        .as_f64()
        .unwrap_or_else(|| printed["gain"]["value"].as_f64().unwrap());
    let predicted_ms = printed["now"]["step_ms"]["value"].as_f64().unwrap() / (1.0 + gain);
    assert!(
        (predicted_ms / really_ms - 1.0).abs() < 0.25,
        "{predicted_ms} ms predicted, {really_ms} ms really"
    );
}

#[test]
fn more_workers_at_one_source_are_not_promised() {
    let sandbox = Sandbox::new("what-if-limited");
    let source = sandbox.path("source").display().to_string();
    let now_ms = paced(&sandbox, "two", "2", &["--source", &source]);
    let really_ms = paced(&sandbox, "four", "4", &["--source", &source]);
    let really = now_ms / really_ms - 1.0;
    assert!(really.abs() < 0.2, "the source is no limit: {now_ms} ms, then {really_ms} ms");
    let printed = predicted(&sandbox, "two.stall", "4");
    let gain = |end: &str| printed["gain"][end].as_f64().unwrap();
    assert!(gain("low") < really + 0.1 && really < gain("high") + 0.1, "{really} really: {printed:#}");
    // Workers that others keep from their cores come and go, which may tell that it is a limit.
    let certain = printed["either"]["if_limited"]["value"].as_f64().unwrap_or_else(|| gain("value"));
    assert!((certain - really).abs() < 0.2, "{certain} promised, {really} really: {printed:#}");
    assert!(gain("low") < 0.1, "{printed:#}");
    let screen = text(&sandbox.run(&["report", "two.stall"]).stdout);
    let raise = screen.lines().find(|line| line.contains("num_workers from"));
    assert!(raise.is_none() || screen.contains("if storage is at its limit"), "{screen}");
}
