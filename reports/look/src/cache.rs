//! What a cache gave, in words: the same in terminal, text and page.

use crate::units;
use stallscope_model::{CachePoint, CacheUses, JobCache};

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

/// What caches of other sizes would miss: "1.0 GiB 90%, 2.0 GiB 80%"; `None` where nobody knows.
pub fn curve(job: &JobCache) -> Option<String> {
    let point = |point: &CachePoint| {
        format!("{} {}", units::memory(point.capacity_bytes), units::percent(point.miss_ratio()))
    };
    let points: Vec<String> = job.curve.points().iter().map(point).collect();
    (!points.is_empty()).then(|| points.join(", "))
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
    use stallscope_model::CacheState;

    #[test]
    fn one_line_says_how_a_cache_does() {
        let training = CacheUses { hits: 57, misses: 43, prefetched: 12, ..CacheUses::default() };
        let state =
            CacheState { kept_bytes: 2_040_000_000, capacity_bytes: 2 << 30, evictions: 0, kept_samples: 9 };
        let mut job =
            JobCache { training, other: CacheUses::default(), state: Some(state), ..JobCache::default() };
        assert_eq!(facts(&job), ["57% hits (12% prefetched)", "1.9 of 2.0 GiB", "0 evictions"]);
        job.training.substitutions = 100;
        assert_eq!(facts(&job)[..2], ["28% hits (6% prefetched)", "50% substituted"]);
        (job.other, job.training, job.state) = (training, CacheUses::default(), None);
        assert_eq!(facts(&job), ["57% hits (12% prefetched), none in training"]);
        assert_eq!(facts(&JobCache::default()), ["nothing drawn so far"]);
    }
}
