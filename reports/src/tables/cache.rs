//! What is one row a loader with a cache, for the whole run or within a period.

use super::{Column, Table, Value, count, phase_name, real, text};
use stallscope_model::{CacheState, CacheUses, Phase};

const USES: [&str; 8] =
    ["hits", "substitutions", "misses", "reuses", "prefetched", "late", "pool_bytes", "source_bytes"];
const STATE: [&str; 4] = ["kept_bytes", "capacity_bytes", "evictions", "kept_samples"];

fn columns(first: Vec<Column>) -> Vec<Column> {
    let mut columns = first;
    columns.extend(USES.map(count));
    columns.push(real("hit_share"));
    columns.extend(STATE.map(count));
    columns
}

fn cells(row: &mut Vec<Value<'_>>, uses: &CacheUses, state: Option<&CacheState>) {
    row.extend(
        [
            uses.hits,
            uses.substitutions,
            uses.misses,
            uses.reuses(),
            uses.prefetched,
            uses.late,
            uses.pool_bytes,
            uses.source_bytes,
        ]
        .map(Value::Count),
    );
    row.push(uses.hit_share().into());
    let of_state = |of: fn(&CacheState) -> u64| Value::from(state.map(of));
    row.extend([
        of_state(|state| state.kept_bytes),
        of_state(|state| state.capacity_bytes),
        of_state(|state| state.evictions),
        of_state(|state| state.kept_samples),
    ]);
}

/// Two rows a loader, where it was used for both; how the pool stands is in the first.
pub(crate) const CACHE: Table = Table {
    name: "cache",
    columns: || columns(vec![count("rank"), count("loader"), text("phase")]),
    rows: |run, each| {
        run.summary.caches.iter().try_for_each(|cache| {
            let mut state = cache.state.as_ref();
            [(Phase::Training, &cache.training), (Phase::Evaluation, &cache.other)].into_iter().try_for_each(
                |(phase, uses)| {
                    let other = phase != Phase::Training;
                    if other && uses.draws() == 0 {
                        return Ok(());
                    }
                    let mut row =
                        vec![cache.rank.into(), cache.loader.into(), Value::word(phase_name(phase))];
                    cells(&mut row, uses, state.take());
                    each(&row)
                },
            )
        })
    },
};

pub(crate) const CACHE_PERIODS: Table = Table {
    name: "cache_periods",
    columns: || {
        columns(vec![
            count("period_s"),
            count("start_wall_ns"),
            count("rank"),
            count("loader"),
            text("phase"),
        ])
    },
    rows: |run, each| {
        let period_s = run.period.seconds();
        run.caches.iter().try_for_each(|period| {
            let mut row = vec![
                period_s.into(),
                period.start_ns.into(),
                period.rank.into(),
                period.loader.into(),
                Value::word(phase_name(period.phase)),
            ];
            cells(&mut row, &period.uses, period.state.as_ref());
            each(&row)
        })
    },
};

/// One row a size of which is known what it would have missed.
pub(crate) const CACHE_CURVE: Table = Table {
    name: "cache_curve",
    columns: || {
        vec![
            count("rank"),
            count("loader"),
            count("capacity_bytes"),
            count("uses"),
            count("misses"),
            real("miss_ratio"),
            count("dataset_bytes"),
        ]
    },
    rows: |run, each| {
        run.summary.caches.iter().try_for_each(|cache| {
            cache.curve.points().iter().try_for_each(|point| {
                each(&[
                    cache.rank.into(),
                    cache.loader.into(),
                    point.capacity_bytes.into(),
                    point.uses.into(),
                    point.misses.into(),
                    Value::Real(point.miss_ratio()),
                    cache.curve.dataset_bytes().into(),
                ])
            })
        })
    },
};
