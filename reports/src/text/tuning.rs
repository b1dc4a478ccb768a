//! What was turned while the job ran, and how fast each part could go.

use super::Page;
use crate::style::Ink;
use crate::tuning::Tuning;
use stallscope_model::{AuditEvent, RunSummary};

pub(super) fn write(summary: &RunSummary, audit: &[AuditEvent], page: &mut Page<'_>) {
    let Some(tuning) = Tuning::of(summary, audit) else { return };
    page.heading("Tuning", &tuning.facts);
    for turned in &tuning.turned {
        page.labelled("  -", 4, turned, Ink::Plain);
    }
    if let Some(rates) = &tuning.rates {
        page.labelled("  rates", 9, rates, Ink::Dim);
    }
}
