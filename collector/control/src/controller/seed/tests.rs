//! What the law asks for, and what it expects of it.

use super::*;
use stallscope_model::{Cause, Causes, Phase, StepLedger};

/// A rank with three workers that waits `stall` of its time for data and `peer` for others.
fn need(rank: u32, stall: f64, peer: f64, service_ns: f64) -> Need {
    let wall_ns = 30e9;
    let sums =
        Sums { steps: 100.0, wall_ns, stall_ns: stall * wall_ns, peer_ns: peer * wall_ns, ..Sums::default() };
    let (workers, prefetch, service_ns) = (Some(3), Some(6), Some(service_ns));
    let base = Base { own_ns: 150e6, ..Base::of(&sums) };
    let own_ns = base.own_ns;
    Need { rank, sums, workers, prefetch, service_ns, work_ns: service_ns, tail_ns: 1e9, own_ns, base }
}

/// "workers 4 -> 5: +43% (+0% to +153%)" was expected, where reading ever so slow gives +25%.
#[test]
fn one_worker_more_makes_no_more_batches_than_one_of_those_there_are() {
    let needs = [need(0, 0.5, 0.0, 700e6)];
    let more = gain(&needs, &[(0, 4)]);
    assert!((more.value - 1.0 / 3.0).abs() < 1e-9 && (more.high - 1.0 / 3.0).abs() < 1e-9, "{more:?}");
    assert!(shortfall(&needs, &[(0, 4)]) > 0.7, "what it lacks is more than that");
    let many = gain(&needs, &[(0, 30)]);
    assert!((many.value - 1.0).abs() < 1e-9, "up to training's own work: {many:?}");
    let alone = [Need { workers: Some(0), prefetch: Some(1), ..need(0, 0.5, 0.0, 150e6) }];
    assert!((gain(&alone, &[(0, 1)]).value - 1.0).abs() < 1e-9, "one works beside training");
}

#[test]
fn a_job_that_gets_faster_by_itself_is_not_credited_to_workers_with_that() {
    let mut rank = Rank::default();
    let mut at_ns = 0;
    for step in 0..40 {
        let wait_ns: u64 = if step < 20 { 400_000_000 } else { 200_000_000 };
        let mut causes = Causes::default();
        (causes[Cause::Compute], causes[Cause::Fetch]) = (150_000_000, wait_ns);
        let end_ns = at_ns + 150_000_000 + wait_ns;
        let closed = StepLedger {
            rank: 0,
            loader: 0,
            phase: Phase::Training,
            index: step,
            part: false,
            start_ns: at_ns,
            end_ns,
            causes,
            hidden_ns: None,
            producer: None,
            samples: 8,
            evidence: Default::default(),
        };
        rank.pace.add(&closed);
        at_ns = end_ns;
    }
    let need = Need::of(&rank, 0, 0).unwrap();
    assert!((need.sums.step_ns() - 450e6).abs() < 10e6, "{:?}", need.sums);
    let all = gain(&[need], &[(0, 1 << 40)]);
    assert!((all.high - (350.0 / 150.0 - 1.0)).abs() < 0.05, "{all:?}");
}

#[test]
fn a_rank_that_only_waits_for_slower_ones_is_turned_with_them_if_it_cannot_keep_up_either() {
    let cannot = need(1, 0.0, 0.5, 700e6);
    let keeps_up = need(2, 0.0, 0.5, 300e6);
    let needs = [need(0, 0.4, 0.1, 700e6), cannot, keeps_up];
    let ranks: Vec<u32> = slowest(&needs).iter().map(|need| need.rank).collect();
    assert_eq!(ranks, [0, 1]);
}

#[test]
fn a_rank_that_is_as_short_of_workers_is_turned_before_it_waits() {
    let waits_now = need(0, 0.03, 0.0, 400e6);
    let waits_next = need(1, 0.0, 0.02, 380e6);
    let has_enough = need(2, 0.0, 0.02, 150e6);
    let needs = [waits_now, waits_next, has_enough];
    let ranks: Vec<u32> = slowest(&needs).iter().map(|need| need.rank).collect();
    assert_eq!(ranks, [0, 1]);
}
