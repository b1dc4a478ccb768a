//! What is expected to make a job faster, in words.

use crate::style::{Line, Style, left};
use stallscope_look::tuning;
use stallscope_model::{Advice, CONTROLLED_KNOBS, Remedy, RemedyKind, RunSummary};

/// The advice for a run: each knob from what it is to what it should be, what that is expected to bring, and why.
/// Ends with how to do it; `job` is what the user called the job, `None` when it no longer runs.
pub fn page(summary: &RunSummary, job: Option<&str>, style: &Style) -> String {
    let mut text = String::new();
    let mut say = |sentence: &str| {
        for line in style.wrap(sentence, style.columns()) {
            Line::new(line).render(style, &mut text);
        }
    };
    if summary.advice.is_empty() {
        say(&nothing(summary));
        beside_knobs(summary, style, &mut text);
        return text;
    }
    say(&summary.verdict.sentence);
    for advice in &summary.advice {
        write(advice, summary, style, &mut text);
    }
    beside_knobs(summary, style, &mut text);
    let how = match job {
        Some(job) => {
            // A cache that the job does not have is a line of its script.
            let there = |knob: &str| summary.knobs.iter().any(|known| known.name == knob);
            let settings: Vec<String> = best(summary)
                .filter(|advice| advice.now > 0 || there(&advice.knob))
                .map(|advice| format!("{}={}", advice.knob, advice.to))
                .collect();
            if settings.is_empty() {
                text.push('\n');
                let line = "Nothing was changed: this takes a line of the script.";
                Line::default().dim(line).render(style, &mut text);
                return text;
            }
            let by_hand =
                format!("Nothing was changed. By hand: stallscope knobs {job} set {}", settings.join(" "));
            let acts = |setting: &String| {
                CONTROLLED_KNOBS.iter().any(|knob| setting.starts_with(&format!("{knob}=")))
            };
            let controlled: Vec<&str> = best(summary)
                .map(|advice| advice.knob.as_str())
                .filter(|knob| CONTROLLED_KNOBS.contains(knob))
                .collect();
            match (controlled.is_empty(), settings.iter().all(acts)) {
                (true, _) => by_hand,
                (false, true) => {
                    format!("{by_hand}; with each gain proven or undone: stallscope tune {job} --act")
                }
                (false, false) => format!(
                    "{by_hand}; with the gain of {} proven or undone: stallscope tune {job} --act",
                    controlled.join(" and ")
                ),
            }
        }
        None if best(summary).any(|advice| CONTROLLED_KNOBS.contains(&advice.knob.as_str())) => {
            "The run is over: set it in the script, or let the next one be tuned: stallscope run --tune act"
                .to_owned()
        }
        None => "The run is over: set it in the script".to_owned(),
    };
    text.push('\n');
    for line in style.wrap(&how, style.columns()) {
        Line::default().dim(line).render(style, &mut text);
    }
    text
}

fn write(advice: &Advice, summary: &RunSummary, style: &Style, text: &mut String) {
    let unit = tuning::unit_of(&advice.knob, &summary.knobs);
    let [now, to] = [advice.now, advice.to].map(|value| tuning::amount(value, unit));
    let whose = if summary.ranks.len() > 1 { format!("rank {}: ", advice.rank) } else { String::new() };
    let change = style.clean(&format!("{whose}{} {now} {} {to}", advice.knob, style.arrow()));
    text.push('\n');
    Line::new("  ")
        .bold(left(&change, 24))
        .plain("  ")
        .ink(tuning::gain_with_interval(&advice.gain), crate::style::Ink::Colour(32))
        .plain(" samples a second")
        .render(style, text);
    for line in style.wrap(&advice.why, style.columns().saturating_sub(4)) {
        Line::new("    ").plain(line).render(style, text);
    }
}

/// What is expected of changes that are no knob's, and what nobody can judge.
fn beside_knobs(summary: &RunSummary, style: &Style, text: &mut String) {
    let has_knob = |remedy: &&Remedy| {
        let knob = match remedy.kind {
            RemedyKind::MoreWorkers | RemedyKind::FewerWorkers => "workers",
            RemedyKind::MorePrefetch => "prefetch",
            RemedyKind::Cache => "cache.bytes",
            _ => return false,
        };
        summary.advice.iter().any(|advice| advice.knob == knob)
    };
    for remedy in summary.remedies().into_iter().filter(|remedy| !has_knob(remedy)) {
        text.push('\n');
        for line in style.wrap(&remedy.sentence, style.columns().saturating_sub(2)) {
            Line::new("  ").plain(line).render(style, text);
        }
    }
}

/// Advice that can be followed together: the first for each knob.
fn best(summary: &RunSummary) -> impl Iterator<Item = &Advice> {
    let all = &summary.advice;
    all.iter()
        .enumerate()
        .filter(|(place, advice)| all[..*place].iter().all(|earlier| earlier.knob != advice.knob))
        .map(|(_, advice)| advice)
}

/// Why there is none.
fn nothing(summary: &RunSummary) -> String {
    let unmeasured = summary.rates.iter().filter(|rates| rates.actual.is_none());
    if let Some(unknown) = unmeasured.flat_map(|rates| &rates.unknown).next() {
        return format!("No advice so far: {unknown}");
    }
    if summary.rates.is_empty() {
        return format!(
            "No advice so far: how fast each part of {} can go is not known yet; it takes some training steps with \
             the shim",
            summary.job.name
        );
    }
    format!(
        "No advice: no knob is expected to make it faster within its limits. {}",
        summary.verdict.sentence
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{Estimate, Rates, Verdict};

    fn summary() -> RunSummary {
        RunSummary {
            verdict: Verdict { finding: "fetch-bound".into(), sentence: "fetch-bound: 54% waits".into() },
            advice: vec![Advice {
                knob: "workers".into(),
                now: 2,
                to: 6,
                gain: Estimate { value: 0.8, low: 0.6, high: 1.0 },
                why: "workers read one after the other".into(),
                ..Advice::default()
            }],
            ..RunSummary::default()
        }
    }

    #[test]
    fn advice_says_what_to_do_and_how() {
        let style = Style { width: 100, colour: false, unicode: true };
        let text = page(&summary(), Some("train"), &style);
        for said in [
            "fetch-bound: 54% waits",
            "workers 2 → 6",
            "+80% (+60% to +100%)",
            "one after the other",
            "knobs train set workers=6",
        ] {
            assert!(text.contains(said), "{said}:\n{text}");
        }
        assert!(page(&summary(), None, &style).contains("run --tune act"));
    }

    #[test]
    fn a_cache_that_is_not_there_is_no_knob_to_set() {
        let style = Style { width: 100, colour: false, unicode: true };
        let mut cached = summary();
        let cache = Advice { knob: "cache.bytes".into(), now: 0, to: 2 << 30, ..cached.advice[0].clone() };
        cached.advice.push(cache.clone());
        let text = page(&cached, Some("train"), &style);
        assert!(text.contains("cache.bytes 0 B → 2.0 GiB") && !text.contains("cache.bytes="), "{text}");
        // As a knob that the job has, it is for people: no controller turns it.
        let knob = stallscope_model::Knob { name: "cache.bytes".into(), ..Default::default() };
        let mut grown = RunSummary { knobs: vec![knob], ..cached.clone() };
        grown.advice = vec![Advice { now: 1 << 30, ..cache.clone() }];
        let text = page(&grown, Some("train"), &style);
        assert!(text.contains("set cache.bytes=") && !text.contains("--act"), "{text}");
        assert!(!page(&grown, None, &style).contains("--tune act"));
        grown.advice.push(summary().advice[0].clone());
        let text = page(&grown, Some("train"), &style);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains("with the gain of workers proven or undone"), "{text}");
        cached.advice = vec![cache];
        let text = page(&cached, Some("train"), &style);
        assert!(text.contains("a line of the script") && !text.contains("knobs train"), "{text}");
    }

    #[test]
    fn no_advice_says_why() {
        let style = Style { width: 100, colour: false, unicode: true };
        let none = RunSummary { advice: Vec::new(), ..summary() };
        assert!(page(&none, None, &style).contains("not known yet"));
        let rates = Rates { unknown: vec!["storage was never asked".into()], ..Rates::default() };
        assert!(
            page(&RunSummary { rates: vec![rates], ..none.clone() }, None, &style).contains("never asked")
        );
        let known = RunSummary { rates: vec![Rates::default()], ..none };
        assert!(page(&known, None, &style).contains("no knob is expected"));
    }
}
