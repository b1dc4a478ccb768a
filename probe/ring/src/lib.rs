//! Lanes: how measurements leave a training process without ever holding it up.
//!
//! A lane is one memfd with a header and a ring of fixed records. The process that made it is its only writer;
//! whoever holds the descriptor reads. A full lane drops and counts. Nothing in it is a lock, so either side may
//! be killed at any moment: a record counts only once `head` has moved past it, and a new reader resumes at
//! `tail`. The reader treats every byte as foreign.
//!
//! [`Greeting`] and [`Fact`] are the JSON lines that go with it over a Unix stream socket; see [`send_greeting`]
//! and [`LineReader`].

// Loom has atomics of its own, which no shared memory holds: under it the ring alone is built.
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod lane;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod socket;
#[cfg_attr(loom, allow(dead_code, reason = "only its tests use it"))]
mod spsc;

#[cfg(not(loom))]
pub use error::{Error, Result};
#[cfg(not(loom))]
pub use lane::{Drained, MAX_CAPACITY, Reader, Writer};
#[cfg(not(loom))]
pub use message::{Fact, Greeting, LoaderFact, PROTOCOL_VERSION, ProcessKind, RankFact};
#[cfg(not(loom))]
pub use socket::{LineReader, MAX_LINE_BYTES, Received, send_greeting, send_line};
