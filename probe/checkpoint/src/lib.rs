//! Checkpoints in two phases: tensors are copied into prepared memory in milliseconds, and written, committed, read back
//! and collected in the background. A checkpoint that is called saved can be loaded, whatever was killed and when.
//!
//! ```no_run
//! use stallscope_checkpoint::{Dtype, Options, Plan, Saver, Source, Store, TensorSpec};
//! # fn main() -> Result<(), stallscope_checkpoint::Error> {
//! let weights = vec![1.0_f32; 1024];
//! let spec = TensorSpec { name: "weights".into(), dtype: Dtype::F32, shape: vec![1024] };
//!
//! let newest = Store::open("ckpts").newest_verified(&|_, _, _| {}, &|| true)?;
//! let saver = Saver::open("ckpts".as_ref(), Options::default())?;
//! if let Some(checkpoint) = newest.checkpoint {
//!     saver.continue_run(checkpoint.manifest.run);
//! }
//! let plan = Plan::of(vec![spec], &[])?;
//! saver.prepare(&plan);
//! // SAFETY: the vector outlives the fence and nobody writes to it before.
//! let snapshot = unsafe { saver.snapshot(&plan, &[Source::Late(weights.as_ptr().cast())])? };
//! snapshot.fence();
//! saver.persist(snapshot, saver.ticket(123), b"position of the loader".to_vec())?;
//! # Ok(()) }
//! ```
//!
//! The parts: [`Saver`] saves, [`Store`] finds, verifies and collects, [`Checkpoint`] reads, [`interval`] says when to
//! save. Format, guarantees and their reasons: docs/checkpoints.md.

mod arena;
mod checkpoint;
mod copy;
mod deaf;
mod error;
mod export;
mod files;
mod history;
mod image;
pub mod interval;
mod locking;
mod manifest;
mod measured;
mod names;
mod pace;
mod persist;
mod read;
mod retain;
mod reuse;
mod saver;
mod shard;
mod short;
mod snapshot;
mod store;
mod tensor;
mod turns;
mod write;

pub use checkpoint::{Check, Checkpoint};
pub use error::{Error, Result};
pub use files::{Disk, Files, Folder, Out};
pub use history::History;
pub use image::CHUNK_BYTES;
pub use manifest::{
    Chunk, Digest, FORMAT, Listed, MANIFEST, Manifest, Part, Ranks, StoredFile, StoredTensor, StoredUser,
};
pub use names::Ticket;
pub use pace::{Pace, Yielding};
pub use read::{Region, Target, Window};
pub use retain::{Best, Mode, Retain};
pub use saver::{Options, Outcome, Saved, Saver};
pub use snapshot::{Plan, Snapshot, Source};
pub use store::{
    Collected, Entry, LATEST, Newest, Passed, QUARANTINE, SetAside, State, Store, mark_verified,
};
pub use tensor::{Dtype, TensorSpec};
