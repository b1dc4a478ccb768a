//! What travels over the collector's Unix sockets, apart from the shim's greeting (crate `stallscope-ring`).
//!
//! Every connection begins with one JSON line that names the caller ([`Hello`]); the answers are JSON lines too.
//! Only the kernel service then streams binary [`frame`]s, because it carries thousands of records a second.
//! A peer of another [`VERSION`] gets a sentence, never silence.

pub mod frame;
mod message;
mod node;

pub use message::{
    Accepted, Client, Error, Hello, LINE_LIMIT_BYTES, Layer, ProgramState, Reply, Request, VERSION, decode,
    encode,
};
pub use node::{
    Beside, CacheAsk, Frozen, JobHello, JobReport, JobSays, LogPage, LogPlace, NODE_LINE_BYTES, NodeClient,
    NodeEvent, NodeHello, NodeJob, NodeReply, NodeState, Paused, Reading, ShimHello, Whose,
};
