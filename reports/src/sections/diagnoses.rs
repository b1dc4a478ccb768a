//! What was found; what to do about all of it stands above, as one list.

use super::fill::Fill;
use super::section::{Block, Finding, Section};
use crate::run::Run;
use crate::text::beside;
use stallscope_units as units;

pub(super) fn section(run: &Run) -> Section {
    let findings: Vec<Finding> = run
        .summary
        .diagnoses
        .iter()
        .map(|diagnosis| Finding {
            fill: diagnosis.cause.map(Fill::Cause),
            name: diagnosis.name.clone(),
            finding: diagnosis.finding.clone(),
            evidence: diagnosis.evidence.clone(),
            advice: beside(diagnosis).unwrap_or_default().to_owned(),
            share: match units::percent(diagnosis.share).as_str() {
                "0%" => String::new(),
                share => share.to_owned(),
            },
        })
        .collect();
    let blocks = match findings.is_empty() {
        true => vec![Block::Note("Nothing was found that is worth changing.".to_owned())],
        false => vec![Block::Findings(findings)],
    };
    Section { id: "diagnoses", heading: "Diagnoses", lead: String::new(), blocks }
}
