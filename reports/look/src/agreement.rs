use stallscope_units::percent_exact;

/// What the largest difference between kernel and shim on one cause, as a share of training time, comes to.
pub fn agreement(disagreement_share: f64) -> String {
    let says = if disagreement_share > 0.03 { "differ by" } else { "agree within" };
    format!("they {says} {} of training time", percent_exact(disagreement_share))
}
