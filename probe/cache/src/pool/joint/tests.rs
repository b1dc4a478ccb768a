//! Ranks that share a space have the curve of one that has all their uses.

use super::super::board::{Read, find};
use super::super::layout::Layout;
use super::super::memory::Owned;
use super::*;
use crate::policy::Use;
use crate::random::Random;

const SAMPLES: u64 = 5000;
const SIZE: Size = Size { capacity_bytes: 100_000, kept_bytes: 1000, kept_samples: 10 };

struct Stage {
    policy: PolicyKind,
    joints: Joints,
    layout: Layout,
    index: Owned,
    data: Owned,
}

impl Stage {
    fn new(policy: PolicyKind) -> Stage {
        let layout = Layout::new(SAMPLES, 4096).unwrap();
        let index = Owned::create("index", layout.index_bytes()).unwrap();
        let data = Owned::create("data", layout.data_bytes).unwrap();
        Stage { policy, joints: Joints::new(SAMPLES), layout, index, data }
    }

    fn tell(&mut self, client: u64, joint: Joint) {
        let seen = Seen { layout: self.layout, index: &self.index.memory, data: &self.data.memory };
        self.joints.take(client, joint, self.policy, SIZE, seen);
    }

    fn leave(&mut self, client: u64) {
        let seen = Seen { layout: self.layout, index: &self.index.memory, data: &self.data.memory };
        self.joints.left(client, self.policy, seen);
    }

    fn curve(&self, loader: u64) -> Option<JointCurve> {
        let seen = Seen { layout: self.layout, index: &self.index.memory, data: &self.data.memory };
        match find(seen, loader) {
            Read::Here(curve) => Some(curve),
            _ => None,
        }
    }

    fn uses(&mut self, client: u64, ids: &[u32]) {
        let tracked = ids.iter().map(|id| (*id, Use::UNKNOWN, Use::UNKNOWN)).collect();
        self.tell(client, Joint::Used { count: ids.len() as u64, tracked });
    }
}

fn member(rank: u32, loader: u64) -> Member {
    Member { loader, samples: SAMPLES, epoch_uses: SAMPLES / 2, job: 7, rank, ranks: 2 }
}

/// A shuffle of all samples, an epoch.
fn epochs(count: usize) -> Vec<Vec<u32>> {
    let mut random = Random::new(5, "epochs");
    let mut ids: Vec<u32> = (0..SAMPLES as u32).collect();
    (0..count)
        .map(|_| {
            random.shuffle(&mut ids);
            ids.clone()
        })
        .collect()
}

#[test]
fn what_two_ranks_tell_makes_the_curve_of_one_that_tells_it_all() {
    let tracked = Tracked::of(SAMPLES);
    for policy in PolicyKind::ALL {
        let mut stage = Stage::new(policy);
        let mut one = Ghost::new(policy, SAMPLES);
        one.size(SIZE.capacity_bytes, 100.0);
        assert_eq!(stage.curve(9), None);
        stage.tell(1, Joint::Join(member(0, 9)));
        stage.tell(2, Joint::Join(member(1, 9)));
        let curve = stage.curve(9).unwrap();
        assert_eq!((curve.teller, curve.ranks, curve.is_mixed, curve.points.len()), (0, 2, false, 0));
        for (nth, epoch) in epochs(3).iter().enumerate() {
            // Each says so, one after the other.
            for client in [1, 2] {
                stage.tell(client, Joint::Epoch(nth as u64 + 1));
            }
            one.epoch();
            for (nth, batch) in epoch.chunks(50).enumerate() {
                let client = 1 + nth as u64 % 2;
                let planned: Vec<(u32, u64)> =
                    batch.iter().map(|id| (*id, 9000 + u64::from(*id) * 7 % 5000)).collect();
                let scored: Vec<(u32, f64)> = batch.iter().map(|id| (*id, f64::from(id % 13))).collect();
                stage.uses(client, batch);
                stage.tell(client, Joint::Planned(planned.clone()));
                stage.tell(client, Joint::Scored(scored.clone()));
                one.handed(batch.len() as u64);
                batch
                    .iter()
                    .filter(|id| tracked.has(**id))
                    .for_each(|id| one.used(*id, Use::UNKNOWN, Use::UNKNOWN));
                planned.into_iter().for_each(|(id, next_at)| one.planned(id, next_at));
                one.settle();
                scored.into_iter().for_each(|(id, score)| one.scored(id, score));
            }
        }
        let curve = stage.curve(9).unwrap();
        assert_eq!(curve.points.len(), 5);
        assert_eq!((curve.points, curve.dataset_bytes), (one.curve(), one.dataset_bytes()), "{policy}");
        stage.leave(1);
        let curve = stage.curve(9).unwrap();
        assert_eq!((curve.teller, curve.ranks), (1, 2), "who is left tells what both have fed");
        stage.leave(2);
        assert_eq!(stage.curve(9), None);
    }
}

#[test]
fn jobs_that_cannot_be_distinguished_have_no_curve_until_one_is_alone() {
    let mut stage = Stage::new(PolicyKind::Lru);
    let fed = |stage: &mut Stage| {
        epochs(3).iter().flat_map(|epoch| epoch.chunks(50)).for_each(|batch| stage.uses(1, batch));
    };
    stage.tell(1, Joint::Join(member(0, 9)));
    fed(&mut stage);
    assert_eq!(stage.curve(9).unwrap().points.len(), 5);
    for other in [member(0, 9), Member { job: 8, ..member(1, 9) }, Member { ranks: 3, ..member(1, 9) }] {
        stage.tell(2, Joint::Join(other));
        let curve = stage.curve(9).unwrap();
        assert!(curve.is_mixed && curve.points.is_empty(), "{other:?}");
        fed(&mut stage);
        assert!(stage.curve(9).unwrap().points.is_empty());
        stage.leave(2);
        let curve = stage.curve(9).unwrap();
        assert!(!curve.is_mixed && curve.points.is_empty(), "it begins anew");
        fed(&mut stage);
        assert_eq!(stage.curve(9).unwrap().points.len(), 5);
    }
    stage.tell(1, Joint::Join(member(0, 9)));
    assert!(stage.curve(9).unwrap().points.is_empty(), "uses were lost");
    // Also those of a rank that comes back on another connection.
    for (lost, back) in [(2, 2), (2, 3)] {
        stage.tell(lost, Joint::Join(member(1, 9)));
        fed(&mut stage);
        assert_eq!(stage.curve(9).unwrap().points.len(), 5);
        if back != lost {
            stage.leave(lost);
            assert_eq!(stage.curve(9).unwrap().points.len(), 5, "who has ended loses nothing");
        }
        stage.tell(back, Joint::Join(member(1, 9)));
        let curve = stage.curve(9).unwrap();
        assert_eq!((curve.points.len(), curve.ranks), (0, 2));
    }
}

#[test]
fn ranks_of_one_node_of_many_have_a_curve_after_as_many_epochs_as_all_ranks_of_one() {
    let mut stage = Stage::new(PolicyKind::Lru);
    let here = |rank| Member { epoch_uses: SAMPLES / 8, ranks: 8, ..member(rank, 9) };
    stage.tell(1, Joint::Join(here(0)));
    stage.tell(2, Joint::Join(here(1)));
    let counted: Vec<usize> = epochs(4)
        .iter()
        .zip(1..)
        .map(|(epoch, number)| {
            [1, 2].iter().for_each(|client| stage.tell(*client, Joint::Epoch(number)));
            let part = epoch[..SAMPLES as usize / 4].chunks(50);
            part.zip([1, 2].iter().cycle()).for_each(|(batch, client)| stage.uses(*client, batch));
            stage.curve(9).unwrap().points.len()
        })
        .collect();
    assert_eq!(counted, [0, 5, 5, 5]);
    stage.tell(2, Joint::Join(Member { epoch_uses: u64::MAX, ..here(1) }));
    stage.tell(2, Joint::Join(Member { epoch_uses: 0, ..here(1) }));
}

#[test]
fn a_job_that_is_started_anew_counts_its_epochs_from_the_first_on() {
    let mut stage = Stage::new(PolicyKind::Lru);
    // Less than two epochs in one go: only their beginnings end what is counted.
    let epoch = |stage: &mut Stage, clients: &[u64], number: u64| {
        clients.iter().for_each(|client| stage.tell(*client, Joint::Epoch(number)));
        epochs(1)[0].chunks(50).enumerate().for_each(|(nth, batch)| {
            stage.uses(clients[nth % clients.len()], batch);
        });
    };
    stage.tell(1, Joint::Join(member(0, 9)));
    stage.tell(2, Joint::Join(member(1, 9)));
    (1..8).for_each(|number| epoch(&mut stage, &[1, 2], number));
    // The last of the old ranks ends after the first of the new ones has come.
    stage.leave(1);
    stage.tell(3, Joint::Join(member(0, 9)));
    stage.leave(2);
    stage.tell(4, Joint::Join(member(1, 9)));
    assert!(stage.curve(9).unwrap().points.is_empty());
    epoch(&mut stage, &[3, 4], 1);
    assert!(stage.curve(9).unwrap().points.is_empty(), "caches fill");
    [3, 4].iter().for_each(|client| stage.tell(*client, Joint::Epoch(2)));
    epochs(1)[0][..1000].chunks(50).for_each(|batch| stage.uses(3, batch));
    assert_eq!(stage.curve(9).unwrap().points.len(), 5);
}

#[test]
fn loaders_have_curves_of_their_own_as_far_as_there_is_capacity() {
    let mut stage = Stage::new(PolicyKind::Lru);
    for loader in 0..BOARDS as u64 + 3 {
        stage.tell(loader, Joint::Join(member(loader as u32, loader)));
        stage.uses(loader, &[1, 2, 3]);
    }
    for loader in 0..BOARDS as u64 + 3 {
        let teller = stage.curve(loader).map(|curve| u64::from(curve.teller));
        assert_eq!(teller, (loader < BOARDS as u64).then_some(loader));
    }
    // These have nothing to do with the space.
    stage.tell(50, Joint::Join(Member { samples: 3, ..member(9, 0) }));
    stage.tell(51, Joint::Join(Member { samples: u64::MAX, ..member(9, 60) }));
    assert_eq!(stage.curve(0).unwrap().ranks, 1);
    stage.tell(52, Joint::Join(Member { samples: SAMPLES + 1, ..member(3, 70) }));
    stage.uses(0, &[1, 2, 3]);
    stage.tell(0, Joint::Join(Member { samples: 3, ..member(0, 0) }));
    assert_eq!((stage.curve(0), stage.curve(70)), (None, None));
    stage.leave(4);
    stage.tell(52, Joint::Join(member(3, 70)));
    assert_eq!(stage.curve(70).unwrap().teller, 3);
}

#[test]
fn what_nobody_wants_to_hear_does_no_harm() {
    let mut stage = Stage::new(PolicyKind::Lru);
    stage.uses(1, &[1, 2]);
    stage.tell(1, Joint::Join(member(0, 9)));
    stage.uses(1, &[u32::MAX, SAMPLES as u32]);
    stage.tell(1, Joint::Planned(vec![(u32::MAX, 3), (1, u64::MAX)]));
    stage.tell(1, Joint::Scored(vec![(u32::MAX, f64::NAN), (1, f64::NAN)]));
    stage.tell(1, Joint::Epoch(u64::MAX));
    stage.tell(1, Joint::Used { count: u64::MAX, tracked: Vec::new() });
    stage.tell(1, Joint::Used { count: u64::MAX, tracked: Vec::new() });
    assert_eq!(stage.curve(9).unwrap().points, []);
}
