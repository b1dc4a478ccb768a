//! What is expected to make a job faster, in words.

use crate::style::{Line, Style, left};
use stallscope_look::tuning;
use stallscope_model::{Advice, CONTROLLED_KNOBS, Phase, PhaseSummary, Remedy, RemedyKind, RunSummary};
use std::collections::HashSet;

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
            match settings.iter().all(acts) {
                true => format!("{by_hand}; with each gain proven or undone: stallscope tune {job} --act"),
                false => by_hand,
            }
        }
        None if best(summary)
            .any(|advice| advice.now > 0 && CONTROLLED_KNOBS.contains(&advice.knob.as_str())) =>
        {
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
    let remedies = without_knob(summary);
    let mut say = |sentence: &str| {
        text.push('\n');
        for line in style.wrap(sentence, style.columns().saturating_sub(2)) {
            Line::new("  ").plain(line).render(style, text);
        }
    };
    remedies.iter().for_each(|remedy| say(&remedy.sentence));
    let of_files = remedies.iter().any(|remedy| remedy.kind == RemedyKind::FasterStorage);
    if let Some(file) = summary.files.first().filter(|_| of_files) {
        say(&format!("Of its files the job waited longest for {}", style.clean(&file.path)));
    }
}

/// What may be done beside the advice on knobs, best first.
pub fn without_knob(summary: &RunSummary) -> Vec<&Remedy> {
    // Of a foreign recording both lists may be long.
    let knobs: HashSet<&str> = summary.advice.iter().map(|advice| advice.knob.as_str()).collect();
    let advised = |remedy: &&Remedy| knob_of(remedy).is_some_and(|knob| knobs.contains(knob));
    summary.remedies().into_iter().filter(|remedy| !advised(remedy)).collect()
}

fn knob_of(remedy: &Remedy) -> Option<&'static str> {
    match remedy.kind {
        RemedyKind::MoreWorkers | RemedyKind::FewerWorkers => Some("workers"),
        RemedyKind::MorePrefetch => Some("prefetch"),
        RemedyKind::Cache => Some("cache.bytes"),
        _ => None,
    }
}

/// Advice that can be followed together: the first for each knob.
fn best(summary: &RunSummary) -> impl Iterator<Item = &Advice> {
    let mut earlier = HashSet::new();
    summary.advice.iter().filter(move |advice| earlier.insert(advice.knob.as_str()))
}

/// Why there is none. What is judged beside knobs stands below it.
fn nothing(summary: &RunSummary) -> String {
    let unmeasured = summary.rates.iter().filter(|rates| rates.actual.is_none());
    if let Some(unknown) = unmeasured.flat_map(|rates| &rates.unknown).next() {
        return format!("No advice so far: {unknown}");
    }
    let sentence = &summary.verdict.sentence;
    if summary.rates.is_empty() && summary.job.attached {
        return format!(
            "No knob to advise on: those of {} are not known from outside; start it with `stallscope run`",
            summary.job.name
        );
    }
    if summary.rates.is_empty() {
        let handed_over = |phase: &&PhaseSummary| phase.phase == Phase::Training && phase.steps > 0;
        let mut training = summary.phases.iter().filter(handed_over).peekable();
        if training.peek().is_some() && training.all(|phase| phase.loader.is_none()) {
            return format!(
                "No knob to advise on: no DataLoader hands over the batches of {}, so that nothing of it can be turned or \
                 predicted. {sentence}",
                summary.job.name
            );
        }
        return format!(
            "No advice so far: how fast each part of {} can go is not known yet; it takes training steps of a DataLoader \
             under `stallscope run`",
            summary.job.name
        );
    }
    let judged: Vec<&Remedy> =
        summary.remedies().into_iter().filter(|remedy| remedy.gain.is_some()).collect();
    // Of such a knob the model gives two outcomes, and one of them is nothing, or next to it.
    if judged.iter().any(|remedy| knob_of(remedy).is_some()) {
        return format!(
            "No knob is certain to make it faster within its limits; what may is below. {sentence}"
        );
    }
    let beside = if judged.is_empty() { "" } else { "; the changes below are no knob's" };
    format!("No knob is expected to make it faster within its limits{beside}. {sentence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{Causes, Diagnosis, Estimate, FileWait, Rates, Verdict};

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
        for part in [
            "fetch-bound: 54% waits",
            "workers 2 → 6",
            "+80% (+60% to +100%)",
            "one after the other",
            "knobs train set workers=6",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
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
        // As a knob that the job has, a controller grows it.
        let knob = stallscope_model::Knob { name: "cache.bytes".into(), ..Default::default() };
        let mut grown = RunSummary { knobs: vec![knob], ..cached.clone() };
        grown.advice = vec![Advice { now: 1 << 30, ..cache.clone() }];
        let text = page(&grown, Some("train"), &style);
        assert!(text.contains("set cache.bytes=") && text.contains("--act"), "{text}");
        assert!(page(&grown, None, &style).contains("--tune act"));
        cached.advice = vec![cache];
        assert!(!page(&cached, None, &style).contains("--tune act"));
        let text = page(&cached, Some("train"), &style);
        assert!(text.contains("a line of the script") && !text.contains("knobs train"), "{text}");
    }

    #[test]
    fn no_advice_says_why() {
        let style = Style { width: 100, colour: false, unicode: true };
        let none = RunSummary { advice: Vec::new(), ..summary() };
        assert!(page(&none, None, &style).contains("not known yet"));
        let phase = |loader| PhaseSummary {
            phase: Phase::Training,
            loader,
            steps: 54,
            samples: 0,
            wall_ns: 0,
            causes: Causes::default(),
            hidden_ns: None,
            step_p50_ns: 0,
            step_p95_ns: 0,
            step_max_ns: 0,
        };
        let by_itself = RunSummary { phases: vec![phase(None)], ..none.clone() };
        let text = page(&by_itself, None, &style);
        assert!(text.contains("no DataLoader hands over") && !text.contains("not known yet"), "{text}");
        let loaded = RunSummary { phases: vec![phase(None), phase(Some(0))], ..none.clone() };
        assert!(page(&loaded, None, &style).contains("not known yet"));
        let rates = Rates { unknown: vec!["storage was never asked".into()], ..Rates::default() };
        assert!(
            page(&RunSummary { rates: vec![rates], ..none.clone() }, None, &style).contains("never asked")
        );
        let known = RunSummary { rates: vec![Rates::default()], ..none };
        assert!(page(&known, None, &style).contains("No knob is expected"));
    }

    fn faster_storage(gain: Option<Estimate>) -> Diagnosis {
        let remedy = Remedy {
            kind: RemedyKind::FasterStorage,
            sentence: "Keep the files near".into(),
            gain,
            comes_first: false,
        };
        Diagnosis { remedies: vec![remedy], ..Diagnosis::default() }
    }

    #[test]
    fn no_advice_does_not_deny_what_stands_below_it() {
        let style = Style { width: 200, colour: false, unicode: true };
        let gain = Estimate { value: 1.68, low: 0.77, high: 3.06 };
        let rates = vec![Rates { actual: Some(gain), ..Rates::default() }];
        let mut judged = RunSummary { advice: Vec::new(), rates, ..summary() };
        judged.diagnoses = vec![faster_storage(Some(gain))];
        let text = page(&judged, None, &style);
        assert!(text.contains("the changes below are no knob's") && !text.contains("No advice"), "{text}");
        judged.diagnoses = vec![faster_storage(None)];
        assert!(!page(&judged, None, &style).contains("changes below"));
        // Seen: "the changes below are no knob's" above "Raise num_workers from 2 to 6: +47% if each read is merely slow".
        judged.diagnoses = vec![faster_storage(Some(gain))];
        judged.diagnoses[0].remedies[0].kind = RemedyKind::MoreWorkers;
        let text = page(&judged, None, &style);
        assert!(text.contains("No knob is certain") && !text.contains("no knob's"), "{text}");
    }

    #[test]
    fn advice_on_files_names_the_one_waited_for_longest() {
        let style = Style { width: 100, colour: false, unicode: true };
        let file = FileWait { path: "/data/train.bin".into(), ..FileWait::default() };
        let mut run = RunSummary { files: vec![file], ..summary() };
        assert!(!page(&run, None, &style).contains("train.bin"));
        run.diagnoses = vec![faster_storage(None)];
        assert!(page(&run, None, &style).contains("longest for /data/train.bin"));
    }
}
