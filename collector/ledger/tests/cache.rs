//! What caches gave: true hits apart from all else, training apart from all else, and nothing counted twice or lost.

use crate::stage::{self, MS, Stage, TRAINER, WORKER};
use proptest::prelude::*;
use stallscope_abi::kernel::{Blocked, Record, Slice};
use stallscope_abi::lane::{self, wait_flags};
use stallscope_ledger::ProcessKind;
use stallscope_model::{CacheState, CacheSummary, CacheUses, LoaderEpochs, LoaderFacts, Phase, WorkerPeriod};

const OTHER: u32 = 102;

fn uses(at: u64, loader: u16, uses: &CacheUses) -> lane::Record {
    lane::CacheUses {
        loader,
        prefetched: uses.prefetched as u32,
        hits: uses.hits as u32,
        substitutions: uses.substitutions as u32,
        misses: uses.misses as u32,
        late: uses.late as u32,
        pool_bytes: uses.pool_bytes,
        source_bytes: uses.source_bytes,
    }
    .encode(at * MS)
}

fn state(at: u64, loader: u16, state: &CacheState) -> lane::Record {
    let CacheState { kept_bytes, capacity_bytes, evictions, kept_samples } = *state;
    lane::CacheState { loader, kept_bytes, capacity_bytes, evictions, kept_samples }.encode(at * MS)
}

fn found(hits: u64, substitutions: u64, misses: u64) -> CacheUses {
    CacheUses {
        hits,
        substitutions,
        misses,
        prefetched: hits / 2,
        late: hits / 4,
        pool_bytes: 100 * (hits + substitutions),
        source_bytes: 100 * misses,
    }
}

fn sum(parts: &[CacheUses]) -> CacheUses {
    let mut sum = CacheUses::default();
    parts.iter().for_each(|part| sum += part);
    sum
}

/// Of rank 0 and this loader.
fn cache(stage: &Stage, loader: u16) -> CacheSummary {
    let caches = stage.ledger.summary().caches;
    let cache = caches.iter().find(|cache| (cache.rank, cache.loader) == (0, loader));
    *cache.unwrap_or_else(|| panic!("no cache of loader {loader} in {caches:#?}"))
}

#[test]
fn batches_for_evaluation_are_counted_apart() {
    let mut stage = Stage::new();
    stage.greet(OTHER, TRAINER, ProcessKind::Worker, 0, 1);
    stage.iter_start(0, 10, 0);
    stage.lane(WORKER, uses(50, 0, &found(0, 0, 8)));
    stage.batch(WORKER, 20, 50, 0);
    stage.wait(40, 60, 0);
    stage.lane(WORKER, uses(90, 0, &found(4, 2, 2)));
    stage.batch(WORKER, 60, 90, 1);
    stage.wait(70, 100, 1);
    // A worker cannot know which loader it serves, nor for what.
    stage.iter_start(1, 200, wait_flags::NO_GRAD);
    stage.lane(OTHER, uses(240, 0, &found(8, 0, 0)));
    stage.batch(OTHER, 210, 240, 0);
    stage.wait_for(TRAINER, 1, OTHER, 220, 250, 0, wait_flags::FIRST | wait_flags::NO_GRAD);
    stage.advance(500);
    assert_eq!(stage.ledger.summary().caches, [], "what they were for may still be reported");
    stage.advance(2_000);
    let (training, evaluation) = (cache(&stage, 0), cache(&stage, 1));
    assert_eq!(training.training, sum(&[found(0, 0, 8), found(4, 2, 2)]));
    assert_eq!(training.training.hit_share(), Some(0.25), "a substitution is no hit");
    assert_eq!((training.other, evaluation.training), (CacheUses::default(), CacheUses::default()));
    assert_eq!(evaluation.other, found(8, 0, 0));
    let periods = stage.ledger.cache_periods();
    let reported: Vec<_> =
        periods.iter().map(|of| (of.start_ns, of.loader, of.phase, of.uses.hits)).collect();
    assert_eq!(reported, [(0, 0, Phase::Training, 4), (0, 1, Phase::Evaluation, 8)]);
    assert_eq!(stage.ledger.cache_periods(), [], "each is reported once");
}

#[test]
fn one_loader_may_serve_training_and_evaluation_in_turns() {
    let mut stage = Stage::new();
    for (epoch, flags) in [0, wait_flags::NO_GRAD, 0].into_iter().enumerate() {
        let at = 100 * epoch as u64;
        stage.iter_start(0, at + 10, flags);
        stage.lane(WORKER, uses(at + 50, 0, &found(epoch as u64 + 1, 0, 0)));
        stage.batch(WORKER, at + 20, at + 50, 0);
        stage.wait_for(TRAINER, 0, WORKER, at + 40, at + 60, 0, wait_flags::FIRST | flags);
        stage.iter_end_found(0, at + 70, at + 80);
    }
    stage.advance(5_000);
    let cache = cache(&stage, 0);
    assert_eq!((cache.training, cache.other), (sum(&[found(1, 0, 0), found(3, 0, 0)]), found(2, 0, 0)));
}

#[test]
fn an_iterator_made_before_gradients_were_turned_off_is_evaluated_all_the_same() {
    let mut stage = Stage::new();
    stage.iter_start(0, 10, 0);
    stage.lane(WORKER, uses(50, 0, &found(5, 0, 1)));
    stage.batch(WORKER, 20, 50, 0);
    // The first batch is asked for much later.
    stage.advance(3_000);
    stage.wait_for(TRAINER, 0, WORKER, 3_000, 3_010, 0, wait_flags::FIRST | wait_flags::NO_GRAD);
    stage.advance(5_000);
    assert_eq!((cache(&stage, 0).training.draws(), cache(&stage, 0).other), (0, found(5, 0, 1)));
}

#[test]
fn a_trainer_without_workers_tells_for_itself() {
    let mut stage = Stage::empty();
    stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
    stage.iter_start(3, 10, 0);
    stage.lane(TRAINER, uses(50, 3, &found(1, 0, 7)));
    stage.wait_for(TRAINER, 3, 0, 20, 60, 0, wait_flags::FIRST | wait_flags::IN_PROCESS);
    stage.finish(100);
    assert_eq!(cache(&stage, 3).training, found(1, 0, 7));
}

#[test]
fn the_pool_is_as_it_was_reported_last() {
    let mut stage = Stage::new();
    stage.iter_start(0, 10, 0);
    let reported = |kept_bytes| CacheState {
        kept_bytes,
        capacity_bytes: 1000,
        evictions: kept_bytes / 100,
        kept_samples: 5,
    };
    for (at, kept_bytes) in [(1_000, 300), (9_000, 700), (11_000, 900)] {
        stage.lane(TRAINER, state(at, 0, &reported(kept_bytes)));
    }
    stage.advance(20_000);
    assert_eq!(cache(&stage, 0).state, Some(reported(900)));
    let periods = stage.ledger.cache_periods();
    let kept: Vec<_> =
        periods.iter().map(|of| (of.start_ns, of.state.map(|state| state.kept_bytes))).collect();
    assert_eq!(kept, [(0, Some(700)), (WorkerPeriod::LENGTH_NS, Some(900))]);
}

fn point(at: u64, point: u16, points: u8, misses: u64) -> lane::Record {
    point_of(at, 0, point, points, misses)
}

fn point_of(at: u64, ranks: u8, point: u16, points: u8, misses: u64) -> lane::Record {
    let capacity_bytes = 100 * u64::from(point + 1);
    lane::CacheCurve { loader: 0, point, points, ranks, capacity_bytes, uses: 50, misses, dataset_bytes: 900 }
        .encode(at * MS)
}

#[test]
fn a_curve_is_reported_point_by_point_and_taken_whole() {
    let mut stage = Stage::new();
    stage.iter_start(0, 10, 0);
    stage.lane(WORKER, uses(50, 0, &found(4, 0, 4)));
    stage.batch(WORKER, 20, 50, 0);
    stage.wait(40, 60, 0);
    let curve = |stage: &Stage| {
        let curve = cache(stage, 0).curve;
        curve.points().iter().map(|point| (point.capacity_bytes, point.misses)).collect::<Vec<_>>()
    };
    stage.lane(TRAINER, point(1_000, 0, 2, 40));
    stage.advance(5_000);
    assert_eq!(curve(&stage), [], "half of it");
    stage.lane(TRAINER, point(1_000, 1, 2, 30));
    assert_eq!(curve(&stage), [(100, 40), (200, 30)]);
    assert_eq!(cache(&stage, 0).curve.dataset_bytes(), 900);
    // The first point of the next is lost, then the second.
    stage.lane(TRAINER, point(2_000, 1, 2, 20));
    stage.lane(TRAINER, point(3_000, 0, 3, 20));
    stage.lane(TRAINER, point(3_000, 2, 3, 10));
    assert_eq!(curve(&stage), [(100, 40), (200, 30)]);
    for wrong in
        [point(4_000, 2, 2, 1), point(4_000, 0, 99, 1), point(4_000, 0, 2, 51), point(4_000, 0, 0, 0)]
    {
        stage.lane(TRAINER, wrong);
    }
    assert_eq!(curve(&stage), [(100, 40), (200, 30)], "what contradicts itself is no curve");
    stage.lane(TRAINER, point(5_000, 0, 1, 25));
    assert_eq!(curve(&stage), [(100, 25)]);
    assert!(!cache(&stage, 0).curve.is_joint());
    // Of all ranks of the node, until another job comes.
    stage.lane(TRAINER, point_of(6_000, 2, 0, 1, 20));
    assert_eq!(curve(&stage), [(100, 20)]);
    assert!(cache(&stage, 0).curve.is_joint());
    stage.lane(TRAINER, point_of(7_000, 3, 0, 0, 0));
    assert!(curve(&stage).is_empty() && cache(&stage, 0).curve.is_mixed());
}

#[test]
fn a_worker_that_ends_at_once_is_counted() {
    let mut stage = Stage::new();
    stage.iter_start(0, 10, 0);
    stage.lane(WORKER, uses(50, 0, &found(3, 0, 0)));
    stage.batch(WORKER, 20, 50, 0);
    stage.wait(40, 60, 0);
    stage.says_goodbye(WORKER, 70);
    stage.wait(5_000, 5_010, 1);
    stage.advance(5_100);
    stage.finish(6_000);
    assert_eq!(cache(&stage, 0).training, found(3, 0, 0));
}

#[test]
fn a_worker_of_a_server_that_does_not_report_is_whose_batches_it_makes() {
    let mut stage = Stage::new();
    stage.greet(OTHER, 4_242, ProcessKind::Worker, 0, 1);
    stage.iter_start(0, 10, 0);
    stage.lane(OTHER, uses(50, 0, &found(3, 0, 0)));
    stage.batch(OTHER, 20, 50, 0);
    stage.wait_for(TRAINER, 0, OTHER, 40, 60, 0, wait_flags::FIRST);
    stage.wait_for(TRAINER, 0, OTHER, 5_000, 5_010, 1, 0);
    stage.advance(5_100);
    stage.finish(6_000);
    assert_eq!(cache(&stage, 0).training, found(3, 0, 0));
    assert!(stage.ledger.summary().losses.iter().all(|loss| !loss.reason.contains("no rank")));
}

#[test]
fn what_contradicts_itself_or_belongs_to_nobody_is_counted_as_lost() {
    let mut stage = Stage::new();
    stage.lane(WORKER, uses(50, 0, &CacheUses { prefetched: 9, ..found(8, 0, 0) }));
    stage.lane(WORKER, uses(50, 0, &CacheUses { late: 9, ..found(8, 0, 0) }));
    stage.lane(999, uses(50, 0, &found(8, 0, 0)));
    stage.finish(100);
    let summary = stage.ledger.summary();
    assert_eq!(summary.caches, []);
    let lost = |reason: &str| summary.losses.iter().find(|loss| loss.reason == reason).map(|loss| loss.count);
    assert_eq!(lost("record that makes no sense"), Some(2));
    assert_eq!(lost("cache figures of a batch that belongs to no rank"), Some(1));
}

/// An epoch of a loader in which its worker reads so many mebibytes.
fn epoch(stage: &mut Stage, nth: u64, mebibytes: u64) {
    let at = nth * 10_000;
    stage.iter_start(0, at + 10, 0);
    for index in 0..20 {
        let at = at + 100 * index;
        let mut slice: Slice = stage::slice(WORKER, at + 10, at + 80, stage::Does::In(Blocked::FileRead));
        slice.read_bytes = (mebibytes << 20) / 20;
        stage.ledger.kernel(&Record::Slice(slice));
        stage.batch(WORKER, at + 10, at + 80, index);
        stage.wait_for(
            TRAINER,
            0,
            WORKER,
            at + 15,
            at + 90,
            index,
            if index == 0 { wait_flags::FIRST } else { 0 },
        );
    }
    stage.iter_end_found(0, at + 2_100, at + 2_110);
}

fn fetch_bound(stage: &Stage) -> (String, String) {
    let found = stage.ledger.summary().diagnoses;
    let found = found.into_iter().find(|found| found.name == "fetch-bound").expect("it reads all the time");
    (found.evidence, found.advice)
}

#[test]
fn a_job_that_reads_the_same_in_every_epoch_is_advised_to_use_the_cache() {
    let job = |memory_bytes, last| {
        let config = stallscope_ledger::Config { memory_bytes, ..Default::default() };
        let mut stage = Stage { ledger: stallscope_ledger::Ledger::new(config), ..Stage::empty() };
        stage.ledger.root(TRAINER, 0);
        stage.greet(TRAINER, 1, ProcessKind::Trainer, 0, 1);
        stage.greet(WORKER, TRAINER, ProcessKind::Worker, 0, 1);
        stage.ledger.loader(TRAINER, LoaderFacts { dataset_len: Some(160), ..Default::default() });
        epoch(&mut stage, 0, 2_000);
        epoch(&mut stage, 1, last);
        stage.finish(30_000);
        stage
    };
    let stage = job(8 << 30, 2_000);
    let read = 2_000u64 << 20;
    let expected =
        LoaderEpochs { whole: 2, first_read_bytes: read, last_read_bytes: read, ..LoaderEpochs::default() };
    assert_eq!(stage.ledger.summary().epochs, [expected]);
    let (evidence, advice) = fetch_bound(&stage);
    assert!(evidence.contains("each epoch reads the same 2.0 GiB from storage again"), "{evidence}");
    assert!(advice.contains("cache=\"2.1GiB\""), "{advice}");
    let (evidence, advice) = fetch_bound(&job(3 << 30, 2_000));
    assert!(evidence.contains("again") && !advice.contains("cache="), "it would not fit: {advice}");
    let in_memory = job(8 << 30, 10);
    let (evidence, advice) = fetch_bound(&in_memory);
    assert!(!evidence.contains("again") && !advice.contains("cache="), "the page cache has it: {evidence}");
    // Seen: "Raise num_workers" beside "the waits of the first one are over".
    assert!(advice.starts_with("Nothing needs to change") && !advice.contains("num_workers"), "{advice}");
    // All of the waits that led the verdict were of the first epoch.
    let last_is_named = |stage: &Stage| {
        let summary = stage.ledger.summary();
        assert_eq!(summary.verdict.finding, "fetch-bound");
        let last = "the last epoch read next to nothing from storage";
        (summary.verdict.sentence.ends_with(last), fetch_bound(stage).0.contains(last))
    };
    assert_eq!((last_is_named(&in_memory), last_is_named(&stage)), ((true, true), (false, false)));
    // Seen: no word of a cache that had filled, but for 8% of the data.
    let mostly = job(8 << 30, 160).ledger.summary().verdict.sentence;
    assert!(mostly.ends_with("the last epoch read 8.0% of what the first one did from storage"), "{mostly}");
}

#[test]
fn a_full_cache_that_misses_is_called_too_small() {
    let job = |kept_samples| {
        let mut stage = Stage::new();
        epoch(&mut stage, 0, 100);
        stage.lane(WORKER, uses(1_900, 0, &found(57, 0, 43)));
        let full = CacheState { kept_bytes: 2 << 30, capacity_bytes: 2 << 30, evictions: 0, kept_samples };
        stage.lane(TRAINER, state(1_900, 0, &full));
        stage.finish(30_000);
        fetch_bound(&stage)
    };
    let (evidence, advice) = job(9);
    assert!(evidence.contains("the cache had 57% of the samples"), "{evidence}");
    assert!(
        advice.contains("Give the cache more than its 2.0 GiB") && advice.contains("cache.bytes"),
        "{advice}"
    );
    let (_, advice) = job(43);
    assert!(!advice.contains("Give the cache more"), "it has kept all that it missed: {advice}");
}

proptest! {
    /// Whatever comes in whichever order: every draw is in a summary or counted as lost.
    #[test]
    fn no_draw_is_counted_twice_or_forgotten(
        reported in prop::collection::vec((0usize..4, 0u64..30_000, 0u16..3, 0u64..9, 0u64..9, 0u64..9), 0..60),
        turns in prop::collection::vec((0u64..30_000, 0u16..3, any::<bool>()), 0..12),
        looks in prop::collection::vec(0u64..40_000, 0..6),
    ) {
        let mut stage = Stage::new();
        stage.greet(OTHER, TRAINER, ProcessKind::Worker, 0, 1);
        let mut drawn = 0;
        for (who, at, loader, hits, substitutions, misses) in &reported {
            let found = found(*hits, *substitutions, *misses);
            let pid = [TRAINER, WORKER, OTHER, 777][*who];
            stage.lane(pid, uses(*at, *loader, &found));
            drawn += if pid == 777 { 0 } else { found.draws() };
        }
        for (at, loader, evaluation) in &turns {
            stage.iter_start(*loader, *at, if *evaluation { wait_flags::NO_GRAD } else { 0 });
        }
        let mut over_time = CacheUses::default();
        let mut looks = looks.clone();
        looks.sort_unstable();
        for now in looks {
            stage.advance(now);
            stage.ledger.cache_periods().iter().for_each(|period| over_time += &period.uses);
        }
        stage.finish(60_000);
        stage.ledger.cache_periods().iter().for_each(|period| over_time += &period.uses);
        let summary = stage.ledger.summary();
        let counted: u64 = summary.caches.iter().map(|of| of.training.draws() + of.other.draws()).sum();
        prop_assert_eq!((counted, over_time.draws()), (drawn, drawn));
        let strangers = reported.iter().filter(|reported| reported.0 == 3).count() as u64;
        let lost: u64 = summary.losses.iter().filter(|loss| loss.reason.contains("no rank")).map(|loss| loss.count).sum();
        prop_assert_eq!(lost, strangers);
    }
}
