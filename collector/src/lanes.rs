//! The lanes of a job's processes, and how much of them is read at a time.

use stallscope_abi::lane::Record;
use stallscope_ring::Reader;
use std::collections::HashMap;

/// Memory of all lanes of a job together, as far as it is written to: those of 2,700 processes.
pub(crate) const BYTES: usize = 4 << 30;

/// Records in one lane at one look, of the 32,768 that it holds, that make the next look come sooner.
const MANY_RECORDS: u64 = 4096;

/// Lanes may hold 90 million records together, and may be filled as fast as they are read: the session would do nothing
/// else meanwhile. A record takes 0.1 to 3 us, most where each is a step.
const BUDGET: Budget = Budget { at_once: 1 << 20, a_look: 1 << 18, at_end: 1 << 22 };

/// Records that are read.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// After a while without many: 32 lanes that are full.
    at_once: u64,
    /// In the long run; a million a second, as looks come at each tick then.
    a_look: u64,
    /// When the job has ended, and nothing but its user waits.
    at_end: u64,
}

pub(crate) struct Lane {
    pub(crate) pid: u32,
    pub(crate) rank: u32,
    pub(crate) reader: Reader,
}

/// By connection.
pub(crate) struct Lanes {
    lanes: HashMap<u64, Lane>,
    budget: Budget,
    /// Of the budget, until the next look.
    left: u64,
    /// The last look left records.
    behind: bool,
    /// The most that one lane held at the last look.
    fullest: u64,
    /// Of lanes that are gone.
    gone: Lost,
}

/// What processes wrote and nobody read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// There was no slot for it.
    pub(crate) dropped: u64,
    /// There was no time for it when the process hung up.
    pub(crate) unread: u64,
    /// Times that an unknown number was skipped.
    pub(crate) damaged: u64,
}

impl Lost {
    fn and(self, lane: &Lane) -> Lost {
        Lost {
            // What a process says of itself.
            dropped: self.dropped.saturating_add(lane.reader.dropped()),
            damaged: self.damaged + lane.reader.resyncs(),
            ..self
        }
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Lanes::within(BUDGET)
    }
}

impl Lanes {
    fn within(budget: Budget) -> Lanes {
        Lanes {
            lanes: HashMap::new(),
            budget,
            left: budget.at_once,
            behind: false,
            fullest: 0,
            gone: Lost::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn of(&mut self, connection: u64) -> Option<&mut Lane> {
        self.lanes.get_mut(&connection)
    }

    pub(crate) fn connections(&self) -> Vec<u64> {
        self.lanes.keys().copied().collect()
    }

    /// Whether a further lane of so many bytes is within what a job may have.
    pub(crate) fn has_place_for(&self, bytes: usize) -> bool {
        self.lanes.values().map(|lane| lane.reader.bytes()).sum::<usize>() + bytes <= BYTES
    }

    pub(crate) fn add(&mut self, connection: u64, lane: Lane) {
        self.lanes.insert(connection, lane);
    }

    pub(crate) fn lost(&self) -> Lost {
        self.lanes.values().fold(self.gone, Lost::and)
    }

    /// Whether lanes fill so quickly that they have to be read as often as can be.
    pub(crate) fn are_flooded(&self) -> bool {
        self.behind || self.fullest > MANY_RECORDS
    }

    /// Reads the lanes in turn, a share of the budget each, until all are read or the budget is used up. `each` gets the
    /// process's pid with a record. Gives how many records there were.
    pub(crate) fn look(&mut self, mut each: impl FnMut(u32, &Record)) -> u64 {
        self.left = (self.left + self.budget.a_look).min(self.budget.at_once);
        let before = self.left;
        self.fullest = 0;
        let mut turn: Vec<&mut Lane> = self.lanes.values_mut().collect();
        while self.left > 0 && !turn.is_empty() {
            let share = (self.left / turn.len() as u64).max(1);
            turn.retain_mut(|lane| {
                let drained = lane.reader.drain(share.min(self.left), |record| each(lane.pid, record));
                self.left -= drained.records;
                self.fullest = self.fullest.max(drained.records + drained.left);
                drained.left > 0
            });
        }
        self.behind = !turn.is_empty();
        before - self.left
    }

    /// Reads the lanes of a process that has ended, within what is left of the budget.
    pub(crate) fn read_last(&mut self, pid: u32, mut each: impl FnMut(u32, &Record)) -> u64 {
        let mut records = 0;
        for lane in self.lanes.values_mut().filter(|lane| lane.pid == pid) {
            records += lane.reader.drain(self.left - records, |record| each(pid, record)).records;
        }
        self.left -= records;
        records
    }

    /// Takes a lane away and reads what is in it, within what is left of the budget; the rest is lost. Gives the
    /// process's pid and how many records there were.
    pub(crate) fn take(&mut self, connection: u64, mut each: impl FnMut(u32, &Record)) -> Option<(u32, u64)> {
        let mut lane = self.lanes.remove(&connection)?;
        let drained = lane.reader.drain(self.left, |record| each(lane.pid, record));
        self.left -= drained.records;
        self.gone = self.gone.and(&lane);
        self.gone.unread += drained.left;
        Some((lane.pid, drained.records))
    }

    /// The job has ended: lanes are taken away and not looked at any more.
    pub(crate) fn ended(&mut self) {
        self.left = self.budget.at_end;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use stallscope_ring::Writer;

    const SMALL: Budget = Budget { at_once: 1000, a_look: 100, at_end: 2000 };

    /// A writer whose lane is there as `connection`, of the process of that number.
    fn lane(lanes: &mut Lanes, connection: u64, capacity: u32) -> Writer {
        let (writer, fd) = Writer::create(capacity).unwrap();
        let pid = connection as u32;
        lanes.add(connection, Lane { pid, rank: 0, reader: Reader::open(fd).unwrap() });
        writer
    }

    fn numbered(number: u64) -> Record {
        Record::from_words([number; 6])
    }

    /// A process may write as fast as its lane is read.
    #[test]
    fn a_lane_that_is_refilled_while_it_is_read_holds_no_look_for_longer_than_its_budget() {
        let mut lanes = Lanes::within(SMALL);
        let mut writer = lane(&mut lanes, 1, 4096);
        let (mut written, mut read) = (0, Vec::new());
        let mut fill = || {
            while writer.push(&numbered(written)) {
                written += 1;
            }
        };
        fill();
        let mut looks = [0; 4];
        for taken in &mut looks {
            *taken = lanes.look(|_, record| {
                read.push(record.time_ns());
                fill();
            });
            fill();
            assert!(lanes.are_flooded());
        }
        assert_eq!(looks, [1000, 100, 100, 100]);
        assert!(read.iter().copied().eq(0..1300), "in order, none twice and none left out");
        assert!(lanes.lost().dropped > 0, "what found no slot is counted");

        let dropped = lanes.lost().dropped;
        assert_eq!(lanes.take(1, |_, _| panic!("no budget is left")), Some((1, 0)));
        // A lane's long ring and its short one, less the slots that were given back since.
        let left = written - 1300;
        assert_eq!(lanes.lost(), Lost { dropped, unread: left, damaged: 0 });
    }

    #[test]
    fn a_burst_within_the_budget_is_read_whole_and_so_is_the_next_one_after_a_while() {
        let mut lanes = Lanes::within(SMALL);
        let mut writers: Vec<Writer> = (0..4).map(|nth| lane(&mut lanes, nth, 512)).collect();
        for _ in 0..3 {
            let written = [700, 100, 1, 1];
            for (writer, count) in writers.iter_mut().zip(written) {
                (0..count).for_each(|number| assert!(writer.push(&numbered(number))));
            }
            let mut read = [0; 4];
            lanes.look(|pid, _| read[pid as usize] += 1);
            assert_eq!(read, written);
            assert!(!lanes.behind);
            (0..10).for_each(|_| assert_eq!(lanes.look(|_, _| {}), 0));
        }
        assert_eq!(lanes.lost(), Lost::default());
    }

    #[test]
    fn at_the_end_more_is_read_and_the_rest_is_counted() {
        let mut lanes = Lanes::within(SMALL);
        for nth in 0..2 {
            let mut writer = lane(&mut lanes, nth, 2048);
            (0..1500).for_each(|number| assert!(writer.push(&numbered(number))));
        }
        lanes.ended();
        let mut read = 0;
        let taken: u64 = (0..2).map(|nth| lanes.take(nth, |_, _| read += 1).unwrap().1).sum();
        assert_eq!((read, taken), (2000, 2000));
        assert_eq!(lanes.lost(), Lost { unread: 1000, ..Lost::default() });
    }

    /// Nobody else's share goes to a process that writes without end.
    #[test]
    fn lanes_are_read_in_turn() {
        let mut lanes = Lanes::within(SMALL);
        let mut writers: Vec<Writer> = (0..8).map(|nth| lane(&mut lanes, nth, 2048)).collect();
        (0..2000).for_each(|number| assert!(writers[0].push(&numbered(number))));
        for look in 0..5 {
            writers[1..].iter_mut().for_each(|writer| assert!((0..10).all(|_| writer.push(&numbered(7)))));
            let mut read = [0; 8];
            let taken = lanes.look(|pid, _| read[pid as usize] += 1);
            assert_eq!(&read[1..], [10; 7], "at look {look}");
            assert_eq!(taken, if look == 0 { 1000 } else { 100 });
            assert!(lanes.are_flooded());
        }
        assert_eq!(lanes.lost(), Lost::default());
    }
}
