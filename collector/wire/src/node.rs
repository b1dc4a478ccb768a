//! What a job's collector and the node's service say to each other. Lines of JSON, of at most [`NODE_LINE_BYTES`].

use serde::{Deserialize, Serialize};
use stallscope_model::{AuditEvent, Estimate, TuneMode};

/// No line to the node's service is longer, and none to a job.
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
    /// The shim of a job that nobody launched with `run`. Its [`NodeHello::stallscope`] is the version of greetings, which it
    /// shares with the job's collector.
    Shim(ShimHello),
    /// Asks for the jobs that the caller may know of.
    List,
    /// Asks for a page of the node's audit, of what the caller may know.
    Log {
        /// Where the page before ended; `None`: the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<LogPlace>,
    },
    /// Nothing is to be changed any more.
    Pause(Whose),
    /// Takes a pause back.
    Resume(Whose),
}

/// What the shim of a job says that nobody launched with `run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimHello {
    /// Root of the job's process tree, of which the caller is a part: the first process that asked whether the shim may come.
    pub pid: u32,
    /// When that began, in ticks since the machine did.
    pub start_ticks: u64,
    /// `STALLSCOPE_LABEL` of the job's environment.
    #[serde(default)]
    pub label: String,
    /// The job trains, and has no collector. Before that it only asks whether the shim may come.
    #[serde(default)]
    pub trains: bool,
}

/// One job or the whole node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whose {
    /// Name or pid; `None`: the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// Between two lines of the node's audit. What it means is the service's affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlace {
    /// Number of the file.
    pub file: u64,
    /// In bytes, within it.
    pub at: u64,
}

/// A job as its collector describes it. What it says counts for this job alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHello {
    pub name: String,
    /// `STALLSCOPE_LABEL` of the job's environment.
    #[serde(default)]
    pub label: String,
    /// A process whose shim introduced the job, which the caller has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Where root asks, as with sudo: whose job it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// What an earlier service of this node had granted its caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_bytes: Option<u64>,
    /// The mode that its owner chose for it; `None`: none, and the policy decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_mode: Option<TuneMode>,
}

/// From a job's collector, once the job has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobSays {
    /// First: root of its process tree. It has the shim, so that its knobs can be turned.
    Started { pid: u32 },
    /// Every few seconds, and for each line of the job's audit.
    Report(Box<JobReport>),
}

/// What became of a job so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// The next line of its audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<AuditEvent>,
    /// Seconds that proven changes have saved.
    pub saved_s: f64,
    /// Share by which samples a second are more than without the proven changes that are in force.
    pub faster: f64,
    /// Nothing is tried for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Frozen>,
    /// Where a session of the node's may raise its caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheAsk>,
    /// What became of its user's recordings, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_recordings: Option<String>,
    /// What it reads of late; `None`: nothing, or it is not known from where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<Reading>,
}

/// What a job reads, from the storage that it waits for most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Number of the file system's device, as the kernel has it.
    pub device: u32,
    pub bytes_per_s: u64,
}

/// What other jobs of the node read from the storage that a job waits for most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// How many there are.
    pub jobs: u32,
    /// All of them together.
    pub bytes_per_s: u64,
}

/// What memory for its caches is worth to a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheAsk {
    /// The last [`NodeReply::Granted`] that it heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_bytes: Option<u64>,
    /// What its caches hold or may fill now, all together.
    pub held_bytes: u64,
    /// Bytes, and the share of its time without caches that it saves with so many; empty where it does not know.
    pub benefit: Vec<(u64, f64)>,
}

/// Too many changes had to be undone, and nothing is tried for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// A sentence.
    pub why: String,
    /// Seconds from now.
    pub left_s: u64,
}

/// From the node's service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeReply {
    /// To a [`NodeClient::Job`]: what a cache that the job begins with may take; 0: it begins with none.
    Allowed { first_cache_bytes: u64 },
    /// To a [`NodeClient::Shim`]: whether it may come into the job, and what a cache that the job begins with may take; 0: it
    /// begins with none.
    Shim { comes: bool, first_cache_bytes: u64 },
    /// To a job that has begun, at any time: what its caches may be raised to, all together, from now on.
    Granted { cache_bytes: u64 },
    /// To a job whose session tunes it, every few seconds for as long as others read from the same storage, and once when none does any
    /// more.
    Beside(Beside),
    /// To [`NodeClient::List`].
    Node(NodeState),
    /// To [`NodeClient::Log`].
    Log(LogPage),
    /// To [`NodeClient::Pause`] and [`NodeClient::Resume`]: what is so now, in a sentence.
    Done(String),
    /// One sentence.
    Error(String),
}

/// What the node's service does, as far as the caller may know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// Nothing on the node is changed, for a pause of the whole node.
    pub paused: Option<Paused>,
    pub jobs: Vec<NodeJob>,
}

/// A pause: nothing is changed until it is taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Login name and number of the user whose pause it is.
    pub by: String,
    pub uid: u32,
    /// Nanoseconds since 1970.
    pub since_wall_ns: u64,
}

/// Part of the node's audit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogPage {
    pub events: Vec<NodeEvent>,
    pub next: LogPlace,
    /// There is more after it now.
    pub more: bool,
}

/// A line of the node's audit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
    /// Empty where the line is about the whole node.
    pub job: String,
    /// 0: it has not begun, or the line is about the whole node.
    pub pid: u32,
    /// Login name and number of the job's owner.
    pub user: String,
    pub uid: u32,
    /// "pause", "resume", "policy", "session", "lost", "recordings", or an act of a job's audit: "request", "keep", "undo", …
    pub act: String,
    /// "controller", or a user's name.
    pub by: String,
    /// Number of the user who asked for it of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_uid: Option<u32>,
    /// Number of the decision in the job's audit; 0: none.
    pub decision: u64,
    pub rank: Option<u32>,
    pub knob: String,
    pub from: Option<u64>,
    pub to: Option<u64>,
    /// Share by which samples a second were expected to rise, and by which they did.
    pub predicted: Option<Estimate>,
    pub measured: Option<Estimate>,
    /// What was seen, and why: sentences.
    pub saw: String,
    pub why: String,
}

/// A job as the node's service knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeJob {
    pub name: String,
    /// 0: it has not begun.
    pub pid: u32,
    /// Login name of its owner.
    pub user: String,
    /// Where it runs, by the names of its control groups, in words: pod, step or unit; empty where these have no name.
    #[serde(default)]
    pub place: String,
    /// "observe", "advise", "act".
    pub mode: String,
    /// The policy's rule, from 1; `None`: no rule matches.
    pub rule: Option<u32>,
    /// Most that its caches may be raised to now.
    pub cache_bytes: u64,
    /// What is going on, in words.
    pub state: String,
    /// Its own pause.
    pub paused: Option<Paused>,
    /// Nothing is tried for a while: for how long and why, in words.
    pub frozen: Option<String>,
    /// Seconds that proven changes have saved, and the share by which samples a second are more with those in force.
    pub saved_s: f64,
    pub faster: f64,
}
