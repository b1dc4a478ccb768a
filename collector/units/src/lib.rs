//! Sizes, durations, shares and rates as text: each is formatted and parsed here alone, so that the same quantity reads the
//! same on every screen, in every finding and on every command line.
//!
//! One rule for units of bytes: what is read, written or sent is in powers of ten (kB, MB, MB/s); memory, and what a cache
//! holds of it, is in powers of two (KiB, MiB), as people set it.

mod format;
mod parse;

pub use format::*;
pub use parse::*;
