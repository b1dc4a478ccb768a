//! The pool: samples of a data set, kept in memory that all jobs of a user on a node share.
//!
//! A process of its own owns it ([`run`]), started on demand and gone some seconds after its last client. Look-ups
//! ([`Client::find`]) read shared memory and nothing else; only fills, claims and hints cross its socket. Any party may
//! be killed at any moment. See docs/cache.md.

// Loom has atomics of its own, which no shared memory holds: under it the slots alone are built.
#[cfg(not(loom))]
mod blocks;
#[cfg(not(loom))]
mod board;
#[cfg(not(loom))]
mod claims;
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod connection;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod held;
#[cfg(not(loom))]
mod joint;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod server;
#[cfg_attr(loom, allow(dead_code, reason = "only its tests use it"))]
mod slots;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod start;
#[cfg(not(loom))]
mod view;

#[cfg(not(loom))]
pub use board::JointCurve;
#[cfg(not(loom))]
pub use client::{Client, Feed, Found, Settings};
#[cfg(not(loom))]
pub use error::{Error, Result};
#[cfg(not(loom))]
pub(crate) use held::Held;
#[cfg(not(loom))]
pub use message::Member;
#[cfg(not(loom))]
pub use start::{run, serve};
#[cfg(not(loom))]
pub use view::Figures;
