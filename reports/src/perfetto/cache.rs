//! What caches gave, as counters: a value a period.

use super::ranks::{COUNTERS_ORDER, Ranks};
use super::trace::{Place, Trace};
use crate::{Error, Run};
use stallscope_model::{CachePeriod, Phase};
use std::collections::BTreeMap;

pub(super) fn write(run: &Run, ranks: &mut Ranks<'_>, trace: &mut Trace<'_>) -> Result<(), Error> {
    let mut loaders: BTreeMap<(u32, u16), Vec<&CachePeriod>> = BTreeMap::new();
    for period in &run.caches {
        loaders.entry((period.rank, period.loader)).or_default().push(period);
    }
    for ((rank, loader), periods) in loaders {
        let group = ranks.group(rank, trace)?;
        let place = Place { under: Some(group), order: COUNTERS_ORDER };
        let called = |name: &str| match loader {
            0 => name.to_owned(),
            loader => format!("{name}, loader {loader}"),
        };
        let training = periods.iter().filter(|period| period.phase == Phase::Training);
        let hits: Vec<(u64, f64)> =
            training.filter_map(|period| Some((period.start_ns, period.uses.hit_share()?))).collect();
        let kept: Vec<(u64, f64)> = periods
            .iter()
            .filter_map(|period| Some((period.start_ns, period.state?.kept_bytes as f64)))
            .collect();
        for (name, unit, values) in [("cache_hit_share", "share", hits), ("cache_kept_bytes", "bytes", kept)]
        {
            if values.is_empty() {
                continue;
            }
            let track = trace.counter_track(&called(name), unit, place)?;
            for (at_ns, value) in values {
                trace.count(track, at_ns, value)?;
            }
        }
    }
    Ok(())
}
