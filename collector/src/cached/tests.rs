use super::*;
use stallscope_control::Profiles;
use stallscope_control::advise;
use stallscope_model::{
    Advice, BatchService, CachePeriod, CachePoint, CacheUses, Cause, Causes, Checkpoints, LoaderFacts, Phase,
    RankFacts, StepLedger,
};

const MS: u64 = 1_000_000;

fn free(bytes: u64) -> NodeState {
    NodeState { cpus: 8.0, memory_available_bytes: bytes, ..NodeState::default() }
}

/// A rank whose one worker reads for 30 ms of each 40 ms step; of its samples a cache has so many percent.
fn profiles(hits: u64) -> Profiles {
    let mut profiles = Profiles::new(8.0);
    profiles.loader(0, &LoaderFacts { workers: 1, prefetch_factor: Some(2), ..LoaderFacts::default() });
    for index in 0..100 {
        let (start_ns, end_ns) = (index * 40 * MS, (index + 1) * 40 * MS);
        let mut causes = Causes::default();
        (causes[Cause::Compute], causes[Cause::Fetch]) = (10 * MS, 30 * MS);
        profiles.step(&StepLedger {
            rank: 0,
            loader: 0,
            phase: Phase::Training,
            index,
            part: false,
            start_ns,
            end_ns,
            causes,
            hidden_ns: None,
            producer: None,
            samples: 8,
            evidence: Default::default(),
        });
        profiles.service(&BatchService {
            start_ns,
            ready_ns: end_ns,
            samples: 8,
            fetch_ns: 36 * MS,
            cpu_ns: 4 * MS,
            readers: 1.0,
            makers: 1.0,
            ..BatchService::default()
        });
    }
    if hits > 0 {
        let uses = CacheUses { hits, misses: 100 - hits, ..CacheUses::default() };
        profiles.cache(&CachePeriod {
            start_ns: 0,
            rank: 0,
            loader: 0,
            phase: Phase::Training,
            uses,
            state: None,
        });
    }
    profiles
}

fn summary(gibibytes: u64, cache: Option<CacheState>) -> RunSummary {
    let facts = RankFacts {
        loaders: vec![LoaderFacts { dataset_len: Some(1000), ..LoaderFacts::default() }],
        ..RankFacts::default()
    };
    let read = gibibytes << 30;
    RunSummary {
        ranks: vec![RankSummary {
            facts,
            phases: Vec::new(),
            workers: Vec::new(),
            checkpoints: Checkpoints::default(),
        }],
        epochs: vec![LoaderEpochs {
            whole: 3,
            first_read_bytes: read,
            last_read_bytes: read,
            ..LoaderEpochs::default()
        }],
        caches: cache
            .map(|state| CacheSummary { state: Some(state), ..CacheSummary::default() })
            .into_iter()
            .collect(),
        ..RunSummary::default()
    }
}

fn full(gibibytes: u64) -> Option<CacheState> {
    let bytes = gibibytes << 30;
    Some(CacheState { kept_bytes: bytes, capacity_bytes: bytes, ..CacheState::default() })
}

fn knob(gibibytes: u64) -> Knob {
    Knob {
        loader: Some(0),
        name: "cache.bytes".into(),
        unit: "bytes".into(),
        value: gibibytes << 30,
        min: 1,
        max: 32 << 30,
        ..Knob::default()
    }
}

fn advised(hits: u64, summary: &RunSummary, budgets: &Budgets, node: &NodeState) -> Option<Advice> {
    let profiles = profiles(hits);
    let knobs = [knob(2)];
    let expected = expect_cache(profiles.training()[0], &Reading::of(summary), &knobs, budgets, node)?;
    advise(&[expected], &knobs).into_iter().next()
}

#[test]
fn a_data_set_that_is_read_again_is_advised_to_be_kept() {
    let advice = advised(0, &summary(4, None), &Budgets::default(), &free(16 << 30)).unwrap();
    assert_eq!((advice.knob.as_str(), advice.now, advice.to >> 20), ("cache.bytes", 0, 4301));
    assert!(advice.gain.value > 1.0, "its reads take three quarters of the time: {:?}", advice.gain);
    assert!(
        advice.why.contains("cache=\"4301MiB\") with `fetch` and `decode`, would have 100% of the samples"),
        "{}",
        advice.why
    );
    assert!(!advice.why.contains("reuse"), "all of it fits: {}", advice.why);
}

#[test]
fn where_memory_is_short_as_much_as_fits_is_advised_with_a_remark_on_sampling() {
    let budgets = Budgets { memory_bytes: Some(2 << 30), ..Budgets::default() };
    let advice = advised(0, &summary(4, None), &budgets, &free(16 << 30)).unwrap();
    assert_eq!(advice.to >> 20, 1638);
    assert!(advice.why.contains("38% of the samples"), "{}", advice.why);
    assert!(advice.why.contains("sampling=\"reuse\"") && advice.why.contains("yours to choose"));
    assert_eq!(
        advised(0, &summary(400, None), &budgets, &free(16 << 30)),
        None,
        "next to nothing of it would fit"
    );
    assert_eq!(
        advised(0, &summary(4, None), &Budgets::default(), &free(0)),
        None,
        "nobody knows what is free"
    );
}

#[test]
fn nothing_is_advised_where_nothing_is_read_again() {
    let mut one_epoch = summary(4, None);
    one_epoch.epochs[0].whole = 1;
    assert_eq!(advised(0, &one_epoch, &Budgets::default(), &free(16 << 30)), None);
    let mut in_page_cache = summary(4, None);
    in_page_cache.epochs[0].last_read_bytes = 1 << 28;
    assert_eq!(advised(0, &in_page_cache, &Budgets::default(), &free(16 << 30)), None);
}

#[test]
fn a_full_cache_is_advised_to_grow_by_what_it_lacks() {
    let advice = advised(50, &summary(2, full(2)), &Budgets::default(), &free(16 << 30)).unwrap();
    assert_eq!((advice.now, advice.to >> 20), (2 << 30, 4198));
    assert!(
        advice.why.contains("has 50% of the samples") && advice.why.contains("about 100%"),
        "{}",
        advice.why
    );
    let headroom = CacheState { kept_bytes: 1 << 30, ..full(2).unwrap() };
    assert_eq!(
        advised(50, &summary(2, Some(headroom)), &Budgets::default(), &free(16 << 30)),
        None,
        "it is not full"
    );
    assert_eq!(
        advised(97, &summary(2, full(2)), &Budgets::default(), &free(16 << 30)),
        None,
        "it has nearly all"
    );
}

#[test]
fn a_staging_space_need_not_be_full() {
    let kept_bytes = (2 << 30) - (2 << 30) / 15;
    let state = CacheState { kept_bytes, ..full(2).unwrap() };
    let (summary, profiles) = (summary(2, Some(state)), profiles(50));
    let advised = |others: &[Knob]| {
        let knobs = [&[knob(2)], others].concat();
        let (budgets, node) = (Budgets::default(), free(16 << 30));
        expect_cache(profiles.training()[0], &Reading::of(&summary), &knobs, &budgets, &node).is_some()
    };
    let fetchers = Knob { name: "cache.fetchers".into(), value: 0, ..knob(2) };
    assert!(advised(std::slice::from_ref(&fetchers)), "the data set's own space is full");
    assert!(!advised(&[]), "there is no staging space");
    assert!(!advised(&[Knob { loader: Some(1), ..fetchers }]), "it is another loader's");
}

#[test]
fn a_size_is_a_share_of_the_samples() {
    let share = |size, hits, summary: &RunSummary| {
        cached(size, profiles(hits).training()[0], summary).map(|cached| (cached.share * 100.0).round())
    };
    let none = RunSummary::default();
    assert_eq!(share(CacheSize::Share(0.4), 25, &none), Ok(40.0));
    assert_eq!(share(CacheSize::Times(2.0), 25, &none), Ok(50.0));
    assert_eq!(share(CacheSize::Times(9.0), 25, &none), Ok(100.0));
    assert_eq!(share(CacheSize::Bytes(3 << 30), 25, &summary(8, full(2))), Ok(38.0));
    assert_eq!(share(CacheSize::Bytes(3 << 30), 0, &summary(12, None)), Ok(25.0));
    assert!(share(CacheSize::Times(2.0), 0, &none).unwrap_err().contains("give a share"));
    assert!(share(CacheSize::Bytes(1), 0, &none).unwrap_err().contains("two whole epochs"));
}

#[test]
fn what_the_cache_has_already_is_not_saved_twice() {
    let gain = |hits, share| {
        let change = Change { cached_share: Some(share), ..Change::default() };
        what_if(profiles(hits).training()[0], &change).map(|found| found.gain)
    };
    assert_eq!(gain(50, 0.75), gain(0, 0.5), "half of what is still read");
    assert_eq!(gain(50, 0.5).unwrap().value, gain(0, 0.0).unwrap().value);
    assert!(gain(50, 0.3).unwrap_err().contains("has 50% of the samples now"));
}

#[test]
fn what_was_fetched_ahead_is_no_size_of_a_cache() {
    let mut profiles = profiles(0);
    let uses = CacheUses { hits: 60, prefetched: 40, misses: 40, ..CacheUses::default() };
    let start_ns = 0;
    let (rank, loader, phase, state) = (0, 0, Phase::Training, None);
    profiles.cache(&CachePeriod { start_ns, rank, loader, phase, uses, state });
    let found = cached(CacheSize::Times(2.0), profiles.training()[0], &RunSummary::default());
    assert!((found.unwrap().share - 0.8).abs() < 1e-9, "20% were kept, and twice the cache keeps 40%");
}

/// Twice the cache misses half of what this one does, and four times as much 45%.
fn with_curve() -> RunSummary {
    let mut summary = summary(20, full(2));
    let mut curve = CacheCurve::new(16 << 30);
    for (gibibytes, misses) in [(1, 70), (2, 60), (4, 30), (8, 27)] {
        curve.push(CachePoint { capacity_bytes: gibibytes << 30, uses: 100, misses });
    }
    summary.caches[0].curve = curve;
    summary
}

#[test]
fn a_miss_ratio_curve_says_what_another_cache_has() {
    let summary = with_curve();
    let found = |size| cached(size, profiles(40).training()[0], &summary);
    let share = |size| found(size).map(|found| (found.share * 100.0).round());
    assert_eq!(share(CacheSize::Times(1.0)), Ok(40.0));
    assert_eq!(share(CacheSize::Times(2.0)), Ok(70.0), "not 80, as where hits grow as the cache does");
    assert_eq!(share(CacheSize::Bytes(3 << 30)), Ok(55.0), "between two points");
    assert_eq!(share(CacheSize::Share(0.5)), Ok(73.0), "half of the data set's 16 GiB");
    let missed = found(CacheSize::Times(2.0)).unwrap().curve.unwrap();
    assert_eq!((missed.now, missed.then, missed.then_bytes), (0.6, 0.3, 4 << 30));
    let beyond = share(CacheSize::Bytes(9 << 30)).unwrap_err();
    assert!(beyond.contains("9216 MiB") && beyond.contains("ends at 8192 MiB"), "{beyond}");
    // What another rank of the host tells for all of them.
    let mut shared = with_curve();
    let first = shared.caches[0];
    shared.caches[0].rank = 7;
    shared.caches[0].curve = first.curve.of_ranks(2);
    shared.caches.push(CacheSummary { curve: CacheCurve::new(0), ..first });
    let missed = cached(CacheSize::Times(2.0), profiles(40).training()[0], &shared).unwrap().curve;
    assert_eq!(missed.map(|missed| missed.then), Some(0.3));
    shared.caches[0].curve = first.curve;
    let alone = cached(CacheSize::Times(2.0), profiles(40).training()[0], &shared).unwrap().curve;
    assert_eq!(alone, None, "another rank's own says nothing of this one");
    // Of samples that the cache had of late, hits that a knob's turn made forget are none of the curve's business.
    assert!(
        (cached(CacheSize::Times(2.0), profiles(20).training()[0], &summary).unwrap().share - 0.6).abs()
            < 1e-9
    );
}

#[test]
fn the_advice_goes_by_the_curve_where_there_is_one() {
    let advice = advised(40, &with_curve(), &Budgets::default(), &free(16 << 30)).unwrap();
    assert!(advice.why.contains("it would have about 7"), "{}", advice.why);
    let advice = advised(40, &summary(20, full(2)), &Budgets::default(), &free(16 << 30)).unwrap();
    assert!(advice.why.contains("it would have about 100%"), "{}", advice.why);
}

#[test]
fn a_data_set_that_was_refused_is_advised_a_cache_in_the_script() {
    let refused = Knob {
        value: 0,
        state: KnobState::Unavailable,
        reason: "Nothing is kept of Pictures in the job's cache: its samples open no file.".into(),
        ..knob(0)
    };
    let (summary, profiles) = (summary(1, None), profiles(0));
    let expect = |knobs: &[Knob]| {
        let reading = Reading::of(&summary);
        expect_cache(profiles.training()[0], &reading, knobs, &Budgets::default(), &free(8 << 30)).unwrap()
    };
    let (open, refused) = (expect(&[]), expect(&[refused]));
    assert!(!open.by_script && open.why.contains("run --cache"), "{}", open.why);
    assert!(refused.by_script && !refused.why.contains("run --cache"), "{}", refused.why);
    assert!(refused.why.ends_with("in the job's cache: its samples open no file"), "{}", refused.why);
    assert_eq!((refused.to, refused.gain), (open.to, open.gain));
}
