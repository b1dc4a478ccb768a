//! A trace is decoded again, with messages declared here, and compared with the run it was made from.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

#[path = "support/python.rs"]
mod python;
#[path = "support/trace.rs"]
mod trace;

use madeup::{Shape, record};
use proptest::prelude::*;
use stallscope_model::*;
use stallscope_reports::{Run, perfetto};
use stallscope_store::{Options, Recorder};
use std::collections::HashMap;
use std::path::PathBuf;
use trace::{Slice, show};

fn made_run(name: &str, shape: &Shape) -> (tempfile::TempDir, Run) {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = record(&dir.path().join(name), shape);
    let run = Run::open(&[path]).unwrap();
    (dir, run)
}

fn trace_of(run: &Run) -> Vec<u8> {
    let mut bytes = Vec::new();
    perfetto::write(run, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_trace_holds_every_step_with_its_causes() {
    let (_dir, run) = made_run("two.stall", &Shape { ranks: 2, seconds: 90, ..Shape::default() });
    let shown = show(&trace_of(&run));
    let mut steps = 0;
    let mut at: HashMap<u32, usize> = HashMap::new();
    run.each_step(|row| {
        let step = &row.step;
        if step.phase != Phase::Training {
            return Ok(());
        }
        let track = &shown.slices[&format!("resnet/rank {} on node1/training", step.rank)];
        let place = at.entry(step.rank).or_default();
        let slice = &track[*place];
        assert_eq!((slice.name.as_str(), slice.depth), ("training step", 0));
        assert_eq!((slice.start_ns, slice.end_ns), (step.start_ns, step.end_ns));
        assert_eq!(slice.facts["index"], step.index);
        assert_eq!(slice.facts["samples"], u64::from(step.samples));
        assert_eq!(slice.facts["producer_pid"], u64::from(step.producer.unwrap()));
        let inside: Vec<&Slice> = track[*place + 1..].iter().take_while(|slice| slice.depth == 1).collect();
        *place += 1 + inside.len();
        for cause in Cause::ALL {
            let ns: u64 = inside
                .iter()
                .filter(|slice| slice.name == cause.name())
                .map(|slice| slice.end_ns - slice.start_ns)
                .sum();
            assert_eq!(ns, step.causes[cause], "{} of step {}", cause.name(), step.index);
        }
        steps += 1;
        Ok(())
    })
    .unwrap();
    assert!(steps > 1500, "{steps}");
    let all: usize = at.values().sum();
    let shown_all: usize =
        [0, 1].iter().map(|rank| shown.slices[&format!("resnet/rank {rank} on node1/training")].len()).sum();
    assert_eq!(all, shown_all, "no slice is there without its step");
}

#[test]
fn steps_kept_in_full_have_their_causes_in_order_and_their_tasks() {
    let (_dir, run) = made_run("details.stall", &Shape { seconds: 120, ..Shape::default() });
    assert!(!run.details.is_empty());
    let shown = show(&trace_of(&run));
    let training = &shown.slices["resnet/rank 0 on node1/training"];
    for detail in &run.details {
        let place = training
            .iter()
            .position(|slice| slice.depth == 0 && slice.facts["index"] == detail.index)
            .unwrap();
        let pieces: Vec<(&str, u64, u64)> = training[place + 1..]
            .iter()
            .take_while(|slice| slice.depth == 1)
            .inspect(|slice| assert_eq!(slice.category, "critical_path"))
            .map(|slice| (slice.name.as_str(), slice.start_ns, slice.end_ns))
            .collect();
        let truth: Vec<_> =
            detail.critical.iter().map(|at| (at.cause.name(), at.start_ns, at.end_ns)).collect();
        assert_eq!(pieces, truth);
        for lane in &detail.lanes {
            let track = match lane.role.as_str() {
                "trainer" => "trainer, in its slowest steps".to_owned(),
                _ => format!("worker {}, in the slowest steps", lane.pid),
            };
            let did = &shown.slices[&format!("resnet/rank 0 on node1/{track}")];
            for segment in &lane.segments {
                let same = |slice: &&Slice| {
                    (slice.start_ns, slice.end_ns, slice.name.as_str())
                        == (segment.start_ns, segment.end_ns, segment.doing.name())
                };
                assert!(
                    segment.start_ns == segment.end_ns || did.iter().any(|slice| same(&slice)),
                    "{segment:?}"
                );
            }
        }
    }
}

#[test]
fn decisions_are_marks_and_knobs_are_counters() {
    let (_dir, run) = made_run("tuned.stall", &Shape { seconds: 170, tuned: true, ..Shape::default() });
    let shown = show(&trace_of(&run));
    let audit = &shown.slices["resnet/audit"];
    assert_eq!(audit.len(), run.audit.len());
    for (slice, event) in audit.iter().zip(&run.audit) {
        assert_eq!((slice.start_ns, slice.facts["decision"]), (event.time_ns, event.decision));
    }
    let names: Vec<&str> = audit.iter().map(|slice| slice.name.as_str()).collect();
    assert_eq!(
        names[..5],
        [
            "mode",
            "hold",
            "rank 0: request workers 2 → 4",
            "rank 0: applied workers 2 → 4",
            "rank 0: request workers 4 → 2"
        ]
    );
    let values = |knob: &str| -> Vec<f64> {
        shown.values[&format!("resnet/rank 0 on node1/{knob}")].iter().map(|(_, value)| *value).collect()
    };
    assert_eq!(values("workers"), [2.0, 4.0, 4.0, 2.0, 4.0, 4.0, 6.0, 4.0]);
    assert_eq!(values("prefetch"), [4.0, 16.0, 16.0, 4.0, 8.0, 8.0, 8.0]);
}

#[test]
fn checkpoints_counters_and_clocks_are_there() {
    let (_dir, run) = made_run("whole.stall", &Shape { seconds: 100, ..Shape::default() });
    let shown = show(&trace_of(&run));
    let saved = &shown.slices["resnet/rank 0 on node1/checkpoints"];
    assert_eq!(saved.len(), run.checkpoints.len());
    for (slice, event) in saved.iter().zip(&run.checkpoints) {
        assert_eq!(slice.name, "torch.save (persist)");
        assert_eq!(
            (slice.start_ns, slice.end_ns, slice.facts["bytes"]),
            (event.start_ns, event.end_ns, event.bytes)
        );
    }
    let training: Vec<_> = run.rollups.iter().filter(|rollup| rollup.phase == Phase::Training).collect();
    for name in ["samples_per_s", "data_stall_share", "checkpoint_stall_share"] {
        let values = &shown.values[&format!("resnet/rank 0 on node1/{name}")];
        assert_eq!(values.len(), training.len() + 1, "a value a roll-up and a zero at the end");
        assert_eq!(values.last().unwrap().1, 0.0);
        for ((at_ns, value), rollup) in values.iter().zip(&training) {
            let causes = &rollup.causes;
            let truth = match name {
                "samples_per_s" => rollup.samples as f64 * 1e9 / causes.total_ns() as f64,
                "data_stall_share" => causes.data_stall_ns() as f64 / causes.total_ns() as f64,
                _ => causes.checkpoint_stall_ns() as f64 / causes.total_ns() as f64,
            };
            assert_eq!((*at_ns, *value), (rollup.start_ns, truth));
        }
    }
    let [(1, wall_ns), (3, monotonic_ns), (6, boottime_ns)] = shown.clocks[..] else {
        panic!("{:?}", shown.clocks)
    };
    assert_eq!(wall_ns - madeup::START_WALL_NS, monotonic_ns - madeup::START_NS);
    assert_eq!(boottime_ns - monotonic_ns, madeup::S);
}

#[test]
fn caches_are_counters() {
    let (_dir, mut run) = made_run("cached.stall", &Shape { seconds: 40, ..Shape::default() });
    let period = |nth: u64, loader, phase, hits| CachePeriod {
        start_ns: run.rollups[0].start_ns + nth * WorkerPeriod::LENGTH_NS,
        rank: 0,
        loader,
        phase,
        uses: CacheUses { hits, substitutions: 10, misses: 90 - hits, ..CacheUses::default() },
        state: (nth == 1).then_some(CacheState { kept_bytes: 4096, ..CacheState::default() }),
    };
    let (training, evaluation) = (Phase::Training, Phase::Evaluation);
    run.caches = vec![period(0, 0, training, 0), period(1, 0, training, 45), period(1, 1, evaluation, 90)];
    let values = show(&trace_of(&run)).values;
    let [first_ns, second_ns] = [0, 1].map(|nth: usize| run.caches[nth].start_ns);
    assert_eq!(values["resnet/rank 0 on node1/cache_hit_share"], [(first_ns, 0.0), (second_ns, 0.45)]);
    assert_eq!(values["resnet/rank 0 on node1/cache_kept_bytes"], [(second_ns, 4096.0)]);
    assert!(
        !values.contains_key("resnet/rank 0 on node1/cache_hit_share, loader 1"),
        "it is not of training"
    );
}

#[test]
fn perfettos_own_messages_hold_the_same() {
    let Some(python) = python::with(&["perfetto.protos.perfetto.trace.perfetto_trace_pb2"]) else { return };
    let (dir, run) = made_run("own.stall", &Shape { ranks: 2, seconds: 40, ..Shape::default() });
    let bytes = trace_of(&run);
    let file = dir.path().join("own.pftrace");
    std::fs::write(&file, &bytes).unwrap();
    let theirs: serde_json::Value =
        serde_json::from_str(&python::run(&python, "read_trace.py", &[&file])).unwrap();
    let ours = show(&bytes);
    assert_eq!((&theirs["unknown_bytes"], &theirs["open"]), (&0.into(), &0.into()));
    assert_eq!((&theirs["primary_clock"], &theirs["default_clock"]), (&1.into(), &1.into()));
    for ((_, ns), name) in ours.clocks.iter().zip(["REALTIME", "MONOTONIC", "BOOTTIME"]) {
        assert_eq!(theirs["clocks"][name], *ns);
    }
    let mut slices: Vec<serde_json::Value> = theirs["slices"].as_array().unwrap().clone();
    let mut expected: Vec<serde_json::Value> = ours
        .slices
        .iter()
        .flat_map(|(path, slices)| slices.iter().map(move |slice| (path, slice)))
        .map(|(path, slice)| {
            serde_json::json!([path, slice.name, slice.category, slice.start_ns, slice.facts, slice.end_ns])
        })
        .collect();
    for list in [&mut slices, &mut expected] {
        list.sort_by_cached_key(serde_json::Value::to_string);
    }
    assert_eq!(slices, expected);
    let values: usize = ours.values.values().map(Vec::len).sum();
    assert_eq!(theirs["values"].as_array().unwrap().len(), values);
}

#[test]
fn a_merged_row_is_one_slice() {
    let (_dir, run) = made_run("merged.stall", &Shape { seconds: 90, step_rows: 300, ..Shape::default() });
    let (mut rows, mut steps) = (0usize, 0u64);
    run.each_step(|row| {
        if row.step.phase == Phase::Training {
            (rows, steps) = (rows + 1, steps + row.merged);
        }
        Ok(())
    })
    .unwrap();
    let shown = show(&trace_of(&run));
    let training: Vec<&Slice> =
        shown.slices["resnet/rank 0 on node1/training"].iter().filter(|slice| slice.depth == 0).collect();
    assert!((rows as u64) < steps && training.len() == rows, "{rows} rows, {} slices", training.len());
    let merged = |slice: &&&Slice| slice.facts.contains_key("merged");
    assert!(training.iter().filter(merged).all(|slice| slice.name == "training steps"));
    let shown_steps: u64 = training.iter().map(|slice| slice.facts.get("merged").copied().unwrap_or(1)).sum();
    assert_eq!(shown_steps, steps);
}

#[test]
fn foreign_names_are_clean() {
    let (_dir, mut run) = made_run("names.stall", &Shape { seconds: 30, ..Shape::default() });
    run.summary.job.name = "evil\x1b[2J\nname".into();
    run.checkpoints[0].saver = "\u{202e}saver".into();
    let shown = show(&trace_of(&run));
    for path in shown.slices.keys().chain(shown.values.keys()) {
        assert!(path.starts_with("evil\\u{1b}[2J name/"), "{path}");
    }
    let saved = shown.slices.iter().find(|(path, _)| path.ends_with("/checkpoints")).unwrap().1;
    assert_eq!(saved[0].name, "\\u{202e}saver (persist)");
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop::sample::select(Phase::ALL.to_vec())
}

prop_compose! {
    fn any_step()(
        rank in 0..3u32,
        loader in 0..2u16,
        phase in any_phase(),
        index in 0..50u64,
        start_ns in prop_oneof![0..2_000_000_000u64, any::<u32>().prop_map(u64::from)],
        causes in prop::array::uniform10(prop_oneof![Just(0u64), 0..1_000_000_000u64]),
        producer in any::<Option<u32>>(),
        samples in 0..100u32,
    ) -> StepLedger {
        let causes = Causes(causes);
        StepLedger {
            rank, loader, phase, index, part: false, start_ns, end_ns: start_ns + causes.total_ns(), causes,
            hidden_ns: None, producer, samples, evidence: EvidenceKinds::default(),
        }
    }
}

prop_compose! {
    /// Of a step, in times that need not fit it.
    fn any_detail()(
        step in any_step(),
        times in prop::collection::vec((0..4_000_000_000u64, 0..1_000_000_000u64), 0..6),
        pid in 0..3u32,
    ) -> StepDetail {
        let pieces = times.iter().map(|(start_ns, ns)| (*start_ns, start_ns + ns));
        let segments = pieces.clone().map(|(start_ns, end_ns)| Segment { start_ns, end_ns, doing: Doing::Reading });
        let role = if pid == 0 { "trainer" } else { "worker" };
        StepDetail {
            rank: step.rank, loader: step.loader, phase: step.phase, index: step.index,
            start_ns: step.start_ns, end_ns: step.end_ns,
            lanes: vec![StepLane { pid, role: role.into(), segments: segments.collect() }],
            critical: pieces
                .map(|(start_ns, end_ns)| CriticalPiece { start_ns, end_ns, cause: Cause::Fetch, lane: 0 })
                .collect(),
        }
    }
}

prop_compose! {
    fn any_checkpoint()(
        rank in 0..3u32, start_ns in 0..4_000_000_000u64, ns in 0..2_000_000_000u64, saver in any::<String>(),
        background: bool, bytes in any::<u64>(),
    ) -> CheckpointEvent {
        CheckpointEvent {
            rank, start_ns, end_ns: start_ns + ns, saver, cause: Cause::Persist, background, bytes,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// [`show`] holds the trace to the format's rules: names known, slices within slices, all ended.
    #[test]
    fn whatever_was_recorded_makes_a_sound_trace(
        steps in prop::collection::vec(any_step(), 0..150),
        details in prop::collection::vec(any_detail(), 0..10),
        checkpoints in prop::collection::vec(any_checkpoint(), 0..10),
        step_rows in 64..200u64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { step_rows, ..Options::default() };
        let mut recorder = Recorder::create(&dir.path().join("any.stall"), &JobFacts::default(), options);
        steps.into_iter().for_each(|step| recorder.step(step));
        let path = recorder.finish(&RunSummary::default()).path.unwrap();
        let mut run = Run::open(&[path]).unwrap();
        let mut rows = 0;
        run.each_step(|_| { rows += 1; Ok(()) }).unwrap();
        run.details = details;
        run.checkpoints = checkpoints;
        run.checkpoints.sort_by_key(|event| event.start_ns);
        let shown = show(&trace_of(&run));
        let of_steps = shown.slices.values().flatten().filter(|slice| slice.category == "step" && slice.depth == 0);
        prop_assert_eq!(of_steps.count(), rows);
        let saved = shown.slices.values().flatten().filter(|slice| slice.category == "checkpoint");
        prop_assert_eq!(saved.count(), run.checkpoints.len());
    }
}
