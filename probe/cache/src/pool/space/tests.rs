//! A space against a model: what a client sees of it is always some sample's own bytes, and memory stays within bounds.

use super::super::mapping::HUGE_BYTES;
use super::super::memory::PAGE_BYTES;
use super::*;
use crate::policy::PolicyKind;
use proptest::prelude::*;

const SAMPLES: u64 = 24;
const CLIENT: u64 = 7;

fn space(policy: PolicyKind, capacity_bytes: u64) -> Space {
    let greeting = Greeting { samples: SAMPLES, capacity_bytes, policy, key: vec![] };
    Space::new(greeting, Layout::new(SAMPLES, 1 << 22).unwrap()).unwrap()
}

/// Bytes that no other sample and no other tag has.
fn bytes_of(id: u32, tag: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u64 * 31 + u64::from(id) * 7 + tag * 131) as u8).collect()
}

/// What a client finds.
fn look(space: &Space, id: u32) -> Option<(u64, Vec<u8>)> {
    let slot = space.seen().slot(u64::from(id))?;
    let entry = slot.entry()?;
    let mut bytes = vec![0; entry.bytes as usize];
    let data = space.seen().blocks()?;
    // SAFETY: it has capacity for as many.
    assert!(unsafe { data.copy(entry.first, entry.bytes, bytes.as_mut_ptr()) } && slot.still(entry));
    Some((entry.tag, bytes))
}

/// Claims and fills a sample in pieces; how that was answered.
fn fill(space: &mut Space, id: u32, tag: u64, bytes: &[u8], at: u64) -> Answer {
    let (who, mut answers) = ((CLIENT, at as u32 + 1), Answers::new());
    space.fill((id, at, at + 1 + u64::from(id)), (tag, bytes.len() as u64), who, 0, &mut answers);
    if answers.pop() == Some((who, Answer::Send)) {
        assert_eq!(space.missing(id, who), Some(bytes.len() as u64));
        for piece in bytes.chunks(1000) {
            assert!(answers.is_empty() && space.receive(id, who, piece, 0, &mut answers));
        }
        return answers.pop().unwrap().1;
    }
    Answer::No
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_kept_is_whole_and_within_the_capacity(
        steps in prop::collection::vec((0u8..12, 0u32..SAMPLES as u32 + 2, 0usize..30_000, 0u64..3), 1..120),
        policy in 0usize..5,
        first in 1usize..40_000,
    ) {
        let mut capacity_bytes = 200_000;
        let mut space = space(PolicyKind::ALL[policy], capacity_bytes);
        fill(&mut space, 0, 0, &bytes_of(0, 0, first), 0);
        let mut most_bytes = capacity_bytes;
        for (at, (what, id, length, tag)) in steps.into_iter().enumerate() {
            let at = at as u64 + 1;
            match what {
                0 => {
                    capacity_bytes = length as u64 * 10;
                    space.resize(capacity_bytes, 0);
                    most_bytes = capacity_bytes;
                }
                1 => space.scored(&[(id, length as f64)]),
                2 => space.used(&[(id, at, at + length as u64)]),
                3 => space.epoch(),
                4 => {
                    // A fill that stops in its midst.
                    let (who, mut answers) = ((CLIENT + 1, at as u32), Answers::new());
                    space.fill((id, at, at + 2), (tag, length as u64), who, 0, &mut answers);
                    space.receive(id, who, &vec![255; length / 16 * 8], 0, &mut answers);
                    if length.is_multiple_of(2) {
                        space.left(CLIENT + 1, 0, &mut answers);
                    }
                }
                _ => {
                    let bytes = bytes_of(id, tag, length);
                    let kept = fill(&mut space, id, tag, &bytes, at) == Answer::Yes;
                    if kept {
                        prop_assert_eq!(look(&space, id), Some((tag, bytes)));
                    }
                }
            }
            let kept: Vec<u32> = (0..SAMPLES as u32).filter(|id| space.kept.contains_key(id)).collect();
            for id in 0..SAMPLES as u32 {
                let seen = look(&space, id);
                prop_assert_eq!(seen.is_some(), kept.contains(&id), "sample {}", id);
                if let Some((tag, bytes)) = seen
                    && !(id == 0 && bytes.len() == first)
                {
                    prop_assert_eq!(&bytes, &bytes_of(id, tag, bytes.len()), "sample {}", id);
                }
            }
            prop_assert!(space.policy.used_bytes() <= capacity_bytes);
            let arriving: u64 = space.arriving.values().map(|fill| space.charge(&fill.stored.runs)).sum();
            prop_assert_eq!(space.policy.used_bytes(), space.kept_bytes + arriving);
            let taken_bytes = space.data.taken_bytes();
            prop_assert!(taken_bytes <= most_bytes.next_multiple_of(PAGE_BYTES as u64), "{taken_bytes} bytes taken");
        }
    }
}

#[test]
fn a_space_that_shrinks_gives_memory_back_and_keeps_what_fits() {
    let mut space = space(PolicyKind::MinIo, 1 << 20);
    for id in 0..20 {
        assert_eq!(fill(&mut space, id, 1, &bytes_of(id, 1, 50_000), u64::from(id)), Answer::Yes);
    }
    assert!(space.data.taken_bytes() > 1_000_000);
    space.resize(200_000, 0);
    assert!(space.data.taken_bytes() <= 200_704, "{} bytes", space.data.taken_bytes());
    let kept: Vec<u32> = (0..20).filter(|id| look(&space, *id).is_some()).collect();
    assert_eq!(kept.len(), 3);
    for id in kept {
        assert_eq!(look(&space, id), Some((1, bytes_of(id, 1, 50_000))));
    }
    space.resize(1 << 20, 0);
    assert_eq!(fill(&mut space, 21, 1, &bytes_of(21, 1, 50_000), 30), Answer::Yes);
}

#[test]
fn samples_lie_in_huge_pages_which_are_given_back_like_others() {
    let greeting =
        Greeting { samples: SAMPLES, capacity_bytes: 9 << 20, policy: PolicyKind::MinIo, key: vec![] };
    let mut space = Space::new(greeting, Layout::new(SAMPLES, 16 << 20).unwrap()).unwrap();
    let filled = |space: &mut Space, ids: std::ops::Range<u32>| {
        for id in ids {
            assert_eq!(fill(space, id, 1, &bytes_of(id, 1, 1 << 20), u64::from(id)), Answer::Yes);
        }
    };
    filled(&mut space, 0..9);
    // The kernel may have none, of some places or at all.
    let refused_bytes = |space: &Space| space.data.refusals as usize * HUGE_BYTES;
    if space.data.memory.huge_bytes() == 0 {
        println!("SKIPPED: this kernel gives memfds no huge pages when asked");
    }
    let within = "whatever lies within the capacity, and not a page beyond it";
    assert_eq!(space.data.memory.huge_bytes() + refused_bytes(&space), 8 << 20, "{within}");
    let same = |space: &Space, ids: std::ops::Range<u32>| {
        ids.filter(|id| look(space, *id) == Some((1, bytes_of(*id, 1, 1 << 20)))).count()
    };
    assert_eq!(same(&space, 0..9), 9);
    space.resize(3 << 20, 0);
    assert!(space.data.taken_bytes() <= 3 << 20, "{} bytes", space.data.taken_bytes());
    assert_eq!(same(&space, 0..9), 3);
    space.resize(16 << 20, 0);
    filled(&mut space, 9..20);
    assert_eq!(same(&space, 0..20), 14);
    assert!(space.data.memory.huge_bytes() + refused_bytes(&space) >= 12 << 20);
}

#[test]
fn a_fill_whose_bytes_do_not_come_makes_place_for_others() {
    let mut space = space(PolicyKind::MinIo, 100_000);
    let (slow, next, mut answers) = ((1, 1), (2, 1), Answers::new());
    space.claim((3, None), slow, 0, 100, &mut answers);
    space.fill((3, 0, 0), (1, 90_000), slow, 0, &mut answers);
    space.claim((3, None), next, 0, 60_000, &mut answers);
    assert_eq!(answers, [(slow, Answer::Yes), (slow, Answer::Send)]);
    answers.clear();
    let until_ms = space.expire(0, &mut answers).unwrap();
    assert!(answers.is_empty());
    space.expire(until_ms, &mut answers);
    assert_eq!(answers, [(next, Answer::Yes)]);
    assert_eq!(space.policy.used_bytes(), 0);
}
