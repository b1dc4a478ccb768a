//! The answer, why, and what to do; further findings come after the figures.

use super::{Page, causes_in_words, training};
use crate::style::{Ink, Line};
use stallscope_model::{Diagnosis, RunSummary};
use stallscope_units as units;

pub(super) fn write(summary: &RunSummary, page: &mut Page<'_>) {
    verdict(summary, page);
    let dot = page.style.dot();
    if let Some(first) = summary.diagnoses.first() {
        page.labelled("  why  ", 7, &evidence(summary, first), Ink::Plain);
        if let Some(other) = of_first_remedy(summary).filter(|other| *other != first) {
            page.labelled("       ", 7, &format!("and {} ({})", other.finding, other.name), Ink::Plain);
        }
        for (nth, sentence) in to_do(summary).into_iter().enumerate() {
            page.labelled(if nth == 0 { "  do   " } else { "       " }, 7, sentence, Ink::Bold);
        }
    } else if let Some(total) = training(&summary.phases) {
        page.labelled("  why  ", 7, &causes_in_words(&total.causes), Ink::Plain);
    }
    let job = &summary.job;
    let mut facts = Vec::new();
    if !job.name.is_empty() {
        facts.push(job.name.clone());
    }
    facts.push(format!("pid {}", job.pid));
    facts.push(ending(summary));
    if !summary.host.host.is_empty() {
        facts.push(summary.host.host.clone());
    }
    facts.extend(summary.cpus_in_words());
    if !summary.host.gpus.is_empty() {
        facts.push(units::counted(summary.host.gpus.len() as u64, "GPU"));
    }
    page.labelled("  job  ", 7, &facts.join(dot), Ink::Dim);
    if !job.command.is_empty() {
        let command = page.style.clip(&job.command.join(" "), page.style.columns() - 7);
        page.line(Line::default().dim("       ").dim(command));
    }
}

/// How the run ended, or how long it has gone on for.
pub(crate) fn ending(summary: &RunSummary) -> String {
    let job = &summary.job;
    let end_ns = job.ended_wall_ns.map(|ended| ended.saturating_sub(job.started_wall_ns));
    let took_ns = end_ns.unwrap_or(summary.overhead.wall_ns);
    match (job.exit_code, job.ended_wall_ns) {
        (Some(0), _) => format!("finished after {}", units::duration(took_ns)),
        (Some(code), _) => format!("{} after {}", exit(code), units::duration(took_ns)),
        (None, Some(_)) if job.attached => {
            format!("watched for {}", units::duration(summary.overhead.wall_ns))
        }
        (None, Some(_)) => {
            format!("its end was not seen; what is here goes up to {}", units::duration(took_ns))
        }
        (None, None) => format!("running for {}", units::duration(took_ns)),
    }
}

fn verdict(summary: &RunSummary, page: &mut Page<'_>) {
    let sentence = match summary.verdict.sentence.as_str() {
        "" => "not measured yet",
        sentence => sentence,
    };
    for line in page.style.wrap(sentence, page.style.columns()) {
        page.line(Line::default().bold(line));
    }
}

/// Finding and evidence of a diagnosis, with its name and what is at stake, where the finding does not give that.
fn why(diagnosis: &Diagnosis) -> String {
    let Diagnosis { name, finding, evidence, share, .. } = diagnosis;
    let colon = if finding.trim_end().ends_with(['.', '!', '?', ':', ';']) { "" } else { ":" };
    let sentence = if evidence.is_empty() { finding.clone() } else { format!("{finding}{colon} {evidence}") };
    match units::percent(*share).as_str() {
        "0%" => format!("{sentence} ({name})"),
        _ if finding.contains("% of training time") => format!("{sentence} ({name})"),
        share => format!("{sentence} ({name}, {share} of training time)"),
    }
}

/// Why the first line says what it says: the first diagnosis, without its finding where that is in the line already.
pub(crate) fn evidence(summary: &RunSummary, first: &Diagnosis) -> String {
    let sentence = &summary.verdict.sentence;
    let figure = figure(&first.finding).is_some_and(|figure| sentence.contains(figure));
    let repeated = figure || sentence.contains(&first.finding);
    match repeated && !first.evidence.is_empty() {
        true => format!("{} ({})", first.evidence, first.name),
        false => why(first),
    }
}

/// "61% of training time": how a finding and the verdict say what is at stake, each with words of its own around it.
fn figure(finding: &str) -> Option<&str> {
    let percent = finding.find("% of ")?;
    let start = finding[..percent].rfind(' ').map_or(0, |space| space + 1);
    let end = percent + finding[percent..].find(" time")? + " time".len();
    Some(&finding[start..end])
}

/// Remedies that are listed.
const LISTED: usize = 5;

/// What to do, best first: the one list of a screen. Where a finding has no remedy it says why, and so do those of
/// recordings that know no remedies.
pub(crate) fn to_do(summary: &RunSummary) -> Vec<&str> {
    let remedies = summary.remedies();
    match (remedies.is_empty(), summary.diagnoses.first()) {
        (true, Some(first)) if !first.advice.is_empty() => vec![first.advice.as_str()],
        _ => remedies.iter().take(LISTED).map(|remedy| remedy.sentence.as_str()).collect(),
    }
}

/// The finding that the first of that list is about, which need not be the verdict's.
fn of_first_remedy(summary: &RunSummary) -> Option<&Diagnosis> {
    let first = *summary.remedies().first()?;
    summary.diagnoses.iter().find(|found| found.remedies.contains(first))
}

/// The line on a finding that is not on that list.
pub(crate) fn beside(diagnosis: &Diagnosis) -> Option<&str> {
    (diagnosis.remedies.is_empty() && !diagnosis.advice.is_empty()).then_some(diagnosis.advice.as_str())
}

/// Every diagnosis but the first.
pub(super) fn write_more(summary: &RunSummary, page: &mut Page<'_>) {
    let Some((_, more)) = summary.diagnoses.split_first().filter(|(_, more)| !more.is_empty()) else {
        return;
    };
    page.heading("Also", "");
    let arrow = page.style.arrow();
    for diagnosis in more {
        page.labelled("  -", 4, &why(diagnosis), Ink::Plain);
        if let Some(advice) = beside(diagnosis) {
            page.labelled("", 4, &format!("{arrow} {advice}"), Ink::Bold);
        }
    }
}

fn exit(code: i32) -> String {
    let signal = code.checked_sub(128).filter(|signal| (1..=64).contains(signal));
    match signal {
        Some(2) => "interrupted (SIGINT)".to_owned(),
        Some(6) => "aborted (SIGABRT)".to_owned(),
        Some(9) => "killed (SIGKILL, often out of memory)".to_owned(),
        Some(11) => "crashed (SIGSEGV)".to_owned(),
        Some(15) => "terminated (SIGTERM)".to_owned(),
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("failed with exit code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::Verdict;

    fn headline(sentence: &str, finding: &str) -> String {
        let verdict = Verdict { finding: String::new(), sentence: sentence.to_owned() };
        let first = Diagnosis {
            name: "prep-bound".to_owned(),
            finding: finding.to_owned(),
            evidence: "5.4 of 10 seconds of 99 steps".to_owned(),
            advice: String::new(),
            cause: None,
            share: 0.54,
            ..Diagnosis::default()
        };
        evidence(&RunSummary { verdict, ..RunSummary::default() }, &first)
    }

    /// Seen: "0.6% of training time waits for it: … (no-data-stall, 1% of training time)".
    #[test]
    fn what_is_at_stake_is_named_once() {
        let found = |finding: &str| {
            why(&Diagnosis {
                name: "no-data-stall".into(),
                finding: finding.into(),
                share: 0.006,
                ..Diagnosis::default()
            })
        };
        let stated = found("data keeps up: 0.6% of training time waits for it");
        assert_eq!(stated, "data keeps up: 0.6% of training time waits for it (no-data-stall)");
        assert!(found("data keeps up").ends_with("(no-data-stall, 1% of training time)"));
    }

    #[test]
    fn the_evidence_is_not_repeated_after_the_first_line() {
        let finding = "54% of training time waits for samples to be decoded, augmented and collated";
        let line = "prep-bound: 54% of training time waits for decoding, augmentation and collation; about 5.4 of 10 seconds";
        assert_eq!(headline(line, finding), "5.4 of 10 seconds of 99 steps (prep-bound)");
        let other = "fetch-bound: 61% of training time waits for storage; about 6.1 of 10 seconds";
        assert!(headline(other, finding).starts_with(finding));
        assert!(headline("not measured", "no time % of it is 3").starts_with("no time"));
    }
}
