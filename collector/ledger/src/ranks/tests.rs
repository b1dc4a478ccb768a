//! The tree settles what a look at every rank at each unit would.

use super::aligned::MAX_AHEAD;
use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::VecDeque;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// At a node of a tree.
pub(super) fn looked() {
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

fn unit(wall_ns: u64, peer_ns: u64, end_ns: u64) -> Unit {
    let mut causes = Causes::default();
    causes[Cause::Compute] = wall_ns - peer_ns;
    causes[Cause::Peer] = peer_ns;
    Unit { steps: 1 + wall_ns % 2, loader: 0, end_ns, wall_ns, causes, samples: wall_ns, hidden_ns: None }
}

/// As [`Job`], unit by unit and rank by rank.
#[derive(Default)]
struct Plain {
    /// Whether they have ended.
    members: BTreeMap<u32, bool>,
    expected: usize,
    settled: BTreeMap<Phase, u64>,
    /// How many each has delivered of a phase, and those that are not settled.
    queues: BTreeMap<(Phase, u32), (u64, VecDeque<Unit>)>,
    tallies: Tallies,
    slowest_ns: BTreeMap<u32, u64>,
    unaligned: u64,
}

impl Plain {
    fn push(&mut self, pid: u32, phase: Phase, unit: Unit, count: u64) {
        let settled = *self.settled.entry(phase).or_default();
        let (next, queue) = self.queues.entry((phase, pid)).or_default();
        for _ in 0..count {
            if *next < settled {
                self.unaligned += 1;
            } else {
                queue.push_back(unit);
            }
            *next += 1;
        }
    }

    fn settle(&mut self, now_ns: u64, patience_ns: u64) {
        let absent = self.members.len() < self.expected;
        for (phase, settled) in &mut self.settled {
            let times = if *phase == Phase::Startup { STARTUP_PATIENCE } else { 1 };
            loop {
                let of_phase = self.queues.iter().filter(|((of, _), _)| of == phase);
                let queues: BTreeMap<u32, &VecDeque<Unit>> =
                    of_phase.map(|((_, pid), (_, queue))| (*pid, queue)).collect();
                let firsts = || queues.iter().filter_map(|(pid, queue)| Some((*pid, *queue.front()?)));
                let Some(oldest_ns) = firsts().map(|(_, unit)| unit.end_ns).min() else { break };
                let waited_ns = now_ns.saturating_sub(oldest_ns);
                let awaited = self.members.iter().any(|(pid, ended)| match queues.get(pid) {
                    _ if *ended => false,
                    Some(queue) => queue.is_empty(),
                    None => waited_ns < times * patience_ns,
                });
                let greets = absent && *settled == 0 && waited_ns < patience_ns;
                let longest = queues.values().map(|queue| queue.len() as u64).max().unwrap_or(0);
                if (awaited || greets) && longest <= MAX_AHEAD {
                    break;
                }
                // Of equals the last.
                let (pid, slowest) = firsts().rev().max_by_key(|(_, unit)| unit.slowness()).unwrap();
                let steps = firsts().map(|(_, unit)| unit.steps).max().unwrap();
                let samples = firsts().map(|(_, unit)| unit.samples).sum();
                self.tallies.of(*phase, 0).add(1, steps, slowest.wall_ns, samples, &slowest.causes, None);
                if *phase == Phase::Training {
                    *self.slowest_ns.entry(pid).or_default() += slowest.wall_ns;
                }
                for ((of, _), (_, queue)) in &mut self.queues {
                    if of == phase {
                        queue.pop_front();
                    }
                }
                *settled += 1;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Joins(u32),
    Ends(u32),
    Expects(u32),
    /// Of a phase, by a rank: so long, so much of it for others, so often.
    Delivers(Phase, u32, u64, u64, u64),
    Settles(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let pid = || 0_u32..9;
    let phase = prop::sample::select(vec![Phase::Startup, Phase::Training, Phase::After]);
    let count = prop_oneof![8 => 1_u64..6, 1 => MAX_AHEAD - 2..MAX_AHEAD + 3];
    let delivers = (phase, pid(), 0_u64..6, 0_u64..6, count);
    prop_oneof![
        3 => pid().prop_map(Event::Joins),
        1 => pid().prop_map(Event::Ends),
        1 => (0_u32..12).prop_map(Event::Expects),
        20 => delivers.prop_map(|(phase, pid, own, peer, count)| Event::Delivers(phase, pid, own, peer, count)),
        4 => (0_u64..30).prop_map(Event::Settles),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_ranks_are_settled_as_one_by_one(events in prop::collection::vec(event(), 0..80)) {
        let (mut job, mut plain) = (Job::default(), Plain::default());
        let all_end = (0..9).map(Event::Ends).chain([Event::Settles(1000)]);
        for (now_ns, event) in (0..).zip(events.into_iter().chain(all_end)) {
            match event {
                Event::Joins(pid) => {
                    job.member(pid);
                    plain.members.entry(pid).or_default();
                }
                Event::Ends(pid) => {
                    job.end(pid);
                    plain.members.entry(pid).and_modify(|ended| *ended = true);
                }
                Event::Expects(ranks) => {
                    job.expect(ranks);
                    plain.expected = plain.expected.max(ranks as usize);
                }
                Event::Delivers(phase, pid, own_ns, peer_ns, count) => {
                    let unit = unit(own_ns + peer_ns, peer_ns, now_ns);
                    job.push(pid, phase, unit, count);
                    plain.push(pid, phase, unit, count);
                }
                Event::Settles(later_ns) => {
                    job.settle(now_ns + later_ns, 10);
                    plain.settle(now_ns + later_ns, 10);
                }
            }
            let of = |tallies: &Tallies, slowest_ns: &BTreeMap<u32, u64>| (tallies.summaries(), slowest_ns.clone());
            prop_assert_eq!(of(&job.tallies, &job.slowest_ns), of(&plain.tallies, &plain.slowest_ns));
            prop_assert_eq!(job.unaligned, plain.unaligned);
        }
    }
}

/// Two recordings of a few megabytes kept `report` busy for a minute: each unit took a look at every rank of the other.
#[test]
fn a_unit_is_no_look_at_every_rank() {
    const MANY: u32 = 2000;
    let all = u64::from(MANY);
    // Nothing but one unit, and one row that stands for as many as rank 0 has.
    for of_others in [1, all] {
        let mut job = Job::default();
        (0..MANY).for_each(|pid| job.member(pid));
        let before = LOOKS.get();
        (1..MANY).for_each(|pid| job.push(pid, Phase::Training, unit(2, 1, 1), of_others));
        for at_ns in 1..=all {
            job.push(0, Phase::Training, unit(8, 1, at_ns), 1);
            job.settle(at_ns, 1000);
        }
        (0..MANY).for_each(|pid| job.end(pid));
        job.settle(u64::MAX, 0);
        assert_eq!(job.tallies.phase(Phase::Training).steps, all);
        // Each row and rank comes and goes, and a tree of 2,000 has 12 levels.
        let looks = LOOKS.get() - before;
        assert!(looks < 2 * 12 * 3 * all, "{looks}");
    }
}
