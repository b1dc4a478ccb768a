//! The best static setting of a scenario, over all knobs that its job has.
//!
//! All settings would be too many: workers, prefetch and cache share the memory and are looked at together; the interval of
//! checkpoints and the processes that read ahead for the best few of those, and then the cache more finely.

use crate::run::fixed_within_budget;
use crate::scenario::{Scenario, Setting};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Workers, and batches ahead for each.
const WORKERS: [u32; 12] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24];
const AHEAD: [u32; 4] = [1, 2, 4, 8];
/// Of the data, and of the script's interval.
const CACHES: [f64; 5] = [0.1, 0.25, 0.4, 0.6, 0.8];
const INTERVALS: [f64; 9] = [0.1, 0.2, 0.35, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0];
const FETCHERS: [u32; 4] = [0, 2, 4, 8];
const SEEDS: u64 = 3;
const FAILING_SEEDS: u64 = 8;
const FINALISTS: usize = 6;
/// Of the data: its samples vary, and a little more than their mean has all of them.
const ALL: f64 = 1.02;
/// Of a budget, what a cache leaves.
const SPARE: u64 = 64 << 20;

type Found = Vec<(Setting, f64)>;

/// Those that were looked for before.
pub(crate) struct Known {
    file: Option<PathBuf>,
    of: Mutex<BTreeMap<String, Setting>>,
}

impl Known {
    /// # Errors
    /// A file that is there and is none of such settings.
    pub(crate) fn of(file: Option<PathBuf>) -> anyhow::Result<Known> {
        let text = file.as_ref().filter(|file| file.exists()).map(std::fs::read_to_string).transpose()?;
        let named = || {
            format!("{} has no best static settings; remove it", file.clone().unwrap_or_default().display())
        };
        let of = text.map(|text| serde_json::from_str(&text).with_context(named)).transpose()?;
        Ok(Known { file, of: Mutex::new(of.unwrap_or_default()) })
    }

    pub(crate) fn best_static(&self, scenario: &Scenario) -> Setting {
        let lock = || self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(scenario.name) {
            return *known;
        }
        let found = best_static(scenario);
        let mut of = lock();
        of.insert(scenario.name.to_owned(), found);
        if let Some(file) = &self.file {
            let written = serde_json::to_string_pretty(&*of).map(|text| std::fs::write(file, text + "\n"));
            if !matches!(written, Ok(Ok(()))) {
                eprintln!(
                    "{} cannot be written, so the settings are looked for again next time",
                    file.display()
                );
            }
        }
        found
    }
}

/// The one, the same for all ranks, with the best goodput over the whole trace that keeps the budgets: all of the grid on one
/// seed, the best few on more.
pub(crate) fn best_static(scenario: &Scenario) -> Setting {
    let script = scenario.script();
    let loaders = WORKERS.iter().flat_map(|workers| AHEAD.map(|ahead| (*workers, workers * ahead)));
    let mut grid: Vec<Setting> = loaders
        .map(|(workers, prefetch)| Setting { workers, prefetch, ..script })
        .flat_map(|setting| [Some(setting), most_cache(scenario, &setting)])
        .flatten()
        .collect();
    grid.push(script);
    // One seed tells enough of a loader, and not of failures.
    let mut first = tried(scenario, grid, 0..1);
    first.truncate(FINALISTS);
    let seeds = 0..if scenario.saving.is_some() { FAILING_SEEDS } else { SEEDS };
    let mut found = tried(scenario, first.iter().map(|(setting, _)| *setting).collect(), seeds.clone());
    for others in [intervals, fetchers, caches] {
        let first: Vec<Setting> = found.iter().take(2).map(|(setting, _)| *setting).collect();
        let settings = first.iter().flat_map(|setting| others(scenario, setting)).collect();
        found.extend(tried(scenario, settings, seeds.clone()));
        sort(&mut found);
        let Some((best, _)) = found.first().copied() else { return script };
        // What is better for one is tried with the next best.
        let alike: Vec<Setting> = found
            .iter()
            .take(FINALISTS)
            .map(|(setting, _)| Setting { interval_s: best.interval_s, fetchers: best.fetchers, ..*setting })
            .filter(|setting| found.iter().all(|(known, _)| known != setting))
            .collect();
        found.extend(tried(scenario, alike, seeds.clone()));
        sort(&mut found);
    }
    found.first().map_or(script, |(setting, _)| *setting)
}

/// The best first, by their goodput over all of these seeds.
fn tried(scenario: &Scenario, settings: Vec<Setting>, seeds: Range<u64>) -> Found {
    let of = |setting: Setting| {
        let sum: f64 = seeds.clone().map(|seed| worth(scenario, setting, seed)).sum();
        (setting, sum / seeds.clone().count().max(1) as f64)
    };
    let mut found: Found = settings.into_iter().map(of).collect();
    sort(&mut found);
    found
}

fn sort(found: &mut Found) {
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
}

/// Its pace; nothing where it breaks a budget.
fn worth(scenario: &Scenario, setting: Setting, seed: u64) -> f64 {
    let ran = fixed_within_budget(scenario, setting, seed);
    if ran.tally.violations == 0 { ran.pace(scenario.measured_from()) } else { f64::MIN / 100.0 }
}

/// The same with all of the data in the cache, or as much as the budget leaves.
fn most_cache(scenario: &Scenario, setting: &Setting) -> Option<Setting> {
    let kept = scenario.kept?;
    let all = (ALL * kept.dataset_bytes as f64) as u64;
    let limit = scenario.budgets.memory_bytes.unwrap_or(scenario.node_bytes).min(scenario.cliff_bytes);
    let taken = scenario.trainer_bytes
        + u64::from(setting.workers) * scenario.worker_bytes
        + u64::from(setting.prefetch + 1) * scenario.demand.memory_bytes
        + u64::from(setting.fetchers) * (120 << 20)
        + SPARE;
    let bytes = limit.checked_sub(taken)?.min(all);
    (bytes > kept.own_bytes).then_some(Setting { cache_bytes: bytes, ..*setting })
}

fn caches(scenario: &Scenario, setting: &Setting) -> Vec<Setting> {
    let Some(kept) = scenario.kept else { return Vec::new() };
    let of = |share: f64| Setting { cache_bytes: (share * kept.dataset_bytes as f64) as u64, ..*setting };
    let part = CACHES.iter().map(|share| of(*share));
    part.chain(most_cache(scenario, setting)).filter(|other| other.cache_bytes > kept.own_bytes).collect()
}

fn intervals(scenario: &Scenario, setting: &Setting) -> Vec<Setting> {
    let Some(saving) = scenario.saving else { return Vec::new() };
    let of = |times: &f64| Setting {
        interval_s: ((times * saving.every_s as f64).round() as u64).max(1),
        ..*setting
    };
    INTERVALS.iter().map(of).collect()
}

fn fetchers(scenario: &Scenario, setting: &Setting) -> Vec<Setting> {
    if scenario.kept.and_then(|kept| kept.fetchers).is_none() {
        return Vec::new();
    }
    FETCHERS.iter().map(|fetchers| Setting { fetchers: *fetchers, ..*setting }).collect()
}
