//! Comparisons of two recordings that differ by a known amount, or by nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use madeup::{Shape, record};
use stallscope_model::{CachePeriod, CacheState, CacheSummary, CacheUses, Cause, Phase, WorkerPeriod};
use stallscope_reports::Run;
use stallscope_reports::diff::{self, Change, Condition, Diff, Figure, Judgement};
use std::path::Path;
use support::PLAIN;
use support::schema::Schema;

fn compare(dir: &Path, shapes: [Shape; 2]) -> Diff {
    let [a, b] = [("a.stall", shapes[0]), ("b.stall", shapes[1])]
        .map(|(name, shape)| Run::open(&[record(&dir.join(name), &shape)]).unwrap());
    diff::compare(&a, &b).unwrap()
}

fn training(diff: &Diff, figure: Figure) -> &Change {
    let training = diff.training().expect("there was training");
    training.figures.iter().find(|change| change.figure == figure).expect("every figure is there")
}

fn failures(diff: &Diff, conditions: &[&str]) -> Vec<String> {
    let conditions: Vec<Condition> = conditions.iter().map(|text| text.parse().unwrap()).collect();
    diff.failures(&conditions)
}

#[test]
fn a_change_is_found_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let a = Shape { seconds: 400, ..Shape::default() };
    let diff = compare(dir.path(), [a, Shape { fetch_ms: 15.0, seed: 2, ..a }]);
    // Of the fetch, a hundredth takes ten times as long.
    let fetch = training(&diff, Figure::PerStep(Cause::Fetch));
    assert_eq!(fetch.judgement, Judgement::BeyondNoise);
    assert!((fetch.change.unwrap() + 10.9e6).abs() < fetch.noise.unwrap(), "{fetch:?}");
    let step = training(&diff, Figure::StepMean);
    let sum: f64 =
        Cause::ALL.iter().filter_map(|cause| training(&diff, Figure::PerStep(*cause)).change).sum();
    assert!((step.change.unwrap() - sum).abs() < 1.0, "the causes' changes add up to the step's");
    assert_eq!(training(&diff, Figure::Share(Cause::Compute)).judgement, Judgement::BeyondNoise);
    assert_eq!(training(&diff, Figure::PerStep(Cause::Prep)).judgement, Judgement::WithinNoise);
    assert_eq!(diff.verdict, "a step takes 12% less time: 89 ms, before 100 ms; fetch -12 ms");
    assert!(diff.same_job);

    assert_eq!(
        failures(&diff, &["fetch > 30%", "fetch > +1%", "step_p50 > +1%", "samples_per_s < -1%"]),
        [""; 0]
    );
    let failed = failures(&diff, &["fetch > 10%", "samples_per_s > +5%", "step_mean < -5%", "fetch < -5%"]);
    assert_eq!(failed.len(), 4, "{failed:?}");
    assert!(failed[0].starts_with("\"fetch > 10%\": fetch is 1"), "{}", failed[0]);
    assert!(failed[2].starts_with("\"step_mean < -5%\": step_mean went from "), "{}", failed[2]);
}

#[test]
fn knobs_that_were_set_differently_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { seconds: 180, ranks: 2, ..Shape::default() };
    let path = record(&dir.path().join("tuned.stall"), &Shape { tuned: true, ..shape });
    let tuned = Run::open(&[path]).unwrap();
    let mut before = tuned.clone();
    before.audit.clear();
    before.summary.knobs.iter_mut().for_each(|knob| knob.value = knob.initial);
    let diff = diff::compare(&before, &tuned).unwrap();
    Schema::of_diffs().check(&serde_json::from_str(&diff::json(&diff, &[])).unwrap()).unwrap();
    let text = diff::text(&diff, &stallscope_reports::Style { width: 120, ..PLAIN });
    assert!(text.contains("prefetch was 4 in A and 8 in B, in 2 places"), "{text}");
    assert!(text.contains("workers was 2 in A and 4 in B\n"), "{text}");
    assert!(text.contains("B: its knobs were turned 4 times while it ran"), "{text}");
    assert!(diff::compare(&tuned, &tuned).unwrap().knobs.is_empty());
}

/// Draws of ten seconds each, of which so many of a hundred hit.
fn with_cache(run: &Run, hits: &[u64], capacity_bytes: u64) -> Run {
    let mut run = run.clone();
    let period = |(nth, hits): (usize, &u64)| {
        let uses = CacheUses {
            hits: *hits,
            prefetched: hits / 4,
            misses: 100 - hits,
            pool_bytes: hits * 1000,
            source_bytes: (100 - hits) * 1000,
            ..CacheUses::default()
        };
        let state =
            CacheState { capacity_bytes, kept_bytes: capacity_bytes / 2, evictions: 3, kept_samples: 9 };
        let start_ns = nth as u64 * WorkerPeriod::LENGTH_NS;
        CachePeriod { start_ns, rank: 0, loader: 0, phase: Phase::Training, uses, state: Some(state) }
    };
    run.caches = hits.iter().enumerate().map(period).collect();
    run.summary.caches = CacheSummary::of_periods(&run.caches);
    run
}

#[test]
fn what_a_cache_gives_is_compared_beside_the_steps() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { seconds: 180, ..Shape::default() };
    let run = Run::open(&[record(&dir.path().join("a.stall"), &shape)]).unwrap();
    let small = with_cache(&run, &[19, 21, 20, 18, 22, 20, 21, 19, 20, 20, 21, 19], 1 << 30);
    let large = with_cache(&run, &[41, 39, 40, 42, 38, 40, 41, 39, 40, 40, 39, 41], 2 << 30);
    let diff = diff::compare(&small, &large).unwrap();
    Schema::of_diffs().check(&serde_json::from_str(&diff::json(&diff, &[])).unwrap()).unwrap();
    let found = diff.cache.as_ref().unwrap();
    let of = |name: &str| found.figures.iter().find(|change| change.figure == name).unwrap();
    assert!((of("hit_share").change.unwrap() - 0.2).abs() < 1e-9, "{:?}", of("hit_share"));
    assert_eq!(of("miss_share").judgement, Judgement::BeyondNoise);
    assert!((of("source_bytes_per_draw").a.unwrap() - 800.0).abs() < 1e-9);
    assert_eq!(found.a.unwrap().misses + found.a.unwrap().hits, 1200);
    insta::assert_snapshot!(after_steps(&diff::text(&diff, &PLAIN)));

    let again = diff::compare(&small, &small).unwrap();
    let change = &again.cache.as_ref().unwrap().figures[0];
    assert_eq!((change.change, change.judgement), (Some(0.0), Judgement::WithinNoise));
    let first = diff::compare(&run, &large).unwrap();
    Schema::of_diffs().check(&serde_json::from_str(&diff::json(&first, &[])).unwrap()).unwrap();
    assert_eq!(first.cache.as_ref().unwrap().figures[0].judgement, Judgement::NotInBoth);
    assert!(diff::text(&first, &PLAIN).contains("hits                     -     40.0%             -"));
    assert!(diff::compare(&run, &run).unwrap().cache.is_none());
}

fn after_steps(text: &str) -> &str {
    &text[text.find("Cache").unwrap_or_default()..]
}

#[test]
fn runs_of_the_same_job_do_not_differ() {
    let dir = tempfile::tempdir().unwrap();
    let a = Shape { seconds: 400, ranks: 2, ..Shape::default() };
    let diff = compare(dir.path(), [a, Shape { seed: 7, ..a }]);
    for change in &diff.training().unwrap().figures {
        let known = change.a.is_some();
        assert!(!known || change.judgement == Judgement::WithinNoise, "{change:?}");
    }
    assert!(diff.verdict.starts_with("no change of step time beyond noise: "), "{}", diff.verdict);
    assert_eq!(
        failures(&diff, &["step_mean > +0%", "step_mean < -0%", "fetch > +0%", "fetch < -0%"]),
        [""; 0]
    );
}

#[test]
fn a_change_that_no_window_shows_is_noise() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { seconds: 400, ..Shape::default() };
    let run = Run::open(&[record(&dir.path().join("a.stall"), &shape)]).unwrap();
    let mut other = run.clone();
    let phase = other.summary.phases.iter_mut().find(|phase| phase.phase == Phase::Training).unwrap();
    phase.causes[Cause::Peer] += phase.wall_ns / 10;
    phase.wall_ns += phase.wall_ns / 10;
    let diff = diff::compare(&run, &other).unwrap();
    let step = training(&diff, Figure::StepMean);
    assert!((step.change_ratio.unwrap() - 0.1).abs() < 0.001, "{step:?}");
    assert_eq!(step.judgement, Judgement::WithinNoise);
}

#[test]
fn short_runs_are_cut_into_seconds_and_shorter_ones_tell_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let a = Shape { seconds: 40, ..Shape::default() };
    let short = compare(dir.path(), [a, Shape { compute_ms: 120.0, seed: 2, ..a }]);
    assert_eq!(short.a.window_ns, madeup::S);
    assert_eq!(training(&short, Figure::StepMean).judgement, Judgement::BeyondNoise);

    let dir = tempfile::tempdir().unwrap();
    let a = Shape { seconds: 5, ..Shape::default() };
    let tiny = compare(dir.path(), [a, Shape { compute_ms: 120.0, seed: 2, ..a }]);
    assert_eq!(training(&tiny, Figure::StepMean).judgement, Judgement::TooShortToTell);
    assert!(tiny.verdict.starts_with("too short to tell: "), "{}", tiny.verdict);
    // A gate goes by what there is, and says so.
    let failed = failures(&tiny, &["step_mean > +5%", "compute_per_step > 200ms"]);
    assert!(
        matches!(&failed[..], [one] if one.contains("too short to tell whether that is noise")),
        "{failed:?}"
    );
    assert!(diff::text(&tiny, &PLAIN).contains("noise is known from 10 on"));
}

#[test]
fn a_run_without_training_fails_a_gate_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let a = Shape { seconds: 40, ..Shape::default() };
    let diff = compare(dir.path(), [a, Shape { seconds: 0, name: "other", ..a }]);
    assert!(!diff.same_job);
    assert_eq!(diff.verdict, "nothing to compare: the second recording has no training steps");
    assert_eq!(
        failures(&diff, &["fetch > 99%"]),
        ["\"fetch > 99%\" cannot be judged: the second recording has no training steps"]
    );
    assert!(diff::text(&diff, &PLAIN).contains("two different jobs"));
}

#[test]
fn json_says_what_the_text_says() {
    let dir = tempfile::tempdir().unwrap();
    let a = Shape { seconds: 400, ..Shape::default() };
    let diff = compare(dir.path(), [a, Shape { prep_ms: 30.0, ..a }]);
    let failed = failures(&diff, &["prep > 10%"]);
    let json: serde_json::Value = serde_json::from_str(&diff::json(&diff, &failed)).unwrap();
    let schema = Schema::of_diffs();
    schema.check(&json).unwrap();
    let mut wrong = json.clone();
    wrong["phases"][0]["figures"][0]["judgement"] = "maybe".into();
    schema.check(&wrong).unwrap_err();
    assert_eq!(json["failed"].as_array().unwrap().len(), 1);
    let phase = &json["phases"][0];
    assert_eq!(phase["phase"], "training");
    assert_eq!(phase["a"]["steps"], diff.training().unwrap().a.steps);
    let prep = phase["figures"].as_array().unwrap().iter().find(|f| f["figure"] == "prep_share").unwrap();
    let truth = training(&diff, Figure::Share(Cause::Prep));
    assert_eq!(prep["b"].as_f64(), truth.b);
    assert_eq!(prep["judgement"], "beyond-noise");
    let text = diff::text(&diff, &PLAIN);
    assert!(text.starts_with(&diff.verdict[..20]), "{text}");
    let share = format!("{:.1}%", truth.b.unwrap() * 100.0);
    let line = text.lines().find(|line| line.trim_start().starts_with("prep ")).unwrap();
    assert!(line.contains(&share) && line.contains("beyond noise"), "{line}");
    assert!(text.contains("Between epochs") == diff.phases.iter().any(|phase| phase.phase == Phase::Between));
}
