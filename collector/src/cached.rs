//! What a cache, or a larger one, would have of a job's samples, and what that would bring.

use stallscope_control::{Change, NodeState, Profile, what_if};
use stallscope_ledger::{Reread, reread};
use stallscope_model::{
    Advice, Budgets, CacheState, CacheSummary, Knob, KnobState, LoaderEpochs, RankSummary, RunSummary,
};

/// Gains below that are not worth anybody's time.
const WORTH: f64 = 0.02;
/// Of the memory that is left, what a cache may take.
const OF_FREE: f64 = 0.8;
/// A cache that would have less of the samples is not advised.
const LEAST_SHARE: f64 = 0.05;

/// What of a job says how much it reads again and again, and what its caches give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) ranks: &'a [RankSummary],
    pub(crate) caches: &'a [CacheSummary],
    pub(crate) epochs: &'a [LoaderEpochs],
}

impl<'a> Reading<'a> {
    pub(crate) fn of(summary: &'a RunSummary) -> Reading<'a> {
        Reading { ranks: &summary.ranks, caches: &summary.caches, epochs: &summary.epochs }
    }

    fn state(&self, profile: &Profile) -> Option<&'a CacheState> {
        let own = |cache: &&CacheSummary| (cache.rank, cache.loader) == (profile.rank, profile.loader);
        self.caches.iter().find(own)?.state.as_ref()
    }

    fn reread(&self, profile: &Profile) -> Option<Reread> {
        let epochs: Vec<LoaderEpochs> =
            self.epochs.iter().filter(|epochs| epochs.loader == profile.loader).copied().collect();
        reread(&epochs, self.ranks)
    }
}

/// How large a cache somebody asks about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Of all samples, 0 to 1.
    Share(f64),
    /// Times the one that there is.
    Times(f64),
    Bytes(u64),
}

/// The share of the samples that a cache of this size would have. Of a data set that is drawn as torch draws it, what is
/// kept is a sample of it like any other, so that the hits that save a read grow as the cache does.
///
/// # Errors
/// A sentence where there is nothing to start from.
pub fn cached_share(size: CacheSize, profile: &Profile, summary: &RunSummary) -> Result<f64, String> {
    let reading = Reading::of(summary);
    let (hits, reuses) = (profile.cached_share(), profile.reused_share());
    let times = match size {
        CacheSize::Share(share) => return Ok(share),
        CacheSize::Times(times) if reuses > 0.0 => times,
        CacheSize::Times(_) => {
            return Err("no cache has saved a read of late, so that nobody knows what a larger one would have; give a \
                        share of the samples: --cache 40%"
                .to_owned());
        }
        CacheSize::Bytes(bytes) => match (reading.state(profile), reading.reread(profile)) {
            (Some(state), _) if reuses > 0.0 && state.capacity_bytes > 0 => {
                bytes as f64 / state.capacity_bytes as f64
            }
            (_, Some(found)) => return Ok((bytes as f64 / found.bytes as f64).min(1.0)),
            _ => {
                return Err("how large the data set is is not known: that takes two whole epochs with kernel evidence, or a \
                            cache; give a share of the samples: --cache 40%"
                    .to_owned());
            }
        },
    };
    Ok((hits + (times - 1.0) * reuses).clamp(0.0, 1.0))
}

/// A cache, or a larger one, that is expected to help within `budgets` and what `node` has left; `None` where nothing
/// speaks for one. What ranks of a machine would share is told of the first of them.
pub(crate) fn advise_cache(
    profile: &Profile,
    reading: &Reading<'_>,
    knobs: &[Knob],
    budgets: &Budgets,
    node: &NodeState,
) -> Option<Advice> {
    let free = budgets
        .memory_bytes
        .map_or(node.memory_available_bytes, |budget| budget.min(node.memory_available_bytes));
    let free = (free as f64 * OF_FREE) as u64;
    let (now, to, share, why) = match reading.state(profile) {
        Some(state) => larger(profile, state, knobs, free)?,
        None => first(profile, &reading.reread(profile)?, free)?,
    };
    let found = what_if(profile, &Change { cached_share: Some(share), ..Change::default() }).ok()?;
    (found.gain.value >= WORTH && found.gain.low > 0.0).then(|| Advice {
        rank: profile.rank,
        loader: Some(profile.loader),
        knob: "cache.bytes".to_owned(),
        now,
        to,
        gain: found.gain,
        why,
    })
}

type Size = (u64, u64, f64, String);

/// A cache where there is none.
fn first(profile: &Profile, found: &Reread, free: u64) -> Option<Size> {
    // As room for what keeps account of samples.
    let whole = found.bytes.saturating_add(found.bytes / 20);
    let to = whole.min(free) >> 20 << 20;
    let share = (to as f64 / whole as f64).min(1.0);
    if share < LEAST_SHARE || profile.cached_share() > 0.0 {
        return None;
    }
    let mib = to >> 20;
    let mut why = format!(
        "each epoch reads the same {} MiB from storage again; stallscope.DataLoader(..., cache=\"{mib}MiB\") would have \
         {:.0}% of the samples from the second epoch on, with the same draws",
        found.bytes >> 20,
        100.0 * share
    );
    if share < 0.95 {
        why.push_str(REMARK);
    }
    Some((0, to, share, why))
}

/// More of a cache that is full.
fn larger(profile: &Profile, state: &CacheState, knobs: &[Knob], free: u64) -> Option<Size> {
    let knob = knobs.iter().find(|knob| {
        (knob.rank, knob.loader) == (profile.rank, Some(profile.loader))
            && knob.name == "cache.bytes"
            && knob.state != KnobState::Unavailable
    })?;
    let (hits, reuses) = (profile.cached_share(), profile.reused_share());
    let full = state.kept_bytes >= state.capacity_bytes - state.capacity_bytes / 20;
    if !full || reuses <= 0.0 || hits >= 0.95 {
        return None;
    }
    let wanted = state.capacity_bytes as f64 * (1.0 + 1.05 * (1.0 - hits) / reuses);
    let to = (wanted as u64).min(state.capacity_bytes.saturating_add(free)).min(knob.max) >> 20 << 20;
    let times = to as f64 / state.capacity_bytes as f64;
    let share = (hits + (times - 1.0) * reuses).min(1.0);
    if share < hits + LEAST_SHARE {
        return None;
    }
    let mut why = format!(
        "the cache is full and has {:.0}% of the samples; with {} MiB it would have about {:.0}%",
        100.0 * hits,
        to >> 20,
        100.0 * share
    );
    if share < 0.95 {
        why.push_str(REMARK);
    }
    Some((knob.value, to, share, why))
}

/// Nothing but the user's word changes which samples are drawn.
const REMARK: &str = ". With that much memory sampling=\"reuse\" would read less still; it draws samples again while they are \
     there, which changes what training sees, so that it is yours to choose";

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_control::Profiles;
    use stallscope_model::{
        BatchService, CachePeriod, CacheUses, Cause, Causes, Checkpoints, LoaderFacts, Phase, RankFacts,
        StepLedger,
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
        advise_cache(profiles.training()[0], &Reading::of(summary), &[knob(2)], budgets, node)
    }

    #[test]
    fn a_data_set_that_is_read_again_is_advised_to_be_kept() {
        let advice = advised(0, &summary(4, None), &Budgets::default(), &free(16 << 30)).unwrap();
        assert_eq!((advice.knob.as_str(), advice.now, advice.to >> 20), ("cache.bytes", 0, 4300));
        assert!(advice.gain.value > 1.0, "its reads take three quarters of the time: {:?}", advice.gain);
        assert!(advice.why.contains("cache=\"4300MiB\") would have 100% of the samples"), "{}", advice.why);
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
        let room = CacheState { kept_bytes: 1 << 30, ..full(2).unwrap() };
        assert_eq!(
            advised(50, &summary(2, Some(room)), &Budgets::default(), &free(16 << 30)),
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
    fn a_size_is_a_share_of_the_samples() {
        let share = |size, hits, summary: &RunSummary| {
            cached_share(size, profiles(hits).training()[0], summary).map(|share| (share * 100.0).round())
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
        let share = cached_share(CacheSize::Times(2.0), profiles.training()[0], &RunSummary::default());
        assert!((share.unwrap() - 0.8).abs() < 1e-9, "20% were kept, and twice the cache keeps 40%");
    }
}
