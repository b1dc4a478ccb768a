//! What the controller does in situations that a person would describe, on a job that answers at once.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{Job, SECOND_NS, act, audited, reasons, run};
use stallscope_control::{Controller, Outcome};
use stallscope_model::{Act, Budgets, KnobState, Phase, TuneMode};

#[test]
fn workers_that_a_job_lacks_are_added_proven_and_kept() {
    let mut job = Job::slow();
    let out = run(&mut job, &mut act(), 300);
    assert!(job.workers() > 2, "{:?}", out.audit);
    let keep = out.audit.iter().find(|event| event.act == Act::Keep).unwrap();
    assert!(keep.measured.unwrap().low >= 0.02 && keep.predicted.is_some());
    assert!(!keep.saw.is_empty() && !keep.why.is_empty());
}

/// A rule that follows what saves cost is nobody who turns a knob.
#[test]
fn a_checkpointer_whose_interval_follows_its_saves_disturbs_no_trial() {
    let (mut job, mut controller) = (Job::slow(), act());
    let mut audit = Vec::new();
    for second in 0..300 {
        job.saves_every(60 + second % 40);
        audit.extend(run(&mut job, &mut controller, 1).audit);
    }
    assert!(job.workers() > 2 && audit.iter().any(|event| event.act == Act::Keep), "{audit:?}");
    assert!(audit.iter().all(|event| event.knob != "ckpt.interval"), "{audit:?}");
}

/// Two workers take two seconds for a batch each; those that are to leave first finish theirs.
#[test]
fn a_far_job_of_a_minute_and_a_half_keeps_all_that_helps_it() {
    let mut job = Job::slow();
    (job.service_ns, job.leaves_ns) = (2 * SECOND_NS, 4 * SECOND_NS);
    let out = run(&mut job, &mut act(), 95);
    // To six, and to as many as training can use.
    assert!(audited(&out, Act::Keep) == 2 && job.workers() >= 20, "{:?}", out.audit);
}

#[test]
fn a_value_that_somebody_asks_for_where_it_is_in_force_is_theirs() {
    let (mut job, mut controller) = (Job::slow(), act());
    run(&mut job, &mut controller, 2);
    job.user_sets("workers", job.workers());
    let out = run(&mut job, &mut controller, 300);
    assert!(out.actions.iter().all(|action| action.knob != "workers"), "{:?}", out.actions);
    assert_eq!(audited(&out, Act::Hold), 1, "{:?}", out.audit);
}

/// The job's knobs come once it iterates its loader, and its user may be there first.
#[test]
fn a_value_that_somebody_asks_for_as_the_knob_appears_is_theirs() {
    let (mut job, mut controller) = (Job::slow(), act());
    job.knobs.iter_mut().for_each(|knob| knob.name.insert(0, '-'));
    run(&mut job, &mut controller, 2);
    job.knobs.iter_mut().for_each(|knob| knob.name = knob.name.split_off(1));
    job.user_sets("workers", 2);
    let out = run(&mut job, &mut controller, 300);
    assert!(out.actions.iter().all(|action| action.knob != "workers"), "{:?}", out.actions);
}

#[test]
fn a_job_that_does_not_wait_stays_untouched() {
    let mut job = Job::slow();
    job.service_ns = 10_000_000;
    let out = run(&mut job, &mut act(), 600);
    assert!(out.actions.is_empty(), "{:?}", out.actions);
}

#[test]
fn what_does_not_help_is_put_back_and_tried_ever_more_seldom() {
    let mut job = Job::slow();
    job.shared = true;
    let mut controller = act();
    let first = run(&mut job, &mut controller, 500);
    assert_eq!(audited(&first, Act::Keep), 0);
    assert!(audited(&first, Act::Undo) >= 1);
    let later = run(&mut job, &mut controller, 500);
    let settled = run(&mut job, &mut controller, 500);
    assert!(audited(&settled, Act::Undo) <= audited(&first, Act::Undo).max(audited(&later, Act::Undo)));
    assert_eq!((job.workers(), job.prefetch()), (2, 4));
}

#[test]
fn observing_and_advising_change_nothing() {
    for mode in [TuneMode::Observe, TuneMode::Advise] {
        let mut job = Job::slow();
        let out = run(&mut job, &mut Controller::new(mode, Budgets::default(), 1), 300);
        assert!(out.actions.is_empty());
        assert_eq!(audited(&out, Act::Advise) > 0, mode == TuneMode::Advise);
    }
}

#[test]
fn the_same_advice_is_given_once() {
    let mut job = Job::slow();
    let out = run(&mut job, &mut Controller::new(TuneMode::Advise, Budgets::default(), 1), 300);
    assert!((1..=2).contains(&audited(&out, Act::Advise)), "{:?}", out.audit);
}

/// The law alone takes each read to be merely slow, and promises what storage at its limit will not give.
#[test]
fn advice_waits_until_the_model_knows_the_job() {
    let mut job = Job::slow();
    let mut controller = Controller::new(TuneMode::Advise, Budgets::default(), 1);
    let mut steps = 0;
    for _ in 0..300 {
        let observed = job.second();
        steps += observed.ranks[0].steps.len();
        if audited(&controller.observe(&observed), Act::Advise) > 0 {
            break;
        }
    }
    assert!(steps >= 30, "advised after {steps} steps");
}

#[test]
fn a_refusal_is_reported_with_its_reason_and_not_repeated_soon() {
    let mut job = Job::slow();
    job.refuses = Some("its data set is iterable");
    let out = run(&mut job, &mut act(), 400);
    assert!(reasons(&out, Act::Refused).contains("its data set is iterable"));
    assert_eq!(job.workers(), 2);
    assert!(audited(&out, Act::Refused) <= 4, "{:?}", out.audit);
}

#[test]
fn a_job_that_never_answers_is_given_up() {
    let mut job = Job::slow();
    job.answers = false;
    let out = run(&mut job, &mut act(), 400);
    assert!(reasons(&out, Act::Refused).contains("not in force after 120 s"), "{:?}", out.audit);
}

#[test]
fn stopping_undoes_what_is_not_proven() {
    let mut job = Job::slow();
    let mut controller = act();
    while job.workers() == 2 {
        run(&mut job, &mut controller, 1);
    }
    let out = controller.stop(job.now_ns);
    job.take(&out.actions);
    job.second();
    assert_eq!((job.workers(), job.prefetch()), (2, 4));
    assert_eq!(audited(&out, Act::Undo), 1);
    assert!(controller.observe(&job.second()).actions.is_empty());
}

#[test]
fn stopping_keeps_what_is_proven() {
    let mut job = Job::slow();
    let mut controller = act();
    run(&mut job, &mut controller, 300);
    let proven = job.workers();
    let out = controller.stop(job.now_ns);
    job.take(&out.actions);
    job.second();
    assert!(proven > 2 && job.workers() == proven);
}

#[test]
fn memory_pressure_undoes_at_once() {
    let mut job = Job::slow();
    let mut controller = act();
    while job.workers() == 2 {
        run(&mut job, &mut controller, 1);
    }
    job.pressure = 0.3;
    let out = run(&mut job, &mut controller, 2);
    assert!(reasons(&out, Act::Undo).contains("waited for memory"), "{:?}", out.audit);
    assert_eq!(job.workers(), 2);
}

#[test]
fn the_third_rollback_within_an_hour_freezes() {
    let mut job = Job::slow();
    let mut controller = act();
    let mut all = Outcome::default();
    for _ in 0..900 {
        // Memory gets short whenever there are more workers.
        job.pressure = if job.workers() > 2 { 0.3 } else { 0.0 };
        let out = run(&mut job, &mut controller, 1);
        all.audit.extend(out.audit);
    }
    assert!(audited(&all, Act::Freeze) <= 1);
    assert!(audited(&all, Act::Undo) <= 3, "{:?}", all.audit);
    assert_eq!(job.workers(), 2);
}

#[test]
fn a_budget_below_what_is_used_is_reported_and_nothing_is_raised() {
    let mut job = Job::slow();
    let budgets = Budgets { memory_bytes: Some(1 << 30), ..Budgets::default() };
    let out = run(&mut job, &mut Controller::new(TuneMode::Act, budgets, 1), 600);
    assert!(reasons(&out, Act::Hold).contains("it may"), "{:?}", out.audit);
    assert!(out.actions.iter().all(|action| action.value <= 4), "{:?}", out.actions);
    assert!(audited(&out, Act::Request) == 0);
}

#[test]
fn a_budget_that_no_job_can_keep_is_a_sentence() {
    let budgets = Budgets { cores: Some(0.0), ..Budgets::default() };
    let mut job = Job::slow();
    let out = run(&mut job, &mut Controller::new(TuneMode::Act, budgets, 1), 120);
    assert!(reasons(&out, Act::Hold).contains("lets no job run"));
    assert!(out.actions.is_empty());
}

#[test]
fn old_news_are_not_acted_on() {
    let mut job = Job::slow();
    job.frozen = true;
    let out = run(&mut job, &mut act(), 300);
    assert!(out.actions.is_empty());
    assert!(
        reasons(&out, Act::Hold).contains("known only up to")
            || reasons(&out, Act::Hold).contains("no training step")
    );
}

#[test]
fn a_probe_that_can_no_longer_be_seen_is_undone() {
    let mut job = Job::slow();
    let mut controller = act();
    while job.workers() == 2 {
        run(&mut job, &mut controller, 1);
    }
    run(&mut job, &mut controller, 2);
    job.frozen = true;
    let out = run(&mut job, &mut controller, 100);
    assert_eq!(audited(&out, Act::Undo), 1, "{:?}", out.audit);
    assert_eq!(job.workers(), 2);
}

#[test]
fn a_user_who_turns_the_knob_meanwhile_wins() {
    let mut job = Job::slow();
    let mut controller = act();
    while job.workers() == 2 {
        run(&mut job, &mut controller, 1);
    }
    job.user_sets("workers", 3);
    let out = run(&mut job, &mut controller, 600);
    assert_eq!(job.workers(), 3);
    assert!(reasons(&out, Act::Undo).contains("alice turned the knob"), "{:?}", out.audit);
}

#[test]
fn a_prefetch_that_follows_the_workers_is_not_taken_for_the_scripts() {
    for (prefetch, scripts) in [(6, false), (7, true)] {
        let mut job = Job::slow();
        job.service_ns = 10_000_000;
        let mut controller = act();
        run(&mut job, &mut controller, 60);
        job.follows(3, prefetch);
        let out = run(&mut job, &mut controller, 5);
        let followed = out.audit.iter().any(|event| event.saw.starts_with("the script set prefetch"));
        assert_eq!(followed, scripts, "{:?}", out.audit);
    }
}

#[test]
fn evaluation_is_not_judged() {
    let mut job = Job::slow();
    let mut controller = act();
    while job.workers() == 2 {
        run(&mut job, &mut controller, 1);
    }
    job.phase = Phase::Evaluation;
    let out = run(&mut job, &mut controller, 120);
    assert_eq!(audited(&out, Act::Keep) + audited(&out, Act::Undo), 0, "{:?}", out.audit);
    job.phase = Phase::Training;
    let out = run(&mut job, &mut controller, 300);
    assert!(audited(&out, Act::Keep) >= 1);
}

#[test]
fn a_job_that_dies_in_mid_probe_ends_it() {
    let mut job = Job::slow();
    let mut controller = act();
    while job.workers() == 2 {
        run(&mut job, &mut controller, 1);
    }
    job.dead = true;
    let out = run(&mut job, &mut controller, 60);
    assert_eq!(audited(&out, Act::Undo), 1, "{:?}", out.audit);
}

#[test]
fn a_loader_without_knobs_is_left_alone() {
    let mut job = Job::slow();
    job.state = KnobState::Unavailable;
    let out = run(&mut job, &mut act(), 300);
    assert!(out.actions.is_empty());
    assert!(reasons(&out, Act::Hold).contains("no knob that can be turned"));
}

#[test]
fn the_clock_may_run_backwards() {
    let mut job = Job::slow();
    let mut controller = act();
    run(&mut job, &mut controller, 60);
    job.now_ns -= 30 * SECOND_NS;
    let out = run(&mut job, &mut controller, 10);
    assert!(reasons(&out, Act::Hold).contains("backwards"));
}
