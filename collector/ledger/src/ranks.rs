//! The job's own ledger: ranks aligned by step; the slowest rank's time and causes are the job's.

use self::aligned::Aligned;
use crate::rank::Closed;
use crate::tally::Tallies;
use stallscope_model::{Cause, Causes, Phase};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

mod aligned;
#[cfg(test)]
mod tests;

/// Everyone has a start-up, and beside many others one that takes long.
const STARTUP_PATIENCE: u64 = 6;

/// What is aligned. In training: the wait for a batch and the work with it, because that is what ranks that
/// exchange gradients do between two meetings: who waits long for a batch makes the others wait in the work
/// that follows. In other phases the piece itself.
#[derive(Clone, Copy, Debug)]
struct Unit {
    steps: u64,
    loader: u16,
    end_ns: u64,
    wall_ns: u64,
    causes: Causes,
    samples: u64,
    hidden_ns: Option<u64>,
}

impl Unit {
    /// Orders units by time that is not a wait for other ranks: who has most of it is who the others wait for.
    fn slowness(&self) -> (u64, Reverse<u64>) {
        let peer_ns = self.causes[Cause::Peer];
        // A foreign recording's causes need not fit its wall time.
        (self.wall_ns.saturating_sub(peer_ns), Reverse(peer_ns))
    }

    /// With the wait for the batch that it worked on.
    fn after(mut self, wait: &Unit) -> Unit {
        self.causes += &wait.causes;
        self.wall_ns = self.wall_ns.saturating_add(wait.wall_ns);
        self.hidden_ns = wait.hidden_ns;
        self
    }
}

#[derive(Debug, Default)]
struct Member {
    ended: bool,
    /// The last wait in training; the work with its batch is still to come.
    held: Option<Unit>,
}

#[derive(Debug, Default)]
pub(crate) struct Job {
    members: BTreeMap<u32, Member>,
    /// Those of them that have not ended.
    live: usize,
    /// Ranks that there will be, by their own word; on other nodes, too.
    expected: usize,
    phases: BTreeMap<Phase, Aligned>,
    pub(crate) tallies: Tallies,
    /// Training time of the job in which a rank was the slowest, by pid.
    pub(crate) slowest_ns: BTreeMap<u32, u64>,
    /// Units that came when the job had gone on without them.
    pub(crate) unaligned: u64,
}

impl Job {
    pub(crate) fn member(&mut self, pid: u32) {
        if let Entry::Vacant(place) = self.members.entry(pid) {
            place.insert(Member::default());
            self.live += 1;
            self.phases.values_mut().for_each(|aligned| aligned.set_live(pid, true));
        }
    }

    /// One of so many greeted.
    pub(crate) fn expect(&mut self, ranks: u32) {
        self.expected = self.expected.max(ranks as usize);
    }

    /// The rank is gone: nobody waits for its steps any more.
    pub(crate) fn end(&mut self, pid: u32) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        let held = member.held.take();
        if !std::mem::replace(&mut member.ended, true) {
            self.live -= 1;
            self.phases.values_mut().for_each(|aligned| aligned.set_live(pid, false));
        }
        if let Some(held) = held {
            self.push(pid, Phase::Training, held, 1);
        }
    }

    /// `count` steps in a row that are like this one.
    pub(crate) fn add(&mut self, pid: u32, closed: &Closed, count: u64) {
        let step = &closed.step;
        let mut unit = Unit {
            steps: step.steps(),
            loader: step.loader,
            end_ns: step.end_ns,
            wall_ns: step.end_ns - step.start_ns,
            causes: step.causes,
            samples: u64::from(step.samples),
            hidden_ns: step.hidden_ns,
        };
        if step.phase != Phase::Training {
            return self.push(pid, step.phase, unit, count);
        }
        let wait_ns = closed.wait.total_ns();
        // A step that was cut short of its work counts with the work before it.
        let wait = Unit { steps: 0, wall_ns: wait_ns, causes: closed.wait, samples: 0, ..unit };
        self.member(pid);
        let held = self.members.entry(pid).or_default().held.replace(wait);
        (unit.causes, unit.wall_ns, unit.hidden_ns) = (closed.own, unit.wall_ns - wait_ns, None);
        self.push(pid, step.phase, held.map_or(unit, |held| unit.after(&held)), 1);
        self.push(pid, step.phase, unit.after(&wait), count.saturating_sub(1));
    }

    fn push(&mut self, pid: u32, phase: Phase, unit: Unit, count: u64) {
        let is_live = self.members.get(&pid).is_some_and(|member| !member.ended);
        self.unaligned += self.phases.entry(phase).or_default().push(pid, is_live, unit, count);
    }

    /// Settles what every rank has delivered. A rank that has not begun a phase is waited for until
    /// `patience_ns` after the others did, as some phases are one rank's alone; so is one that has not greeted.
    pub(crate) fn settle(&mut self, now_ns: u64, patience_ns: u64) {
        let absent = self.members.len() < self.expected;
        for (phase, aligned) in &mut self.phases {
            let begun_ns = match phase {
                Phase::Startup => STARTUP_PATIENCE.saturating_mul(patience_ns),
                _ => patience_ns,
            };
            while let Some(front) = aligned.front() {
                let waited_ns = now_ns.saturating_sub(front.oldest_ns);
                let greets = absent && aligned.settled == 0 && waited_ns < patience_ns;
                let begins = self.live > aligned.live && waited_ns < begun_ns;
                let awaited = aligned.live > front.live || begins || greets;
                let most = if awaited { aligned.ahead() } else { u64::MAX };
                if most == 0 {
                    break;
                }
                let (count, slowest) = aligned.settle(&front, most);
                let Some((pid, unit)) = slowest else { continue };
                self.tallies.of(*phase, unit.loader).add(
                    count,
                    front.steps,
                    unit.wall_ns,
                    front.samples,
                    &unit.causes,
                    unit.hidden_ns,
                );
                if *phase == Phase::Training {
                    let slowest_ns = self.slowest_ns.entry(pid).or_default();
                    *slowest_ns = slowest_ns.saturating_add(unit.wall_ns.saturating_mul(count));
                }
            }
        }
    }
}
