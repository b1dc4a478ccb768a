//! Metrics in a manifest. JSON has no infinity, and a checkpoint whose metric is infinite may be the best: it stands there as the
//! largest number that there is, which every reader takes and ranks alike.

use serde::{Deserialize, Deserializer, Serializer};
use std::collections::BTreeMap;

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
    let mut metrics = BTreeMap::<String, f64>::deserialize(deserializer)?;
    for value in metrics.values_mut() {
        if value.abs() >= f64::MAX {
            *value = f64::INFINITY.copysign(*value);
        }
    }
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Serialize, Deserialize)]
    struct Kept(#[serde(with = "super")] BTreeMap<String, f64>);

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
