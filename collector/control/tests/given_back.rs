//! What the controller does with a cache that is of no use any more.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, act, run, until};
use stallscope_control::{Controller, Outcome};
use stallscope_model::{Act, AuditEvent, CacheCurve, CachePoint};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn of_cache(out: &Outcome, act: Act) -> Vec<AuditEvent> {
    let is = |event: &&AuditEvent| event.act == act && event.knob == "cache.bytes";
    out.audit.iter().filter(is).cloned().collect()
}

/// Reading takes most of the time of a batch, and a controller has raised the cache to what has all of the data.
fn raised() -> (Job, Controller) {
    raised_from(|_| {})
}

fn raised_from(begin: fn(&mut Job)) -> (Job, Controller) {
    let mut job = Job::cached(10 * MS);
    job.service_ns = 200 * MS;
    job.most("workers", 2);
    job.most("prefetch", 4);
    begin(&mut job);
    let mut controller = act();
    let out = run(&mut job, &mut controller, 400);
    assert!(
        !of_cache(&out, Act::Keep).is_empty() && of_cache(&out, Act::Release).is_empty(),
        "{:?}",
        out.audit
    );
    assert!(job.cache_bytes() > 380 * MIB);
    (job, controller)
}

/// Runs on; the lowest size of the cache meanwhile.
fn lowest(job: &mut Job, controller: &mut Controller, seconds: u64) -> (u64, Outcome) {
    let (mut lowest, mut all) = (u64::MAX, Outcome::default());
    for _ in 0..seconds {
        let out = run(job, controller, 1);
        lowest = lowest.min(job.cache_bytes());
        all.actions.extend(out.actions);
        all.audit.extend(out.audit);
    }
    (lowest, all)
}

#[test]
fn a_job_that_waits_no_more_gives_back_in_steps_what_was_raised_and_no_more() {
    let (mut job, mut controller) = raised();
    // Training's own work takes longer than a batch whose samples are all read.
    job.own_ns = 1000 * MS;
    let (lowest, out) = lowest(&mut job, &mut controller, 3000);
    assert_eq!((job.cache_bytes(), lowest), (100 * MIB, 100 * MIB), "the script's: {:?}", out.audit);
    let kept = of_cache(&out, Act::Keep);
    assert!(kept.len() >= 3, "{kept:?}");
    assert!(kept.iter().all(|keep| keep.measured.is_some_and(|gain| gain.low >= -0.01)), "{kept:?}");
    let released = of_cache(&out, Act::Release);
    assert!(released.iter().any(|one| one.why.contains("has not waited for data")), "{released:?}");
    assert!(of_cache(&out, Act::Undo).is_empty(), "{:?}", out.audit);
}

#[test]
fn of_a_cache_that_a_job_does_not_wait_because_of_no_more_goes_than_it_can_do_without() {
    let (mut job, mut controller) = raised_from(|job| {
        job.service_ns = 20 * MS;
        job.cache.as_mut().unwrap().read_ns = 25 * MS;
    });
    // Two workers keep up with seven reads in a batch of 32.
    let before = job.cache_bytes();
    let steps = |job: &mut Job, controller: &mut Controller| {
        let begun = job.steps();
        run(job, controller, 600);
        job.steps() - begun
    };
    let full = steps(&mut job, &mut controller);
    let (lowest, out) = lowest(&mut job, &mut controller, 3600);
    assert!(
        lowest > before / 2 && job.cache_bytes() > 7 * before / 10,
        "{} MiB: {:?}",
        lowest / MIB,
        out.audit
    );
    let then = steps(&mut job, &mut controller);
    assert!(then as f64 > 0.98 * full as f64, "{then} steps in ten minutes, and {full} before");
}

#[test]
fn data_that_are_drawn_once_leave_nothing_to_keep() {
    let (mut job, mut controller) = raised();
    job.cache.as_mut().unwrap().drawn_once = true;
    let out = run(&mut job, &mut controller, 3600);
    assert_eq!(job.cache_bytes(), 100 * MIB, "{:?}", out.audit);
    let releases = of_cache(&out, Act::Release);
    assert!(releases[0].why.contains("hardly a read in"), "{releases:?}");
    assert_eq!(of_cache(&out, Act::Keep).len(), releases.len(), "{:?}", out.audit);
}

fn curve(points: &[(u64, u64)]) -> CacheCurve {
    let mut curve = CacheCurve::new(8000 * (50 << 10));
    points.iter().for_each(|(mib, misses)| {
        curve.push(CachePoint { capacity_bytes: mib * MIB, uses: 100, misses: *misses });
    });
    curve
}

#[test]
fn where_the_curve_is_flat_the_cache_goes_as_far_as_it_is() {
    let (mut job, mut controller) = raised();
    // Half of the draws are of 4000 samples, which take 195 MiB, and the other half of ever new ones.
    let cache = job.cache.as_mut().unwrap();
    cache.favourites = 4000;
    cache.curve = curve(&[(100, 74), (200, 50), (400, 50), (800, 50)]);
    let (lowest, out) = lowest(&mut job, &mut controller, 3000);
    assert!(
        (195 * MIB..=260 * MIB).contains(&job.cache_bytes()),
        "{} MiB: {:?}",
        job.cache_bytes() / MIB,
        out.audit
    );
    assert!(lowest >= 180 * MIB, "{} MiB", lowest / MIB);
    let first = &of_cache(&out, Act::Release)[0];
    assert!(first.why.contains("saves the reads of 5"), "{first:?}");
}

#[test]
fn a_curve_that_lies_costs_a_part_of_the_cache_for_a_while() {
    let (mut job, mut controller) = raised();
    let before = job.cache_bytes();
    job.cache.as_mut().unwrap().curve = curve(&[(100, 0), (200, 0), (400, 0)]);
    let undo = until(&mut job, &mut controller, Act::Undo);
    assert!(undo.knob == "cache.bytes" && undo.why.contains("it cost "), "{undo:?}");
    run(&mut job, &mut controller, 2);
    assert_eq!(job.cache_bytes(), before);
    // It lies on, and is believed ever more seldom.
    let out = run(&mut job, &mut controller, 3000);
    assert!(of_cache(&out, Act::Release).len() <= 6, "{:?}", of_cache(&out, Act::Release));
}

#[test]
fn what_a_person_has_set_before_is_not_given_back() {
    let begin = |job: &mut Job| job.user_sets("cache.bytes", 250 * MIB);
    let (mut job, mut controller) = raised_from(begin);
    job.own_ns = 1000 * MS;
    let (lowest, out) = lowest(&mut job, &mut controller, 3600);
    assert_eq!((job.cache_bytes(), lowest), (250 * MIB, 250 * MIB), "{:?}", out.audit);
}

#[test]
fn what_is_being_given_back_comes_back_with_the_end_of_the_controller() {
    let (mut job, mut controller) = raised();
    job.own_ns = 1000 * MS;
    let before = job.cache_bytes();
    until(&mut job, &mut controller, Act::Release);
    let out = controller.stop(job.now_ns);
    assert_eq!((of_cache(&out, Act::Undo).len(), out.actions[0].value), (1, before));
}

#[test]
fn what_is_being_given_back_stays_gone_where_the_node_grants_less() {
    let (mut job, mut controller) = raised();
    job.own_ns = 1000 * MS;
    until(&mut job, &mut controller, Act::Release);
    run(&mut job, &mut controller, 3);
    let smaller = job.cache_bytes();
    controller.grant_caches(120 * MIB);
    let out = run(&mut job, &mut controller, 5);
    let keep = &of_cache(&out, Act::Keep)[0];
    assert!(keep.why.contains("the node grants less"), "{keep:?}");
    assert!(smaller > 120 * MIB && job.cache_bytes() <= 120 * MIB, "{} MiB", job.cache_bytes() / MIB);
}

#[test]
fn what_is_being_given_back_stays_gone_where_memory_gets_short() {
    let (mut job, mut controller) = raised();
    job.own_ns = 1000 * MS;
    let before = job.cache_bytes();
    until(&mut job, &mut controller, Act::Release);
    run(&mut job, &mut controller, 3);
    let smaller = job.cache_bytes();
    assert!(smaller < before);
    job.pressure = 0.2;
    let out = run(&mut job, &mut controller, 3);
    let keep = &of_cache(&out, Act::Keep)[0];
    assert!(keep.why.contains("memory is short"), "{keep:?}");
    assert!(job.cache_bytes() <= smaller, "{} MiB", job.cache_bytes() / MIB);
}

#[test]
fn a_size_that_a_person_sets_meanwhile_stays() {
    let (mut job, mut controller) = raised();
    job.own_ns = 1000 * MS;
    until(&mut job, &mut controller, Act::Release);
    run(&mut job, &mut controller, 3);
    job.user_sets("cache.bytes", 130 * MIB);
    let out = run(&mut job, &mut controller, 3600);
    assert!(of_cache(&out, Act::Undo)[0].why.contains("alice turned the knob meanwhile"), "{:?}", out.audit);
    assert_eq!(job.cache_bytes(), 130 * MIB);
}

#[test]
fn a_useless_cache_of_the_scripts_is_only_spoken_of() {
    let mut job = Job::cached(10 * MS);
    job.service_ns = 200 * MS;
    job.most("workers", 2);
    job.most("prefetch", 4);
    job.cache.as_mut().unwrap().drawn_once = true;
    let out = run(&mut job, &mut act(), 3600);
    assert_eq!(job.cache_bytes(), 100 * MIB);
    let hold = out.audit.iter().find(|event| event.why.contains("hardly a read")).unwrap();
    assert!(hold.act == Act::Hold && hold.why.contains("100 MiB were not set here"), "{hold:?}");
}
