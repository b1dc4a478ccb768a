//! How much of a job's files there is memory for at the moment.

use crate::cgroup::Groups;
use crate::procfs;
use std::fs;

/// Of what there is, a part that is left free.
const RESERVE: u64 = 16;
/// What is less than that part is short, where tasks wait for memory as well.
const SHORT: u64 = 4;
/// Tasks wait for memory when they do for more than so much of the time. A job that reads more than its own control group has
/// memory for does so as well, for which it is held: that is why memory has to be short, too.
const WAITING_SHARE: f64 = 0.1;
/// Over which that is judged.
const WINDOW_NS: u64 = 500_000_000;
/// Once memory was not short for so long, more is held again; twice as long after each shortage, as what is held again has to be read
/// again.
const CALM_NS: u64 = 10_000_000_000;
const MOST_CALM_NS: u64 = 600_000_000_000;
/// In so many steps.
const STEPS: u64 = 16;

/// The machine, or a control group.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    limit_bytes: u64,
    available_bytes: u64,
    /// Time in which some task waited for memory.
    waited_us: u64,
}

/// Where the holder's pages are charged: the machine, and its control groups, which are those of this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    places: Vec<Place>,
}

impl Memory {
    pub(super) fn read() -> Memory {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of_meminfo = |name| procfs::kib_of(&meminfo, name).map(|kib| kib.saturating_mul(1024));
        let machine = of_meminfo("MemTotal:").zip(of_meminfo("MemAvailable:"));
        let pressure = fs::read_to_string("/proc/pressure/memory").unwrap_or_default();
        let machine = machine.map(|(limit_bytes, available_bytes)| Place {
            limit_bytes,
            available_bytes,
            waited_us: procfs::waited_us_in(&pressure).unwrap_or(0),
        });
        let groups = Groups::of(&[std::process::id()]).into_iter().filter_map(|group| {
            let memory = group.memory()?;
            Some(Place {
                limit_bytes: memory.limit_bytes,
                available_bytes: memory.available_bytes,
                waited_us: group.waited_for_memory_us(),
            })
        });
        Memory { places: machine.into_iter().chain(groups).collect() }
    }
}

#[derive(Debug)]
pub(super) struct Headroom {
    budget_bytes: u64,
    /// What is left of it since tasks waited for memory.
    cap_bytes: u64,
    /// The begin of the window, and how long tasks had waited by then in each place.
    since_ns: u64,
    waited_us: Vec<u64>,
    /// When memory was short last, and how long it must not have been until more is held.
    pressed_ns: u64,
    calm_ns: u64,
    /// That has passed since.
    is_calm: bool,
}

impl Headroom {
    pub(super) fn new(budget_bytes: u64) -> Headroom {
        let nothing = Vec::new();
        Headroom {
            budget_bytes,
            cap_bytes: budget_bytes,
            since_ns: 0,
            waited_us: nothing,
            pressed_ns: 0,
            calm_ns: CALM_NS / 2,
            is_calm: true,
        }
    }

    /// Another budget from now on. More is held at once, unless memory is short or was until a while ago.
    pub(super) fn turn(&mut self, budget_bytes: u64) {
        let was_whole = self.is_calm && self.cap_bytes == self.budget_bytes;
        self.budget_bytes = budget_bytes;
        self.cap_bytes = if was_whole { budget_bytes } else { self.cap_bytes.min(budget_bytes) };
    }

    /// What may be held now, of which `held_bytes` are.
    pub(super) fn bytes(&mut self, now_ns: u64, held_bytes: u64, memory: &Memory) -> u64 {
        // What is held is not available: it moves from the one to the other, and the sum stays.
        let headroom = |place: &Place| {
            let all = held_bytes.saturating_add(place.available_bytes);
            all.saturating_sub(place.limit_bytes / RESERVE)
        };
        let fits = memory.places.iter().map(headroom).min().unwrap_or(u64::MAX);
        if fits < held_bytes {
            self.is_short(now_ns, fits);
        }
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if passed_ns >= WINDOW_NS {
            let waited = |(place, before): (&Place, &u64)| {
                let waited_us = place.waited_us.saturating_sub(*before);
                let is_short = place.available_bytes < place.limit_bytes / SHORT;
                is_short && waited_us as f64 * 1000.0 > WAITING_SHARE * passed_ns as f64
            };
            let same = self.waited_us.len() == memory.places.len();
            if same && memory.places.iter().zip(&self.waited_us).any(waited) {
                self.is_short(now_ns, self.cap_bytes.min(held_bytes) / 8 * 7);
            } else if self.is_calm || now_ns.saturating_sub(self.pressed_ns) >= self.calm_ns {
                self.is_calm = true;
                let more = self.cap_bytes.saturating_add(self.budget_bytes / STEPS + 1);
                self.cap_bytes = more.min(self.budget_bytes);
            }
            self.since_ns = now_ns;
            self.waited_us = memory.places.iter().map(|place| place.waited_us).collect();
        }
        self.cap_bytes.min(fits)
    }

    fn is_short(&mut self, now_ns: u64, cap_bytes: u64) {
        self.cap_bytes = self.cap_bytes.min(cap_bytes);
        self.pressed_ns = now_ns;
        if std::mem::take(&mut self.is_calm) {
            self.calm_ns = self.calm_ns.saturating_mul(2).min(MOST_CALM_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn another_budget_is_held_at_once_unless_memory_was_short() {
        let mut headroom = Headroom::new(16 * MIB);
        headroom.turn(4 * MIB);
        assert_eq!(headroom.cap_bytes, 4 * MIB);
        headroom.turn(16 * MIB);
        assert_eq!(headroom.cap_bytes, 16 * MIB);
        headroom.is_short(1, 4 * MIB);
        headroom.turn(4 * MIB);
        headroom.turn(16 * MIB);
        assert_eq!(headroom.cap_bytes, 4 * MIB, "later, in steps");
    }
    const S: u64 = 1_000_000_000;

    fn memory(available_mib: u64, waited_us: u64) -> Memory {
        let place = Place { limit_bytes: 16_000 * MIB, available_bytes: available_mib * MIB, waited_us };
        Memory { places: vec![place] }
    }

    #[test]
    fn the_budget_is_never_exceeded_and_a_reserve_is_left() {
        let mut headroom = Headroom::new(8_000 * MIB);
        assert_eq!(headroom.bytes(S, 0, &memory(15_000, 0)), 8_000 * MIB);
        // A job grows; what it takes is not there any more.
        assert_eq!(headroom.bytes(2 * S, 8_000 * MIB, &memory(1_500, 0)), 8_000 * MIB);
        assert_eq!(headroom.bytes(3 * S, 8_000 * MIB, &memory(400, 0)), 7_400 * MIB);
        assert_eq!(headroom.bytes(4 * S, 600 * MIB, &memory(100, 0)), 0);
        assert_eq!(Headroom::new(MIB).bytes(5 * S, 0, &Memory::default()), MIB, "nothing is known");
    }

    #[test]
    fn what_was_let_go_is_not_held_again_at_once_and_later_each_time() {
        let mut headroom = Headroom::new(8_000 * MIB);
        assert_eq!(headroom.bytes(S, 0, &memory(15_000, 0)), 8_000 * MIB);
        let mut calm_s = Vec::new();
        let mut now_s = 1;
        for _ in 0..3 {
            // Workers take 200 MiB more than there is for a moment.
            now_s += 1;
            let before = headroom.bytes(now_s * S, 7_000 * MIB, &memory(1_000, 0));
            let less = headroom.bytes(now_s * S, 7_000 * MIB, &memory(800, 0));
            assert_eq!((before > less, less), (true, 6_800 * MIB));
            let from_s = now_s;
            while headroom.bytes(now_s * S, less, &memory(1_200, 0)) <= less {
                now_s += 1;
            }
            calm_s.push(now_s - from_s);
            // All of it is held again.
            (0..20).for_each(|_| {
                now_s += 1;
                headroom.bytes(now_s * S, less, &memory(1_200, 0));
            });
        }
        assert_eq!(calm_s, [10, 20, 40]);
    }

    #[test]
    fn less_is_held_within_a_second_while_tasks_wait_for_memory_that_is_short() {
        let mut headroom = Headroom::new(8_000 * MIB);
        let mut held = headroom.bytes(S, 0, &memory(15_000, 0));
        let mut waited_us = 0;
        for tick in 1..=4 {
            waited_us += 100_000;
            held = headroom.bytes(S + tick * S / 4, held, &memory(3_000, waited_us));
        }
        assert_eq!(held, 8_000 * MIB / 8 * 7 / 8 * 7);
        // It stays so, and comes back in steps when there was no waiting for some time.
        let at = |headroom: &mut Headroom, s: u64| headroom.bytes(s * S, held, &memory(3_000, waited_us));
        assert_eq!(at(&mut headroom, 3), held);
        assert_eq!(at(&mut headroom, 11), held);
        let later = at(&mut headroom, 13);
        assert!(later > held && later < 8_000 * MIB);
        assert_eq!((14..40).map(|s| at(&mut headroom, s)).last(), Some(8_000 * MIB));
    }

    #[test]
    fn a_job_that_waits_for_pages_of_its_own_group_is_no_shortage() {
        let mut headroom = Headroom::new(8_000 * MIB);
        for s in 1..20 {
            assert_eq!(headroom.bytes(s * S, 8_000 * MIB, &memory(7_000, s * 900_000)), 8_000 * MIB);
        }
    }

    #[test]
    fn this_machine_is_read() {
        let memory = Memory::read();
        assert!(!memory.places.is_empty());
        assert!(memory.places.iter().all(|place| place.limit_bytes >= place.available_bytes), "{memory:?}");
    }
}
