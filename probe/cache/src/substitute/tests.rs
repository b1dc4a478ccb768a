use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// Everything of a class that is kept may be given.
fn all(classes: &[u32], share: f64) -> Substitutes {
    Substitutes::new(classes.to_vec(), share, 1, 0, 1)
}

#[test]
fn a_missing_sample_gets_one_of_its_class_that_is_kept() {
    let mut substitutes = all(&[0, 0, 1, 1, 0, 1], 1.0);
    let given = substitutes.batch(0, &[0, 2, 4], 0..3, 0, &|id| [1, 5].contains(&id));
    assert_eq!(given, [(0, 1), (1, 5)], "and the third has none that was not used");
}

#[test]
fn what_is_kept_or_being_read_gets_no_other() {
    let mut substitutes = all(&[0; 8], 1.0);
    let kept = |id: u32| id >= 4;
    assert_eq!(substitutes.batch(0, &[4, 5], 0..2, 0, &kept), []);
    let mut substitutes = all(&[0; 8], 0.5);
    // The first is within no quota of a half, and so it is read.
    assert_eq!(substitutes.batch(0, &[0], 0..1, 0, &kept), []);
    assert_eq!(substitutes.batch(1, &[0], 0..1, 0, &kept), [], "it is under way");
    substitutes.handed_over(2);
    assert_eq!(substitutes.batch(2, &[0], 0..1, 2, &kept).len(), 1);
}

#[test]
fn a_sample_of_the_same_batch_is_not_given() {
    let mut substitutes = all(&[0; 4], 1.0);
    assert_eq!(substitutes.batch(0, &[0, 3], 0..2, 0, &|id| id == 3), []);
}

#[test]
fn an_epoch_that_begins_has_used_nothing() {
    let mut substitutes = all(&[0; 4], 1.0);
    let kept = |id: u32| id == 3;
    assert_eq!(substitutes.batch(0, &[0], 0..1, 0, &kept), [(0, 3)]);
    assert_eq!(substitutes.batch(1, &[1], 0..1, 0, &kept), [], "it was given already");
    substitutes.begin(2);
    assert_eq!(substitutes.batch(2, &[1], 0..1, 2, &kept), [(0, 3)]);
}

#[test]
fn an_epoch_of_unknown_beginning_gives_nothing_until_it_is_over() {
    let mut substitutes = all(&[0; 4], 1.0);
    substitutes.begin_blind();
    assert_eq!(substitutes.batch(7, &[0], 0..1, 7, &|id| id == 3), []);
    substitutes.begin(8);
    assert_eq!(substitutes.batch(8, &[0], 0..1, 8, &|id| id == 3), [(0, 3)]);
}

#[test]
fn what_was_not_handed_over_is_not_in_a_state() {
    let mut substitutes = all(&[0; 16], 1.0);
    let kept = |id: u32| id >= 8;
    let first = substitutes.batch(0, &[0, 1], 0..2, 0, &kept);
    substitutes.handed_over(2);
    let state = substitutes.save();
    let ahead = substitutes.batch(2, &[2, 3, 4], 0..3, 2, &kept);
    assert_eq!(substitutes.save(), state);
    assert_eq!((first.len(), ahead.len()), (2, 3));
    let mut resumed = all(&[0; 16], 1.0);
    resumed.load(&state).unwrap();
    assert_eq!(resumed.save(), state);
    // Six of the eight that are kept are left.
    let given = resumed.batch(2, &[2, 3, 4, 5, 6, 7], 0..6, 2, &kept);
    let given: HashSet<u32> = given.into_iter().map(|(_, id)| id).collect();
    assert_eq!(given.len(), 6);
    assert!(first.iter().all(|(_, id)| !given.contains(id)));
}

#[test]
fn a_state_of_others_or_a_damaged_one_is_none() {
    let state = all(&[0; 16], 1.0).save();
    assert!(all(&[0; 17], 1.0).load(&state).is_none());
    for length in 0..state.len() {
        assert!(all(&[0; 16], 1.0).load(&state[..length]).is_none());
    }
}

#[derive(Clone, Debug)]
struct Job {
    classes: Vec<u32>,
    share: f64,
    kept: Vec<bool>,
    /// Global batches of an epoch, each of as many draws a rank.
    batches: Vec<Vec<u32>>,
    ranks: u32,
    /// Batches that are given before the first of them is handed over.
    ahead: usize,
}

fn job() -> impl Strategy<Value = Job> {
    (1usize..80, 1u32..4, 1usize..6).prop_flat_map(|(samples, ranks, each)| {
        (
            proptest::collection::vec(0u32..4, samples),
            prop_oneof![Just(0.0), Just(0.1), Just(1.0), 0.0..1.0],
            proptest::collection::vec(any::<bool>(), samples),
            proptest::collection::vec(
                proptest::collection::vec(0..samples as u32, each * ranks as usize),
                0..30,
            ),
            0usize..5,
        )
            .prop_map(move |(classes, share, kept, batches, ahead)| Job {
                classes,
                share,
                kept,
                batches,
                ranks,
                ahead,
            })
    })
}

proptest! {
    /// For every rank, whatever is drawn and kept: never more than the share, at no moment of the epoch; of the same
    /// class; kept; not used before in the epoch, by draws of any rank or as another's; and none on two ranks.
    #[test]
    fn what_is_given_is_within_the_rules(job in job()) {
        let mut drawn_before: HashSet<u32> = HashSet::new();
        let mut given_before: HashSet<u32> = HashSet::new();
        let is_kept = |id: u32| job.kept[id as usize];
        let mut of: Vec<Substitutes> = (0..job.ranks)
            .map(|rank| Substitutes::new(job.classes.clone(), job.share, 3, rank, job.ranks))
            .collect();
        let mut counts = vec![(0u64, 0u64); job.ranks as usize];
        let whole = job.batches.first().map_or(1, Vec::len);
        let each = whole / job.ranks as usize;
        for (number, drawn) in job.batches.iter().enumerate() {
            let at = (number * whole) as u64;
            let handed = (number.saturating_sub(job.ahead) * whole) as u64;
            let mut used: HashSet<u32> = drawn.iter().copied().collect();
            for (rank, substitutes) in of.iter_mut().enumerate() {
                substitutes.handed_over(handed);
                let mine = rank * each..(rank + 1) * each;
                let given = substitutes.batch(at, drawn, mine.clone(), handed, &is_kept);
                let places: HashSet<usize> = given.iter().map(|(place, _)| *place).collect();
                prop_assert_eq!(places.len(), given.len());
                counts[rank].0 += each as u64;
                counts[rank].1 += given.len() as u64;
                prop_assert!(counts[rank].1 as f64 <= job.share * counts[rank].0 as f64);
                for (place, other) in given {
                    prop_assert!(mine.contains(&place));
                    prop_assert!(is_kept(other) && !is_kept(drawn[place]));
                    prop_assert_eq!(job.classes[other as usize], job.classes[drawn[place] as usize]);
                    prop_assert!(!drawn.contains(&other));
                    prop_assert!(!drawn_before.contains(&other));
                    prop_assert!(given_before.insert(other), "given twice in an epoch");
                    used.insert(other);
                }
            }
            drawn_before.extend(used);
        }
    }

    #[test]
    fn bytes_of_anything_are_no_state(bytes: Vec<u8>) {
        prop_assert!(all(&[0; 16], 1.0).load(&bytes).is_none());
    }
}
