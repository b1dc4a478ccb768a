//! What the controller does for simulated jobs with a cache, with checkpoints and failures.

use crate::run::{self, Ran};
use crate::scenario::{self, Scenario};
use stallscope_model::{Act, AuditEvent};

fn named(name: &str) -> Scenario {
    scenario::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario")
}

fn of<'a>(ran: &'a Ran, knob: &'a str, act: Act) -> Vec<&'a AuditEvent> {
    ran.audit.iter().filter(|event| event.act == act && event.knob == knob).collect()
}

#[test]
fn saves_on_the_disk_that_is_read_from_are_made_rarer() {
    let scenario = named("saves and reads on one disk");
    let (ran, untouched) = (run::ours(&scenario, 1), run::untouched(&scenario, 1));
    let kept = of(&ran, "ckpt.interval", Act::Keep);
    assert!(kept.len() == 1 && kept[0].to > kept[0].from, "{:?}", ran.audit);
    assert!(ran.pace(600) > 1.1 * untouched.pace(600), "{} and {}", ran.pace(600), untouched.pace(600));
}

#[test]
fn failures_lose_less_where_saves_come_more_often() {
    let scenario = named("failures in bursts");
    let every = |seconds: u64| {
        let setting = scenario::Setting { interval_s: seconds, ..scenario.script() };
        (0..4).map(|seed| run::fixed(&scenario, setting, seed).pace(0)).sum::<f64>()
    };
    let (often, best, seldom) = (every(3), every(60), every(2400));
    assert!(best > 1.05 * often && best > 1.05 * seldom, "{often}, {best}, {seldom}");
}

#[test]
fn a_cache_that_stops_paying_makes_way() {
    let scenario = named("a cache that stops paying");
    let ran = run::ours(&scenario, 1);
    let raised = of(&ran, "cache.bytes", Act::Keep).into_iter().find(|event| event.to > event.from);
    let given = of(&ran, "cache.bytes", Act::Release);
    assert!(
        raised.is_some_and(|raised| given.first().is_some_and(|given| given.time_ns > raised.time_ns)),
        "{:?}",
        ran.audit
    );
    assert_eq!(ran.tally.violations, 0);
}

/// A trial of workers goes back for a while, and a cache takes nothing of what they take again.
#[test]
fn a_cache_and_workers_that_are_tried_at_once_keep_the_budget() {
    let ran = run::ours(&named("memory for half of cache and workers"), 0);
    assert!(!of(&ran, "cache.bytes", Act::Request).is_empty(), "{:?}", ran.audit);
    assert_eq!(ran.tally.violations, 0, "{:?}", ran.audit);
}

#[test]
fn no_setting_that_a_cache_makes_too_large_is_the_best() {
    let scenario = named("memory for half of cache and workers");
    let mut greedy = scenario.script();
    greedy.cache_bytes = 6 << 30;
    assert!(run::fixed(&scenario, greedy, 0).tally.violations > 0);
    greedy.cache_bytes = 1 << 30;
    let fits = run::fixed(&scenario, greedy, 0);
    assert!(fits.tally.violations == 0 && fits.pace(600) > run::untouched(&scenario, 0).pace(600));
}
