//! What is true of the simulated loader: nothing is lost or doubled, and where one part is the bottleneck, its
//! closed form gives the speed.

use proptest::prelude::*;
use stallscope_control::Random;
use stallscope_control::pipeline::{Conditions, Demand, Pipeline, Storage};
use stallscope_model::Cause;

const MS: f64 = 1e6;

fn demand() -> Demand {
    Demand { samples: 32, ..Demand::default() }
}

/// Mean step over many, after the start.
fn step_ms(workers: u32, prefetch: u32, conditions: Conditions, draw: impl FnMut(u64) -> Demand) -> f64 {
    let mut pipeline = Pipeline::new(workers, prefetch, conditions, 7, draw);
    (0..100).for_each(|_| drop(pipeline.next_step()));
    let from_ns = pipeline.now_ns();
    (0..400).for_each(|_| drop(pipeline.next_step()));
    (pipeline.now_ns() - from_ns) as f64 / 400.0 / MS
}

#[track_caller]
fn is_about(value: f64, wanted: f64) {
    assert!((value / wanted - 1.0).abs() < 0.02, "{value} is not about {wanted}");
}

fn noisy(mean_ms: f64, random: &mut Random) -> f64 {
    mean_ms * MS * (0.5 + random.unit())
}

#[test]
fn a_job_bound_by_compute_takes_its_compute_and_hand_over() {
    let draw = |_| Demand { cpu_ns: 10.0 * MS, compute_ns: 20.0 * MS, handover_ns: MS, ..demand() };
    is_about(step_ms(2, 4, Conditions::default(), draw), 21.0);
}

#[test]
fn preparation_is_shared_by_workers_and_then_by_cores() {
    let draw = |_| Demand { cpu_ns: 30.0 * MS, ..demand() };
    let conditions = Conditions { trainer_threads: 0.0, ..Conditions::default() };
    is_about(step_ms(1, 2, conditions, draw), 30.0);
    is_about(step_ms(3, 6, conditions, draw), 10.0);
    is_about(step_ms(3, 6, Conditions { cores: 2.0, ..conditions }, draw), 15.0);
    is_about(step_ms(3, 6, Conditions { cores: 2.0, neighbours: 3.0, ..conditions }, draw), 30.0);
    is_about(step_ms(3, 6, Conditions { slowdown: 1.5, ..conditions }, draw), 15.0);
}

#[test]
fn workers_take_cores_from_the_trainer() {
    let draw = |_| Demand { cpu_ns: 30.0 * MS, compute_ns: 20.0 * MS, ..demand() };
    // 50 ms of work a step on two cores that are never idle.
    is_about(step_ms(2, 8, Conditions { cores: 2.0, ..Conditions::default() }, draw), 25.0);
}

#[test]
fn bandwidth_is_shared_and_latency_is_not() {
    let draw = |_| Demand { requests: 8, bytes: 4e6, ..demand() };
    let slow = Storage { bytes_per_s: 1e8, ..Storage::default() };
    let conditions = |storage: Storage| Conditions { storage, ..Conditions::default() };
    is_about(step_ms(1, 2, conditions(slow), draw), 40.0);
    is_about(step_ms(4, 8, conditions(slow), draw), 40.0);
    let far = Storage { latency_ns: 5.0 * MS, ..Storage::default() };
    is_about(step_ms(1, 2, conditions(far), draw), 40.0);
    is_about(step_ms(4, 8, conditions(far), draw), 10.0);
    let few = Storage { requests_per_s: 400.0, ..Storage::default() };
    is_about(step_ms(4, 8, conditions(few), draw), 20.0);
}

#[test]
fn a_limited_disk_makes_up_for_pauses() {
    let storage = Storage { bytes_per_s: 1e8, ..Storage::default() };
    let draw = |_| Demand { requests: 1, bytes: 4e6, cpu_ns: 10.0 * MS, latency_ns: 5.0 * MS, ..demand() };
    let pace = |credit_ns| {
        let storage = Storage { credit_ns, ..storage };
        step_ms(1, 2, Conditions { storage, ..Conditions::default() }, draw)
    };
    is_about(pace(0.0), 55.0);
    is_about(pace(5.0 * MS), 50.0);
    is_about(pace(100.0 * MS), 40.0);
}

#[test]
fn a_device_needs_no_core() {
    let draw = |_| Demand { cpu_ns: 30.0 * MS, device_ns: 20.0 * MS, ..demand() };
    is_about(step_ms(1, 2, Conditions { cores: 1.0, ..Conditions::default() }, draw), 30.0);
}

#[test]
fn what_is_cached_is_not_asked_of_storage() {
    let draw = |_| Demand { requests: 100, bytes: 4e6, ..demand() };
    let storage =
        Storage { bytes_per_s: 1e8, cached_share: 0.75, cache_bytes_per_s: 1e9, ..Storage::default() };
    // One reader: a quarter at 100 MB/s and the rest at 1 GB/s, the harmonic mean of DS-Analyzer.
    is_about(step_ms(1, 2, Conditions { storage, ..Conditions::default() }, draw), 10.0 + 3.0);
}

#[test]
fn a_trainer_without_workers_does_one_thing_after_the_other() {
    let draw = |_| Demand { cpu_ns: 7.0 * MS, blocked_ns: 2.0 * MS, compute_ns: 11.0 * MS, ..demand() };
    let mut pipeline = Pipeline::new(0, 1, Conditions { cores: 1.0, ..Conditions::default() }, 1, draw);
    let step = pipeline.next_step();
    assert_eq!(
        (step.wall_ns(), step.causes[Cause::Prep], step.causes[Cause::Fetch]),
        (20_000_000, 7_000_000, 2_000_000)
    );
    pipeline.set_workers(4);
    assert_eq!((pipeline.workers(), pipeline.next_step().wall_ns()), (0, 20_000_000));
}

#[test]
fn a_deeper_queue_hides_a_burst() {
    let draw = |index| Demand {
        blocked_ns: if index % 40 == 39 { 150.0 * MS } else { 5.0 * MS },
        compute_ns: 8.0 * MS,
        ..demand()
    };
    let shallow = step_ms(1, 2, Conditions::default(), draw);
    let deep = step_ms(1, 60, Conditions::default(), draw);
    assert!(shallow > 10.5, "{shallow}");
    is_about(deep, 5.0 + 145.0 / 40.0);
}

#[test]
fn a_new_worker_costs_the_trainer_its_start_once() {
    let draw = |_| Demand { blocked_ns: MS, compute_ns: 10.0 * MS, ..demand() };
    let mut pipeline = Pipeline::new(1, 2, Conditions::default(), 1, draw);
    pipeline.set_workers(3);
    let walls_ms: Vec<u64> = (0..3).map(|_| pipeline.next_step().wall_ns() / 1_000_000).collect();
    assert_eq!(walls_ms, [60, 10, 10]);
}

#[test]
fn conditions_hold_from_the_moment_they_change() {
    let draw = |_| Demand { requests: 1, bytes: 1e7, ..demand() };
    let storage = Storage { bytes_per_s: 1e9, ..Storage::default() };
    let mut pipeline = Pipeline::new(1, 1, Conditions { storage, ..Conditions::default() }, 1, draw);
    assert_eq!(pipeline.next_step().wall_ns(), 10_000_000);
    pipeline.conditions().storage.bytes_per_s = 1e8;
    assert_eq!(pipeline.next_step().wall_ns(), 100_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_batch_comes_once_and_in_order_whatever_is_turned(
        seed in any::<u64>(),
        (workers, prefetch) in (0..6u32, 0..12u32),
        turns in prop::collection::vec((0..7u32, 0..20u32, 0..9usize), 1..30),
    ) {
        let mut random = Random::new(seed);
        let draw = move |_| Demand {
            cpu_ns: noisy(4.0, &mut random),
            requests: random.below(5) as u32,
            bytes: noisy(0.1, &mut random),
            compute_ns: noisy(2.0, &mut random),
            handover_ns: noisy(0.1, &mut random),
            memory_bytes: 10,
            ..demand()
        };
        let storage = Storage { latency_ns: MS, bytes_per_s: 1e8, cached_share: 0.3, ..Storage::default() };
        let conditions = Conditions { cores: 2.0, storage, worker_bytes: 1000, ..Conditions::default() };
        let mut pipeline = Pipeline::new(workers, prefetch, conditions, seed, draw);
        let (mut next, mut end_ns, mut made) = (0, pipeline.now_ns(), 0);
        for (workers, prefetch, steps) in turns {
            pipeline.set_workers(workers);
            pipeline.set_prefetch(prefetch);
            for _ in 0..steps {
                let step = pipeline.next_step();
                prop_assert_eq!((step.batch, step.start_ns), (next, end_ns));
                prop_assert_eq!(step.causes.total_ns(), step.wall_ns());
                for service in &step.made {
                    prop_assert!(service.ready_ns <= step.end_ns + 1 && service.start_ns <= service.ready_ns);
                    let total_ns = service.fetch_ns + service.cpu_ns + service.runnable_ns;
                    prop_assert!(total_ns.abs_diff(service.ready_ns - service.start_ns) <= 4);
                }
                made += step.made.len() as u64;
                (next, end_ns) = (next + 1, step.end_ns);
            }
            prop_assert!(made + 16 >= next);
            prop_assert!(pipeline.memory_bytes() <= 16 * 1000 + 20 * 10 + 120);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run(seed in any::<u64>()) {
        let run = || {
            let mut random = Random::new(seed);
            let draw = move |_| Demand { cpu_ns: noisy(3.0, &mut random), requests: 9, ..demand() };
            let storage = Storage { latency_ns: MS, cached_share: 0.5, ..Storage::default() };
            let mut pipeline = Pipeline::new(3, 6, Conditions { storage, ..Conditions::default() }, seed, draw);
            (0..50).map(|_| pipeline.next_step()).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn where_latency_binds_more_workers_are_never_slower(latency_ms in 0.2..5.0f64, cpu_ms in 0.0..2.0f64) {
        let storage = Storage { latency_ns: latency_ms * MS, ..Storage::default() };
        let conditions = Conditions { storage, ..Conditions::default() };
        let draw = |_| Demand { requests: 16, cpu_ns: cpu_ms * MS, compute_ns: MS, ..demand() };
        let steps: Vec<f64> = (1..6).map(|workers| step_ms(workers, 2 * workers, conditions, draw)).collect();
        prop_assert!(steps.windows(2).all(|pair| pair[1] <= pair[0] * 1.001), "{:?}", steps);
    }
}
