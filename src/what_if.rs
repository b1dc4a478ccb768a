mod checkpoints;
mod page;

use crate::audit::Job;
use crate::terminal::{self, Colour};
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde_json::{Value, json};
use stallscope_collector::{CacheSize, Cached, cached, profiles};
use stallscope_control::{Change, Delta, Outlook, Prediction, Profile, outlook, rates, what_if};
use stallscope_model::{Estimate, EvidenceState, Phase, RunSummary};
use stallscope_units::{parse_bytes, parse_share};
use std::path::PathBuf;
use std::process::ExitCode;

/// Predict the effect of a change without making it.
///
/// Simulates the loader's pipeline with the measured steps and batches, as it is and as it would be. Without a change
/// it shows how fast each stage of the job can go, and the predicted effect of single changes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WhatIf {
    /// Running job's name, prefix or PID, or a recording (NAME.stall)
    #[arg(value_name = "JOB|FILE")]
    job: PathBuf,
    /// Loader workers: 6, two more (+2) or one fewer (-1)
    #[arg(long, value_name = "N|+N|-N", value_parser = delta, allow_hyphen_values = true)]
    workers: Option<Delta>,
    /// Batches prefetched by all workers together; by default as many per worker as now
    #[arg(long, value_name = "N|+N|-N", value_parser = delta, allow_hyphen_values = true)]
    prefetch: Option<Delta>,
    /// Storage this many times as fast: 2x, 0.5x
    #[arg(long, value_name = "X", value_parser = factor)]
    storage: Option<f64>,
    /// Cache that holds this share of the samples (40%), is this many times as large as now (2x), or of this size (8GiB)
    #[arg(long, value_name = "SHARE|X|SIZE", value_parser = cache)]
    cache: Option<CacheSize>,
    /// CPU cores for the job
    #[arg(long, value_name = "N", value_parser = cores)]
    cores: Option<f64>,
    #[command(flatten)]
    checkpoints: checkpoints::Checkpoints,
    /// Rank to predict for; by default the one that waits for data most
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  stallscope what-if train.stall                     rates, and what single changes would bring
  stallscope what-if train.stall --workers +2        two workers more
  stallscope what-if train --storage 2x --cache 40%  a running job, on storage twice as fast, 40% of it cached
  stallscope what-if train --cache 2x                a job with a cache, were that twice as large
  stallscope what-if train --ckpt-interval 10m --mtbf 6h  goodput with a checkpoint every ten minutes
  stallscope what-if train.stall --workers 8 --cores 16 --json | jq .gain";

/// Why there is nobody to predict for.
fn no_loader(summary: &RunSummary) -> &'static str {
    let loaders = summary.ranks.iter().any(|rank| !rank.facts.loaders.is_empty());
    let trains =
        summary.ranks.iter().flat_map(|rank| &rank.phases).any(|phase| phase.phase == Phase::Training);
    match summary.shim {
        EvidenceState::On | EvidenceState::Partial(_) if trains && !loaders => {
            "the job trains without a DataLoader, whose workers and batches are what this predicts; `stallscope report` says what \
             its loop waits for"
        }
        _ => {
            "no training loader is known: that takes the shim of `stallscope run` and a few seconds of training"
        }
    }
}

pub(crate) fn main(verb: &WhatIf, colour: Colour) -> Result<ExitCode> {
    let mut job = Job::find(&verb.job)?;
    let summary = job.summary()?;
    let savings = verb.checkpoints.savings(&summary)?;
    if let Some(savings) = savings.filter(|_| verb.asks_about_checkpoints_alone()) {
        return only(&savings, &summary, verb.json, colour);
    }
    let Job::Recorded(recording) = &job else {
        anyhow::bail!("{} has no recording to learn from; run it with one (-o FILE)", verb.job.display());
    };
    let profiles = profiles(recording, &summary)?;
    let all = profiles.training();
    let profile = match verb.rank {
        Some(rank) => all.into_iter().find(|profile| profile.rank == rank).with_context(|| {
            format!("rank {rank} is not in this job, or has trained with no loader that is known")
        })?,
        None => {
            let most = all.into_iter().max_by(|a, b| a.stall_share().total_cmp(&b.stall_share()));
            most.with_context(|| no_loader(&summary))?
        }
    };
    ensure!(profile.too_little().is_none(), profile.too_little().unwrap_or_default());
    let cached = verb.cache.map(|size| cached(size, profile, &summary)).transpose();
    let cached = cached.map_err(|sentence| anyhow!(sentence))?;
    let change = Change {
        workers: verb.workers,
        prefetch: verb.prefetch,
        storage_factor: verb.storage,
        cached_share: cached.map(|cached| cached.share),
        cores: verb.cores,
        ..Change::default()
    };
    let changes = change != Change::default();
    let prediction = what_if(profile, &change).map_err(|sentence| anyhow!(sentence))?;
    let outlook = outlook(profile).map_err(|sentence| anyhow!(sentence))?;
    if verb.json {
        let mut document = of_prediction(&prediction);
        let more = json!({ "job": summary.job.name, "rank": profile.rank, "loader": profile.loader,
            "cache": cached.map(of_cache), "checkpoints": savings.map(|savings| savings.json()), "rates": rates(profile), "outlook": of_outlook(&outlook),
            "singles": if changes { Value::Null } else { singles(profile) } });
        if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
            document.extend(more);
        }
        terminal::print_json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = terminal::style(&std::io::stdout(), colour);
    let rank = (summary.ranks.len() > 1).then(|| format!(", rank {}", profile.rank));
    let loader = summary.several_loaders_train().then(|| format!(", loader {}", profile.loader));
    let whose: String = rank.into_iter().chain(loader).collect();
    let mut page = page::Page::new(&style);
    page.heading(&summary.job.name, &whose, profile, &prediction);
    if changes {
        page.prediction(&prediction);
        if let Some(missed) = cached.and_then(|cached| cached.curve) {
            page.missed(&missed);
        }
    } else {
        page.rates(&rates(profile));
        let singles = single_changes(profile);
        if !singles.is_empty() {
            page.singles(&singles, summary.more_cpus_are_spare());
        }
    }
    if let Some(savings) = savings {
        savings.render(&mut page);
    }
    page.outlook(&outlook, profile);
    page.doubts(&prediction.doubts);
    terminal::print(&page.text)?;
    Ok(ExitCode::SUCCESS)
}

impl WhatIf {
    fn asks_about_checkpoints_alone(&self) -> bool {
        let WhatIf { workers, prefetch, storage, cache, cores, .. } = self;
        workers.is_none() && prefetch.is_none() && storage.is_none() && cache.is_none() && cores.is_none()
    }
}

/// What was asked needs no loader, and no model of one.
fn only(
    savings: &checkpoints::Savings,
    summary: &RunSummary,
    as_json: bool,
    colour: Colour,
) -> Result<ExitCode> {
    if as_json {
        let document = json!({ "job": summary.job.name, "checkpoints": savings.json() });
        terminal::print_json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = terminal::style(&std::io::stdout(), colour);
    let mut page = page::Page::new(&style);
    page.job(&summary.job.name);
    savings.render(&mut page);
    terminal::print(&page.text)?;
    Ok(ExitCode::SUCCESS)
}

/// Changes that are worth a look each, with their names.
fn single_changes(profile: &Profile) -> Vec<(String, Prediction)> {
    let none = Change::default;
    let (workers, prefetch) = (profile.workers, profile.prefetch);
    let mut changes = Vec::new();
    if workers > 1 {
        changes.push(("one worker fewer", Change { workers: Some(Delta::Fewer(1)), ..none() }));
    }
    changes.push(("one worker more", Change { workers: Some(Delta::More(1)), ..none() }));
    if workers > 1 {
        changes.push(("twice the workers", Change { workers: Some(Delta::To(2 * workers)), ..none() }));
    }
    if workers > 0 {
        changes.push(("twice the prefetch", Change { prefetch: Some(Delta::To(2 * prefetch)), ..none() }));
    }
    changes.push(("storage twice as fast", Change { storage_factor: Some(2.0), ..none() }));
    let cached = profile.cached_share();
    let half = Change { cached_share: Some(cached + (1.0 - cached) / 2.0), ..none() };
    changes.push(("half of it cached", half));
    if profile.cores.is_finite() {
        changes.push((page::TWICE_THE_CORES, Change { cores: Some(2.0 * profile.cores), ..none() }));
    }
    let predicted = |(name, change): (&str, Change)| Some((name.to_owned(), what_if(profile, &change).ok()?));
    changes.into_iter().filter_map(predicted).collect()
}

fn singles(profile: &Profile) -> Value {
    let one = |(name, prediction): &(String, Prediction)| {
        let mut value = of_prediction(prediction);
        value["change"] = json!(name);
        value
    };
    Value::Array(single_changes(profile).iter().map(one).collect())
}

fn of_prediction(prediction: &Prediction) -> Value {
    let ms = |ns: &Estimate| json!({ "value": ns.value / 1e6, "low": ns.low / 1e6, "high": ns.high / 1e6 });
    json!({
        "now": { "workers": prediction.now.workers, "prefetch": prediction.now.prefetch,
            "step_ms": ms(&prediction.step_now_ns), "stall_share": prediction.stall_share_now,
            "bottleneck": prediction.bottleneck_now.name() },
        "then": { "workers": prediction.then.workers, "prefetch": prediction.then.prefetch,
            "step_ms": ms(&prediction.step_ns), "samples_per_s": prediction.samples_per_s,
            "stall_share": prediction.stall_share, "bottleneck": prediction.bottleneck.name() },
        "gain": prediction.gain,
        "either": prediction.either,
        "calibration": prediction.calibration,
        "doubts": prediction.doubts,
    })
}

fn of_cache(cached: Cached) -> Value {
    let curve = cached.curve.map(|missed| {
        let at = |bytes: u64, ratio: f64| json!({ "capacity_bytes": bytes, "miss_ratio": ratio });
        json!({ "now": at(missed.now_bytes, missed.now), "then": at(missed.then_bytes, missed.then) })
    });
    json!({ "share": cached.share, "curve": curve })
}

fn of_outlook(outlook: &Outlook) -> Value {
    let smallest = outlook.smallest.as_ref().map(|smallest| {
        json!({ "cache_share": smallest.cached_share, "workers": smallest.workers, "cores": smallest.cores })
    });
    json!({
        "smallest_useful": smallest,
        "direct_wait_share": outlook.direct_share,
        "difference_to_ideal_share": outlook.difference_share,
    })
}

fn delta(text: &str) -> Result<Delta> {
    let number =
        |digits: &str| digits.parse::<u32>().context("give a number, or how many more or fewer: 6, +2, -1");
    Ok(match text.as_bytes().first() {
        Some(b'+') => Delta::More(number(&text[1..])?),
        Some(b'-') => Delta::Fewer(number(&text[1..])?),
        _ => Delta::To(number(text)?),
    })
}

fn factor(text: &str) -> Result<f64> {
    let factor = text.strip_suffix(['x', 'X']).unwrap_or(text).parse::<f64>().ok();
    factor
        .filter(|factor| factor.is_finite() && (0.001..=1e6).contains(factor))
        .context("say how many times as fast: 2x, 0.5x")
}

fn cache(text: &str) -> Result<CacheSize> {
    let wrong = "give a share from 0% to 100%, how many times as large as now, or a size: 40%, 2x, 8GiB";
    if let Some(times) = text.strip_suffix(['x', 'X']) {
        let times = times.parse::<f64>().ok().filter(|times| (0.001..=1e6).contains(times));
        return times.map(CacheSize::Times).context(wrong);
    }
    parse_share(text)
        .map(CacheSize::Share)
        .or_else(|_| parse_bytes(text).map(CacheSize::Bytes))
        .context(wrong)
}

fn cores(text: &str) -> Result<f64> {
    let cores = text.parse::<f64>().ok();
    cores.filter(|cores| (0.1..=65536.0).contains(cores)).context("give a number of cores from 0.1 up: 8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_as_people_write_them() {
        assert_eq!(delta("6").unwrap(), Delta::To(6));
        assert_eq!((delta("+2").unwrap(), delta("-1").unwrap()), (Delta::More(2), Delta::Fewer(1)));
        assert_eq!((factor("2x").unwrap(), factor("0.5").unwrap()), (2.0, 0.5));
        assert_eq!(cores("8").unwrap(), 8.0);
        assert_eq!(
            (cache("40%").unwrap(), cache("2x").unwrap()),
            (CacheSize::Share(0.4), CacheSize::Times(2.0))
        );
        for size in ["8GiB", "8G", "8 gib", "8589934592"] {
            assert_eq!(cache(size).unwrap(), CacheSize::Bytes(8 << 30), "{size}");
        }
        for wrong in ["", "x", "GiB", "-1x", "140%", "-8g"] {
            assert!(cache(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "two", "+", "--1", "é"] {
            assert!(delta(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0x", "-1", "nan", "inf"] {
            assert!(factor(wrong).is_err(), "{wrong}");
        }
        assert!(cores("0").is_err());
    }
}
