//! How far the figures can be trusted, what they cost, and where they are kept.

use super::Page;
use crate::style::Ink;
use stallscope_model::{EvidenceState, RunSummary};
use stallscope_units as units;
use std::path::Path;

const LABEL: usize = 11;

pub(super) fn write(summary: &RunSummary, recordings: &[&Path], notes: &[String], page: &mut Page<'_>) {
    page.gap();
    evidence(summary, page);
    page.labelled("Delivered", LABEL, &delivered(summary), Ink::Dim);
    if summary.overhead.wall_ns > 0 {
        page.labelled("Cost", LABEL, &cost(summary), Ink::Dim);
    }
    for recording in recordings {
        page.labelled("Recording", LABEL, &recording.display().to_string(), Ink::Plain);
    }
    for note in notes {
        page.labelled("Note", LABEL, note, Ink::Plain);
    }
}

fn evidence(summary: &RunSummary, page: &mut Page<'_>) {
    let (kernel, shim) = (&summary.kernel, &summary.shim);
    let agreement = summary.disagreement_share.map(stallscope_look::agreement);
    if (kernel, shim) == (&EvidenceState::On, &EvidenceState::On) {
        let agreement = agreement.map(|agreement| format!("; {agreement}")).unwrap_or_default();
        page.labelled("Evidence", LABEL, &format!("kernel and loader shim{agreement}"), Ink::Dim);
    } else {
        page.labelled("Evidence", LABEL, &format!("kernel: {}", evidence_in_words(kernel)), ink(kernel));
        page.labelled("", LABEL, &format!("loader shim: {}", evidence_in_words(shim)), ink(shim));
        if let Some(agreement) = agreement {
            page.labelled("", LABEL, &agreement, Ink::Plain);
        }
    }
    for sentence in unseen(summary) {
        page.labelled("", LABEL, sentence, Ink::Plain);
    }
}

/// What the shim could not see, each sentence once; none that its state says already.
pub(crate) fn unseen(summary: &RunSummary) -> Vec<&str> {
    let state = evidence_in_words(&summary.shim);
    let sentences = summary.ranks.iter().flat_map(|rank| &rank.facts.unavailable);
    let mut sentences: Vec<&str> =
        sentences.map(String::as_str).filter(|text| !state.contains(*text)).collect();
    sentences.sort_unstable();
    sentences.dedup();
    sentences
}

/// Whether a kind of evidence was there, and why not.
pub(crate) fn evidence_in_words(state: &EvidenceState) -> String {
    match state {
        EvidenceState::On => "on".to_owned(),
        EvidenceState::Off => "not used".to_owned(),
        EvidenceState::Partial(missing) => format!("partly; {missing}"),
        EvidenceState::Missing(reason) => format!("missing; {reason}"),
    }
}

fn ink(state: &EvidenceState) -> Ink {
    if matches!(state, EvidenceState::Partial(_) | EvidenceState::Missing(_)) { Ink::Plain } else { Ink::Dim }
}

pub(crate) fn delivered(summary: &RunSummary) -> String {
    let lost = summary.losses.iter().fold(0u64, |sum, loss| sum.saturating_add(loss.count));
    let delivered = summary.overhead.records;
    if lost == 0 {
        return format!("{}, none lost", units::counted(delivered, "record"));
    }
    let reasons: Vec<String> = summary
        .losses
        .iter()
        .filter(|loss| loss.count > 0)
        .map(|loss| format!("{} {}", loss.reason, units::count(loss.count)))
        .collect();
    format!(
        "{} of {} records, {} lost ({})",
        units::count(delivered),
        units::count(delivered.saturating_add(lost)),
        units::count(lost),
        reasons.join(", ")
    )
}

pub(crate) fn cost(summary: &RunSummary) -> String {
    let overhead = &summary.overhead;
    let core = |ns: u64| units::percent_exact(units::share(ns, overhead.wall_ns));
    let mut text = format!(
        "collector {} of a core, {}",
        units::percent_exact(overhead.collector_share()),
        units::bytes(overhead.collector_rss_bytes)
    );
    if let Some(ns) = overhead.kernel_cpu_ns {
        text.push_str(&format!("; kernel programs {} of a core", core(ns)));
    }
    if overhead.start_cpu_ns > 0 {
        text.push_str(&format!("; {} of CPU time to start", units::duration(overhead.start_cpu_ns)));
    }
    text
}
