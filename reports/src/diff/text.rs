//! A comparison for people.

use super::cache;
use super::figure::{Figure, Unit};
use super::knobs;
use super::noise::WINDOWS_AT_LEAST;
use super::{Change, Diff, Judgement, PhaseDiff, Side};
use crate::style::{Line, Style, left, right};
use stallscope_model::Phase;
use stallscope_units as units;

/// Smaller shares in both runs are left out, unless they changed beyond noise.
const SHARE_AT_LEAST: f64 = 0.005;

/// The answer, what was compared, and the figures. Ends with a newline.
pub fn render(diff: &Diff, style: &Style) -> String {
    let mut text = String::new();
    for line in style.wrap(&diff.verdict, style.columns()) {
        Line::default().bold(line).render(style, &mut text);
    }
    side("A", &diff.a, diff, |phase| phase.a.steps, style, &mut text);
    side("B", &diff.b, diff, |phase| phase.b.steps, style, &mut text);
    for note in notes(diff) {
        for (nth, line) in style.wrap(&note, style.columns().saturating_sub(7)).into_iter().enumerate() {
            let label = if nth == 0 { "  note " } else { "       " };
            Line::default().dim(label).plain(line).render(style, &mut text);
        }
    }
    for phase in &diff.phases {
        figures(phase, style, &mut text);
    }
    if let Some(found) = &diff.cache {
        cache::render(found, style, &mut text);
    }
    text
}

fn side(
    label: &str,
    side: &Side,
    diff: &Diff,
    steps: impl Fn(&PhaseDiff) -> u64,
    style: &Style,
    text: &mut String,
) {
    let training = diff.training().map_or(0, steps);
    let mut facts: Vec<String> =
        [&side.job, &side.host].into_iter().filter(|name| !name.is_empty()).cloned().collect();
    if side.ranks > 1 {
        facts.push(units::counted(side.ranks as u64, "rank"));
    }
    facts.push(format!("{} of training", units::counted(training, "step")));
    facts.push(side.recording.display().to_string());
    let facts = style.clip(&facts.join(style.dot()), style.columns().saturating_sub(7));
    Line::default().dim(format!("  {label}    ")).dim(facts).render(style, text);
}

fn notes(diff: &Diff) -> Vec<String> {
    let mut notes = Vec::new();
    if !diff.same_job {
        notes.push("these are two different jobs; they are compared all the same".to_owned());
    }
    notes.extend(knobs::in_words(&diff.knobs));
    for (label, side) in [("A", &diff.a), ("B", &diff.b)] {
        notes.extend(side.notes.iter().map(|note| format!("{label}: {note}")));
    }
    let Some(training) = diff.training() else { return notes };
    for (label, side, of) in [("A", &diff.a, training.a), ("B", &diff.b, training.b)] {
        if of.windows < WINDOWS_AT_LEAST {
            notes.push(format!(
                "{label} has {} of {} with training steps; noise is known from {WINDOWS_AT_LEAST} on",
                units::counted(of.windows as u64, "window"),
                units::duration(side.window_ns),
            ));
        }
    }
    notes
}

fn figures(phase: &PhaseDiff, style: &Style, text: &mut String) {
    text.push('\n');
    let name = phase.phase.name();
    let mut heading = name.chars();
    let heading: String = heading.next().into_iter().flat_map(char::to_uppercase).chain(heading).collect();
    Line::default()
        .bold(left(&heading, 18))
        .dim(right("A", 10))
        .dim(right("B", 10))
        .dim(right("change", 14))
        .render(style, text);
    let (per_step, others): (Vec<&Change>, Vec<&Change>) = phase
        .figures
        .iter()
        .filter(|change| is_shown(phase, change))
        .partition(|change| matches!(change.figure, Figure::PerStep(_)));
    for change in others {
        row(change, style, text);
    }
    // A phase of one interval has nothing beyond its sums.
    if phase.phase == Phase::Training && !per_step.is_empty() {
        Line::default().dim("  a step").render(style, text);
        for change in per_step {
            row(change, style, text);
        }
    }
}

/// A cause's time is shown where its share is.
fn is_shown(phase: &PhaseDiff, change: &Change) -> bool {
    let share = match change.figure {
        Figure::PerStep(cause) | Figure::Share(cause) => phase.change(Figure::Share(cause)),
        Figure::DataStall | Figure::CheckpointStall => Some(change),
        _ => None,
    };
    match share {
        Some(share) => {
            let large = [share.a, share.b].into_iter().flatten().any(|value| value >= SHARE_AT_LEAST);
            large || share.judgement == Judgement::BeyondNoise
        }
        None => change.a.is_some() || change.b.is_some(),
    }
}

fn row(change: &Change, style: &Style, text: &mut String) {
    let figure = change.figure;
    let known = |found: Option<f64>| found.map_or_else(|| "-".to_owned(), |known| value(figure, known));
    let relative = !matches!(figure, Figure::PerStep(_)) && figure.unit() != Unit::Share;
    let (changed, noise) = match (change.change, change.change_ratio, change.a) {
        (Some(_), Some(ratio), Some(a)) if relative => {
            (percentage(ratio), change.noise.map(|noise| units::percent_exact((noise / a).abs())))
        }
        (Some(changed), ..) => (signed(figure, changed), change.noise.map(|noise| unsigned(figure, noise))),
        (None, ..) => ("-".to_owned(), None),
    };
    let line = Line::new(format!("  {}", left(label(figure).as_str(), 16)))
        .plain(right(&known(change.a), 10))
        .plain(right(&known(change.b), 10));
    judged(line, &changed, change.judgement, noise, style).render(style, text);
}

/// `line` with the change, and how far it is known.
pub(super) fn judged(
    line: Line,
    changed: &str,
    judgement: Judgement,
    noise: Option<String>,
    style: &Style,
) -> Line {
    let line = match judgement {
        Judgement::BeyondNoise => line.bold(right(changed, 14)).bold("  beyond noise"),
        Judgement::WithinNoise => line.plain(right(changed, 14)).dim("  within noise"),
        Judgement::TooShortToTell => line.plain(right(changed, 14)).dim("  too short to tell"),
        Judgement::NotInBoth => line.plain(right(changed, 14)),
    };
    let plus_minus = if style.unicode { "±" } else { "+-" };
    match noise {
        Some(noise) => line.dim(format!(" ({plus_minus} {noise})")),
        None => line,
    }
}

fn label(figure: Figure) -> String {
    match figure {
        Figure::StepMean => "step mean".to_owned(),
        Figure::StepMedian => "step median".to_owned(),
        Figure::StepP95 => "step p95".to_owned(),
        Figure::SamplesPerSecond => "samples/s".to_owned(),
        Figure::DataStall => "data stall".to_owned(),
        Figure::CheckpointStall => "checkpoint stall".to_owned(),
        Figure::Share(cause) | Figure::PerStep(cause) => format!("  {}", cause.name()),
    }
}

/// A figure's value with its unit: "54.0%", "78 ms", "891".
pub(super) fn value(figure: Figure, value: f64) -> String {
    match figure.unit() {
        Unit::Share => units::percent_exact(value),
        Unit::Nanoseconds => units::duration(value.round() as u64),
        Unit::PerSecond => units::per_second((value * 1e3).round() as u64, 1_000_000_000_000),
    }
}

/// A change with its sign and unit: "-32.6 points", "+17 ms", "-34".
pub(super) fn signed(figure: Figure, change: f64) -> String {
    let sign = if change < 0.0 { '-' } else { '+' };
    match figure.unit() {
        Unit::Share => format!("{change:+.1} points", change = change * 100.0),
        _ => format!("{sign}{}", value(figure, change.abs())),
    }
}

/// A margin beside such a change: "1.2", "17 ms", "34".
fn unsigned(figure: Figure, margin: f64) -> String {
    match figure.unit() {
        Unit::Share => format!("{:.1}", margin * 100.0),
        _ => value(figure, margin),
    }
}

/// "+3.0%", "-22.1%", "+180.0%".
fn percentage(ratio: f64) -> String {
    format!("{:+.1}%", ratio * 100.0)
}
