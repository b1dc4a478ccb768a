//! Lanes and pages: how measurements leave a training process, and requests reach it, without ever holding it up.
//!
//! A lane is one memfd with a header and a ring of fixed records. The process that made it is its only writer;
//! the holder of the descriptor reads. A full lane drops and counts. Nothing in it is a lock, so either side may
//! be killed at any moment: a record counts only once `head` has moved past it, and a new reader resumes at
//! `tail`. The reader treats every byte as foreign.
//!
//! A process whose knobs can be turned also has a page of them, on the same terms: one writer a word, no lock, last
//! values in force when either side dies; see [`JobSide`] and [`CollectorSide`].
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
mod mapping;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod page;
#[cfg(not(loom))]
mod socket;
#[cfg_attr(loom, allow(dead_code, reason = "only its tests use it"))]
mod spsc;
#[cfg_attr(loom, allow(dead_code, unreachable_pub, reason = "only its tests use it"))]
mod turn;

#[cfg(not(loom))]
pub use error::{Error, Result};
#[cfg(not(loom))]
pub use lane::{Drained, MAX_CAPACITY, Reader, Writer};
#[cfg(not(loom))]
pub use message::{Fact, Greeting, KnobFact, LoaderFact, PROTOCOL_VERSION, ProcessKind, RankFact};
#[cfg(not(loom))]
pub use page::{CollectorSide, JobSide, PAGE_VERSION, SLOTS};
#[cfg(not(loom))]
pub use socket::{LineReader, MAX_LINE_BYTES, Received, send_greeting, send_line, send_lines, send_with};
#[cfg(not(loom))]
pub use turn::{Answer, RequestNumber, Standing};
