use crate::error::{Error, Result};
use crate::layout::{
    CAPACITY_AT, DROPPED_AT, LONG_HEAD_AT, LONG_TAIL_AT, MAGIC, MAGIC_AT, RECORDS_AT, SHORT_HEAD_AT,
    SHORT_TAIL_AT, VERSION_AT, lane_bytes, long_at, pair, unpair,
};
use crate::mapping::Mapping;
use crate::spsc::{Consumer, Producer, Ring, Shared};
use stallscope_abi::lane::{Record, VERSION};
use std::os::fd::OwnedFd;

/// Most records a lane may have (48 MiB of them).
pub const MAX_CAPACITY: u32 = 1 << 20;

/// For so many a writer takes a month at least.
const MOST_DROPPED: u64 = 1 << 48;

/// A reader of many lanes would in time have all of their pages in its own account: after so many records of the long
/// ring (16 pages of them, as many as one fault maps) it lets go of those that it has read.
const KEPT_RECORDS: u64 = 16 * 85;

/// `long_at` is where the long ring begins.
#[inline]
fn shared(mapping: &Mapping, long_at: usize) -> Shared<'_> {
    let words = mapping.words();
    let (short, long) = words.split_at(long_at);
    Shared {
        short: Ring { head: &words[SHORT_HEAD_AT], tail: &words[SHORT_TAIL_AT], words: &short[RECORDS_AT..] },
        long: Ring { head: &words[LONG_HEAD_AT], tail: &words[LONG_TAIL_AT], words: long },
        dropped: &words[DROPPED_AT],
    }
}

/// The writing end. One thread at a time: several threads of a process need a lock around it (the shim's threads
/// hold Python's interpreter lock and a lock of its own besides).
#[derive(Debug)]
pub struct Writer {
    mapping: Mapping,
    long_at: usize,
    producer: Producer,
}

impl Writer {
    /// Makes a lane whose long ring holds `capacity` records and gives the descriptor to hand to a reader.
    ///
    /// Memory is taken as records touch it, not here.
    ///
    /// # Errors
    /// [`Error::Capacity`] unless `capacity` is a power of two up to [`MAX_CAPACITY`]; [`Error::System`] when the
    /// kernel refuses the memory.
    pub fn create(capacity: u32) -> Result<(Writer, OwnedFd)> {
        if !capacity.is_power_of_two() || capacity > MAX_CAPACITY {
            return Err(Error::Capacity(u64::from(capacity)));
        }
        let (mapping, fd) = Mapping::create("stallscope-lane", lane_bytes(capacity))?;
        mapping.store(VERSION_AT, pair(VERSION, size_of::<Record>() as u32));
        mapping.store(CAPACITY_AT, pair(capacity, std::process::id()));
        mapping.store(MAGIC_AT, MAGIC);
        Ok((Writer { mapping, long_at: long_at(capacity), producer: Producer::default() }, fd))
    }

    /// Appends `record`; `false` when the lane is full, and then it is counted as dropped.
    #[inline]
    pub fn push(&mut self, record: &Record) -> bool {
        self.producer.push(shared(&self.mapping, self.long_at), record.words())
    }

    /// Counts a record that could not even be offered.
    pub fn count_dropped(&mut self) {
        self.producer.count_dropped(shared(&self.mapping, self.long_at));
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    mapping: Mapping,
    long_at: usize,
    consumer: Consumer,
    pid: u32,
    resyncs: u64,
    /// Records of the long ring handed over since pages were last given back.
    kept: u64,
}

/// What one [`Reader::drain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records handed over.
    pub records: u64,
    /// Records that were there and stay for the next time.
    pub left: u64,
    /// The lane's counters contradicted each other (only a broken or hostile writer does that): an unknown
    /// number of records was skipped.
    pub resynced: bool,
}

impl Reader {
    /// Takes over the lane behind `fd`, at the point where an earlier reader stopped.
    ///
    /// # Errors
    /// [`Error::NotALane`] for anything that is not a sealed memfd of the right size and header,
    /// [`Error::Version`] for another layout, [`Error::System`] when it cannot be mapped.
    pub fn open(fd: OwnedFd) -> Result<Reader> {
        let sizes = lane_bytes(1)..=lane_bytes(MAX_CAPACITY);
        let (mapping, bytes) = Mapping::open(&fd, sizes, Error::NotALane)?;
        let (pid, capacity) = check_header(&mapping, bytes)?;
        let long_at = long_at(capacity);
        let consumer = Consumer::resume(shared(&mapping, long_at));
        Ok(Reader { mapping, long_at, consumer, pid, resyncs: 0, kept: 0 })
    }

    /// Hands the records that are there now to `each`, oldest first; `most` of them and at most a lane full, so a
    /// writer that never stops cannot hold the reader.
    pub fn drain(&mut self, most: u64, mut each: impl FnMut(&Record)) -> Drained {
        let shared = shared(&self.mapping, self.long_at);
        match self.consumer.drain(shared, most, |words| each(&Record::from_words(words))) {
            Ok(taken) => {
                self.kept += taken.long;
                if self.kept >= KEPT_RECORDS {
                    self.kept = 0;
                    self.mapping.release();
                }
                Drained { records: taken.short + taken.long, left: taken.left, resynced: false }
            }
            Err(crate::spsc::Nonsense) => {
                self.resyncs += 1;
                Drained { resynced: true, ..Drained::default() }
            }
        }
    }

    /// Records the writer dropped because the lane was full, since it was made; by its own word, as far as that can be true.
    pub fn dropped(&self) -> u64 {
        self.mapping.load(DROPPED_AT).min(MOST_DROPPED)
    }

    /// How often [`Drained::resynced`] happened.
    pub fn resyncs(&self) -> u64 {
        self.resyncs
    }

    /// Memory that the lane takes once all of it is written to.
    pub fn bytes(&self) -> usize {
        self.mapping.words().len() * 8
    }

    /// pid of the writer, in the writer's own pid namespace and by its own word.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// Gives the writer's pid and the long ring's capacity.
fn check_header(mapping: &Mapping, bytes: usize) -> Result<(u32, u32)> {
    if mapping.load(MAGIC_AT) != MAGIC {
        return Err(Error::NotALane("it does not begin like one"));
    }
    let (found, record_bytes) = unpair(mapping.load(VERSION_AT));
    if found != VERSION {
        return Err(Error::Version { found, expected: VERSION });
    }
    let (capacity, pid) = unpair(mapping.load(CAPACITY_AT));
    if record_bytes as usize != size_of::<Record>()
        || !capacity.is_power_of_two()
        || capacity > MAX_CAPACITY
        || bytes != lane_bytes(capacity)
    {
        return Err(Error::NotALane("its header and its size contradict each other"));
    }
    Ok((pid, capacity))
}
