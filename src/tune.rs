use crate::audit::{self, Job};
use crate::budgets::Limits;
use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::Args;
use stallscope_collector::{Acted, RuntimeDir};
use stallscope_look::tuning::amount;
use stallscope_model::{AuditEvent, Knob, KnobState, RunSummary, TuneMode};
use stallscope_reports::{advice, audit::line};
use std::path::PathBuf;
use std::process::ExitCode;

/// Recommend settings that would make a job faster, or apply them.
///
/// Without --act it only recommends: each knob with the expected gain and the reason. With --act it makes one change
/// at a time, keeps it if its gain is proven against noise and undoes it otherwise; it stays in the foreground and prints
/// the audit as it grows. Ctrl-C ends tuning: proven changes stay, an unproven one is undone.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tune {
    /// Running job's name, prefix or PID; without --act also a recording (NAME.stall)
    #[arg(value_name = "JOB|FILE")]
    job: PathBuf,
    /// Apply changes, one at a time, until Ctrl-C or the job's end
    #[arg(long)]
    act: bool,
    #[command(flatten)]
    limits: Limits,
    /// Print the advice as a JSON document, or with --act each line of the audit as one
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  stallscope tune train                        what would help, changes nothing
  stallscope tune train.stall --json | jq .advice
  stallscope tune train --act                  prove and keep what helps, until Ctrl-C
  stallscope tune train --act --cores 4 --memory 8GiB
  stallscope run --tune act -- python train.py the same from the job's beginning";

pub(crate) fn main(verb: &Tune, colour: Colour) -> Result<ExitCode> {
    if verb.act { act(verb, colour) } else { advise(verb, colour) }
}

fn advise(verb: &Tune, colour: Colour) -> Result<ExitCode> {
    let mut job = Job::find(&verb.job)?;
    let mut summary = job.summary()?;
    if verb.limits.any() {
        summary.advice = job.advice(&summary, &verb.limits.budgets())?;
    }
    if verb.json {
        terminal::print_json(&document(&summary))?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = terminal::style(&std::io::stdout(), colour);
    let running = job.is_running().then(|| verb.job.to_string_lossy().into_owned());
    terminal::print(&advice::page(&summary, running.as_deref(), &style))?;
    Ok(ExitCode::SUCCESS)
}

fn document(summary: &RunSummary) -> serde_json::Value {
    let RunSummary { knobs, rates, advice, .. } = summary;
    let remedies = advice::without_knob(summary);
    serde_json::json!({
        "job": summary.job.name, "advice": advice, "remedies": remedies, "knobs": knobs, "rates": rates
    })
}

fn act(verb: &Tune, colour: Colour) -> Result<ExitCode> {
    let name = verb.job.to_string_lossy();
    anyhow::ensure!(
        !audit::is_recording(&verb.job),
        "{name} is a recording: only a running job can be turned"
    );
    let (socket, card) = RuntimeDir::of_this_user()?.find(&name)?;
    let mut style = terminal::style(&std::io::stdout(), colour);
    audit::unbroken_where_piped(&mut style);
    let context = audit::context_of(&stallscope_collector::ask(&socket)?);
    let mut begun = false;
    let mut show = |event: &AuditEvent| {
        if !std::mem::replace(&mut begun, true) && !verb.json {
            terminal::say(&format!("tuning {}; Ctrl-C ends it, the job runs on", card.name));
        }
        let line = match verb.json {
            true => audit::json_line(event),
            false => line(event, &context, &style),
        };
        // Who closed our stdout ends us by the next signal or with the job; the controller works on until then.
        let _ = terminal::print(&line);
    };
    match stallscope_collector::tune(&socket, TuneMode::Act, verb.limits.budgets(), None, &mut show)? {
        Acted::JobEnded => terminal::say(&format!("{} has ended", card.name)),
        Acted::ByUser(knobs) => terminal::say(&format!("no longer tuning {}: {}", card.name, stays(&knobs))),
    }
    Ok(ExitCode::SUCCESS)
}

/// "workers 6 (the script's: 2) and prefetch 12 (the script's: 4) stay"
fn stays(knobs: &[Knob]) -> String {
    let ranks = knobs.iter().any(|knob| knob.rank != knobs[0].rank);
    let turned: Vec<String> = knobs
        .iter()
        .map(|knob| match (knob.state, knob.requested) {
            (KnobState::Pending, Some(soon)) => (knob, soon),
            _ => (knob, knob.value),
        })
        .filter(|(knob, value)| *value != knob.initial)
        .map(|(knob, value)| {
            let rank = if ranks { format!(" of rank {}", knob.rank) } else { String::new() };
            let [value, own] = [value, knob.initial].map(|value| amount(value, &knob.unit));
            format!("{}{rank} {value} (the script's: {own})", knob.name)
        })
        .collect();
    match turned.as_slice() {
        [] => "every knob is as the script had set it".into(),
        [one] => format!("{one} stays"),
        [some @ .., last] => format!("{} and {last} stay", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_model::{Diagnosis, Remedy, RemedyKind};

    #[test]
    fn the_document_has_what_the_page_advises_beside_knobs() {
        let sentence = "Give the job CPUs of its own";
        let remedy =
            Remedy { kind: RemedyKind::MoreCores, sentence: sentence.into(), gain: None, comes_first: false };
        let diagnoses = vec![Diagnosis { remedies: vec![remedy], ..Diagnosis::default() }];
        let summary = RunSummary { diagnoses, ..RunSummary::default() };
        assert_eq!(document(&summary)["remedies"][0]["sentence"], sentence);
        assert_eq!(document(&summary)["remedies"][0]["kind"], "more-cores");
    }

    #[test]
    fn what_stays_is_printed() {
        let knob = |name: &str, rank, initial, value| Knob {
            name: name.into(),
            rank,
            initial,
            value,
            ..Knob::default()
        };
        assert_eq!(stays(&[]), "every knob is as the script had set it");
        let mut knobs = vec![knob("workers", 0, 2, 6), knob("prefetch", 0, 4, 4)];
        assert_eq!(stays(&knobs), "workers 6 (the script's: 2) stays");
        knobs.push(knob("workers", 1, 2, 3));
        assert_eq!(
            stays(&knobs),
            "workers of rank 0 6 (the script's: 2) and workers of rank 1 3 (the script's: 2) stay"
        );
    }
}
