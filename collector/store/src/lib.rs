//! Recordings: one SQLite file a run, readable while it is written and after its writer was killed.
//!
//! [`Recorder`] writes, [`Recording`] reads. `docs/recording.md` describes the file for those who open it with
//! other tools.

mod alive;
mod caches;
mod decisions;
mod details;
mod error;
mod files;
mod foreign;
mod growth;
mod head;
mod live;
mod opening;
mod place;
mod recorder;
mod recording;
mod retention;
mod rollup;
mod rows;
mod sampled;
mod schema;
mod spending;
mod spot;
mod tables;
mod tail;
mod waiting;

pub use error::Error;
pub use head::Head;
pub use place::{Recordings, live_recordings, recordings_in, some_recordings_in};
pub use recorder::{Finished, Options, Recorder};
pub use recording::{Recording, State, StepFilter, Steps};
pub use retention::{Dropped, Retention};
pub use rows::{ClockAnchor, Rollup, RollupPeriod, StepRow};
pub use schema::VERSION;
