//! What another interval of checkpoints would bring: goodput, the time that saves and failures leave.

use super::page::Page;
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde_json::{Value, json};
use stallscope_control::Saving;
use stallscope_model::{Knob, RankSummary, RunSummary};
use stallscope_units::{duration_in_words, parse_duration, percent_exact, percent_in_words};
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct Checkpoints {
    /// Time between two checkpoints: 90s, 10m
    #[arg(long, value_name = "TIME", value_parser = time)]
    ckpt_interval: Option<Duration>,
    /// Mean time between failures of the job: 6h; by default what its stallscope.Checkpointer goes by
    #[arg(long, value_name = "TIME", value_parser = time)]
    mtbf: Option<Duration>,
}

fn time(text: &str) -> Result<Duration> {
    let time = parse_duration(text)?;
    ensure!(time >= Duration::from_millis(1), "give a time from 1 ms up: 90s, 10m, 6h");
    Ok(time)
}

/// The job as it saves now, and with another interval where one was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Savings {
    now: Saving,
    then: Option<Saving>,
}

impl Checkpoints {
    /// `None` where nothing was asked about checkpoints.
    pub(super) fn savings(&self, summary: &RunSummary) -> Result<Option<Savings>> {
        if self.ckpt_interval.is_none() && self.mtbf.is_none() {
            return Ok(None);
        }
        let saves = |rank: &&RankSummary| rank.checkpoints.count > 0;
        // Of several ranks the one that decides when all save.
        let account = |rank: &&RankSummary| rank.checkpoints.account.is_some();
        let rank = summary.ranks.iter().find(account).or_else(|| summary.ranks.iter().find(saves));
        let rank = rank.or(summary.ranks.first()).context("no rank of this job was seen to train")?;
        let of_rank =
            |knob: &&Knob| knob.name == "ckpt.interval" && knob.rank == rank.facts.rank && knob.value > 0;
        let mtbf_s = self.mtbf.map(|time| time.as_secs_f64());
        let now = Saving::of(rank, summary.knobs.iter().find(of_rank), mtbf_s).map_err(|why| anyhow!(why))?;
        Ok(Some(Savings { now, then: self.ckpt_interval.map(|time| now.every(time.as_secs_f64())) }))
    }
}

impl Savings {
    /// By what share goodput rises.
    pub(super) fn gain(&self) -> Option<f64> {
        Some(self.then?.goodput() / self.now.goodput() - 1.0)
    }

    pub(super) fn json(&self) -> Value {
        let one = |saving: &Saving| {
            json!({ "interval_s": saving.interval_s, "saves_share": saving.share(), "failures_share": saving.lost(),
                "goodput": saving.goodput() })
        };
        json!({ "save_cost_s": self.now.cost_s, "mtbf_s": self.now.mtbf_s(), "now": one(&self.now),
            "then": self.then.as_ref().map(one), "best": one(&self.now.best()), "gain": self.gain() })
    }

    pub(super) fn render(&self, page: &mut Page<'_>) {
        let time = |seconds: f64| duration_in_words((seconds * 1e9) as u64);
        let cells = |saving: &Saving| {
            [
                time(saving.interval_s),
                percent_in_words(saving.share()),
                percent_in_words(saving.lost()),
                percent_exact(saving.goodput()),
            ]
        };
        let names = ["a save every", "saves cost", "failures cost", "goodput"];
        let then = self.then.as_ref().map(cells).unwrap_or_default();
        page.now_and_then(if self.then.is_some() { "then" } else { "" });
        for ((name, now), then) in names.into_iter().zip(cells(&self.now)).zip(then) {
            page.row(name, &now, &then);
        }
        if let Some(gain) = self.gain() {
            page.row("gain", "", &format!("{}{}", if gain < 0.0 { "" } else { "+" }, percent_in_words(gain)));
        }
        let best = self.now.best();
        page.line("");
        page.sentence(&format!(
            "A save costs {} of training; with a failure every {} on average, one every {} loses least: goodput {}. \
             Failures are the model's, not measured",
            time(self.now.cost_s),
            time(self.now.mtbf_s()),
            time(best.interval_s),
            percent_exact(best.goodput())
        ));
    }
}
