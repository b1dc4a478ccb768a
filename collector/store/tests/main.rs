//! Recordings as they are written and read. One binary: each would be linked by itself.

mod caches;
mod decisions;
mod details;
mod full_disk;
mod growth;
mod killed;
mod mangled;
mod recording;
mod shared;
mod strangers;
mod support;
