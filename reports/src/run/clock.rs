//! From a recording's own clock to the wall clock.

use stallscope_store::ClockAnchor;
use stallscope_units as units;

/// A difference between two clocks that changes by more than this from one reading to the next was a jump: a slewed
/// clock gains or loses a tenth of that in ten seconds at most.
const JUMP_NS: i128 = 500_000_000;

/// `CLOCK_MONOTONIC` to nanoseconds since the epoch, linear between the readings of the clocks.
///
/// A clock that was set during the run is taken as it was after that, for the time before as well, so that the run
/// keeps its order and its length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    readings: Vec<Reading>,
    /// By how much the wall clock was set in all, for times that were read from it at the run's start.
    set_by_ns: i128,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    monotonic_ns: i128,
    /// What the wall clock is ahead.
    ahead_ns: i128,
    /// The machine slept since the last reading: what was ahead then holds up to this one.
    slept: bool,
}

impl Clock {
    /// The clock, and sentences on what happened to it.
    pub(crate) fn new(anchors: &[ClockAnchor], host: &str) -> (Clock, Vec<String>) {
        let (on, machine) = match host {
            "" => (String::new(), "the machine"),
            host => (format!(" of {host}"), host),
        };
        let mut notes = Vec::new();
        let mut readings: Vec<Reading> = Vec::with_capacity(anchors.len());
        let mut set_by_ns = 0;
        // How long the machine had slept by then, which is what the boot clock is ahead; it never gets less.
        let asleep_ns: Vec<i128> = anchors
            .iter()
            .scan(0, |most, anchor| {
                *most = i128::from(anchor.boottime_ns.saturating_sub(anchor.monotonic_ns)).max(*most);
                Some(*most)
            })
            .collect();
        // From the last to the first, since the last one counts.
        for (place, anchor) in anchors.iter().enumerate().rev() {
            let ahead_ns = i128::from(anchor.wall_ns) - i128::from(anchor.monotonic_ns);
            if let Some(next) = anchors.get(place + 1) {
                let slept_ns = asleep_ns[place + 1] - asleep_ns[place];
                let next_ahead_ns = i128::from(next.wall_ns) - i128::from(next.monotonic_ns);
                let jump_ns = next_ahead_ns - ahead_ns - slept_ns;
                let apart_ns = i128::from(next.monotonic_ns.saturating_sub(anchor.monotonic_ns));
                if jump_ns.abs() > JUMP_NS.min(apart_ns / 2) {
                    set_by_ns += jump_ns;
                    notes.push(format!(
                        "the wall clock{on} was set {} by {} during the run; all times are given by the clock as \
                         it was after that",
                        if jump_ns > 0 { "forward" } else { "back" },
                        duration(jump_ns)
                    ));
                }
                if slept_ns > JUMP_NS {
                    if let Some(next) = readings.last_mut() {
                        next.slept = true;
                    }
                    notes.push(format!("{machine} slept for {} during the run", duration(slept_ns)));
                }
            }
            readings.push(Reading {
                monotonic_ns: anchor.monotonic_ns.into(),
                ahead_ns: ahead_ns + set_by_ns,
                slept: false,
            });
        }
        readings.reverse();
        notes.reverse();
        (Clock { readings, set_by_ns }, notes)
    }

    /// Where the clocks were never read: the moment `monotonic_ns` was at `wall_ns`.
    pub(crate) fn guess(monotonic_ns: u64, wall_ns: u64) -> Clock {
        let monotonic_ns = i128::from(monotonic_ns);
        let ahead_ns = i128::from(wall_ns) - monotonic_ns;
        Clock { readings: vec![Reading { monotonic_ns, ahead_ns, slept: false }], set_by_ns: 0 }
    }

    pub(crate) fn was_read(&self) -> bool {
        !self.readings.is_empty()
    }

    /// The wall clock at a moment of the monotonic one.
    pub(crate) fn wall_ns(&self, monotonic_ns: u64) -> u64 {
        let at = i128::from(monotonic_ns);
        unsigned(at + self.ahead_ns(at))
    }

    /// What the wall clock is ahead at a moment.
    fn ahead_ns(&self, at: i128) -> i128 {
        let after = self.readings.partition_point(|reading| reading.monotonic_ns <= at);
        let before = after.checked_sub(1).and_then(|before| self.readings.get(before));
        match (before, self.readings.get(after)) {
            (Some(before), Some(after)) if !after.slept => {
                let span = (after.monotonic_ns - before.monotonic_ns).max(1);
                before.ahead_ns + (after.ahead_ns - before.ahead_ns) * (at - before.monotonic_ns) / span
            }
            (Some(reading), _) | (None, Some(reading)) => reading.ahead_ns,
            (None, None) => 0,
        }
    }

    /// Moves an interval onto the wall clock without changing its length.
    pub(crate) fn moved(&self, start_ns: u64, end_ns: u64) -> (u64, u64) {
        let start = self.wall_ns(start_ns);
        (start, start.saturating_add(end_ns.saturating_sub(start_ns)))
    }

    /// A time read from the wall clock at the run's start, by the clock as it was at its end.
    pub(crate) fn corrected(&self, wall_ns: u64) -> u64 {
        unsigned(i128::from(wall_ns) + self.set_by_ns)
    }
}

fn unsigned(ns: i128) -> u64 {
    ns.clamp(0, i128::from(u64::MAX)) as u64
}

fn duration(ns: i128) -> String {
    units::duration(unsigned(ns.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    fn anchor(monotonic_s: u64, slept_s: u64, wall_s: u64) -> ClockAnchor {
        ClockAnchor {
            monotonic_ns: monotonic_s * S,
            boottime_ns: (monotonic_s + slept_s) * S,
            wall_ns: wall_s * S,
        }
    }

    #[test]
    fn between_readings_it_is_linear_and_beyond_them_it_goes_on() {
        let mut second = anchor(20, 0, 1020);
        second.wall_ns += 4_000_000;
        let (clock, notes) = Clock::new(&[anchor(10, 0, 1010), second], "node1");
        assert!(notes.is_empty());
        assert_eq!(clock.wall_ns(5 * S), 1005 * S);
        assert_eq!(clock.wall_ns(15 * S), 1015 * S + 2_000_000);
        assert_eq!(clock.wall_ns(30 * S), 1030 * S + 4_000_000);
        assert_eq!(clock.moved(15 * S, 16 * S).1, 1016 * S + 2_000_000);
    }

    #[test]
    fn a_clock_that_was_set_counts_as_it_was_afterwards() {
        let (clock, notes) =
            Clock::new(&[anchor(10, 0, 5), anchor(20, 0, 3615), anchor(30, 0, 3625)], "node1");
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("of node1 was set forward by 1.0 h"), "{notes:?}");
        assert_eq!(clock.wall_ns(10 * S), 3605 * S);
        assert_eq!(clock.wall_ns(25 * S), 3620 * S);
        assert_eq!(clock.corrected(4 * S), 3604 * S);
        let (clock, notes) = Clock::new(&[anchor(10, 0, 3605), anchor(20, 0, 15)], "");
        assert!(notes[0].contains("was set back by 1.0 h"), "{notes:?}");
        assert_eq!(clock.wall_ns(10 * S), 5 * S);
    }

    #[test]
    fn a_machine_that_slept_is_not_a_clock_that_was_set() {
        let (clock, notes) = Clock::new(&[anchor(10, 0, 1010), anchor(20, 7200, 8220)], "node1");
        assert_eq!(notes, ["node1 slept for 2.0 h during the run"]);
        assert_eq!(clock.wall_ns(19 * S), 1019 * S);
        assert_eq!(clock.wall_ns(20 * S), 8220 * S);
    }

    #[test]
    fn without_a_reading_a_guess_will_do() {
        assert!(!Clock::new(&[], "").0.was_read());
        assert_eq!(Clock::guess(10, 100).wall_ns(12), 102);
    }

    proptest! {
        #[test]
        fn whatever_the_readings_it_neither_panics_nor_turns_time_round(
            mut anchors in prop::collection::vec(
                (0..=i64::MAX as u64, 0..=i64::MAX as u64, 0..=i64::MAX as u64), 0..6),
            at in any::<u64>(),
        ) {
            anchors.sort_unstable();
            anchors.dedup_by_key(|anchor| anchor.0);
            let anchors: Vec<ClockAnchor> = anchors
                .into_iter()
                .map(|(monotonic_ns, boottime_ns, wall_ns)| ClockAnchor { monotonic_ns, boottime_ns, wall_ns })
                .collect();
            let (clock, _) = Clock::new(&anchors, "");
            prop_assert!(clock.wall_ns(at) <= clock.wall_ns(at.saturating_add(1)));
            clock.corrected(at);
        }
    }
}
