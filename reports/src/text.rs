//! The screen at the end of a run: the answer, the evidence, what to do, and then the figures.

mod cache;
mod files;
mod foot;
mod head;
mod held;
mod ledger;
mod others;
mod tuning;

pub(crate) use foot::{cost, delivered, evidence_in_words, unseen};
pub(crate) use head::{beside, ending, evidence, to_do};
pub(crate) use held::held_in_words;
pub(crate) use ledger::loader_in_words;
pub(crate) use others::saved_in_words;

use crate::Run;
use crate::style::{Ink, Line, Style};
use stallscope_model::{AuditEvent, Cause, Causes, Phase, PhaseSummary, RunSummary};
use stallscope_store::Recording;
use std::path::Path;

/// The screen of a run, live or recorded; `recording` is where that is, and where its audit is read from. Ends with a
/// newline.
pub fn screen(summary: &RunSummary, recording: Option<&Path>, style: &Style) -> String {
    let decided = summary.acts.values().any(|lines| *lines > 0);
    let audit = recording.filter(|_| decided).and_then(|path| Recording::open(path).ok()?.audit(0).ok());
    page(summary, &audit.unwrap_or_default(), recording.as_slice(), &[], style)
}

/// The same for a report, with what its reader should know.
pub fn report(run: &Run, style: &Style) -> String {
    let recordings: Vec<&Path> = run.sources.iter().map(|source| source.path.as_path()).collect();
    page(&run.summary, &run.audit, &recordings, &run.notes, style)
}

fn page(
    summary: &RunSummary,
    audit: &[AuditEvent],
    recordings: &[&Path],
    notes: &[String],
    style: &Style,
) -> String {
    let mut page = Page { style, text: String::new() };
    head::write(summary, &mut page);
    ledger::write(summary, &mut page);
    tuning::write(summary, audit, &mut page);
    others::write(summary, &mut page);
    cache::write(summary, &mut page);
    held::write(summary, &mut page);
    files::write(summary, &mut page);
    head::write_more(summary, &mut page);
    foot::write(summary, recordings, notes, &mut page);
    page.text
}

struct Page<'a> {
    style: &'a Style,
    text: String,
}

impl Page<'_> {
    fn line(&mut self, line: Line) {
        line.render(self.style, &mut self.text);
    }

    fn gap(&mut self) {
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str, facts: &str) {
        self.gap();
        let columns = self.style.columns();
        let mut facts = self.style.wrap(facts, columns.saturating_sub(heading.len() + 2)).into_iter();
        let first = facts.next().unwrap_or_default();
        self.line(Line::default().bold(heading).plain("  ").plain(first));
        for more in facts {
            self.line(Line::new(" ".repeat(heading.len() + 2)).plain(more));
        }
    }

    /// A label and a text that is wrapped beside it.
    fn labelled(&mut self, label: &str, label_columns: usize, text: &str, ink: Ink) {
        let lines = self.style.wrap(text, self.style.columns().saturating_sub(label_columns));
        for (nth, line) in lines.into_iter().enumerate() {
            let label = crate::style::left(if nth == 0 { label } else { "" }, label_columns);
            self.line(Line::default().dim(label).ink(line, ink));
        }
    }
}

/// All training of a job or rank together; `None` when there was no step of it.
pub(crate) fn training(phases: &[PhaseSummary]) -> Option<PhaseSummary> {
    let mut training = phases.iter().filter(|phase| phase.phase == Phase::Training && phase.steps > 0);
    let mut total = training.next()?.clone();
    for phase in training {
        total.loader = None;
        total.steps = total.steps.saturating_add(phase.steps);
        total.samples = total.samples.saturating_add(phase.samples);
        total.wall_ns = total.wall_ns.saturating_add(phase.wall_ns);
        for (sum, ns) in total.causes.0.iter_mut().zip(phase.causes.0) {
            *sum = sum.saturating_add(ns);
        }
        total.hidden_ns = total.hidden_ns.zip(phase.hidden_ns).map(|(a, b)| a.saturating_add(b));
        total.step_max_ns = total.step_max_ns.max(phase.step_max_ns);
        // The quantiles of a sum do not follow from those of its parts.
        (total.step_p50_ns, total.step_p95_ns) = (0, 0);
    }
    Some(total)
}

/// Causes other than compute with their shares, largest first, those of half a percent and more.
pub(crate) fn stalls(causes: &Causes) -> Vec<(Cause, f64)> {
    let mut stalls: Vec<(Cause, f64)> = shares(causes);
    stalls.retain(|(cause, share)| *cause != Cause::Compute && *share >= 0.005);
    stalls.sort_by(|a, b| b.1.total_cmp(&a.1));
    stalls
}

/// Shares of all causes; the sum saturates, since the figures may come from a file.
fn shares(causes: &Causes) -> Vec<(Cause, f64)> {
    let total = total_ns(causes);
    causes.iter().map(|(cause, ns)| (cause, stallscope_units::share(ns, total))).collect()
}

fn total_ns(causes: &Causes) -> u64 {
    causes.0.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
}

/// "fetch 61%, compute 30%": the largest causes first.
pub(crate) fn causes_in_words(causes: &Causes) -> String {
    let mut shares = shares(causes);
    shares.retain(|(_, share)| *share >= 0.005);
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = shares
        .iter()
        .map(|(cause, share)| format!("{} {}", cause.name(), stallscope_units::percent(*share)))
        .collect();
    words.join(", ")
}
