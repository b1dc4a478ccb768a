use super::*;
use crate::draws::Selection;

const JOB: Generated =
    Generated { samples: 4000, sample_bytes: 100, epochs: 12, batch: 64, seed: 1, substitute: 0.0 };

fn of(draws: DrawKind, policy: PolicyKind, share: f64) -> EpochFigures {
    let cache_bytes = (share * f64::from(JOB.samples * JOB.sample_bytes)) as u64;
    // The first epochs fill the cache.
    train(&JOB, draws, policy, cache_bytes, false).0.since(4)
}

/// Closed forms for a fresh shuffle each epoch: LRU `c + (1-c) ln(1-c)`, no-evict and MIN `c`.
#[test]
fn a_shuffle_has_the_hits_of_the_closed_forms() {
    for share in [0.1, 0.2, 0.5] {
        let lru = share + (1.0 - share) * (1.0f64 - share).ln();
        for (policy, expected) in
            [(PolicyKind::Lru, lru), (PolicyKind::MinIo, share), (PolicyKind::Min, share)]
        {
            let found = of(DrawKind::Plain, policy, share).hit_ratio();
            assert!((found - expected).abs() < 0.012, "{policy} at {share}: {found}, not {expected}");
        }
    }
}

/// Whatever is drawn, an epoch reads at least the samples it used less those that may have been kept.
#[test]
fn nobody_has_more_hits_than_there_can_be() {
    let kept = 0.2 * f64::from(JOB.samples);
    for draws in [DrawKind::Importance, DrawKind::Iis(Selection::Corrected)] {
        for policy in PolicyKind::ALL {
            let cache_bytes = (kept * f64::from(JOB.sample_bytes)) as u64;
            let (figures, _) = train(&JOB, draws, policy, cache_bytes, false);
            for epoch in &figures.epochs {
                let bound = 1.0 - (epoch.unique as f64 - kept) / epoch.uses as f64;
                assert!(epoch.hit_ratio() <= bound + 1e-9, "{policy}: {} above {bound}", epoch.hit_ratio());
            }
        }
    }
}

#[test]
fn draws_that_are_planned_let_min_have_more_than_twice_the_hits_of_lru() {
    let (lru, min) =
        (of(DrawKind::Importance, PolicyKind::Lru, 0.2), of(DrawKind::Importance, PolicyKind::Min, 0.2));
    assert!(min.hit_ratio() > 2.0 * lru.hit_ratio(), "{} against {}", min.hit_ratio(), lru.hit_ratio());
}

/// Reads a use of the rolling window: `(1 - pinned) / R` of all uses, where all that it plans fits.
#[test]
fn reuse_reads_about_one_over_its_uses() {
    for uses in [2, 3] {
        let draws = DrawKind::Reuse { uses, window_share: 0.1, pinned_share: 0.1 };
        let found = 1.0 - of(draws, PolicyKind::Min, 0.2).hit_ratio();
        let expected = (1.0 - 0.1) / f64::from(uses);
        assert!(found < expected * 1.06, "{uses} uses: {found} reads a use, not {expected}");
    }
}

#[test]
fn a_recorded_run_replays_to_the_same_hits_where_the_policy_looks_at_nothing_else() {
    let cache_bytes = 80_000;
    for policy in [PolicyKind::Lru, PolicyKind::MinIo] {
        let (figures, trace) = train(&JOB, DrawKind::Plain, policy, cache_bytes, true);
        assert_eq!(replay(&trace, policy, cache_bytes), figures, "{policy}");
    }
}

#[test]
fn with_every_use_known_min_has_at_least_the_hits_of_all_others() {
    let (_, trace) = train(&JOB, DrawKind::Importance, PolicyKind::Min, 80_000, true);
    let best = replay(&trace, PolicyKind::Min, 80_000).since(0).hits;
    for policy in PolicyKind::ALL {
        assert!(replay(&trace, policy, 80_000).since(0).hits <= best, "{policy}");
    }
}

/// A use that is given another sample reads nothing, and is no hit; and there are no more of those than the bound allows.
#[test]
fn substitutes_save_reads_and_are_no_hits() {
    let cache_bytes = 80_000;
    for (draws, policy) in
        [(DrawKind::Importance, PolicyKind::Min), (DrawKind::Iis(Selection::Corrected), PolicyKind::Icache)]
    {
        let plain = train(&JOB, draws, policy, cache_bytes, false).0;
        let (figures, trace) = train(&Generated { substitute: 0.1, ..JOB }, draws, policy, cache_bytes, true);
        for epoch in &figures.epochs {
            assert!(epoch.substitutions as f64 <= 0.1 * epoch.uses as f64);
            assert_eq!(epoch.reads() * u64::from(JOB.sample_bytes), epoch.read_bytes);
        }
        let (with, without) = (figures.since(4), plain.since(4));
        assert!(with.substitutions as f64 > 0.05 * with.uses as f64, "{draws:?}: {with:?}");
        assert!((with.reads() as f64) < 0.97 * without.reads() as f64, "{draws:?}: {with:?}");
        assert!(with.hit_ratio() < without.hit_ratio() + 0.02, "{draws:?}: {with:?}");
        assert_eq!(trace.uses.len() as u64, figures.since(0).uses, "each use once");
    }
}

#[test]
fn in_the_first_epoch_there_is_nothing_that_was_not_used() {
    let (figures, _) =
        train(&Generated { substitute: 1.0, ..JOB }, DrawKind::Plain, PolicyKind::MinIo, 80_000, false);
    assert_eq!(figures.epochs[0].substitutions, 0);
    assert!(figures.epochs[1].substitutions > 0);
}

const IIS: DrawKind = DrawKind::Iis(Selection::Corrected);
const IIS_PUBLISHED: DrawKind = DrawKind::Iis(Selection::AsPublished);
const CACHE_BYTES: u64 = 80_000;

/// Each package that was written is read whole and once in the next epoch, and saves as many requests as it has samples
/// beyond the first.
#[test]
fn packages_save_requests_and_no_bytes() {
    for draws in [IIS, DrawKind::Importance, DrawKind::Plain] {
        let (figures, _) = train(&JOB, draws, Caching::Packed(Selection::Corrected), CACHE_BYTES, false);
        let mut saved = 0;
        for epoch in &figures.epochs {
            assert_eq!(epoch.substitutions, 0);
            assert_eq!(epoch.read_bytes, epoch.reads() * u64::from(JOB.sample_bytes));
            assert_eq!(epoch.requests, epoch.reads() - saved, "{draws:?}");
            saved = epoch.written_bytes / u64::from(JOB.sample_bytes) - epoch.writes;
        }
        assert_eq!(saved > 0, draws != DrawKind::Plain, "plain draws have no scores to label by");
    }
}

/// iCACHE as its authors count it has more hits than there can be. They are samples that were not asked for, and each of
/// them was read.
#[test]
fn as_published_substitutes_look_like_hits_and_save_no_read() {
    let published = Caching::Packed(Selection::AsPublished);
    let (figures, _) = train(&JOB, IIS_PUBLISHED, published, CACHE_BYTES, false);
    for epoch in &figures.epochs {
        assert_eq!(epoch.requests, epoch.uses - epoch.hits);
        assert_eq!(epoch.read_bytes, epoch.requests * u64::from(JOB.sample_bytes));
        assert_eq!(epoch.writes, 0);
    }
    let late = figures.since(6);
    let kept = CACHE_BYTES / u64::from(JOB.sample_bytes) * 6;
    let claimed = late.hits + late.substitutions;
    assert!(claimed > late.uses.min(kept) * 5 / 4, "{claimed} of {} uses, {kept} can be", late.uses);
    assert!(late.hits < kept);
    let corrected = train(&JOB, IIS, Caching::Packed(Selection::Corrected), CACHE_BYTES, false).0.since(6);
    let share = |figures: &EpochFigures, requests: u64| requests as f64 / figures.uses as f64;
    assert!(corrected.hit_ratio() > 1.2 * late.hit_ratio(), "{corrected:?} against {late:?}");
    assert!(share(&corrected, corrected.requests) < 0.85 * share(&late, late.requests), "{corrected:?}");
}

#[test]
fn in_packages_too_substitutes_keep_to_the_quota() {
    let job = Generated { substitute: 0.1, ..JOB };
    let caching = Caching::Packed(Selection::Corrected);
    let (figures, _) = train(&job, IIS, caching, CACHE_BYTES, false);
    for epoch in &figures.epochs {
        assert!(epoch.substitutions as f64 <= 0.1 * epoch.uses as f64);
        assert_eq!(epoch.read_bytes, epoch.reads() * u64::from(JOB.sample_bytes));
    }
    let (with, without) = (figures.since(6), train(&JOB, IIS, caching, CACHE_BYTES, false).0.since(6));
    println!("{with:?} {without:?}");
    assert!(with.substitutions > 0 && with.requests < without.requests, "{with:?} against {without:?}");
}
