//! Where a figure of the page stands in the JSON report: JSON pointers (RFC 6901), several with spaces between where
//! the figure is their sum.

use stallscope_model::{Cause, Phase, PhaseSummary};

/// Pointers to the training phases that [`crate::text::training`] adds up, of what `owner` points to.
pub(crate) fn training(owner: &str, phases: &[PhaseSummary]) -> Vec<String> {
    let places = phases.iter().enumerate();
    let trained = places.filter(|(_, phase)| phase.phase == Phase::Training && phase.steps > 0);
    trained.map(|(place, _)| format!("{owner}/phases/{place}")).collect()
}

/// The same field of each.
pub(crate) fn each(owners: &[String], field: &str) -> String {
    let fields: Vec<String> = owners.iter().map(|owner| format!("{owner}/{field}")).collect();
    fields.join(" ")
}

/// The field of a cause's time.
pub(crate) fn cause(cause: Cause) -> String {
    format!("{}_ns", cause.name())
}
