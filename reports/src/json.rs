//! A run as JSON, for programs.

use serde::Serialize;
use stallscope_model::RunSummary;

/// Names the fields below and their meaning; changes when one of them does.
pub const SCHEMA: &str = "stallscope.run/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    #[serde(flatten)]
    run: &'a RunSummary,
}

/// The whole summary, indented, with a newline at its end.
pub fn render(summary: &RunSummary) -> String {
    // Strings, numbers and lists in structs: there is nothing in a summary that JSON cannot hold.
    serde_json::to_string_pretty(&Document { schema: SCHEMA, run: summary }).unwrap_or_default() + "\n"
}
