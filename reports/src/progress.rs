//! The line that shows a run while it goes on.

use crate::style::Style;
use crate::text::{stalls, training};
use stallscope_model::{EvidenceState, MainThreads, RunSummary};
use stallscope_units as units;

/// Elapsed time, steps, step time, rate and the largest stalls on one line of at most `width` columns, ASCII,
/// without a newline. What does not fit is left out from its end.
pub fn line(summary: &RunSummary, width: usize) -> String {
    let mut facts = vec![units::duration(elapsed_ns(summary))];
    match training(&summary.phases) {
        Some(total) => {
            facts.push(units::counted(total.steps, "step"));
            facts.push(format!("{} a step", units::duration(total.wall_ns / total.steps.max(1))));
            if total.samples > 0 {
                facts.push(format!("{} samples/s", units::per_second(total.samples, total.wall_ns)));
            }
            let stalls = stalls(&total.causes);
            if stalls.is_empty() {
                facts.push("no stalls".to_owned());
            }
            facts.extend(
                stalls
                    .into_iter()
                    .take(3)
                    .map(|(cause, share)| format!("{} {}", cause.name(), units::percent(share))),
            );
        }
        None if !seen(&summary.shim) && !seen(&summary.kernel) => {
            facts.push("nothing to see it by".to_owned())
        }
        None => {
            facts.push("no step yet".to_owned());
            facts.extend(main_threads(&summary.main_threads));
        }
    }
    let style = Style { width, colour: false, unicode: false };
    let mut line = style.clip(&facts.remove(0), width);
    for fact in facts {
        if line.len() + 2 + fact.len() > width {
            break;
        }
        line.push_str("  ");
        line.push_str(&fact);
    }
    line
}

/// What is known all the same.
fn main_threads(main: &MainThreads) -> Option<String> {
    let share = |ns: u64| units::percent(ns as f64 / main.wall_ns as f64);
    let (data, cpu) = (share(main.data_ns()), share(main.cpu_ns));
    (main.wall_ns > 0).then(|| format!("main thread waiting for data {data}, on a CPU {cpu}"))
}

fn seen(state: &EvidenceState) -> bool {
    matches!(state, EvidenceState::On | EvidenceState::Partial(_))
}

fn elapsed_ns(summary: &RunSummary) -> u64 {
    let phases = || summary.phases.iter().map(|phase| phase.wall_ns).fold(0, u64::saturating_add);
    if summary.overhead.wall_ns > 0 { summary.overhead.wall_ns } else { phases() }
}
