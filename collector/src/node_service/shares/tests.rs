use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const JOBS: u64 = 1000;

fn bounds(floor: u64, most: u64) -> Bounds {
    Bounds { floor, most }
}

/// The ledger of a service that has run for a while.
fn open(budget: u64) -> Shares {
    let mut shares = Shares::closed(budget);
    shares.open();
    shares
}

/// Saves `all` with `bytes`, and half of that with a quarter of them.
fn curve(bytes: u64, all: f64) -> Curve {
    Curve::of(&[(bytes / 4, all / 2.0), (bytes, all)])
}

/// Does what it is granted, as an honest job, until nothing changes any more.
fn settle_all(shares: &mut Shares, mut now: Instant) {
    for _ in 0..100 {
        now += BETWEEN;
        let changed = shares.settle(now);
        let all: Vec<(u64, u64, Curve)> =
            shares.jobs.iter().map(|(id, share)| (*id, share.granted, share.curve.clone())).collect();
        for (id, granted, curve) in all {
            shares.asks(id, Some(granted), granted, curve);
        }
        if changed.is_empty() && !shares.changed {
            return;
        }
    }
    panic!("grants never come to rest");
}

#[test]
fn memory_goes_where_it_saves_most_and_floors_are_kept() {
    let mut shares = open(10 * GIB);
    shares.enter(1, bounds(GIB, 8 * GIB), None);
    assert_eq!(shares.granted(1), Some(8 * GIB), "alone it has what its rule allows");
    shares.enter(2, bounds(GIB, 8 * GIB), None);
    assert_eq!(shares.granted(2), Some(2 * GIB), "what is left");
    settle_all(&mut shares, Instant::now());
    assert_eq!(shares.granted(1), Some(8 * GIB), "nothing is taken where nobody knows better");
    shares.asks(1, None, 8 * GIB, curve(8 * GIB, 0.01));
    shares.asks(2, None, 2 * GIB, curve(8 * GIB, 0.6));
    settle_all(&mut shares, Instant::now());
    assert_eq!([1, 2].map(|id| shares.granted(id)), [Some(2 * GIB), Some(8 * GIB)]);
    shares.enter(3, bounds(4 * GIB, 8 * GIB), None);
    settle_all(&mut shares, Instant::now());
    assert_eq!(shares.granted(3), Some(4 * GIB), "its floor, whatever others gain");
    shares.leave(2);
    settle_all(&mut shares, Instant::now());
    assert_eq!(shares.granted_in_all(), 10 * GIB, "{shares:?}");
}

#[test]
fn what_is_taken_back_is_granted_again_only_once_it_was_given_back() {
    let (mut shares, now) = (open(10 * GIB), Instant::now());
    shares.enter(1, bounds(GIB, 10 * GIB), None);
    shares.enter(2, bounds(GIB, 10 * GIB), None);
    assert_eq!(shares.settle(now), [1, 2], "each hears of its first");
    let less = shares.granted(1).unwrap_or_default();
    assert_eq!((less, shares.granted(2)), (9 * GIB, Some(0)), "for the other's floor");
    // It still holds it, or says so from before it heard.
    shares.asks(1, Some(less), 10 * GIB, Curve::default());
    shares.asks(1, Some(10 * GIB), 0, Curve::default());
    assert_eq!((shares.settle(now), shares.free()), (vec![], 0));
    shares.asks(1, Some(less), less, Curve::default());
    assert_eq!((shares.settle(now), shares.granted(2)), (vec![2], Some(GIB)));
    // One that dies holds nothing.
    shares.leave(1);
    assert_eq!((shares.settle(now), shares.granted(2)), (vec![2], Some(10 * GIB)));
}

#[test]
fn one_that_keeps_what_was_taken_costs_the_others_and_not_the_newcomers_floor() {
    let (mut shares, mut now) = (open(10 * GIB), Instant::now());
    shares.enter(1, bounds(GIB, 5 * GIB), None);
    shares.enter(2, bounds(GIB, 5 * GIB), None);
    shares.enter(3, bounds(2 * GIB, 5 * GIB), None);
    // After a restart of the service both come with what they have.
    for _ in 0..3 {
        shares.settle(now);
        for id in [1, 2] {
            shares.asks(id, None, 5 * GIB, Curve::default());
        }
        now += Duration::from_secs(20);
    }
    assert_eq!((shares.granted(3), shares.granted_in_all()), (Some(0), 8 * GIB), "it waits for them");
    now += PATIENCE;
    shares.settle(now);
    let honest = shares.granted(2);
    shares.asks(2, honest, honest.unwrap_or_default(), Curve::default());
    shares.settle(now);
    assert_eq!(shares.granted(3), Some(2 * GIB), "{shares:?}");
    // A lie about what it holds counts up to its rule, and no further.
    shares.asks(1, None, u64::MAX, Curve::default());
    assert_eq!(shares.jobs[&1].owed, 5 * GIB);
}

#[test]
fn after_a_restart_jobs_have_what_they_had_whichever_comes_first() {
    let mut shares = Shares::closed(10 * GIB);
    shares.enter(1, bounds(GIB, 8 * GIB), Some(2 * GIB));
    shares.enter(2, bounds(GIB, 8 * GIB), None);
    assert_eq!(shares.settle(Instant::now()).len(), 0);
    shares.enter(3, bounds(GIB, 8 * GIB), Some(7 * GIB));
    assert_eq!([1, 2, 3].map(|id| shares.granted(id)), [Some(2 * GIB), Some(GIB), Some(7 * GIB)]);
    shares.open();
    assert_eq!(shares.settle(Instant::now()), [1, 2, 3]);
    assert_eq!([1, 2, 3].map(|id| shares.granted(id)), [Some(2 * GIB), Some(GIB), Some(7 * GIB)]);
    // What a job says that it had is no more than its rule.
    let mut shares = Shares::closed(10 * GIB);
    shares.enter(1, bounds(GIB, 3 * GIB), Some(u64::MAX));
    assert_eq!(shares.granted(1), Some(3 * GIB));
}

#[test]
fn a_newcomer_is_given_nothing_that_an_earlier_job_lacks() {
    let (mut shares, now) = (open(10 * GIB), Instant::now());
    shares.enter(1, bounds(GIB, 10 * GIB), None);
    shares.enter(2, bounds(4 * GIB, 10 * GIB), None);
    shares.settle(now);
    assert_eq!(shares.granted(2), Some(0), "it waits for the first, which never gives back");
    shares.leave(1);
    shares.enter(3, bounds(GIB, 10 * GIB), None);
    assert_eq!(shares.granted(3), Some(6 * GIB));
    shares.settle(now);
    assert!(shares.granted(2) >= Some(4 * GIB), "{shares:?}");
}

#[test]
fn a_job_with_a_cache_of_its_own_gives_back_what_is_beyond_that() {
    let (mut shares, now) = (open(10 * GIB), Instant::now());
    shares.enter(1, bounds(GIB, 8 * GIB), None);
    shares.enter(2, bounds(GIB, 8 * GIB), None);
    shares.asks(2, None, 2 * GIB, curve(8 * GIB, 0.6));
    shares.settle(now);
    assert_eq!(shares.granted(1), Some(2 * GIB));
    // Its script had set 3 GiB, below which it does not go.
    shares.asks(1, Some(2 * GIB), 3 * GIB, Curve::default());
    shares.settle(now);
    assert_eq!((shares.granted(2), shares.free()), (Some(7 * GIB), 0), "{shares:?}");
}

#[test]
fn small_differences_move_nothing() {
    let (mut shares, now) = (open(10 * GIB), Instant::now());
    for (id, all) in [(1, 0.300), (2, 0.305)] {
        shares.enter(id, bounds(GIB, 8 * GIB), None);
        shares.asks(id, None, 0, curve(8 * GIB, all));
    }
    settle_all(&mut shares, now);
    let before = [1, 2].map(|id| shares.granted(id));
    for (id, all) in [(1, 0.305), (2, 0.300)] {
        shares.asks(id, None, 0, curve(8 * GIB, all));
    }
    settle_all(&mut shares, now + Duration::from_secs(3600));
    assert_eq!([1, 2].map(|id| shares.granted(id)), before);
}

/// What a job does in the simulation.
#[derive(Clone, Debug)]
enum Move {
    Enter {
        floor: u64,
        most: u64,
    },
    Leave,
    /// Holds what it is granted and says what it is worth.
    Honest {
        bytes: u64,
        all: f64,
    },
    /// Says what it likes, of what it holds too.
    Lying {
        heard: Option<u64>,
        held: u64,
        claimed: Vec<(u64, f64)>,
    },
    Rebound {
        most: u64,
    },
    Keep,
    Budget(u64),
    Settle,
}

fn moves() -> impl Strategy<Value = Move> {
    let size = 0..4 * GIB;
    prop_oneof![
        4 => (size.clone(), size.clone()).prop_map(|(floor, most)| Move::Enter { floor, most }),
        1 => Just(Move::Leave),
        4 => (size.clone(), 0.0..1.0).prop_map(|(bytes, all)| Move::Honest { bytes, all }),
        2 => (any::<Option<u64>>(), any::<u64>(), proptest::collection::vec((any::<u64>(), any::<f64>()), 0..9))
            .prop_map(|(heard, held, claimed)| Move::Lying { heard, held, claimed }),
        1 => size.prop_map(|most| Move::Rebound { most }),
        1 => Just(Move::Keep),
        1 => (0..2000 * GIB).prop_map(Move::Budget),
        2 => Just(Move::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever 1,000 jobs do and say, and in any order.
    #[test]
    fn grants_never_exceed_the_budget_or_a_rule(
        start in proptest::collection::vec((0..2 * GIB, 0..4 * GIB), JOBS as usize),
        moves in proptest::collection::vec((0..JOBS, moves()), 300),
        budget in 0..2000 * GIB,
    ) {
        let mut shares = open(budget);
        let mut now = Instant::now();
        for (id, (floor, most)) in (0..).zip(start) {
            shares.enter(id, bounds(floor, most), None);
        }
        for (id, what) in moves {
            let granted = shares.granted(id);
            match what {
                Move::Enter { floor, most } if granted.is_none() => shares.enter(id, bounds(floor, most), None),
                Move::Enter { .. } => {}
                Move::Leave => shares.leave(id),
                Move::Honest { bytes, all } => shares.asks(id, granted, granted.unwrap_or(0), curve(bytes, all)),
                Move::Lying { heard, held, claimed } => {
                    shares.asks(id, heard.or(granted), held, Curve::of(&claimed));
                }
                Move::Rebound { most } => shares.rebound(id, bounds(0, most)),
                Move::Keep => shares.keep(id),
                Move::Budget(bytes) => shares.set_budget(bytes),
                Move::Settle => {
                    now += Duration::from_secs(7);
                    shares.settle(now);
                }
            }
            prop_assert!(shares.granted_in_all() <= shares.budget);
            for (id, share) in &shares.jobs {
                prop_assert!(share.granted <= share.bounds.most && share.granted <= share.owed, "{id}: {share:?}");
            }
        }
        settle_all(&mut shares, now);
        let mut left = shares.grantable();
        for (id, share) in &shares.jobs {
            let floor = share.bounds.floor.min(left);
            left -= floor;
            prop_assert!(share.granted >= floor, "{id} has {} of its floor {floor}", share.granted);
        }
        // Nothing that somebody may have lies idle.
        let wanted: u64 = shares.jobs.values().map(|share| share.bounds.most).sum();
        prop_assert!(shares.granted_in_all() + JOBS >= wanted.min(shares.grantable()));
    }

    /// Of two jobs with the same rule the one that saves more with the same memory never has less.
    #[test]
    fn shares_follow_benefit(
        worth in proptest::collection::vec(0.0..1.0_f64, JOBS as usize), budget in 250 * GIB..4000 * GIB,
    ) {
        let mut shares = open(budget);
        for (id, all) in (0..).zip(&worth) {
            shares.enter(id, bounds(GIB / 4, 4 * GIB), None);
            shares.asks(id, None, 0, curve(4 * GIB, *all));
        }
        settle_all(&mut shares, Instant::now());
        let targets = shares.targets();
        let mut by_worth: Vec<(f64, u64)> =
            (0..).zip(&worth).map(|(id, all)| (*all, targets[&id])).collect();
        by_worth.sort_by(|a, b| a.0.total_cmp(&b.0));
        prop_assert!(by_worth.windows(2).all(|pair| pair[0].0 == pair[1].0 || pair[0].1 <= pair[1].1), "{by_worth:?}");
        // And what is granted is worth as much, but for what moving it would not be.
        let value = |of: &dyn Fn(u64, &Share) -> u64| -> f64 {
            shares.jobs.iter().map(|(id, share)| share.curve.saved(of(*id, share))).sum()
        };
        prop_assert!(value(&|_, share| share.granted) >= value(&|id, _| targets[&id]) - WORTH);
    }
}
