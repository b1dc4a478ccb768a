//! The answer in one sentence.

use super::figure::Figure;
use super::{Change, Diff, Judgement, PhaseDiff, text};
use stallscope_model::Cause;

/// Causes to name.
const NAMED: usize = 3;

pub(super) fn of(diff: &Diff) -> String {
    let nothing = |which: &str| format!("nothing to compare: the {which} recording has no training steps");
    let Some(training) = diff.training() else {
        return "nothing to compare: neither recording has training steps".to_owned();
    };
    let Some(step) = training.change(Figure::StepMean) else { return String::new() };
    let (Some(a), Some(b), Some(change)) = (step.a, step.b, step.change) else {
        return nothing(if training.a.steps == 0 { "first" } else { "second" });
    };
    let [step_a, step_b] = [a, b].map(|value| text::value(Figure::StepMean, value));
    let direction = if change < 0.0 { "less" } else { "more" };
    match step.judgement {
        Judgement::BeyondNoise => format!(
            "a step takes {} {direction} time: {step_b}, before {step_a}{}",
            stallscope_units::percent(step.change_ratio.unwrap_or(0.0).abs()),
            causes(training, "; ")
        ),
        Judgement::WithinNoise => format!(
            "no change of step time beyond noise: {step_b}, before {step_a}{}",
            causes(training, "; but ")
        ),
        Judgement::TooShortToTell | Judgement::NotInBoth => {
            format!("too short to tell: a step takes {step_b}, before {step_a}")
        }
    }
}

/// The causes that changed most of those that changed beyond noise, after `joint`; they add up to the step's change.
fn causes(training: &PhaseDiff, joint: &str) -> String {
    let mut changed: Vec<(Cause, f64)> = Cause::ALL
        .into_iter()
        .filter_map(|cause| Some((cause, training.change(Figure::PerStep(cause))?)))
        .filter(|(_, change)| change.judgement == Judgement::BeyondNoise)
        .filter_map(|(cause, change)| Some((cause, change.change?)))
        .collect();
    changed.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let words: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|(cause, change)| format!("{} {}", cause.name(), text::signed(Figure::PerStep(*cause), *change)))
        .collect();
    if words.is_empty() { String::new() } else { format!("{joint}{}", words.join(", ")) }
}

impl PhaseDiff {
    pub(super) fn change(&self, figure: Figure) -> Option<&Change> {
        self.figures.iter().find(|change| change.figure == figure)
    }
}
