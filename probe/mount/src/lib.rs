//! A pack as a file system that nobody can write to (FUSE), for programs that know nothing of packs. What it promises and
//! why: docs/packs.md.

mod expanded;
mod files;
mod place;
mod serve;
mod tree;

pub use place::{FS_TYPE, Place, unmount};
pub use serve::{Mounted, Served};
#[cfg(fuzzing)]
pub use tree::list_any;

/// Why a pack cannot be shown, as a sentence for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pack is none, or damaged.
    #[error(transparent)]
    Pack(#[from] stallscope_pack::Error),
    /// The place is none, or the kernel refused; the sentence names the way out.
    #[error("{0}")]
    Refused(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
