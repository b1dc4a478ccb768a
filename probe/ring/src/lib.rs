//! Lanes: how measurements leave a training process without ever holding it up.
//!
//! A lane is one memfd with a header and a ring of fixed records. The process that made it is its only writer;
//! whoever holds the descriptor reads. A full lane drops and counts. Nothing in it is a lock, so either side may
//! be killed at any moment: a record counts only once `head` has moved past it, and a new reader resumes at
//! `tail`. The reader treats every byte as foreign.
//!
//! [`Greeting`] and [`Fact`] are the JSON lines that go with it over a Unix stream socket; see [`send_greeting`]
//! and [`LineReader`].

mod error;
mod lane;
mod layout;
mod message;
mod socket;
mod spsc;

pub use error::{Error, Result};
pub use lane::{Drained, MAX_CAPACITY, Reader, Writer};
pub use message::{Fact, Greeting, LoaderFact, PROTOCOL_VERSION, ProcessKind, RankFact};
pub use socket::{LineReader, MAX_LINE_BYTES, Received, send_greeting, send_line};
