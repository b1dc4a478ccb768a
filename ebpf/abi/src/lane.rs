//! What the shim writes into its lane: one lane a process, one writer, fixed records.

/// Version of every layout in this module, in the lane's header and in the shim's greeting.
pub const VERSION: u32 = 2;

/// One event of a training process, 48 bytes; `kind` says what `id` and `a` to `d` mean.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When what the record tells was complete.
    pub time_ns: u64,
    /// A [`Kind`]; readers skip those they don't know and count them.
    pub kind: u16,
    /// Which loader of this process (0, 1, …) where that matters.
    pub loader: u16,
    pub id: u32,
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u64,
}

#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Trainer: a batch was handed over (`next()` returned). `id`: pid, in the trainer's own pid namespace, of
    /// the worker that made it, 0 when the trainer made it itself. `a`: when `next()` was entered. `b`: index of
    /// the batch within its iterator. `c`: samples in the batch, 0 when unknown. `d`: [`wait_flags`].
    Wait = 1,
    /// Trainer or worker: clocks of the calling thread, for evidence without the kernel side. `id`: a
    /// [`ClockAt`]. `a`: thread CPU time. `b`: thread run delay (runnable, no CPU). `c`: process CPU time.
    /// `d`: nanoseconds in wrapped opens and reads so far.
    Clock = 2,
    /// Trainer: a loader was iterated from the start (an epoch began). `a`: iterators so far of this loader.
    /// `d`: [`wait_flags`].
    IterStart = 3,
    /// Trainer: that iterator is exhausted or was dropped. `a`: batches handed over. `b`: when the `next()` that
    /// found the end was entered, 0 if none did.
    IterEnd = 4,
    /// Worker (or the trainer without workers): samples, or one `__getitems__`, were made. `id`: how many; those that
    /// follow each other share a record until it spans a millisecond and a sixteenth of the batch before. `a`: when the first was begun. `b`: index of the batch. `c`: nanoseconds of it inside wrapped opens and reads.
    Sample = 5,
    /// Worker (or the trainer without workers): a batch is ready to leave. `id`: worker number. `a`: when its
    /// index was taken up. `b`: index of the batch within its iterator. `c`: when collate began, 0 if unseen.
    /// `d`: thread CPU time spent on it.
    Batch = 6,
    /// Any thread: a checkpoint call. `id`: a [`Saver`]. `a`: when it began. `b`: 0 = the caller was blocked to
    /// snapshot, 1 = to persist. `c`: bytes, 0 when unknown. `d`: [`checkpoint_by`].
    Checkpoint = 7,
    /// Trainer with a device: in the wait that ended at `b`, the device had no work for `a` nanoseconds. May
    /// come several steps later.
    DeviceIdle = 8,
    /// Trainer: a collective operation blocked the caller from `a` until `time_ns`.
    Collective = 9,
    /// Any: the process is about to exit in an orderly way.
    Bye = 10,
    /// Who made a batch of a loader with a cache, once a batch: its uses of samples since the last such record.
    /// `id`: of the hits, those whose sample was fetched ahead of its draw and is used for the first time. `a`: true hits
    /// | substitutions << 32. `b`: misses | late << 32, late being hits that waited for a read under way.
    /// `c`: bytes taken from the pool. `d`: bytes read from the source.
    CacheUses = 11,
    /// Trainer with a cache, at most once a second: the data set's part of the pool. `a`: bytes kept. `b`: bytes
    /// that may be kept. `c`: evictions so far. `d`: samples kept.
    CacheState = 12,
    /// Trainer with a `stallscope.Checkpointer`: its account, of all runs of the job. `a`: nanoseconds that saves have cost,
    /// blocked or slowed down. `b`: of so many nanoseconds trained. `c`: the budget in millionths, 0 for none. `d`: saves of this
    /// process that failed so far.
    CheckpointCost = 13,
    /// Trainer with a cache, at most once a second: one of the sizes whose misses are reported, the smallest first, one after
    /// the other. `id`: its number, from 0, | their count << 16 | how many ranks' uses it is of << 24. Of a count of 0: ranks
    /// of several jobs share the cache, and there is no curve. `a`: bytes. `b`: uses that were counted. `c`: how many of
    /// them such a cache would have missed. `d`: bytes of the whole data set.
    CacheCurve = 14,
    /// Trainer: a training step ended. `id`: a [`StepSource`]. Of the optimiser only while no loader's training batches
    /// are being worked on, or once a batch.
    Step = 15,
}

pub const KINDS: u16 = 15;

impl Kind {
    pub const fn from_u16(value: u16) -> Option<Kind> {
        Some(match value {
            1 => Kind::Wait,
            2 => Kind::Clock,
            3 => Kind::IterStart,
            4 => Kind::IterEnd,
            5 => Kind::Sample,
            6 => Kind::Batch,
            7 => Kind::Checkpoint,
            8 => Kind::DeviceIdle,
            9 => Kind::Collective,
            10 => Kind::Bye,
            11 => Kind::CacheUses,
            12 => Kind::CacheState,
            13 => Kind::CheckpointCost,
            14 => Kind::CacheCurve,
            15 => Kind::Step,
            _ => return None,
        })
    }
}

/// Bits of [`Record::d`] of a [`Kind::Wait`] and [`Kind::IterStart`].
pub mod wait_flags {
    /// Gradients were off at `next()`: evaluation.
    pub const NO_GRAD: u64 = 1;
    /// The first batch of its iterator.
    pub const FIRST: u64 = 2;
    /// The trainer made the batch itself (no workers).
    pub const IN_PROCESS: u64 = 4;
    /// A pin-memory thread stands between.
    pub const PINNED: u64 = 8;
    /// `next()` raised an error other than StopIteration.
    pub const FAILED: u64 = 16;
}

/// Where a [`Kind::Clock`] was read; always directly beside a record that bears the same time.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockAt {
    WaitEnter = 1,
    WaitExit = 2,
    BatchStart = 3,
    BatchReady = 4,
    /// Beside a [`Kind::Step`] of a loop without a loader.
    Step = 5,
}

/// What ended the step of a [`Kind::Step`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSource {
    /// The optimiser that leads: of several, the one that steps most often.
    Optimiser = 1,
    /// `stallscope.step()`.
    Script = 2,
}

/// Which thread called in a [`Kind::Checkpoint`].
pub mod checkpoint_by {
    pub const MAIN_THREAD: u64 = 0;
    pub const THREAD: u64 = 1;
    /// The main thread of a forked child.
    pub const FORKED: u64 = 2;
}

/// Who saved in a [`Kind::Checkpoint`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saver {
    TorchSave = 1,
    DcpSave = 2,
    DcpAsyncSave = 3,
    Safetensors = 4,
    Other = 5,
    /// `stallscope.Checkpointer`.
    Stallscope = 6,
}

const _: () = assert!(size_of::<Record>() == 48);
