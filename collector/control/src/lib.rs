//! The controller of a job's knobs, and its model of the job.
//!
//! Pure: no I/O, no clock of its own, randomness from a seed; the same input gives the same output, so that live
//! control, a replay and a simulation can't differ.

mod budget;
mod cache;
mod controller;
mod draws;
mod expect;
mod fit;
mod goodput;
mod growth;
mod observation;
pub mod pipeline;
mod profile;
mod random;
mod ranks;
mod rates;
mod reads;
mod saves;
mod stats;
mod trend;
mod whatif;
mod window;

pub use cache::{LargerCache, Missed, larger_cache};
pub use controller::{CacheWants, Controller};
pub use expect::{advise, expect};
pub use goodput::Saving;
pub use observation::{Action, MachineCpus, NodeState, Observation, Outcome, RankObservation, SharedStorage};
pub use profile::{Profile, Profiles};
pub use random::Random;
pub use rates::rates;
pub use whatif::{Bottleneck, Change, Delta, Outlook, Prediction, Setting, Smallest, outlook, what_if};
