//! The figures of a scenario, and what it has to reach (docs/controller.md).

use crate::run::{self, Ran};
use crate::scenario::{Scenario, Setting};
use crate::table::{REGRET, Row};
use stallscope_model::Act;
use std::collections::BTreeSet;

pub(crate) const HEADER: [&str; 13] = [
    "scenario",
    "half",
    "untouched",
    "best static",
    "hill climbing",
    "controller",
    "regret",
    "worst seed",
    "with warm-up",
    "ahead of hill",
    "over budget",
    "kept/undone",
    "reversals",
];

/// One seed of a scenario under every policy.
pub(crate) struct Seed {
    pub(crate) untouched: Ran,
    pub(crate) fixed: Ran,
    pub(crate) hill: Ran,
    pub(crate) ours: Ran,
}

pub(crate) fn seed(scenario: &Scenario, setting: Setting, seed: u64) -> Seed {
    Seed {
        untouched: run::untouched(scenario, seed),
        fixed: run::fixed(scenario, setting, seed),
        hill: run::hill_climbing(scenario, seed),
        ours: run::ours(scenario, seed),
    }
}

impl Seed {
    /// Share of the best static setting's samples that the controller does not reach.
    fn regret(&self, from: usize) -> f64 {
        let best = self.fixed.pace(from);
        if best > 0.0 { 1.0 - self.ours.pace(from) / best } else { 0.0 }
    }

    /// More samples over the whole run, or as many within a tenth of a percent with fewer workers; who breaks a
    /// budget is behind.
    fn ahead(&self) -> bool {
        if self.ours.tally.violations > 0 || self.hill.tally.violations > 0 {
            return self.ours.tally.violations == 0;
        }
        let (ours, hill) = (self.ours.pace(0), self.hill.pace(0));
        let held = |ran: &Ran| ran.settings.iter().map(|setting| setting.workers).sum::<u32>();
        ours > hill * 1.001 || ours > hill * 0.999 && held(&self.ours) < held(&self.hill)
    }
}

/// Each request of a knob has an end in the audit, with what was predicted and why it ended so.
pub(crate) fn untold(ran: &Ran) -> usize {
    let ends = [Act::Keep, Act::Undo, Act::Refused];
    let ended: BTreeSet<u64> = ran
        .audit
        .iter()
        .filter(|event| ends.contains(&event.act) && !event.why.is_empty())
        .map(|event| event.decision)
        .collect();
    let begun: BTreeSet<u64> = ran
        .audit
        .iter()
        .filter(|event| matches!(event.act, Act::Request | Act::Release))
        .map(|event| event.decision)
        .collect();
    let unpredicted =
        ran.audit.iter().filter(|event| ended.contains(&event.decision) && event.act == Act::Request);
    begun.difference(&ended).count() + unpredicted.filter(|event| event.predicted.is_none()).count()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The line of a scenario in the table, and its figures.
pub(crate) fn judge(scenario: &Scenario, seeds: &[Seed]) -> (Vec<String>, Vec<Row>) {
    let count = seeds.len() as f64;
    let from = scenario.measured_from();
    let pace = |of: fn(&Seed) -> &Ran| mean(seeds.iter().map(|seed| of(seed).pace(from)));
    let regret = mean(seeds.iter().map(|seed| seed.regret(from)));
    let worst = seeds.iter().map(|seed| seed.regret(from)).fold(f64::MIN, f64::max);
    let total = mean(seeds.iter().map(|seed| seed.regret(0)));
    let ahead = seeds.iter().filter(|seed| seed.ahead()).count() as f64 / count;
    let over: u32 = seeds.iter().map(|seed| seed.ours.tally.violations).sum();
    let acts = |act| mean(seeds.iter().map(|seed| seed.ours.acts(act) as f64));
    let kept = acts(Act::Keep);
    let half_hours = scenario.length_s as f64 / 1800.0;
    let reversals = mean(seeds.iter().map(|seed| seed.ours.reversals() as f64)) / half_hours;
    let untold: usize = seeds.iter().map(|seed| untold(&seed.ours)).sum();
    let slower = 1.0 - pace(|seed| &seed.ours) / pace(|seed| &seed.untouched).max(1e-9);

    let barred = scenario.barred;
    let row = |metric, value: f64, unit, bar: Option<(&str, bool)>| Row {
        case: scenario.name.to_owned(),
        half: scenario.half.name(),
        metric,
        value,
        unit,
        bar: bar.map(|(bar, _)| bar.to_owned()),
        holds: bar.map(|(_, holds)| holds),
    };
    let only = |is: bool, bar, holds| is.then_some((bar, holds));
    let rows = vec![
        row("untouched", pace(|seed| &seed.untouched), "samples/s", None),
        row("best static", pace(|seed| &seed.fixed), "samples/s", None),
        row("hill climbing", pace(|seed| &seed.hill), "samples/s", None),
        row("controller", pace(|seed| &seed.ours), "samples/s", None),
        row(REGRET, 100.0 * regret, "%", only(barred, "<= 5", regret <= 0.05)),
        row("regret, worst seed", 100.0 * worst, "%", None),
        row("regret with warm-up", 100.0 * total, "%", None),
        row(
            "ahead of hill climbing",
            100.0 * ahead,
            "% of seeds",
            only(barred && !scenario.negative, ">= 80", ahead >= 0.8),
        ),
        row("seconds over budget", f64::from(over), "s", Some(("0", over == 0))),
        row("kept", kept, "a run", only(scenario.negative, "0", kept == 0.0)),
        row("undone", acts(Act::Undo), "a run", None),
        row("slower than untouched", 100.0 * slower, "%", only(scenario.negative, "<= 1", slower <= 0.01)),
        row(
            "reversals in half an hour",
            reversals,
            "",
            only(barred && scenario.stationary, "<= 1", reversals <= 1.0),
        ),
        row("decisions without an end in the audit", untold as f64, "", Some(("0", untold == 0))),
    ];
    let share = |value: f64| format!("{:.1}%", 100.0 * value);
    let line = vec![
        scenario.name.to_owned(),
        scenario.half.name().to_owned(),
        format!("{:.0}", pace(|seed| &seed.untouched)),
        format!("{:.0}", pace(|seed| &seed.fixed)),
        format!("{:.0}", pace(|seed| &seed.hill)),
        format!("{:.0}", pace(|seed| &seed.ours)),
        share(regret),
        share(worst),
        share(total),
        format!("{:.0}%", 100.0 * ahead),
        format!("{over} s"),
        format!("{kept:.1}/{:.1}", acts(Act::Undo)),
        format!("{reversals:.1}"),
    ];
    (line, rows)
}
