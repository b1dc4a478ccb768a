//! The job's own ledger: ranks aligned by step; the slowest rank's time and causes are the job's.

use crate::rank::Closed;
use crate::tally::Tallies;
use stallscope_model::{Cause, Causes, Phase};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Units a rank may be ahead of another before the job's ledger goes on without that one.
const MAX_AHEAD: u64 = 4096;
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
        (self.wall_ns - peer_ns, Reverse(peer_ns))
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
struct Aligned {
    /// Units that are settled, of every rank.
    settled: u64,
    queues: BTreeMap<u32, Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// Units in a row that are alike, and how many: a recorded row may stand for thousands of steps.
    runs: VecDeque<(u64, Unit)>,
    /// Units in all of them.
    len: u64,
}

impl Queue {
    /// The first unit's number.
    fn front(&self) -> u64 {
        self.next - self.len
    }

    /// Takes `count` units, no more than the first run has.
    fn take(&mut self, count: u64) -> Option<Unit> {
        let (left, unit) = self.runs.front_mut()?;
        let unit = *unit;
        *left -= count;
        if *left == 0 {
            self.runs.pop_front();
        }
        self.len -= count;
        Some(unit)
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
        self.members.entry(pid).or_default();
    }

    /// One of so many greeted.
    pub(crate) fn expect(&mut self, ranks: u32) {
        self.expected = self.expected.max(ranks as usize);
    }

    /// The rank is gone: nobody waits for its steps any more.
    pub(crate) fn end(&mut self, pid: u32) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.ended = true;
            if let Some(held) = member.held.take() {
                self.push(pid, Phase::Training, held, 1);
            }
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
        let held = self.members.entry(pid).or_default().held.replace(wait);
        (unit.causes, unit.wall_ns, unit.hidden_ns) = (closed.own, unit.wall_ns - wait_ns, None);
        self.push(pid, step.phase, held.map_or(unit, |held| unit.after(&held)), 1);
        self.push(pid, step.phase, unit.after(&wait), count.saturating_sub(1));
    }

    fn push(&mut self, pid: u32, phase: Phase, unit: Unit, count: u64) {
        let aligned = self.phases.entry(phase).or_default();
        let queue = aligned.queues.entry(pid).or_default();
        let late = aligned.settled.saturating_sub(queue.next).min(count);
        queue.next += count;
        self.unaligned += late;
        if count > late {
            queue.runs.push_back((count - late, unit));
            queue.len += count - late;
        }
    }

    /// Settles what every rank has delivered. A rank that has not begun a phase is waited for until
    /// `patience_ns` after the others did, as some phases are one rank's alone; so is one that has not greeted.
    pub(crate) fn settle(&mut self, now_ns: u64, patience_ns: u64) {
        let absent = self.members.len() < self.expected;
        let has_live = self.members.values().any(|member| !member.ended);
        for (phase, aligned) in &mut self.phases {
            let begun_ns = match phase {
                Phase::Startup => STARTUP_PATIENCE.saturating_mul(patience_ns),
                _ => patience_ns,
            };
            loop {
                let oldest_ns =
                    aligned.queues.values().filter_map(|queue| Some(queue.runs.front()?.1.end_ns));
                let Some(oldest_ns) = oldest_ns.min() else { break };
                let longest = aligned.queues.values().map(|queue| queue.len).max().unwrap_or(0);
                let ahead = longest.saturating_sub(MAX_AHEAD);
                let waited_ns = now_ns.saturating_sub(oldest_ns);
                let patient = waited_ns < begun_ns;
                let greets = absent && aligned.settled == 0 && waited_ns < patience_ns;
                let awaited = has_live
                    && self.members.iter().any(|(pid, member)| match aligned.queues.get(pid) {
                        _ if member.ended => false,
                        Some(queue) => queue.runs.is_empty(),
                        None => patient,
                    });
                let most = if awaited || greets { ahead } else { u64::MAX };
                if most == 0 {
                    break;
                }
                let index = aligned.settled;
                // As many as are alike in each rank.
                let alike = |queue: &Queue| match queue.runs.front()? {
                    (count, _) if queue.front() == index => Some(*count),
                    _ => Some(queue.front() - index),
                };
                let count = aligned.queues.values().filter_map(alike).fold(most, u64::min);
                aligned.settled += count;
                let mut slowest: Option<(u32, Unit)> = None;
                let (mut steps, mut samples) = (0, 0u64);
                for (pid, queue) in &mut aligned.queues {
                    if queue.front() != index {
                        continue;
                    }
                    let Some(unit) = queue.take(count) else { continue };
                    steps = unit.steps.max(steps);
                    samples = samples.saturating_add(unit.samples);
                    if slowest.is_none_or(|(_, known)| unit.slowness() > known.slowness()) {
                        slowest = Some((*pid, unit));
                    }
                }
                if let Some((pid, unit)) = slowest {
                    self.tallies.of(*phase, unit.loader).add(
                        count,
                        steps,
                        unit.wall_ns,
                        samples,
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
}
