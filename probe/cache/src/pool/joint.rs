//! One miss-ratio curve for all ranks that share a space: their uses go through one set of caches, in the order in which they
//! come, which is that of their batches.

use super::board::{self, BOARDS, JointCurve};
use super::layout::Seen;
use super::message::{Joint, Member};
use crate::ghost::{Ghost, Tracked};
use crate::policy::PolicyKind;
use std::collections::{BTreeMap, BTreeSet};

/// How large a space is, and what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) capacity_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) kept_samples: u64,
}

/// The ranks that iterate one loader.
#[derive(Debug)]
struct Group {
    board: usize,
    samples: u64,
    tracked: Tracked,
    /// By client.
    members: BTreeMap<u64, Member>,
    /// How many members it had at a time: one that ends was of it still.
    most: u32,
    /// Of the rank that is ahead.
    epochs: u64,
    /// None while jobs cannot be distinguished.
    ghost: Option<Ghost>,
}

/// Of one space, by loader.
#[derive(Debug)]
pub(crate) struct Joints {
    samples: u64,
    /// Found once: to find it takes a while, and everybody else in the pool would wait for it at each join.
    tracked: Option<Tracked>,
    groups: BTreeMap<u64, Group>,
}

impl Joints {
    /// Of so many samples.
    pub(crate) fn new(samples: u64) -> Joints {
        Joints { samples, tracked: None, groups: BTreeMap::new() }
    }

    /// What a client sent.
    pub(crate) fn take(&mut self, client: u64, joint: Joint, policy: PolicyKind, size: Size, seen: Seen<'_>) {
        if let Joint::Join(member) = joint {
            self.left(client, policy, seen);
            return self.join(client, member, policy, seen);
        }
        let group = self.groups.iter_mut().find(|(_, group)| group.members.contains_key(&client));
        let Some((loader, group)) = group else { return };
        let Some(ghost) = &mut group.ghost else { return };
        let known = |id: u32| u64::from(id) < self.samples;
        match joint {
            Joint::Join(_) => {}
            Joint::Used { count, tracked } => {
                if size.kept_samples > 0 {
                    ghost.size(size.capacity_bytes, size.kept_bytes as f64 / size.kept_samples as f64);
                }
                ghost.handed(count);
                for (id, at, next_at) in tracked.into_iter().filter(|(id, ..)| known(*id)) {
                    if ghost.is_tracked(id) {
                        ghost.used(id, at, next_at);
                    }
                }
                group.publish(*loader, seen);
            }
            Joint::Planned(planned) => {
                for (id, next_at) in planned.into_iter().filter(|(id, _)| known(*id)) {
                    ghost.planned(id, next_at);
                }
                ghost.settle();
            }
            Joint::Scored(scored) => {
                scored
                    .into_iter()
                    .filter(|(id, _)| known(*id))
                    .for_each(|(id, score)| ghost.scored(id, score));
            }
            Joint::Epoch(number) => {
                if number > group.epochs {
                    group.epochs = number;
                    ghost.epoch();
                }
            }
        }
    }

    fn join(&mut self, client: u64, member: Member, policy: PolicyKind, seen: Seen<'_>) {
        let taken: BTreeSet<usize> = self.groups.values().map(|group| group.board).collect();
        let free = (0..BOARDS).find(|board| !taken.contains(board));
        let there = self.groups.contains_key(&member.loader);
        // One loader too many has no curve; ids are 32 bits.
        let is_ours = member.samples == self.samples && member.samples <= u64::from(u32::MAX);
        let (Some(board), true) = (free.or(there.then_some(0)), is_ours) else { return };
        let tracked = *self.tracked.get_or_insert_with(|| Tracked::of(self.samples));
        let group = self.groups.entry(member.loader).or_insert_with(|| Group {
            board,
            samples: self.samples,
            tracked,
            members: BTreeMap::new(),
            most: 0,
            epochs: 0,
            ghost: None,
        });
        // Somebody was lost, with uses; or what comes is started anew.
        if group.members.len() < group.most as usize {
            group.ghost = None;
        }
        group.members.insert(client, member);
        group.settle(policy);
        group.publish(member.loader, seen);
    }

    /// A client is gone, or begins anew.
    pub(crate) fn left(&mut self, client: u64, policy: PolicyKind, seen: Seen<'_>) {
        self.groups.retain(|loader, group| {
            if group.members.remove(&client).is_none() {
                return true;
            }
            if group.members.is_empty() {
                board::write(seen.board(group.board), None);
                return false;
            }
            group.settle(policy);
            group.publish(*loader, seen);
            true
        });
    }
}

impl Group {
    /// Whether it has ranks of more than one job.
    fn is_mixed(&self) -> bool {
        let ranks: BTreeSet<u32> = self.members.values().map(|member| member.rank).collect();
        let jobs: BTreeSet<(u64, u32)> =
            self.members.values().map(|member| (member.job, member.ranks)).collect();
        ranks.len() < self.members.len() || jobs.len() > 1
    }

    /// Members have changed.
    fn settle(&mut self, policy: PolicyKind) {
        if self.is_mixed() {
            self.ghost = None;
            return;
        }
        if self.ghost.is_none() {
            // Of those who are there now.
            (self.most, self.epochs) = (0, 0);
        }
        let ghost = self.ghost.get_or_insert_with(|| Ghost::with(policy, self.samples, self.tracked));
        let epoch_uses = self.members.values().map(|member| member.epoch_uses);
        ghost.expect(epoch_uses.fold(0, u64::saturating_add));
        self.most = self.most.max(self.members.len() as u32);
    }

    fn publish(&self, loader: u64, seen: Seen<'_>) {
        let curve = JointCurve {
            is_mixed: self.ghost.is_none(),
            teller: self.members.values().map(|member| member.rank).min().unwrap_or(0),
            ranks: if self.ghost.is_some() { self.most } else { self.members.len() as u32 },
            dataset_bytes: self.ghost.as_ref().map_or(0, Ghost::dataset_bytes),
            points: self.ghost.as_ref().map_or_else(Vec::new, Ghost::curve),
        };
        board::write(seen.board(self.board), Some((loader, &curve)));
    }
}

#[cfg(test)]
mod tests;
