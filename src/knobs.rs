use crate::terminal::{self, Colour};
use anyhow::{Result, anyhow, bail};
use clap::{Args, FromArgMatches, Subcommand};
use stallscope_collector::{Connection, RuntimeDir};
use stallscope_model::{Knob, KnobRequest, KnobState, RunSummary};
use stallscope_units::{ParseError, parse_bytes, parse_duration};
use stallscope_wire::{Reply, Request};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Units of knobs whose values have units of their own; others are counted.
const UNITS: [&str; 4] = ["", "bytes", "seconds", "ns"];
/// How long `set` waits for a job that takes its time, after the collector has answered.
const PATIENCE: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(200);

/// Show or change a running job's settings.
///
/// Shows each knob with its current value, the script's own, its bounds, the last request and by whom, and why a
/// requested value is not in force. A job looks for requests at each batch, and keeps its values when no collector is
/// left. For a recording, shows the knobs as they were at its end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Knobs {
    /// Running job's name, prefix or PID, or a recording (NAME.stall)
    #[arg(value_name = "JOB|FILE")]
    run: PathBuf,
    #[command(subcommand)]
    act: Option<Act>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Act {
    Set(Set),
}

/// Change settings of a running job: all of those given, or none if one is not possible.
///
/// Without --rank and --loader this applies to the training loaders of every rank. Only the job's owner and root may
/// change its settings. Exits with 1 if a value is not possible or the job refuses it.
#[derive(Debug, Args)]
struct Set {
    /// prefetch=32, workers=6; sizes and times with a unit: cache.bytes=8GiB (or 8g), ckpt.interval=90s; ckpt.interval=auto
    /// returns to the script's own rule
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Change this rank only
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Change this loader only, be it for training or not
    #[arg(long, value_name = "N")]
    loader: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  stallscope knobs train                                 show every knob
  stallscope knobs train set prefetch=32 workers=6       change every rank's training loader
  stallscope knobs train set workers=4 --rank 2          change one rank
  stallscope knobs train.stall --json                    show them as they were at the end";

pub(crate) fn main(verb: Knobs, colour: Colour) -> Result<ExitCode> {
    let Knobs { run, act, json } = verb;
    let recorded = run.is_file() || run.extension().is_some_and(|extension| extension == "stall");
    let (knobs, refused) = match (act, recorded) {
        (None, true) => (stallscope_store::Recording::open(&run)?.summary()?.knobs, Vec::new()),
        (Some(_), true) => bail!("{} is a recording: only a running job's knobs can be set", run.display()),
        (act, false) => {
            let (socket, _) = RuntimeDir::of_this_user()?.find(&run.to_string_lossy())?;
            match act {
                None => (stallscope_collector::ask(&socket)?.knobs, Vec::new()),
                Some(Act::Set(set)) => turn(&socket, &set)?,
            }
        }
    };
    let text = if json {
        terminal::json(&knobs)?
    } else if knobs.is_empty() {
        "this job shows no knobs: it has no loader yet, or runs without the shim\n".into()
    } else {
        stallscope_reports::knobs::table(&knobs, &terminal::style(&std::io::stdout(), colour))
    };
    terminal::print(&text)?;
    for sentence in &refused {
        terminal::say(sentence);
    }
    Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Turns knobs by the words that `set` takes; what came of it, in a sentence.
///
/// # Errors
/// The words say nothing that can be asked for, or the collector refused.
pub(crate) fn turn_by_words(socket: &Path, words: &str) -> Result<String> {
    let command = Set::augment_args(clap::Command::new("set").no_binary_name(true).disable_help_flag(true));
    let set =
        command.try_get_matches_from(words.split_whitespace()).and_then(|read| Set::from_arg_matches(&read));
    let set = match set {
        Ok(set) => set,
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            bail!("{}", first.trim_start_matches("error: ").to_owned());
        }
    };
    let (knobs, refused) = turn(socket, &set)?;
    if let Some(sentence) = refused.into_iter().next() {
        return Ok(sentence);
    }
    let asked = |knob: &&Knob| set.settings.iter().any(|(name, _)| *name == knob.name);
    let waits = knobs.iter().filter(asked).find(|knob| knob.state == KnobState::Pending);
    Ok(match waits {
        Some(knob) if knob.reason.is_empty() => format!("{} is asked for, and not in force yet", knob.name),
        Some(knob) => format!("{} is asked for, and not in force yet: {}", knob.name, knob.reason),
        None => format!("in force: {words}"),
    })
}

/// Asks for the values of `set`; gives the knobs as they stand once the job has answered or had its time, and a
/// sentence for each that it refused.
fn turn(socket: &Path, set: &Set) -> Result<(Vec<Knob>, Vec<String>)> {
    let mut connection = Connection::open(socket)?;
    let Reply::Summary(before) = connection.ask(&Request::Summary)? else {
        bail!("the job's collector answered something else");
    };
    let mut requests = Vec::new();
    for (name, text) in &set.settings {
        let value = match before.knobs.iter().find(|knob| knob.name == *name) {
            Some(knob) => amount(text, &knob.unit),
            // A name that is not there, or not yet, is for the collector to refuse, which says what there is.
            None => in_some_unit(text),
        };
        let value = value.map_err(|why| anyhow!("{name}={text}: {why}"))?;
        requests.push(KnobRequest { rank: set.rank, loader: set.loader, knob: name.clone(), value });
    }
    let Reply::Knobs(mut knobs) = connection.ask(&Request::Set(requests.clone()))? else {
        bail!("the job's collector answered something else");
    };
    let asked = |knob: &&Knob| {
        requests.iter().any(|request| request.knob == knob.name && knob.requested == Some(request.value))
            && set.rank.is_none_or(|rank| rank == knob.rank)
            && (set.loader.is_none() || set.loader == knob.loader)
    };
    let until = Instant::now() + PATIENCE;
    while knobs.iter().filter(asked).any(|knob| knob.state == KnobState::Pending) && Instant::now() < until {
        std::thread::sleep(LOOK);
        // A job that ends meanwhile has no more to say.
        let Ok(Reply::Summary(summary)) = connection.ask(&Request::Summary) else { break };
        let RunSummary { knobs: now, .. } = *summary;
        knobs = now;
    }
    let refused = knobs.iter().filter(asked).filter(|knob| knob.state == KnobState::Refused);
    let refused = refused.map(refusal).collect();
    Ok((knobs, refused))
}

fn refusal(knob: &Knob) -> String {
    let Knob { rank, loader, name, reason, .. } = knob;
    let place = loader.map_or(String::new(), |loader| format!(", loader {loader}"));
    let value = knob.requested.unwrap_or(knob.value);
    format!("rank {rank}{place} refused {name}={value}: {reason}")
}

fn setting(text: &str) -> Result<(String, String), String> {
    let hint = || "say NAME=VALUE, as in prefetch=32".to_string();
    let (name, value) = text.split_once('=').ok_or_else(hint)?;
    if name.is_empty() || in_some_unit(value).is_err() {
        return Err(hint());
    }
    Ok((name.into(), value.into()))
}

/// A value in the first unit that it can be of.
fn in_some_unit(text: &str) -> Result<u64, String> {
    UNITS.iter().map(|unit| amount(text, unit)).find(Result::is_ok).unwrap_or_else(|| amount(text, ""))
}

/// A value as people write it, in the knob's `unit`: a whole number of these, a size, a time, or `auto`.
fn amount(text: &str, unit: &str) -> Result<u64, String> {
    let read = |otherwise: fn(&str) -> Result<u64, ParseError>| {
        text.parse::<u64>().or_else(|_| otherwise(text)).map_err(|error| error.to_string())
    };
    match unit {
        "bytes" => read(parse_bytes),
        // A checkpoint's interval: 0 leaves it to the job's own rule.
        "seconds" if text == "auto" => Ok(0),
        "seconds" => read(|text| Ok(parse_duration(text)?.as_millis().div_ceil(1000) as u64)),
        "ns" => read(|text| Ok(parse_duration(text)?.as_nanos() as u64)),
        _ => text.parse().map_err(|_| "say a whole number".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{amount, in_some_unit, setting};

    #[test]
    fn values_are_read_in_the_units_of_their_knobs() {
        for (text, unit, value) in [
            ("32", "batches", 32),
            ("8GiB", "bytes", 8 << 30),
            ("8g", "bytes", 8 << 30),
            ("1.5TiB", "bytes", 3 << 39),
            ("8GB", "bytes", 8_000_000_000),
            ("0", "bytes", 0),
            ("90s", "seconds", 90),
            ("10m", "seconds", 600),
            ("10min", "seconds", 600),
            ("2h", "seconds", 7200),
            ("1.5h", "seconds", 5400),
            ("auto", "seconds", 0),
            ("90s", "ns", 90_000_000_000),
        ] {
            assert_eq!(amount(text, unit), Ok(value), "{text} {unit}");
        }
        for (text, unit) in [
            ("8g", "batches"),
            ("auto", "batches"),
            ("90s", "bytes"),
            ("8g", "seconds"),
            ("1.5", "batches"),
            ("-1", "bytes"),
            ("99999999999GiB", "bytes"),
            ("99999999999h", "ns"),
        ] {
            assert!(amount(text, unit).is_err(), "{text} {unit}");
        }
    }

    #[test]
    fn a_value_of_a_knob_that_is_not_there_is_read_in_whatever_unit_it_has() {
        for (text, value) in [("3", 3), ("1h", 3600), ("auto", 0), ("8GiB", 8 << 30)] {
            assert_eq!(in_some_unit(text), Ok(value), "{text}");
        }
        assert!(in_some_unit("3 parsecs").is_err());
    }

    #[test]
    fn a_setting_is_a_name_and_a_value_that_some_knob_may_take() {
        assert_eq!(setting("cache.bytes=8g"), Ok(("cache.bytes".into(), "8g".into())));
        for wrong in ["prefetch", "=3", "a=", "a=-1", "a=3 parsecs", "a=3parsecs"] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }
}
