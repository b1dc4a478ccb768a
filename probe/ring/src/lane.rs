use crate::error::{Error, Result};
use crate::layout::{
    CAPACITY_AT, DROPPED_AT, HEADER_BYTES, LONG_HEAD_AT, LONG_TAIL_AT, MAGIC, MAGIC_AT, RECORDS_AT,
    SHORT_HEAD_AT, SHORT_TAIL_AT, VERSION_AT, lane_bytes, long_at, pair, short_records, unpair,
};
use crate::mapping::Mapping;
use crate::spsc::{Consumer, Ends, Producer, Ring, Shared, Which};
use stallscope_abi::lane::{Record, VERSION, WORDS};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Most records a lane may have (48 MiB of them).
pub const MAX_CAPACITY: u32 = 1 << 20;

/// For so many a writer takes a month at least.
const MOST_DROPPED: u64 = 1 << 48;

/// Records that are read at a time.
const AT_ONCE: u64 = 128;
const RECORD_BYTES: usize = size_of::<Record>();

/// The ends of both rings of a lane whose long one holds `capacity` records.
#[inline]
fn ends(mapping: &Mapping, capacity: u32) -> [Ends<'_>; 2] {
    let words = mapping.words();
    let of = |head: usize, tail: usize, capacity: u32| Ends {
        head: &words[head],
        tail: &words[tail],
        capacity: u64::from(capacity),
    };
    [of(SHORT_HEAD_AT, SHORT_TAIL_AT, short_records(capacity)), of(LONG_HEAD_AT, LONG_TAIL_AT, capacity)]
}

#[inline]
fn shared(mapping: &Mapping, capacity: u32) -> Shared<'_> {
    let (short, long) = mapping.words().split_at(long_at(capacity));
    let [short_ends, long_ends] = ends(mapping, capacity);
    Shared {
        short: Ring { ends: short_ends, words: &short[RECORDS_AT..] },
        long: Ring { ends: long_ends, words: long },
        dropped: &mapping.words()[DROPPED_AT],
    }
}

/// The writing end. One thread at a time: several threads of a process need a lock around it (the shim's threads
/// hold Python's interpreter lock and a lock of its own besides).
#[derive(Debug)]
pub struct Writer {
    mapping: Mapping,
    capacity: u32,
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
        Ok((Writer { mapping, capacity, producer: Producer::default() }, fd))
    }

    /// Appends `record`; `false` when the lane is full, and then it is counted as dropped.
    #[inline]
    pub fn push(&mut self, record: &Record) -> bool {
        self.producer.push(shared(&self.mapping, self.capacity), record.words())
    }

    /// Counts a record that could not even be offered.
    pub fn count_dropped(&mut self) {
        self.producer.count_dropped(shared(&self.mapping, self.capacity));
    }
}

/// The reading end. It has the header of the lane in its memory alone, and records are copied out by the kernel: a hostile writer
/// may claim records in pages that it never made, or took back, and who touched these would make them.
#[derive(Debug)]
pub struct Reader {
    header: Mapping,
    file: File,
    capacity: u32,
    consumer: Consumer,
    pid: u32,
    resyncs: u64,
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
        let (header, bytes) = Mapping::open(&fd, HEADER_BYTES, sizes, Error::NotALane)?;
        let (pid, capacity) = check_header(&header, bytes)?;
        let [short, long] = ends(&header, capacity);
        let consumer = Consumer::resume(short, long);
        Ok(Reader { header, file: File::from(fd), capacity, consumer, pid, resyncs: 0 })
    }

    /// Hands the records that are there now to `each`, oldest first; `most` of them and at most a lane full, so a
    /// writer that never stops cannot hold the reader.
    pub fn drain(&mut self, most: u64, mut each: impl FnMut(&Record)) -> Drained {
        let Reader { header, file, capacity, consumer, .. } = self;
        let [short, long] = ends(header, *capacity);
        let read = |which, from, count| match which {
            Which::Short => read(file, HEADER_BYTES, short, from, count, &mut each),
            Which::Long => read(file, long_at(*capacity) * 8, long, from, count, &mut each),
        };
        match consumer.drain(short, long, most, read) {
            Ok(taken) => Drained { records: taken.short + taken.long, left: taken.left, resynced: false },
            Err(crate::spsc::Nonsense) => {
                self.resyncs += 1;
                Drained { resynced: true, ..Drained::default() }
            }
        }
    }

    /// Records the writer dropped because the lane was full, since it was made; by its own word, as far as that can be true.
    pub fn dropped(&self) -> u64 {
        self.header.load(DROPPED_AT).min(MOST_DROPPED)
    }

    /// How often [`Drained::resynced`] happened.
    pub fn resyncs(&self) -> u64 {
        self.resyncs
    }

    /// Memory that the lane takes once all of it is written to.
    pub fn bytes(&self) -> usize {
        lane_bytes(self.capacity)
    }

    /// pid of the writer, in the writer's own pid namespace and by its own word.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// Hands over `count` records of the ring that begins at byte `at`, from number `from` on.
fn read(
    file: &File,
    at: usize,
    ring: Ends<'_>,
    mut from: u64,
    mut count: u64,
    mut each: impl FnMut(&Record),
) -> io::Result<()> {
    let mut bytes = [0; AT_ONCE as usize * RECORD_BYTES];
    while count > 0 {
        let place = ring.place(from);
        let now = count.min(AT_ONCE).min(ring.capacity - place);
        let bytes = &mut bytes[..now as usize * RECORD_BYTES];
        file.read_exact_at(bytes, at as u64 + place * RECORD_BYTES as u64)?;
        for record in bytes.as_chunks::<RECORD_BYTES>().0 {
            let (words, _) = record.as_chunks::<8>();
            each(&Record::from_words(std::array::from_fn::<_, WORDS, _>(|nth| {
                u64::from_ne_bytes(words[nth])
            })));
        }
        (from, count) = (from.wrapping_add(now), count - now);
    }
    Ok(())
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
