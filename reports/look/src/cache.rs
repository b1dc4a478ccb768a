//! What a cache gave, in words: the same in terminal, text and page.

use stallscope_model::{CachePoint, CacheSummary, CacheUses, JobCache, NoCurve, RunSummary};
use stallscope_units as units;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The facts of one line: "57% hits (12% prefetched)", "1.9 of 2.0 GiB", "0 evictions". Hits are true hits in training.
pub fn facts(job: &JobCache) -> Vec<String> {
    let mut facts = match (hits(&job.training), hits(&job.other)) {
        (Some(hits), _) => vec![hits],
        (None, Some(hits)) => vec![format!("{hits}, none in training")],
        (None, None) => vec!["nothing drawn so far".to_owned()],
    };
    let uses = if job.training.draws() > 0 { &job.training } else { &job.other };
    if let Some(share) = uses.share(uses.substitutions).filter(|share| *share > 0.0) {
        facts.push(format!("{} substituted", units::percent(share)));
    }
    if let Some(state) = &job.state {
        facts.push(units::memory_of(state.kept_bytes, state.capacity_bytes));
        facts.push(units::counted(state.evictions, "eviction"));
    }
    facts
}

/// One size of a loader's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// "2.0 GiB".
    pub size: String,
    /// Its miss ratio: "66%".
    pub missed: String,
    /// Whether it is the present size.
    pub is_now: bool,
}

/// The miss-ratio curve of a loader's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderCurve {
    /// Owner of the cache: "loader 1", "rank 2, loader 0"; empty where the job has no other.
    pub whose: String,
    pub sizes: Vec<Size>,
}

/// Owner of the uses in a curve: one rank, or all ranks of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner<'a> {
    Rank(u32),
    Host(&'a str),
}

/// The miss-ratio curves of a run: each is of one loader's cache.
pub fn curves(summary: &RunSummary) -> Vec<LoaderCurve> {
    let known = summary.cache_curves();
    // Of ranks of one number the first counts.
    let hosts: HashMap<u32, &str> =
        summary.ranks.iter().rev().map(|rank| (rank.facts.rank, rank.facts.host.as_str())).collect();
    let host = |cache: &CacheSummary| hosts.get(&cache.rank).copied().unwrap_or_default();
    let joint: HashSet<(&str, u16)> = known
        .iter()
        .filter(|cache| cache.curve.is_joint())
        .map(|cache| (host(cache), cache.loader))
        .collect();
    let whose = |cache: &CacheSummary| {
        let is_joint = joint.contains(&(host(cache), cache.loader));
        (if is_joint { Owner::Host(host(cache)) } else { Owner::Rank(cache.rank) }, cache.loader)
    };
    // Loaders that train without a curve of their own yet count: a curve beside them is not the whole job's.
    let trained = summary.caches.iter().filter(|cache| cache.training.draws() > 0);
    let all: BTreeSet<(Owner<'_>, u16)> = trained.chain(known.iter().copied()).map(whose).collect();
    let has_one_owner = all.iter().map(|(owner, _)| owner).collect::<BTreeSet<_>>().len() < 2;
    known
        .iter()
        .map(|cache| {
            let (owner, loader) = whose(cache);
            let whose = match (all.len(), has_one_owner, owner) {
                (1, ..) => String::new(),
                (_, true, _) => format!("loader {loader}"),
                (_, false, Owner::Rank(rank)) => format!("rank {rank}, loader {loader}"),
                (_, false, Owner::Host(host)) => format!("host {host}, loader {loader}"),
            };
            let now_bytes = cache.state.map_or(0, |state| state.capacity_bytes);
            let size = |point: &CachePoint| Size {
                size: units::memory(point.capacity_bytes),
                missed: units::percent(point.miss_ratio()),
                is_now: cache.curve.times(point, now_bytes) == Some("1"),
            };
            LoaderCurve { whose, sizes: cache.curve.points().iter().map(size).collect() }
        })
        .collect()
}

impl LoaderCurve {
    /// "1.0 GiB 90%, 2.0 GiB (now) 80%".
    pub fn in_words(&self) -> String {
        let of =
            |size: &Size| format!("{}{} {}", size.size, if size.is_now { " (now)" } else { "" }, size.missed);
        self.sizes.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

/// Why a job with caches has no curve; `None` where it has one, or draws nothing from a cache.
pub fn no_curve(summary: &RunSummary) -> Option<&'static str> {
    Some(match summary.no_curve()? {
        NoCurve::NotYet => {
            "What other sizes would miss is not known: a cache measures it from the second whole epoch on"
        }
        NoCurve::Mixed => {
            "What other sizes would miss is not known: ranks of several jobs draw from one cache, and their uses are not kept apart"
        }
    })
}

/// The same in a few words.
pub fn no_curve_briefly(summary: &RunSummary) -> Option<&'static str> {
    Some(match summary.no_curve()? {
        NoCurve::NotYet => "with other sizes: not known before the second epoch",
        NoCurve::Mixed => "with other sizes: not known, several jobs share the cache",
    })
}

/// "57% hits (12% prefetched, 3% late)"; `None` without any draw.
fn hits(uses: &CacheUses) -> Option<String> {
    let hits = units::percent(uses.hit_share()?);
    let parts: Vec<String> = [(uses.prefetched, "prefetched"), (uses.late, "late")]
        .into_iter()
        .filter(|(part, _)| *part > 0)
        .filter_map(|(part, name)| Some(format!("{} {name}", units::percent(uses.share(part)?))))
        .collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    Some(format!("{hits} hits{parts}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{CacheCurve, CacheState, RankFacts, RankSummary};

    #[test]
    fn one_line_says_how_a_cache_does() {
        let training = CacheUses { hits: 57, misses: 43, prefetched: 12, ..CacheUses::default() };
        let state =
            CacheState { kept_bytes: 2_040_000_000, capacity_bytes: 2 << 30, evictions: 0, kept_samples: 9 };
        let mut job = JobCache { training, other: CacheUses::default(), state: Some(state) };
        assert_eq!(facts(&job), ["57% hits (12% prefetched)", "1.9 of 2.0 GiB", "0 evictions"]);
        job.training.substitutions = 100;
        assert_eq!(facts(&job)[..2], ["28% hits (6% prefetched)", "50% substituted"]);
        (job.other, job.training, job.state) = (training, CacheUses::default(), None);
        assert_eq!(facts(&job), ["57% hits (12% prefetched), none in training"]);
        assert_eq!(facts(&JobCache::default()), ["nothing drawn so far"]);
    }

    #[test]
    fn a_curve_says_whose_it_is_and_which_size_is_the_present_one() {
        let mut curve = CacheCurve::new(5 << 30);
        for (gib, misses) in [(1, 90), (2, 80), (5, 0)] {
            curve.push(CachePoint { capacity_bytes: gib << 30, uses: 100, misses });
        }
        let training = CacheUses { hits: 1, ..CacheUses::default() };
        let state = Some(CacheState { capacity_bytes: 2 << 30, ..CacheState::default() });
        let cache =
            |rank, loader| CacheSummary { rank, loader, training, state, curve, ..CacheSummary::default() };
        let of = |caches| curves(&RunSummary { caches, ..RunSummary::default() });
        let [one] = &of(vec![cache(0, 0)])[..] else { panic!("one curve") };
        assert_eq!(one.whose, "");
        assert_eq!(one.in_words(), "1.0 GiB 90%, 2.0 GiB (now) 80%, 5.0 GiB 0%");
        let whose = |caches| of(caches).into_iter().map(|curve| curve.whose).collect::<Vec<_>>();
        assert_eq!(whose(vec![cache(3, 0), cache(3, 1)]), ["loader 0", "loader 1"]);
        assert_eq!(whose(vec![cache(0, 0), cache(1, 0)]), ["rank 0, loader 0", "rank 1, loader 0"]);
        let silent = CacheSummary { curve: CacheCurve::default(), ..cache(1, 0) };
        assert_eq!(whose(vec![cache(0, 0), silent]), ["rank 0, loader 0"], "it is not the other's");
        let evaluates = CacheSummary { training: CacheUses::default(), ..silent };
        assert_eq!(whose(vec![cache(0, 0), evaluates]), [""]);
        let only_evaluates = |rank| CacheSummary { training: CacheUses::default(), ..cache(rank, 0) };
        assert_eq!(
            whose(vec![only_evaluates(0), only_evaluates(1)]),
            ["rank 0, loader 0", "rank 1, loader 0"]
        );
        assert_eq!(of(Vec::new()), []);
    }

    #[test]
    fn a_curve_of_all_ranks_of_a_host_is_the_jobs_or_the_hosts() {
        let mut curve = CacheCurve::new(5 << 30).of_ranks(2);
        curve.push(CachePoint { capacity_bytes: 1 << 30, uses: 100, misses: 50 });
        let training = CacheUses { hits: 1, ..CacheUses::default() };
        let silent = |rank, loader| CacheSummary { rank, loader, training, ..CacheSummary::default() };
        let measured = |rank, loader| CacheSummary { curve, ..silent(rank, loader) };
        let whose = |caches| {
            let host = |rank| RankFacts {
                rank,
                host: if rank < 2 { "a" } else { "b" }.into(),
                ..RankFacts::default()
            };
            let rank = |rank| RankSummary {
                facts: host(rank),
                phases: Vec::new(),
                workers: Vec::new(),
                checkpoints: stallscope_model::Checkpoints::default(),
            };
            let summary = RunSummary { ranks: (0..4).map(rank).collect(), caches, ..RunSummary::default() };
            curves(&summary).into_iter().map(|curve| curve.whose).collect::<Vec<_>>()
        };
        assert_eq!(whose(vec![measured(0, 0), silent(1, 0)]), [""]);
        assert_eq!(
            whose(vec![measured(0, 0), silent(1, 0), measured(0, 1), silent(1, 1)]),
            ["loader 0", "loader 1"]
        );
        let hosts = ["host a, loader 0", "host b, loader 0"];
        assert_eq!(whose(vec![measured(0, 0), silent(1, 0), measured(2, 0), silent(3, 0)]), hosts);
        assert_eq!(whose(vec![measured(0, 0), silent(1, 0), silent(2, 0), silent(3, 0)]), hosts[..1]);
    }

    /// As a foreign recording may have them: looked for in each other and in all ranks, this would take weeks.
    #[test]
    fn caches_of_twenty_thousand_hosts_each_have_their_curve() {
        let mut curve = CacheCurve::new(5 << 30).of_ranks(2);
        curve.push(CachePoint { capacity_bytes: 1 << 30, uses: 100, misses: 50 });
        let cache = |rank| CacheSummary { rank, curve, ..CacheSummary::default() };
        let rank = |rank| RankSummary {
            facts: RankFacts { rank, host: format!("host {rank}"), ..RankFacts::default() },
            phases: Vec::new(),
            workers: Vec::new(),
            checkpoints: stallscope_model::Checkpoints::default(),
        };
        let summary = RunSummary {
            caches: (0..20_000).map(cache).collect(),
            ranks: (0..20_000).map(rank).collect(),
            ..RunSummary::default()
        };
        let whose: BTreeSet<String> = curves(&summary).into_iter().map(|curve| curve.whose).collect();
        assert_eq!(whose.len(), 20_000);
    }

    #[test]
    fn where_there_is_no_curve_it_says_why() {
        let training = CacheUses { hits: 1, ..CacheUses::default() };
        let reasons = |curve| {
            let caches = vec![CacheSummary { training, curve, ..CacheSummary::default() }];
            let summary = RunSummary { caches, ..RunSummary::default() };
            [no_curve(&summary), no_curve_briefly(&summary)].map(Option::unwrap_or_default)
        };
        let [sentence, words] = reasons(CacheCurve::default());
        assert!(sentence.contains("second whole epoch") && words.contains("second epoch"));
        let [sentence, words] = reasons(CacheCurve::mixed());
        assert!(sentence.contains("several jobs") && words.contains("several jobs"));
        let none = RunSummary::default();
        assert_eq!((no_curve(&none), no_curve_briefly(&none)), (None, None));
    }
}
