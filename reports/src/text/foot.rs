//! How far the figures can be trusted, what they cost, and where they are kept.

use super::Page;
use crate::style::Ink;
use crate::units;
use stallscope_model::{EvidenceState, RunSummary};
use std::path::Path;

const LABEL: usize = 11;

pub(super) fn write(summary: &RunSummary, recording: Option<&Path>, page: &mut Page<'_>) {
    page.gap();
    evidence(summary, page);
    page.labelled("Delivered", LABEL, &delivered(summary), Ink::Dim);
    if summary.overhead.wall_ns > 0 {
        page.labelled("Cost", LABEL, &cost(summary), Ink::Dim);
    }
    if let Some(recording) = recording {
        page.labelled("Recording", LABEL, &recording.display().to_string(), Ink::Plain);
    }
}

fn evidence(summary: &RunSummary, page: &mut Page<'_>) {
    let (kernel, shim) = (&summary.kernel, &summary.shim);
    let agreement = summary.disagreement_share.map(|share| match share {
        share if share > 0.03 => format!("they differ by {} of training time", units::percent_exact(share)),
        share => format!("they agree within {} of training time", units::percent_exact(share)),
    });
    if (kernel, shim) == (&EvidenceState::On, &EvidenceState::On) {
        let agreement = agreement.map(|agreement| format!("; {agreement}")).unwrap_or_default();
        page.labelled("Evidence", LABEL, &format!("kernel and loader shim{agreement}"), Ink::Dim);
    } else {
        page.labelled("Evidence", LABEL, &in_words("kernel", kernel), ink(kernel));
        page.labelled("", LABEL, &in_words("loader shim", shim), ink(shim));
        if let Some(agreement) = agreement {
            page.labelled("", LABEL, &agreement, Ink::Plain);
        }
    }
    let mut seen = Vec::new();
    for rank in &summary.ranks {
        for sentence in &rank.facts.unavailable {
            if !seen.contains(&sentence) {
                seen.push(sentence);
                page.labelled("", LABEL, sentence, Ink::Plain);
            }
        }
    }
}

fn in_words(name: &str, state: &EvidenceState) -> String {
    match state {
        EvidenceState::On => format!("{name}: on"),
        EvidenceState::Off => format!("{name}: not used"),
        EvidenceState::Partial(missing) => format!("{name}: partly; {missing}"),
        EvidenceState::Missing(reason) => format!("{name}: missing; {reason}"),
    }
}

fn ink(state: &EvidenceState) -> Ink {
    if matches!(state, EvidenceState::Partial(_) | EvidenceState::Missing(_)) { Ink::Plain } else { Ink::Dim }
}

fn delivered(summary: &RunSummary) -> String {
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

fn cost(summary: &RunSummary) -> String {
    let overhead = &summary.overhead;
    let core = |ns: u64| units::percent_exact(units::share(ns, overhead.wall_ns));
    let mut text = format!(
        "collector {} of a core, {}",
        core(overhead.collector_cpu_ns),
        units::bytes(overhead.collector_rss_bytes)
    );
    if let Some(ns) = overhead.kernel_cpu_ns {
        text.push_str(&format!("; kernel programs {} of a core", core(ns)));
    }
    text
}
