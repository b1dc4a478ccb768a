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

/// Storage is narrow, so that workers beyond some read no more, and it takes a quarter of an hour to be sure of that.
#[test]
fn a_trial_of_workers_makes_way_for_a_cache_that_is_worth_more_of_the_same_memory() {
    let ran = run::ours(&named("memory for half of cache and workers"), 1);
    let first = of(&ran, "cache.bytes", Act::Request)[0].time_ns / 1_000_000_000;
    assert!(first < 600, "{first} s: {:?}", ran.audit);
    assert_eq!(ran.tally.violations, 0, "{:?}", ran.audit);
}

/// That the cache has four of the eight GiB which the job may use says nothing of what a worker takes.
#[test]
fn what_a_cache_keeps_does_not_make_its_workers_dear() {
    let ran = run::ours(&named("a cache that stops paying"), 2);
    let asked = of(&ran, "workers", Act::Request);
    let raised = of(&ran, "cache.bytes", Act::Keep).last().map_or(0, |kept| kept.time_ns);
    assert!(asked.iter().any(|asked| asked.to > asked.from && asked.time_ns > raised), "{:?}", ran.audit);
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
