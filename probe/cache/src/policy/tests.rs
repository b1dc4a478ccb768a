use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const SIZE: u32 = 10;

/// Hits of a policy over uses whose next uses are all known.
fn hits(kind: PolicyKind, ids: &[u32], capacity_bytes: u64) -> u64 {
    let mut policy = kind.make(capacity_bytes);
    let mut evicted = Vec::new();
    let mut hits = 0;
    for (at, id) in ids.iter().enumerate() {
        let next = ids[at + 1..].iter().position(|later| later == id);
        let next_at = next.map_or(Use::UNKNOWN, |after| (at + 1 + after) as u64);
        let used = Use { id: *id, bytes: SIZE, at: at as u64, next_at };
        if policy.contains(*id) {
            hits += 1;
            policy.hit(&used);
        } else {
            policy.miss(&used, &mut evicted);
        }
    }
    hits
}

/// The most hits that are possible, by trying everything.
fn most_hits(ids: &[u32], capacity: usize) -> u64 {
    let mut states: HashMap<Vec<u32>, u64> = HashMap::from([(Vec::new(), 0)]);
    for id in ids {
        let mut after: HashMap<Vec<u32>, u64> = HashMap::new();
        let mut reach = |mut kept: Vec<u32>, hits: u64| {
            kept.sort_unstable();
            let best = after.entry(kept).or_default();
            *best = hits.max(*best);
        };
        for (kept, hits) in states {
            if kept.contains(id) {
                reach(kept, hits + 1);
                continue;
            }
            reach(kept.clone(), hits);
            if kept.len() < capacity {
                reach([&kept[..], &[*id]].concat(), hits);
            }
            for victim in 0..kept.len() {
                let mut others = kept.clone();
                others[victim] = *id;
                reach(others, hits);
            }
        }
        states = after;
    }
    states.into_values().max().unwrap_or(0)
}

proptest! {
    #[test]
    fn min_has_as_many_hits_as_are_possible(ids in prop::collection::vec(0u32..6, 1..14), capacity in 1usize..4) {
        let found = hits(PolicyKind::Min, &ids, capacity as u64 * u64::from(SIZE));
        prop_assert_eq!(found, most_hits(&ids, capacity));
    }

    #[test]
    fn no_policy_keeps_more_than_its_capacity(
        steps in prop::collection::vec((0u32..30, 0u32..40, any::<f64>(), 0u8..12), 1..200),
        capacity_bytes in 0u64..300,
    ) {
        for kind in PolicyKind::ALL {
            let mut policy = kind.make(capacity_bytes);
            let mut capacity_bytes = capacity_bytes;
            let mut kept: HashMap<u32, u32> = HashMap::new();
            for (at, (id, bytes, score, what)) in steps.iter().enumerate() {
                let mut evicted = Vec::new();
                // A sample keeps its size.
                let bytes = kept.get(id).copied().unwrap_or(*bytes);
                let used = Use { id: *id, bytes, at: at as u64, next_at: at as u64 + 1 + u64::from(*id) };
                match what {
                    0 => policy.epoch(),
                    1 => {
                        capacity_bytes = u64::from(bytes) * 3;
                        policy.resize(capacity_bytes, &mut evicted);
                    }
                    2 => policy.planned(*id, at as u64 + 5),
                    3..5 => policy.scored(*id, *score),
                    5 => {
                        policy.forget(*id);
                        kept.remove(id);
                    }
                    _ if policy.contains(*id) => policy.hit(&used),
                    _ => {
                        if policy.miss(&used, &mut evicted) {
                            kept.insert(*id, bytes);
                        } else {
                            prop_assert!(evicted.is_empty(), "{} let go for nothing", kind);
                        }
                    }
                }
                for id in evicted {
                    prop_assert!(kept.remove(&id).is_some(), "{} let go what it had not", kind);
                }
                let bytes: u64 = kept.values().copied().map(u64::from).sum();
                prop_assert_eq!(policy.used_bytes(), bytes);
                prop_assert!(bytes <= capacity_bytes, "{}", kind);
                prop_assert!((0..30).all(|id| policy.contains(id) == kept.contains_key(&id)), "{}", kind);
            }
        }
    }
}

#[test]
fn the_least_important_goes_first() {
    for kind in [PolicyKind::Shade, PolicyKind::Icache] {
        let mut policy = kind.make(2 * u64::from(SIZE));
        for (id, score) in [(1, 3.0), (2, 1.0), (3, 2.0), (4, f64::NAN)] {
            policy.scored(id, score);
        }
        policy.epoch();
        let mut evicted = Vec::new();
        let mut miss = |id: u32| {
            let used = Use { id, bytes: SIZE, at: u64::from(id), next_at: Use::UNKNOWN };
            policy.miss(&used, &mut evicted)
        };
        assert!(miss(1) && miss(2), "{kind} has capacity");
        assert!(miss(3), "{kind} keeps what is above the least");
        assert!(!miss(4), "{kind} keeps nothing for what is no score");
        assert_eq!(evicted, [2], "{kind}");
    }
}
