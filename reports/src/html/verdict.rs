//! The head of the page: the answer, why, what to do, and the few figures that somebody will quote.

use crate::run::{Run, took_ns};
use crate::sections::{clock, pointer};
use crate::text::{causes_in_words, ending, evidence, to_do, training};
use stallscope_model::{Cause, PhaseSummary};
use stallscope_units as units;

pub(super) struct Verdict {
    /// Name, host and time of the run.
    pub(super) job: String,
    pub(super) sentence: String,
    pub(super) why: String,
    /// What to do, best first.
    pub(super) advice: Vec<String>,
    pub(super) figures: Vec<Figure>,
}

pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) note: String,
    /// As a table cell's.
    pub(super) exact: String,
    pub(super) source: String,
}

pub(super) fn verdict(run: &Run) -> Verdict {
    let summary = &run.summary;
    let total = training(&summary.phases);
    let (why, advice) = match (summary.diagnoses.first(), &total) {
        (Some(first), _) => {
            (evidence(summary, first), to_do(summary).into_iter().map(str::to_owned).collect())
        }
        (None, Some(total)) => (causes_in_words(&total.causes), Vec::new()),
        (None, None) => (String::new(), Vec::new()),
    };
    let mut job = Vec::new();
    for name in [&summary.job.name, &summary.host.host] {
        if !name.is_empty() {
            job.push(name.clone());
        }
    }
    if summary.job.started_wall_ns > 0 {
        job.push(clock::moment(summary.job.started_wall_ns));
    }
    job.push(ending(summary));
    let mut figures = Vec::new();
    if let Some(total) = total {
        figures.extend(of_training(run, &total));
    }
    figures.push(Figure {
        name: if summary.job.attached { "Watched" } else { "Run" },
        value: units::duration(took_ns(summary)),
        note: String::new(),
        exact: took_ns(summary).to_string(),
        source: String::new(),
    });
    Verdict {
        job: job.join(" · "),
        sentence: match summary.verdict.sentence.as_str() {
            "" => "not measured yet".to_owned(),
            sentence => sentence.to_owned(),
        },
        why,
        advice,
        figures,
    }
}

fn of_training(run: &Run, total: &PhaseSummary) -> Vec<Figure> {
    let trained = pointer::training("", &run.summary.phases);
    let lost_ns = lost_ns(total);
    let ranks = run.summary.ranks.len() as u64;
    let mut note = format!(
        "{} of {} of training",
        units::percent(units::share(lost_ns, total.wall_ns)),
        units::duration(total.wall_ns)
    );
    if ranks > 1 {
        note.push_str(&format!(
            "; {} over {} ranks",
            units::duration(lost_ns.saturating_mul(ranks)),
            units::count(ranks)
        ));
    }
    let mut figures = vec![Figure {
        name: "Lost to stalls",
        value: units::duration(lost_ns),
        note,
        exact: lost_ns.to_string(),
        source: String::new(),
    }];
    let mean_ns = total.wall_ns / total.steps.max(1);
    let spread = match total.step_p50_ns > 0 {
        true => {
            format!(
                "median {}, p95 {}",
                units::duration(total.step_p50_ns),
                units::duration(total.step_p95_ns)
            )
        }
        false => String::new(),
    };
    figures.push(Figure {
        name: "A step, in the mean",
        value: units::duration(mean_ns),
        note: spread,
        exact: mean_ns.to_string(),
        source: String::new(),
    });
    figures.push(Figure {
        name: "Steps",
        value: units::count(total.steps),
        note: match total.samples {
            0 => String::new(),
            samples => format!("{} samples/s", units::per_second(samples, total.wall_ns)),
        },
        exact: total.steps.to_string(),
        source: pointer::each(&trained, "steps"),
    });
    figures
}

/// Time that went neither into the job's own work nor into the unexplained, as far as the device did not hide it.
fn lost_ns(total: &PhaseSummary) -> u64 {
    let stalls = total.causes.iter().filter(|(cause, _)| !matches!(cause, Cause::Compute | Cause::Unknown));
    let stalls_ns = stalls.fold(0u64, |sum, (_, ns)| sum.saturating_add(ns));
    stalls_ns.saturating_sub(total.hidden_ns.unwrap_or(0))
}
