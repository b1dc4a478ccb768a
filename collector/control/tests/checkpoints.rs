//! What the controller does with a fixed interval of checkpoints.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, SECOND_NS, act, run, until};
use stallscope_control::{Controller, Outcome};
use stallscope_model::{Act, AuditEvent, Budgets, TuneMode};

const MS: u64 = 1_000_000;
const DAY_S: u64 = 86_400;

fn of_interval(out: &Outcome, act: Act) -> Vec<AuditEvent> {
    let is = |event: &&AuditEvent| event.act == act && event.knob == "ckpt.interval";
    out.audit.iter().filter(is).cloned().collect()
}

/// Nothing but checkpoints costs it anything.
fn computes() -> Job {
    let mut job = Job::slow();
    job.service_ns = 20 * MS;
    job
}

#[test]
fn saves_that_come_too_often_are_made_rarer_and_it_is_proven() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let out = run(&mut job, &mut act(), 400);
    assert_eq!(job.interval_s(), 40, "{:?}", out.audit);
    let keep = &of_interval(&out, Act::Keep)[0];
    let measured = keep.measured.unwrap();
    assert!(measured.low > 0.15 && measured.value < 0.26, "{keep:?}");
    assert!(keep.saw.contains("of training before and 1"), "{keep:?}");
    let request = &of_interval(&out, Act::Request)[0];
    assert!(request.saw.contains("saves cost 20% of training with one every 2.0 seconds"), "{request:?}");
    assert!(request.why.contains("a save every 40 seconds"), "{request:?}");
}

#[test]
fn saves_come_no_more_often_than_they_may_cost() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let budgets = Budgets { checkpoint_overhead: Some(0.005), ..Budgets::default() };
    let out = run(&mut job, &mut Controller::new(TuneMode::Act, budgets, 1), 800);
    assert_eq!(job.interval_s(), 80, "{:?}", out.audit);
    assert!(out.audit[0].why.contains("0.5% of training for saves"), "{:?}", out.audit[0]);
}

#[test]
fn saves_that_come_too_seldom_for_a_job_that_fails_often_are_made_more_frequent() {
    let mut job = computes();
    job.saves(500 * MS, 600, 42, 1800);
    let out = run(&mut job, &mut act(), 3000);
    assert_eq!(job.interval_s(), 42, "{:?}", out.audit);
    assert!(of_interval(&out, Act::Keep)[0].measured.unwrap().low > 0.1);
}

#[test]
fn an_interval_that_loses_little_is_left_alone() {
    let mut job = computes();
    job.saves(100 * MS, 10, 20, DAY_S);
    let out = run(&mut job, &mut act(), 1200);
    assert_eq!((job.interval_s(), of_interval(&out, Act::Request).len()), (10, 0));
}

#[test]
fn a_checkpointer_that_goes_by_its_own_rule_is_left_to_it() {
    let mut job = computes();
    job.saves(2000 * MS, 0, 4, DAY_S);
    let out = run(&mut job, &mut act(), 1200);
    assert!(of_interval(&out, Act::Request).is_empty(), "{:?}", out.audit);
}

#[test]
fn a_persons_interval_stays_until_it_is_given_back() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    job.user_sets("ckpt.interval", 3);
    let mut controller = act();
    let out = run(&mut job, &mut controller, 2400);
    assert_eq!((job.interval_s(), of_interval(&out, Act::Request).len()), (3, 0));
    job.user_sets("ckpt.interval", 0);
    job.gives_back(2);
    run(&mut job, &mut controller, 600);
    assert_eq!(job.interval_s(), 40);
}

#[test]
fn an_interval_that_saves_no_time_is_given_back_to_the_script() {
    let mut job = computes();
    job.saves(0, 2, 40, DAY_S);
    let saver = job.saver.as_mut().unwrap();
    // However seldom it saves, that takes a fifth of the time: what is written grows with it.
    (saver.cost_share, saver.rule.cost_ns) = (0.2, 400 * MS);
    let mut controller = act();
    let undo = until(&mut job, &mut controller, Act::Undo);
    assert_eq!(undo.knob, "ckpt.interval");
    assert!(
        undo.saw.contains("20% of training before and 20% with it") && undo.measured.is_some(),
        "{undo:?}"
    );
    run(&mut job, &mut controller, 1);
    assert_eq!(job.interval_s(), 2);
}

#[test]
fn an_interval_that_is_not_proven_yet_goes_with_its_controller() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 20);
    assert_eq!(job.interval_s(), 40);
    let out = controller.stop(job.now_ns);
    assert_eq!((out.actions[0].knob.as_str(), out.actions[0].value), ("ckpt.interval", 0));
    assert_eq!(of_interval(&out, Act::Undo).len(), 1);
}

#[test]
fn an_interval_that_a_person_sets_meanwhile_stays() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 20);
    job.user_sets("ckpt.interval", 7);
    let out = run(&mut job, &mut controller, 600);
    assert_eq!(job.interval_s(), 7);
    let undo = &of_interval(&out, Act::Undo)[0];
    assert!(undo.why.contains("alice turned the knob meanwhile"), "{undo:?}");
}

#[test]
fn a_persons_interval_stays_when_the_controller_ends_while_memory_is_short() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 20);
    job.user_sets("ckpt.interval", 7);
    // All that it looks at then.
    job.pressure = 0.2;
    run(&mut job, &mut controller, 2);
    let out = controller.stop(job.now_ns);
    assert!(out.actions.is_empty(), "{:?}", out.actions);
    assert_eq!((job.interval_s(), of_interval(&out, Act::Undo).len()), (7, 1));
}

#[test]
fn an_interval_that_the_job_does_not_take_in_time_is_given_back_in_case_it_still_does() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    job.answers = false;
    let mut controller = act();
    let refused = until(&mut job, &mut controller, Act::Refused);
    assert!(refused.why.contains("not in force"), "{refused:?}");
    job.answers = true;
    let out = run(&mut job, &mut controller, 1);
    assert_eq!(job.requested("ckpt.interval"), Some(0), "{:?}", out.audit);
}

#[test]
fn a_job_that_refuses_it_is_left_alone() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    job.refuses = Some("not now");
    let out = run(&mut job, &mut act(), 1200);
    assert_eq!(of_interval(&out, Act::Request).len(), 1, "{:?}", out.audit);
    assert_eq!(of_interval(&out, Act::Refused)[0].why, "not now");
}

#[test]
fn saves_that_stop_coming_end_it() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let mut controller = act();
    until(&mut job, &mut controller, Act::Request);
    run(&mut job, &mut controller, 2);
    job.saver.as_mut().unwrap().stops(job.now_ns + 3600 * SECOND_NS);
    let out = run(&mut job, &mut controller, 1800);
    assert!(of_interval(&out, Act::Undo)[0].why.contains("too few saves"), "{:?}", out.audit);
    assert_eq!(job.interval_s(), 2);
}

#[test]
fn advice_has_it_too() {
    let mut job = computes();
    job.saves(400 * MS, 2, 40, DAY_S);
    let mut controller = Controller::new(TuneMode::Advise, Budgets::default(), 1);
    run(&mut job, &mut controller, 60);
    let advice = &controller.advice()[0];
    assert_eq!((advice.knob.as_str(), advice.now, advice.to), ("ckpt.interval", 2, 40));
    assert!(advice.gain.value > 0.15);
}
