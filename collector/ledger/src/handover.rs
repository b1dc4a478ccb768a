//! The common form of one wait for a batch, seen by the kernel or by the shim.

use stallscope_abi::lane::{Wait, wait_flags};

/// Who made the awaited batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Producer {
    /// The trainer's own main thread.
    Trainer,
    /// A worker, by its pid in the trainer's pid namespace.
    NamespacePid(u32),
    /// A worker, by its pid on the host.
    Pid(u32),
    /// Nobody could tell.
    Unknown,
}

/// When a batch was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTimes {
    /// Its index was taken up.
    pub start_ns: u64,
    /// It was about to be put on the result queue.
    pub ready_ns: u64,
}

/// Who saw a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Shim,
    Kernel,
}

/// A batch was handed to the trainer. Made from the shim's records, or by a detector that reads kernel records
/// (a struct whose `record(&kernel::Record)` returns the handovers that became certain, for
/// [`Ledger::handover`](crate::Ledger::handover)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The trainer's pid on the host.
    pub pid: u32,
    pub loader: u16,
    /// `next()` was entered, and returned.
    pub enter_ns: u64,
    pub exit_ns: u64,
    pub producer: Producer,
    /// `None` from the shim: looked up among the producer's records when the step is closed.
    pub batch: Option<BatchTimes>,
    /// Index of the batch within its iterator.
    pub index: u64,
    /// Samples in the batch, 0 when unknown.
    pub samples: u32,
    /// Bits of [`wait_flags`].
    pub flags: u64,
    pub source: Source,
}

impl Handover {
    /// From a trainer's own report, of a wait that ended at `exit_ns`.
    pub(crate) fn of_wait(pid: u32, exit_ns: u64, wait: &Wait) -> Handover {
        let producer = match wait.worker {
            _ if wait.flags & wait_flags::IN_PROCESS != 0 => Producer::Trainer,
            0 => Producer::Unknown,
            worker => Producer::NamespacePid(worker),
        };
        Handover {
            pid,
            loader: wait.loader,
            enter_ns: wait.enter_ns.min(exit_ns),
            exit_ns,
            producer,
            batch: None,
            index: wait.batch,
            samples: u32::try_from(wait.samples).unwrap_or(u32::MAX),
            flags: wait.flags,
            source: Source::Shim,
        }
    }

    pub(crate) fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}
