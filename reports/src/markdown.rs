//! A run as markdown, to be put into a pull request: the answer, what to do, the figures by cause; the rest folded.

mod escape;
mod sections;

use crate::text::{beside, ending, to_do};
use crate::tuning::Tuning;
use crate::{Error, Run};
use escape::{code, text};
use stallscope_look::cache;
use stallscope_model::RunSummary;
use stallscope_units as units;
use std::fmt::Write as _;
use std::io::Write;

/// Writes the report.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    let mut page = String::new();
    head(run, &mut page);
    diagnoses(&run.summary, &mut page);
    tuning(run, &mut page);
    cached(run, &mut page);
    for note in &run.notes {
        line(&mut page, format_args!("> {}\n", text(note)));
    }
    sections::write(run, &mut page);
    Ok(out.write_all(page.as_bytes())?)
}

/// Into a string nothing fails.
fn line(page: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(page, "{line}");
}

fn head(run: &Run, page: &mut String) {
    let summary = &run.summary;
    let sentence = match summary.verdict.sentence.trim() {
        "" => "not measured yet",
        sentence => sentence,
    };
    line(page, format_args!("**{}**\n", text(sentence)));
    let mut facts = vec![text(&ending(summary))];
    if summary.ranks.len() > 1 {
        facts.push(units::counted(summary.ranks.len() as u64, "rank"));
    }
    facts.extend(summary.cpus_in_words());
    if !summary.host.gpus.is_empty() {
        facts.push(units::counted(summary.host.gpus.len() as u64, "GPU"));
    }
    let name = [code(&summary.job.name), code(&summary.host.host)];
    let name: Vec<&str> = name.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    let colon = if name.is_empty() { "" } else { ": " };
    line(page, format_args!("{}{colon}{}\n", name.join(" on "), facts.join(", ")));
}

/// What was turned; all of it is folded below.
fn tuning(run: &Run, page: &mut String) {
    let Some(tuning) = Tuning::of(&run.summary, &run.audit) else { return };
    line(page, format_args!("**Tuning**: {}\n", text(&tuning.facts)));
    for sentence in &tuning.turned {
        line(page, format_args!("- {}", text(sentence)));
    }
    if let Some(rates) = &tuning.rates {
        line(page, format_args!("- rates: {}", text(rates)));
    }
    page.push('\n');
}

fn cached(run: &Run, page: &mut String) {
    if let Some(job) = run.summary.cache() {
        line(page, format_args!("**Cache**: {}\n", cache::facts(&job).join(" · ")));
    }
    if let [only] = &cache::curves(&run.summary)[..]
        && only.whose.is_empty()
    {
        line(page, format_args!("It would miss with {}\n", only.in_words()));
    }
    if let Some(why) = cache::no_curve(&run.summary) {
        line(page, format_args!("{why}\n"));
    }
}

fn diagnoses(summary: &RunSummary, page: &mut String) {
    let diagnoses = &summary.diagnoses;
    for found in diagnoses {
        let share = match units::percent(found.share).as_str() {
            "0%" => String::new(),
            share => format!(" ({share})"),
        };
        let evidence =
            if found.evidence.is_empty() { String::new() } else { format!(": {}", text(&found.evidence)) };
        line(page, format_args!("- {}{share}: {}{evidence}", code(&found.name), text(&found.finding)));
        if let Some(advice) = beside(found) {
            line(page, format_args!("  → {}", text(advice)));
        }
    }
    if !diagnoses.is_empty() {
        page.push('\n');
    }
    if diagnoses.iter().any(|found| !found.remedies.is_empty()) {
        line(page, format_args!("**What to do**, best first:\n"));
        for (nth, sentence) in to_do(summary).into_iter().enumerate() {
            line(page, format_args!("{}. {}", nth + 1, text(sentence)));
        }
        page.push('\n');
    }
}
