//! Every event that a lane carries, with its number on the wire and the place of each of its fields.

use super::record::{Field, Record};
use super::values::{Caller, ClockAt, Saver, Stage, StepSource, Value};

/// From `Name = number { field: type at offset, … }`: a struct for each event, with `encode`, and the enum of all.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident = $kind:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $offset:literal,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $event {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl $event {
                /// `time_ns`: when what is reported was complete.
                #[inline]
                #[allow(unused_mut, reason = "an event may have no fields")]
                pub fn encode(self, time_ns: u64) -> Record {
                    let mut record = Record::new($kind, time_ns);
                    $(record.put($offset, self.$field);)*
                    record
                }
            }

            impl From<$event> for Event {
                fn from(event: $event) -> Event {
                    Event::$event(event)
                }
            }

            // Fields lie behind the event's number, each within a word, none upon another.
            #[allow(unused_mut, reason = "an event may have no fields")]
            const _: () = {
                let mut taken = 0b11_1111_1111_u64;
                $(
                    let bytes = ((1 << <$type as Field>::BYTES) - 1) << $offset;
                    assert!(taken & bytes == 0, concat!(stringify!($field), " lies upon another field"));
                    assert!($offset / 8 == ($offset + <$type as Field>::BYTES - 1) / 8 && $offset < 48);
                    taken |= bytes;
                )*
                let _ = taken;
            };
        )*

        /// What a training process reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($event($event),)*
        }

        impl Event {
            /// `time_ns`: when what is reported was complete.
            pub fn encode(self, time_ns: u64) -> Record {
                match self {
                    $(Event::$event(event) => event.encode(time_ns),)*
                }
            }

            /// `None` for an event that this version does not know: readers skip those and count them.
            pub fn decode(record: &Record) -> Option<Event> {
                Some(match record.kind() {
                    $($kind => Event::$event($event { $($field: record.get($offset),)* }),)*
                    _ => return None,
                })
            }

            pub const fn name(&self) -> &'static str {
                match self {
                    $(Event::$event(_) => stringify!($event),)*
                }
            }

            /// Each field's name and value, in the order of their declaration.
            #[allow(unused_variables, reason = "an event may have no fields")]
            pub fn fields(&self, mut each: impl FnMut(&'static str, Value)) {
                match self {
                    $(Event::$event(event) => { $(each(stringify!($field), event.$field.value());)* })*
                }
            }
        }
    };
}

// Offsets and numbers are what recordings and other versions' readers have: a new field takes free bytes, a new event the
// next number, and nothing that is there moves within a `VERSION`.
events! {
    /// Trainer: a batch was handed over (`next()` returned).
    Wait = 1 {
        /// Which loader of this process: 0, 1, …
        loader: u16 = 10,
        /// pid, in the trainer's own pid namespace, of the worker that made the batch; 0 when the trainer made it itself.
        worker: u32 = 12,
        /// When `next()` was entered.
        enter_ns: u64 = 16,
        /// Index of the batch within its iterator.
        batch: u64 = 24,
        /// In the batch, 0 when unknown.
        samples: u64 = 32,
        /// [`wait_flags`](super::wait_flags).
        flags: u64 = 40,
    }

    /// Trainer or worker: clocks of the calling thread, for evidence without the kernel side.
    Clock = 2 {
        /// The loader; `u16::MAX` for none.
        loader: u16 = 10,
        at: ClockAt = 12,
        /// The thread's CPU time.
        cpu_ns: u64 = 16,
        /// How long the thread was runnable without a CPU.
        run_delay_ns: u64 = 24,
        process_cpu_ns: u64 = 32,
        /// In wrapped opens and reads so far.
        read_ns: u64 = 40,
    }

    /// Trainer: a loader was iterated from the start (an epoch began).
    IterStart = 3 {
        loader: u16 = 10,
        /// Iterators so far of this loader.
        epoch: u64 = 16,
        /// [`wait_flags`](super::wait_flags).
        flags: u64 = 40,
    }

    /// Trainer: that iterator is exhausted or was dropped.
    IterEnd = 4 {
        loader: u16 = 10,
        /// Batches handed over.
        batches: u64 = 16,
        /// When the `next()` that found the end was entered, 0 if none did.
        enter_ns: u64 = 24,
    }

    /// Worker (or the trainer without workers): samples, or one `__getitems__`, were made. Those that follow each other
    /// share an event until it spans a millisecond and a sixteenth of the batch before.
    Sample = 5 {
        loader: u16 = 10,
        count: u32 = 12,
        /// When the first one was begun.
        start_ns: u64 = 16,
        /// Index of the batch.
        batch: u64 = 24,
        /// Of this time, inside wrapped opens and reads.
        read_ns: u64 = 32,
    }

    /// Worker (or the trainer without workers): a batch is ready to leave.
    Batch = 6 {
        loader: u16 = 10,
        /// The worker's number.
        worker: u32 = 12,
        /// When the batch's index was taken up.
        start_ns: u64 = 16,
        /// Index of the batch within its iterator.
        batch: u64 = 24,
        /// When collate began, 0 if unseen.
        collate_ns: u64 = 32,
        /// The thread's CPU time spent on it.
        cpu_ns: u64 = 40,
    }

    /// Any thread: a checkpoint call ended.
    Checkpoint = 7 {
        saver: Saver = 12,
        began_ns: u64 = 16,
        stage: Stage = 24,
        /// 0 when unknown.
        bytes: u64 = 32,
        caller: Caller = 40,
    }

    /// Trainer with a device: for how long the device had no work in a wait. May come several steps later.
    DeviceIdle = 8 {
        idle_ns: u64 = 16,
        /// When that wait ended.
        wait_exit_ns: u64 = 24,
    }

    /// Trainer: a collective operation blocked the caller until now.
    Collective = 9 {
        began_ns: u64 = 16,
    }

    /// Any: the process is about to exit in an orderly way.
    Bye = 10 {}

    /// Who made a batch of a loader with a cache, once a batch: its uses of samples since the last such event.
    CacheUses = 11 {
        loader: u16 = 10,
        /// Of the hits, those whose sample was fetched ahead of its draw and is used for the first time.
        prefetched: u32 = 12,
        /// True hits.
        hits: u32 = 16,
        substitutions: u32 = 20,
        misses: u32 = 24,
        /// Hits that waited for a read under way.
        late: u32 = 28,
        /// Taken from the pool.
        pool_bytes: u64 = 32,
        /// Read from the source.
        source_bytes: u64 = 40,
    }

    /// Trainer with a cache, at most once a second: the data set's part of the pool.
    CacheState = 12 {
        loader: u16 = 10,
        kept_bytes: u64 = 16,
        /// That may be kept.
        capacity_bytes: u64 = 24,
        /// So far.
        evictions: u64 = 32,
        kept_samples: u64 = 40,
    }

    /// Trainer with a `stallscope.Checkpointer`: its account, of all runs of the job.
    CheckpointCost = 13 {
        /// What saves have cost, blocked or slowed down.
        spent_ns: u64 = 16,
        /// Of so much time trained.
        trained_ns: u64 = 24,
        /// Millionths of the time trained; 0 for no budget.
        budget_ppm: u64 = 32,
        /// Saves of this process that failed so far.
        failed: u64 = 40,
    }

    /// Trainer with a cache, at most once a second: one of the sizes whose misses are reported, the smallest first, one after
    /// the other.
    CacheCurve = 14 {
        loader: u16 = 10,
        /// This size's number, from 0.
        point: u16 = 12,
        /// How many sizes there are. 0: ranks of several jobs share the cache, and there is no curve.
        points: u8 = 14,
        /// How many ranks' uses it is of.
        ranks: u8 = 15,
        capacity_bytes: u64 = 16,
        /// That were counted.
        uses: u64 = 24,
        /// How many of the uses a cache of this size would have missed.
        misses: u64 = 32,
        /// Of the whole data set.
        dataset_bytes: u64 = 40,
    }

    /// Trainer: a training step ended. Of the optimiser only while no loader's training batches are being worked on, or once
    /// a batch.
    Step = 15 {
        source: StepSource = 12,
    }

    /// Trainer with a `stallscope.Checkpointer`, behind each `CheckpointCost`: what its own rule goes by, also where a fixed interval
    /// is in force.
    CheckpointRule = 16 {
        /// What a save costs, by the recent ones: blocked, and steps slowed down.
        cost_ns: u64 = 16,
        /// From its beginning until it is durable, by the recent ones.
        persist_ns: u64 = 24,
        /// Mean time between failures.
        mtbf_ns: u64 = 32,
        /// The interval of the rule.
        interval_ns: u64 = 40,
    }
}
