//! What the findings' sentences have in common.

use stallscope_model::Estimate;

/// "+38% (+30% to +45%)".
pub(crate) fn gain(gain: &Estimate) -> String {
    // Of what is rounded to it, 0 has no sign.
    let signed = |share: f64| format!("{:+.0}%", (100.0 * share).round() + 0.0);
    format!("{} ({} to {})", signed(gain.value), signed(gain.low), signed(gain.high))
}

pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

/// The two ways to a cache of `size`: the first needs no changed line, and keeps the files that samples open of the data set that
/// is trained on first. `by_script`: it could keep nothing of this data set.
pub fn by_cache(size: &str, by_script: bool) -> String {
    match by_script {
        false => format!(
            "stallscope run --cache {size} (it keeps the training set alone) where samples open their files in Python (PIL does, cv2.imread does \
             not), else stallscope.DataLoader(..., cache=\"{size}\") with `fetch` and `decode`,"
        ),
        true => format!(
            "stallscope.DataLoader(..., cache=\"{size}\"), where the data set has `fetch` and `decode`,"
        ),
    }
}
