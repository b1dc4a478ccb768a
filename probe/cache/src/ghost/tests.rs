use super::*;
use crate::draws::DrawKind;
use crate::random::Random;
use crate::simulate::{Generated, replay, train};
use crate::trace::{Trace, TraceUse};
use proptest::prelude::*;
use std::collections::HashMap;

const BYTES: u32 = 100;

/// The curve of `trace` after its last epoch.
fn curve_of(trace: &Trace, policy: PolicyKind, samples: u64, capacity_bytes: u64) -> Vec<CurvePoint> {
    let mut next_at = vec![Use::UNKNOWN; trace.uses.len()];
    let mut later: HashMap<u32, u64> = HashMap::new();
    for (at, used) in trace.uses.iter().enumerate().rev() {
        next_at[at] = later.insert(used.id, at as u64).unwrap_or(Use::UNKNOWN);
    }
    let mut ghost = Ghost::new(policy, samples);
    ghost.size(capacity_bytes, f64::from(BYTES));
    for (at, used) in trace.uses.iter().enumerate() {
        if at > 0 && trace.uses[at - 1].epoch != used.epoch {
            ghost.epoch();
        }
        ghost.handed(1);
        if ghost.is_tracked(used.id) {
            ghost.used(used.id, at as u64, next_at[at]);
            ghost.scored(used.id, f64::from(used.score));
        }
    }
    ghost.epoch();
    ghost.curve()
}

/// Of the last epoch, by running all uses through a cache of that size.
fn truth(trace: &Trace, policy: PolicyKind, capacity_bytes: u64) -> (u64, u64) {
    let figures = replay(trace, policy, capacity_bytes);
    let last = figures.epochs.last().unwrap();
    (last.uses, last.reads())
}

fn ratio((uses, misses): (u64, u64)) -> f64 {
    misses as f64 / uses as f64
}

fn zipf(samples: u32, exponent: f64, epochs: u32) -> Trace {
    let mut sum = 0.0;
    let weights = (1..=samples).map(|rank| f64::from(rank).powf(-exponent));
    let up_to: Vec<f64> = weights.map(|weight| (sum += weight, sum).1).collect();
    let mut random = Random::new(3, "zipf");
    let ids = random.permutation(samples);
    let uses = (0..epochs * samples).map(|at| {
        let rank = up_to.partition_point(|up_to| *up_to < random.unit() * sum).min(ids.len() - 1);
        TraceUse { epoch: at / samples, id: ids[rank], bytes: BYTES, score: 1.0 }
    });
    Trace { uses: uses.collect() }
}

#[test]
fn a_size_that_comes_later_counts_once_it_was_used() {
    let mut ghost = Ghost::new(PolicyKind::MinIo, 100);
    ghost.size(500, 10.0);
    let epochs = |ghost: &mut Ghost, count: u32| {
        for _ in 0..count {
            (0..100).for_each(|id| ghost.used(id, Use::UNKNOWN, Use::UNKNOWN));
            ghost.handed(100);
            ghost.epoch();
        }
        ghost.curve().len()
    };
    let before = epochs(&mut ghost, 4);
    // Samples are larger than it seemed: what was to hold everything does not.
    ghost.size(500, 10.5);
    let curve = ghost.curve();
    assert!(before > 0 && curve.len() == before && curve.iter().all(|point| point.uses > 0), "{curve:?}");
    assert_eq!(epochs(&mut ghost, 4), before + 1);
}

/// Run with `--nocapture` for the errors.
#[test]
fn a_fifth_of_the_samples_tells_the_curve_of_all() {
    let job =
        Generated { samples: 10_000, sample_bytes: BYTES, epochs: 4, batch: 64, seed: 2, substitute: 0.0 };
    let drawn = |draws| train(&job, draws, PolicyKind::Lru, 0, true).1;
    let (shuffle, importance) = (drawn(DrawKind::Plain), drawn(DrawKind::Importance));
    let zipf = zipf(10_000, 0.8, 4);
    for (name, trace, policy, worst) in [
        ("shuffle", &shuffle, PolicyKind::MinIo, 0.002),
        ("shuffle", &shuffle, PolicyKind::Lru, 0.02),
        ("importance", &importance, PolicyKind::Min, 0.03),
        ("importance", &importance, PolicyKind::Shade, 0.03),
        ("importance", &importance, PolicyKind::Icache, 0.03),
        ("zipf", &zipf, PolicyKind::Lru, 0.04),
        ("zipf", &zipf, PolicyKind::Min, 0.04),
    ] {
        let curve = curve_of(trace, policy, 10_000, 200_000);
        assert_eq!(curve.len(), 5);
        for point in curve {
            let estimated = ratio((point.uses, point.misses));
            let true_one = ratio(truth(trace, policy, point.capacity_bytes));
            println!(
                "{name:<10} {policy:<6} {:>3}%  estimated {estimated:.4}  true {true_one:.4}  error {:+.4}",
                point.capacity_bytes / 10_000,
                estimated - true_one
            );
            assert!((estimated - true_one).abs() < worst, "{name}, {policy}: {estimated}, not {true_one}");
        }
    }
}

#[test]
fn no_curve_is_given_before_caches_had_an_epoch_to_fill_and_after_a_change() {
    let mut ghost = Ghost::new(PolicyKind::MinIo, 1000);
    let epoch = |ghost: &mut Ghost| {
        for id in 0..1000 {
            ghost.handed(1);
            ghost.used(id, Use::UNKNOWN, Use::UNKNOWN);
        }
        ghost.epoch();
    };
    assert_eq!(ghost.curve(), []);
    ghost.size(20_000, 100.0);
    epoch(&mut ghost);
    assert_eq!(ghost.curve(), [], "the first epoch misses everything, whatever the size");
    epoch(&mut ghost);
    let missed = |ghost: &Ghost| -> Vec<(u64, u64)> {
        ghost.curve().iter().map(|point| (point.capacity_bytes, point.misses)).collect()
    };
    let expected = [(5_000, 950), (10_000, 900), (20_000, 800), (40_000, 600), (80_000, 200)];
    assert_eq!(missed(&ghost), expected);
    // An epoch that is left early tells nothing that the one before did not.
    ghost.handed(100);
    ghost.epoch();
    assert_eq!(missed(&ghost), expected);
    ghost.size(30_000, 100.0);
    assert_eq!(ghost.curve(), []);
    epoch(&mut ghost);
    epoch(&mut ghost);
    // Nothing larger is of interest than what holds everything.
    assert_eq!(missed(&ghost), [(7_500, 925), (15_000, 850), (30_000, 700), (60_000, 400), (100_000, 0)]);
    ghost.size(100_000, 100.0);
    epoch(&mut ghost);
    epoch(&mut ghost);
    assert_eq!(missed(&ghost), [(25_000, 750), (50_000, 500), (100_000, 0)]);
}

#[test]
fn about_two_thousand_samples_stand_for_any_number() {
    for samples in [1, 2048, 2049, 100_000, 1_281_167] {
        let ghost = Ghost::new(PolicyKind::MinIo, samples);
        let found = (0..samples as u32).filter(|id| ghost.is_tracked(*id)).count() as u64;
        assert_eq!(ghost.tracked.count, found, "of {samples}");
        assert!(
            found <= 2 * tracked::MOST && found >= samples.min(tracked::MOST - 200),
            "{found} of {samples}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Where all samples are tracked the curve is what caches of these sizes would have done, use by use.
    #[test]
    fn of_few_samples_it_is_exact(
        uses in prop::collection::vec((0u32..300, 0f32..9.0), 900..1300),
        kind in 0usize..5,
        kept in 1u64..100,
    ) {
        let policy = PolicyKind::ALL[kind];
        let uses = uses.iter().enumerate().map(|(at, (id, score))| {
            TraceUse { epoch: (at / 300) as u32, id: *id, bytes: BYTES, score: *score }
        });
        let trace = Trace { uses: uses.collect() };
        // Whole samples at all sizes.
        let capacity_bytes = 4 * u64::from(BYTES) * kept;
        let last = trace.uses.len() % 300;
        // An epoch of half of the samples is taken for one, another goes on with the one before.
        prop_assume!(last == 0 || last >= 150);
        for point in curve_of(&trace, policy, 300, capacity_bytes) {
            prop_assert_eq!((point.uses, point.misses), truth(&trace, policy, point.capacity_bytes));
        }
    }
}
