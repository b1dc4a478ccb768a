use crate::terminal::{self, Colour};
use anyhow::Result;
use clap::{Args, ValueEnum};
use stallscope_reports::Run;
use stallscope_reports::diff::{self, Condition};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compare two recordings, and tell changes from noise.
///
/// A change is beyond noise when it exceeds the variation within the two runs, which takes at least ten windows of ten
/// seconds, or of one second in runs shorter than five minutes. Variation between runs, such as a cold cache, is not
/// covered: repeat what matters.
#[derive(Debug, Args)]
#[command(after_help = FIGURES)]
pub(crate) struct Diff {
    /// Recording to compare with
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Recording to judge
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Exit with 1 if this holds, such as "fetch > 10%"; may be repeated
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Condition>,
}

const FIGURES: &str = "\
Conditions are FIGURE OP LIMIT with OP one of > >= < <=, about training steps:
  fetch > 10%          fetch takes more than 10% of B's training time
  fetch > +5%          its share is more than 5 points above A's
  step_p50 > 80ms      B's median step takes longer than 80 ms
  step_p50 > +5%       it takes more than 5% longer than A's
  samples_per_s < -5%  B handles 5% fewer samples a second than A
Figures: every cause (fetch, prep, starved, ...) and data_stall and checkpoint_stall, as shares;
step_mean, step_p50, step_p95 and CAUSE_per_step, as times; samples_per_s.
A limit with a sign is on the change from A to B, and holds only beyond noise (or where the runs are
too short to know the noise). A condition about a figure that is not known counts as failed. For a
gate without a baseline, name the same recording twice.

Exit codes: 0 no condition holds, 1 one holds or a recording cannot be read, 2 wrong arguments.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(crate) fn main(verb: &Diff, colour: Colour) -> Result<ExitCode> {
    let [a, b] = [&verb.a, &verb.b].map(|path| Run::open(std::slice::from_ref(path)));
    let diff = diff::compare(&a?, &b?)?;
    let failures = diff.failures(&verb.fail_if);
    terminal::print(&match verb.format {
        Format::Text => diff::text(&diff, &terminal::style(&std::io::stdout(), colour)),
        Format::Json => diff::json(&diff, &failures),
    })?;
    for failure in &failures {
        terminal::say(failure);
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
