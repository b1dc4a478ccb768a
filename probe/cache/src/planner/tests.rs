use super::*;
use crate::draws::Selection;
use crate::policy::PolicyKind;
use proptest::prelude::*;

#[test]
fn every_next_use_is_that_of_the_same_sample_and_none_lies_between() {
    let kinds = [
        DrawKind::Plain,
        DrawKind::Importance,
        DrawKind::Reuse { uses: 3, window_share: 0.2, pinned_share: 0.1 },
    ];
    for kind in kinds {
        let mut planner = Planner::new(kind, 40, 5);
        let mut policy = PolicyKind::Min.make(10);
        let uses: Vec<Planned> = (0..400).map(|_| planner.next(policy.as_mut())).collect();
        let mut known = 0;
        for (at, planned) in uses.iter().enumerate() {
            assert_eq!(planned.at, at as u64);
            let next = uses[at + 1..].iter().find(|later| later.draw.id == planned.draw.id);
            if planned.next_at != Use::UNKNOWN && planned.next_at < 400 {
                known += 1;
                assert_eq!(next.map(|next| next.at), Some(planned.next_at), "{kind:?}");
            }
        }
        assert!(known > 100, "{kind:?} knows {known} next uses");
    }
}

#[test]
fn the_policy_hears_what_becomes_known_later() {
    #[derive(Debug)]
    struct Heard(Vec<(u32, u64)>);
    impl Policy for Heard {
        fn contains(&self, _: u32) -> bool {
            false
        }
        fn used_bytes(&self) -> u64 {
            0
        }
        fn hit(&mut self, _: &Use) {}
        fn miss(&mut self, _: &Use, _: &mut Vec<u32>) -> bool {
            false
        }
        fn planned(&mut self, id: u32, next_at: u64) {
            self.0.push((id, next_at));
        }
        fn forget(&mut self, _: u32) {}
        fn resize(&mut self, _: u64, _: &mut Vec<u32>) {}
    }
    let mut planner = Planner::new(DrawKind::Importance, 30, 1);
    let mut heard = Heard(Vec::new());
    let uses: Vec<Planned> = (0..90).map(|_| planner.next(&mut heard)).collect();
    assert!(!heard.0.is_empty());
    for (id, at) in heard.0 {
        if let Some(planned) = uses.get(at as usize) {
            assert_eq!(planned.draw.id, id);
        }
    }
}

fn kinds() -> Vec<DrawKind> {
    vec![
        DrawKind::Plain,
        DrawKind::Importance,
        DrawKind::Iis(Selection::Corrected),
        DrawKind::Shade { selection: Selection::Corrected, copies: 1.0 },
        DrawKind::Reuse { uses: 2, window_share: 0.2, pinned_share: 0.1 },
    ]
}

/// Hands over batches of 8 up to `end`, tells losses, and gives what was handed over.
fn hand_over(planner: &mut Planner, from: u64, end: u64) -> Vec<(u32, u32, u64)> {
    let mut handed = Vec::new();
    for place in (from..end).step_by(8) {
        planner.plan(place);
        let taken = planner.take(place, 8);
        let ids: Vec<u32> = taken.iter().map(|planned| planned.draw.id).collect();
        let losses: Vec<f32> = taken.iter().map(|planned| (planned.draw.id % 9) as f32).collect();
        handed.extend(taken.iter().map(|one| (one.draw.id, one.draw.weight.to_bits(), one.at)));
        planner.learn(0, &ids, &losses);
        planner.let_go(place + 8);
    }
    handed
}

#[test]
fn a_planner_that_is_taken_up_draws_what_it_would_have_drawn() {
    for kind in kinds() {
        for stop in [0, 40, 808, 4000] {
            let mut whole = Planner::new(kind, 200, 3);
            hand_over(&mut whole, 0, stop);
            let mut resumed = Planner::resumed(kind, 200, 3, &whole.save()).unwrap();
            assert_eq!(hand_over(&mut resumed, stop, 6000), hand_over(&mut whole, stop, 6000), "{kind:?}");
            assert_eq!(resumed.save(), whole.save(), "{kind:?}");
        }
    }
}

#[test]
fn draws_do_not_depend_on_how_far_a_loader_reads_ahead() {
    for kind in kinds() {
        let mut near = Planner::new(kind, 200, 3);
        let mut far = Planner::new(kind, 200, 3);
        for place in (0..3000).step_by(8) {
            near.plan(place);
            far.plan(place);
            far.take(place, 120);
            let taken = near.take(place, 8);
            for planner in [&mut near, &mut far] {
                let ids: Vec<u32> = taken.iter().map(|planned| planned.draw.id).collect();
                planner.learn(0, &ids, &[2.0; 8]);
                planner.let_go(place + 8);
            }
        }
        assert_eq!(near.save(), far.save(), "{kind:?}");
    }
}

#[test]
fn next_uses_that_become_known_after_a_draw_was_taken_are_given_once_it_was_used() {
    let mut planner = Planner::new(DrawKind::Importance, 100, 3);
    let mut next_uses = std::collections::HashMap::new();
    let mut uses = Vec::new();
    for place in (0..4000).step_by(10) {
        planner.plan(place);
        // A loader that has 40 draws under way.
        planner.take(place, 40);
        for planned in planner.take(place, 10) {
            uses.push(planned.draw.id);
        }
        planner.let_go(place + 10);
        for late in planner.late_uses(place + 10, usize::MAX) {
            assert!(late.at < place + 10 && late.next_at > late.at);
            next_uses.insert(late.at, (late.id, late.next_at));
        }
    }
    assert!(!next_uses.is_empty());
    for (at, (id, next_at)) in next_uses {
        assert_eq!(uses[at as usize], id);
        let next = uses[at as usize + 1..].iter().position(|later| *later == id);
        if (next_at as usize) < uses.len() {
            assert_eq!(next.map(|next| at + 1 + next as u64), Some(next_at));
        }
    }
}

#[test]
fn chunks_end_where_they_were_planned_to_until_they_are_let_go() {
    let mut planner = Planner::new(DrawKind::Plain, 30, 1);
    planner.plan(0);
    assert_eq!(
        (planner.chunk_end(0), planner.chunk_end(1), planner.chunk_end(2)),
        (Some(30), Some(60), None)
    );
    planner.take(0, 31);
    planner.let_go(31);
    planner.plan(31);
    assert_eq!(
        (planner.chunk_end(0), planner.chunk_end(1), planner.chunk_end(2)),
        (None, Some(60), Some(90))
    );
    assert!(planner.take(29, 5).len() == 3, "what was let go is not given again");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_bytes_are_taken_up_or_refused(at in 0usize..4000, flip: u8, cut in 0usize..4000, bytes: Vec<u8>) {
        for kind in kinds() {
            prop_assert!(Planner::resumed(kind, 50, 1, &bytes).is_none());
            let mut planner = Planner::new(kind, 50, 1);
            hand_over(&mut planner, 0, 80);
            let mut state = planner.save();
            state.truncate(state.len().saturating_sub(cut % 64));
            let at = at % state.len();
            state[at] ^= flip;
            if let Some(mut resumed) = Planner::resumed(kind, 50, 1, &state) {
                let from = resumed.drawn();
                for planned in hand_over(&mut resumed, from, from + 400) {
                    prop_assert!(planned.0 < 50);
                }
            }
        }
    }
}

#[test]
fn low_are_the_least_important_of_what_was_trained_on() {
    for kind in [DrawKind::Importance, DrawKind::Iis(Selection::Corrected)] {
        let mut planner = Planner::new(kind, 100, 1);
        planner.reach(100);
        assert!(planner.low(0, 100).is_empty(), "{kind:?}");
        let ids: Vec<u32> = (0..50).collect();
        let losses: Vec<f32> = ids.iter().map(|id| *id as f32).collect();
        planner.learn(0, &ids, &losses);
        let low = planner.low(0, 100);
        assert!(!low.is_empty() && low.len() <= 30 && low.iter().all(|id| *id < 50), "{kind:?} {low:?}");
        let others = planner.ids(0, 100).into_iter().filter(|id| *id < 50 && !low.contains(id));
        let least = others.min().unwrap_or(u32::MAX);
        assert!(low.iter().all(|id| *id < least), "{kind:?} {low:?} {least}");
    }
}
