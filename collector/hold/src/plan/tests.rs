use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn name(number: usize) -> Name {
    (number as u32 % 3, format!("{number}.jpg").into())
}

/// Opens of a shuffled pass, by a multiplier that has no factor with the number of files; begins at that moment and lasts a
/// second.
fn pass(plan: &mut Plan, files: usize, by: usize, begin_ms: u64) {
    let at_ms = |at: usize| begin_ms + (at * 1000 / files) as u64;
    (0..files).for_each(|at| plan.opened(name(at * by % files), at_ms(at)));
}

/// Two passes over so many files.
fn reread(files: usize) -> Plan {
    let mut plan = Plan::default();
    pass(&mut plan, files, 7, 0);
    pass(&mut plan, files, 11, 1000);
    plan
}

fn orders(plan: &mut Plan) -> Vec<Name> {
    std::iter::from_fn(|| plan.order()).collect()
}

#[test]
fn files_that_are_read_once_are_not_held() {
    let mut plan = Plan::default();
    pass(&mut plan, 1000, 7, 0);
    assert!(plan.order().is_none());
    pass(&mut plan, 1000, 11, 1000);
    assert_eq!(orders(&mut plan).into_iter().collect::<HashSet<_>>().len(), 1000);
}

#[test]
fn a_loader_that_opens_each_file_twice_for_one_sample_does_not_read_again() {
    for workers in [2, 16, 100] {
        let mut plan = Plan::default();
        for batch in 0..50 {
            let all = batch * workers..(batch + 1) * workers;
            let now_ms = 200 * batch as u64;
            all.clone().for_each(|at| plan.opened(name(at), now_ms));
            all.for_each(|at| plan.opened(name(at), now_ms + 150));
        }
        assert!(!plan.is_reread(), "{workers}");
    }
}

#[test]
fn one_file_that_is_opened_again_and_again_makes_no_data_set_of_its_folder() {
    let mut plan = Plan::default();
    for at in 0..1000 {
        plan.opened(name(at), 100 * at as u64);
        if at % 10 == 0 {
            plan.opened((0, "labels.json".into()), 100 * at as u64);
        }
    }
    assert!(!plan.is_reread());
}

#[test]
fn few_large_files_are_read_again_when_they_are_opened_much_later() {
    let mut plan = Plan::default();
    (0..9).for_each(|at| plan.opened(name(0), at * LATER_MS));
    assert_eq!(plan.order(), Some(name(0)));
}

#[test]
fn what_is_held_stays_in_the_plan_though_nothing_more_is_seen_of_it() {
    let mut plan = reread(100);
    let first = plan.order().unwrap();
    assert!(plan.is_held(&first));
    // The holder's own open comes, and then others' for many passes.
    plan.opened(first.clone(), 2000);
    (0..1000).for_each(|at| plan.opened(name(1 + at % 40), 2000 + at as u64));
    assert!(!orders(&mut plan).contains(&first), "it is held already");
    assert!(plan.unused().is_empty());
    assert_eq!(plan.held_last(), Some(&first));
}

#[test]
fn what_the_job_does_not_read_any_more_is_let_go_until_it_is_opened_again() {
    let mut plan = reread(100);
    let ordered = orders(&mut plan);
    ordered.iter().for_each(|name| assert!(plan.is_held(name)));
    ordered.iter().for_each(|name| plan.opened(name.clone(), 2000));
    // Passes over half of them, and a night in which the job stands still.
    let night_ms = 40_000_000;
    for at in 0..1200 {
        (0..50)
            .for_each(|file| plan.opened(name(file), 3000 + 1000 * at + if at > 2 { night_ms } else { 0 }));
        assert!(at > 500 || plan.unused().is_empty(), "after {at} s");
    }
    let unused: HashSet<Name> = plan.unused().into_iter().collect();
    assert_eq!(unused, (50..100).map(name).collect());
    assert!(plan.order().is_none(), "nobody has opened them");
    plan.opened(name(70), 2 * night_ms);
    assert_eq!(plan.order(), Some(name(70)));
}

#[test]
fn what_the_job_uses_waits_for_its_next_open() {
    let mut plan = reread(100);
    let first = plan.order().unwrap();
    plan.opened(first.clone(), 2000);
    plan.later(&first);
    assert!(!orders(&mut plan).contains(&first));
    plan.opened(first.clone(), 3000);
    assert_eq!(plan.order(), Some(first));
}

#[test]
fn what_was_not_even_opened_waits_for_its_next_open_alone() {
    let mut plan = reread(100);
    let first = plan.order().unwrap();
    plan.not_opened(&first);
    assert!(!orders(&mut plan).contains(&first));
    plan.opened(first.clone(), 3000);
    assert_eq!(plan.order(), Some(first));
}

#[test]
fn what_stays_open_and_is_read_again_is_held_for_as_long_as_that_is_repeated() {
    let mut plan = Plan::default();
    plan.read_again(name(7), 0);
    assert_eq!(plan.order(), Some(name(7)));
    assert!(plan.is_held(&name(7)));
    plan.read_again(name(7), 10);
    assert!(plan.order().is_none(), "it is held");
    plan.let_go(&name(7));
    assert!(plan.order().is_none(), "not without another word");
    plan.read_again(name(7), 20);
    assert_eq!(plan.order(), Some(name(7)));
    assert!(plan.is_held(&name(7)));
    // Others are opened for hours.
    for s in 0..2_000 {
        plan.opened(name(1), 1000 * s);
        if s < 1_000 {
            plan.read_again(name(7), 1000 * s);
            assert!(plan.unused().is_empty());
        }
    }
    assert_eq!(plan.unused(), [name(7)]);
}

#[test]
fn what_was_opened_longest_ago_comes_first() {
    let mut plan = Plan::default();
    pass(&mut plan, 100, 7, 0);
    pass(&mut plan, 50, 3, 1000);
    let ordered = orders(&mut plan);
    let newest: HashSet<Name> = ordered[50..].iter().cloned().collect();
    assert_eq!(newest, (0..50).map(name).collect());
}

#[test]
fn what_was_written_to_is_not_held_again_and_what_replaced_it_may_be() {
    let mut plan = reread(100);
    let (one, other) = (plan.order().unwrap(), plan.order().unwrap());
    plan.written(&one);
    assert!(!plan.is_held(&one), "it was written to while it was read");
    assert!(plan.is_held(&other));
    plan.gone(&other);
    assert!(!plan.is_held(&other));
    plan.opened(one.clone(), 2000);
    plan.opened(other.clone(), 2000);
    let next = orders(&mut plan);
    assert!(!next.contains(&one) && next.contains(&other));
}

#[test]
fn files_without_end_are_counted_and_make_way_once_they_are_old() {
    let mut plan = Plan::default();
    (0..MOST_KNOWN + 10).for_each(|at| plan.opened(name(at), 0));
    assert_eq!((plan.known(), plan.unknown()), (MOST_KNOWN, 10));
    (0..=LEAST_UNUSED_MS / 1000).for_each(|s| plan.opened(name(0), 1000 * s));
    assert!(plan.unused().is_empty());
    (0..10).for_each(|s| plan.opened(name(0), LEAST_UNUSED_MS + 1000 * s));
    plan.unused();
    assert_eq!(plan.known(), 1);
}

proptest! {
    /// Whatever comes in whatever order, no file is held twice at once.
    #[test]
    fn no_file_is_ordered_while_it_is_held(steps in prop::collection::vec((0u8..12, 0usize..12), 0..400)) {
        let mut plan = Plan::default();
        let mut ordered: Vec<Name> = Vec::new();
        let mut held: HashSet<Name> = HashSet::new();
        for (at, (step, number)) in steps.into_iter().enumerate() {
            let file = name(number);
            let now_ms = at as u64 * LATER_MS;
            match step {
                0..3 => plan.opened(file, now_ms),
                3 => plan.order().into_iter().for_each(|name| {
                    assert!(!held.contains(&name));
                    ordered.push(name);
                }),
                4 => ordered.pop().into_iter().for_each(|name| {
                    if plan.is_held(&name) {
                        assert!(held.insert(name));
                    }
                }),
                5 => plan.held_last().cloned().into_iter().for_each(|name| {
                    plan.let_go(&name);
                    assert!(held.remove(&name));
                }),
                6 => {
                    plan.written(&file);
                    held.remove(&file);
                }
                7 => {
                    plan.gone(&file);
                    held.remove(&file);
                }
                8 => ordered.pop().into_iter().for_each(|name| plan.later(&name)),
                10 => plan.read_again(file, now_ms),
                9 => plan.unused().iter().for_each(|name| assert!(held.remove(name))),
                _ => ordered.pop().into_iter().for_each(|name| plan.not_now(&name)),
            }
        }
    }
}
