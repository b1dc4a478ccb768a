//! Metrics in a manifest. JSON has no infinity, and a checkpoint whose metric is infinite may be the best: it stands there as the
//! largest number that there is, which every reader takes and ranks alike.

use crate::short::Short;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserializer, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Of one checkpoint. A manifest may be anybody's, and all of a folder's are in memory at once.
pub(crate) const MOST_METRICS: usize = 1000;
/// Of a metric's name.
const MOST_NAME_BYTES: usize = 200;
/// What a metric takes in memory beside its name: 33,000 links to a manifest of 7 KB took `ckpt gc` 6 GB.
const METRIC_BYTES: u64 = 100;

/// What they take in memory.
pub(crate) fn bytes(metrics: &BTreeMap<String, f64>) -> u64 {
    metrics.keys().map(|name| METRIC_BYTES + name.len() as u64).sum()
}

/// Whether a checkpoint may have these.
pub(crate) fn are_few(metrics: &BTreeMap<String, f64>) -> bool {
    metrics.len() <= MOST_METRICS && metrics.keys().all(|name| name.len() <= MOST_NAME_BYTES)
}

pub(crate) fn serialize<S: Serializer>(
    metrics: &BTreeMap<String, f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|(name, value)| (name, written(*value))))
}

/// A metric as a number that JSON has.
pub(crate) fn written(value: f64) -> f64 {
    if value.is_infinite() { f64::MAX.copysign(value) } else { value }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    deserializer.deserialize_map(Metrics)
}

struct Metrics;

impl<'de> Visitor<'de> for Metrics {
    type Value = BTreeMap<String, f64>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at most {MOST_METRICS} metrics, with names of at most {MOST_NAME_BYTES} bytes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metrics = BTreeMap::new();
        while let Some((Short(name), value)) = map.next_entry::<Short<MOST_NAME_BYTES>, f64>()? {
            if metrics.len() == MOST_METRICS {
                return Err(A::Error::invalid_length(metrics.len() + 1, &self));
            }
            metrics.insert(name, if value.abs() >= f64::MAX { f64::INFINITY.copysign(value) } else { value });
        }
        Ok(metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_METRICS, are_few};
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Serialize, Deserialize)]
    struct Kept(#[serde(with = "super")] BTreeMap<String, f64>);

    #[test]
    fn more_metrics_than_any_script_has_are_refused_as_they_are_read() {
        let of = |count: usize, name: &str| -> BTreeMap<String, f64> {
            (0..count).map(|number| (format!("{name}{number}"), 0.5)).collect()
        };
        let read = |metrics: &BTreeMap<String, f64>| {
            serde_json::from_str::<Kept>(&serde_json::to_string(metrics).unwrap()).map(|kept| kept.0)
        };
        let most = of(MOST_METRICS, "loss");
        assert!(are_few(&most) && read(&most).unwrap() == most);
        for (many, why) in [
            (of(MOST_METRICS + 1, "loss"), "at most 1000 metrics"),
            (of(1, &"x".repeat(70_000)), "a text of at most 200 bytes"),
        ] {
            assert!(!are_few(&many));
            assert!(read(&many).unwrap_err().to_string().contains(why));
        }
    }

    #[test]
    fn infinite_metrics_come_back_and_are_numbers_for_any_reader() {
        let metrics: BTreeMap<String, f64> =
            [("low", f64::NEG_INFINITY), ("high", f64::INFINITY), ("some", -0.25), ("large", 1e308)]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
        let text = serde_json::to_string(&Kept(metrics.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Kept>(&text).unwrap().0, metrics);
        let plain: BTreeMap<String, f64> = serde_json::from_str(&text).unwrap();
        assert!(plain["low"] < -1e308 && plain["high"] > 1e308, "as an earlier version reads it");
        assert_eq!(serde_json::from_str::<Kept>(r#"{"loss": 0.5}"#).unwrap().0["loss"], 0.5);
    }
}
