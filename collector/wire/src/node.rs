//! What a job's collector and the node's service say to each other. Lines of JSON, of at most [`NODE_LINE_BYTES`].

use serde::{Deserialize, Serialize};
use stallscope_model::TuneMode;

/// No line between a job and the node's service is longer.
pub const NODE_LINE_BYTES: usize = 16 << 10;

/// To the node's service: first line of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHello {
    /// [`crate::VERSION`] of the caller.
    pub stallscope: u32,
    #[serde(flatten)]
    pub client: NodeClient,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum NodeClient {
    /// The collector of a job, which stays connected for as long as the job has it.
    Job(JobHello),
    /// Asks for the jobs that the caller may know of.
    List,
}

/// A job as its collector describes it. What it says counts for this job alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHello {
    pub name: String,
    /// `STALLSCOPE_LABEL` of the job's environment.
    #[serde(default)]
    pub label: String,
    /// Where root asks, as with sudo: whose job it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// The mode that its owner chose for it; `None`: none, and the policy decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_mode: Option<TuneMode>,
}

/// From a job's collector, once the job has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobSays {
    /// Root of its process tree. It has the shim, so that its knobs can be turned.
    Started { pid: u32 },
}

/// From the node's service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeReply {
    /// To a [`NodeClient::Job`]: what a cache that the job begins with may take; 0: it begins with none.
    Allowed { first_cache_bytes: u64 },
    /// To [`NodeClient::List`].
    Jobs(Vec<NodeJob>),
    /// One sentence.
    Error(String),
}

/// A job as the node's service knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeJob {
    pub name: String,
    /// 0: it has not begun.
    pub pid: u32,
    /// Login name of its owner.
    pub user: String,
    /// "observe", "advise", "act".
    pub mode: String,
    /// The policy's rule, from 1; `None`: no rule matches.
    pub rule: Option<u32>,
    /// Most that its caches may be raised to.
    pub cache_bytes: u64,
    /// What is going on, in words.
    pub state: String,
}
