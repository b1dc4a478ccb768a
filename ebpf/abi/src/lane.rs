//! What the shim writes into its lane: one lane a process, one writer, fixed records.
//!
//! [`Event`] says what there is to report and where each field lies. A [`Record`] is an event on its way.

mod event;
mod record;
mod values;

pub use event::{
    Batch, Bye, CacheCurve, CacheState, CacheUses, Checkpoint, CheckpointCost, CheckpointRule, Clock,
    Collective, DeviceIdle, Event, IterEnd, IterStart, Sample, Step, Wait,
};
pub use record::{Record, WORDS};
pub use values::{Caller, ClockAt, Saver, Stage, StepSource, Value, wait_flags};

/// Version of every layout in this module, in the lane's header and in the shim's greeting.
pub const VERSION: u32 = 2;
