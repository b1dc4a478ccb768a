//! What the shim says besides records: one JSON object a line, fields added but never changed in meaning.

use serde::{Deserialize, Serialize};

/// Version of the JSON lines.
pub const PROTOCOL_VERSION: u32 = 1;

/// What a process of the job is, as far as it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    /// Iterates a loader.
    Trainer,
    /// Makes batches for a trainer.
    Worker,
    /// Has torch, and has done neither so far.
    #[default]
    #[serde(other)]
    Other,
}

/// Which rank of the job a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankFact {
    pub rank: u32,
    pub world_size: u32,
    pub local_rank: u32,
}

impl Default for RankFact {
    fn default() -> RankFact {
        RankFact { rank: 0, world_size: 1, local_rank: 0 }
    }
}

/// The first line of a shim; the lane's descriptor comes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Greeting {
    /// [`PROTOCOL_VERSION`].
    pub stallscope: u32,
    /// "shim"; other clients of the same socket say something else.
    pub role: String,
    /// `stallscope_abi::lane::VERSION`.
    pub lane_version: u32,
    pub shim_version: String,
    /// In the process's own pid namespace, as all pids here.
    pub pid: u32,
    pub ppid: u32,
    pub kind: ProcessKind,
    #[serde(flatten)]
    pub rank: RankFact,
    pub argv: Vec<String>,
    pub torch: Option<String>,
    pub python: Option<String>,
    /// Hooks that could not be set, one sentence each.
    pub unavailable: Vec<String>,
}

/// One loader, sent when it is first iterated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoaderFact {
    /// The number that records bear.
    pub loader: u16,
    pub workers: u32,
    /// `None`: the data set makes whole batches.
    pub batch_size: Option<u32>,
    pub prefetch_factor: Option<u32>,
    pub pin_memory: bool,
    pub persistent_workers: bool,
    /// `fork`, `spawn`, `forkserver`; empty without workers.
    pub start_method: String,
    /// Class of the data set.
    pub dataset: String,
    pub dataset_len: Option<u64>,
}

/// One knob of the process: what its page cannot say. Sent when it is new and when something here changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnobFact {
    /// Which knob: its place in the page, or, where it cannot be turned, a number that no page has.
    pub slot: u32,
    /// Tells this knob from earlier ones in the same slot; see [`crate::RequestNumber`].
    pub generation: u32,
    pub name: String,
    pub unit: String,
    /// `None`: the process's, not one loader's.
    pub loader: Option<u16>,
    /// In force when this was sent; the page has what is in force now.
    pub value: u64,
    /// What the script had set.
    pub initial: u64,
    pub min: u64,
    pub max: u64,
    pub available: bool,
    /// Why it cannot be turned, or what the answer to request `answered` had to say.
    pub reason: String,
    /// [`crate::RequestNumber::word`].
    pub answered: u64,
}

/// A later line of a shim. A repeated fact replaces the earlier one of the same kind (and loader).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "lowercase")]
pub enum Fact {
    Loader(LoaderFact),
    /// The workers of a loader's current iterator, by number.
    Workers {
        loader: u16,
        pids: Vec<u32>,
    },
    /// The process turned out to be this.
    Kind {
        kind: ProcessKind,
        #[serde(flatten)]
        rank: RankFact,
    },
    /// A hook could not be set or had to be given up: a sentence.
    Unavailable {
        what: String,
    },
    /// The process's page of knobs: its descriptor comes with this line.
    Page {
        version: u32,
    },
    Knob(KnobFact),
    /// The knob in this slot is no more.
    KnobGone {
        slot: u32,
    },
    /// Something a newer shim says.
    #[serde(other)]
    Unknown,
}
