//! What can be changed while a job runs, what was changed and why, and how fast each part of the job can go.

use serde::{Deserialize, Deserializer, Serialize};

/// A figure and its 95% interval, which may have no end. JSON knows no infinity: it is null there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    #[serde(deserialize_with = "nan_if_null")]
    pub value: f64,
    #[serde(deserialize_with = "endless_below_if_null")]
    pub low: f64,
    #[serde(deserialize_with = "endless_if_null")]
    pub high: f64,
}

fn nan_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn endless_below_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NEG_INFINITY))
}

fn endless_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Something that can be changed while the job runs, as it stands now. The process that has it says its name, unit
/// and bounds; a new knob needs nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knob {
    pub rank: u32,
    /// `None`: the rank's, not one loader's.
    pub loader: Option<u16>,
    /// "prefetch", "workers", …
    pub name: String,
    /// What is counted: "batches", "workers", "bytes", "ns".
    pub unit: String,
    /// In force now.
    pub value: u64,
    /// What the script itself had set.
    pub initial: u64,
    pub min: u64,
    pub max: u64,
    /// What was last asked for; `None`: nothing yet.
    pub requested: Option<u64>,
    pub state: KnobState,
    /// Why the value is not what was asked for, or why the knob cannot be turned; a sentence, empty where there is
    /// nothing to say.
    pub reason: String,
    /// Who asked last: "controller" or a user's name; empty: the script.
    pub set_by: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KnobState {
    /// The value is what was last asked for, or nothing was asked for.
    #[default]
    Applied,
    /// Asked for and not yet in force; `reason` says what it waits for where that is known.
    Pending,
    /// Not done, for `reason`.
    Refused,
    /// Cannot be turned here, for `reason`.
    Unavailable,
}

/// A request to turn a knob of one rank and loader, or of all that have one of this name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobRequest {
    pub rank: Option<u32>,
    pub loader: Option<u16>,
    pub knob: String,
    pub value: u64,
}

/// What a controller may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TuneMode {
    /// Watches, and says nothing but in the audit.
    Observe,
    /// Says what it would do. Changes nothing.
    #[default]
    Advise,
    /// Turns knobs, one at a time, and undoes what did not help.
    Act,
}

/// What the job may use at most while it is tuned. `None`: what the machine (or the job's cgroup) gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budgets {
    /// CPU time a second that the job's processes may take on this node.
    pub cores: Option<f64>,
    /// Workers are added only on cores that others leave idle, and go where others come to need them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare_cores_only: bool,
    /// Memory of the job's processes on this node.
    pub memory_bytes: Option<u64>,
    /// Descriptors of one process.
    pub descriptors: Option<u64>,
    /// What the job's caches may be raised to on this node, all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// Share of training that saves may cost, where the controller sets how often the job saves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_overhead: Option<f64>,
}

/// Names of the knobs that a controller turns; all others are for people.
pub const CONTROLLED_KNOBS: [&str; 5] =
    ["workers", "prefetch", "cache.bytes", "ckpt.interval", "cache.fetchers"];

/// A change that is expected to help.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub rank: u32,
    pub loader: Option<u16>,
    pub knob: String,
    pub now: u64,
    pub to: u64,
    /// Share by which samples a second rise (0.25: a quarter more).
    pub gain: Estimate,
    /// Sentence.
    pub why: String,
}

/// Rate of each part of a rank by itself, in samples a second, as far as the running job shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub rank: u32,
    pub loader: u16,
    pub workers: u32,
    /// In batches, over all workers.
    pub prefetch: u32,
    /// Steps of training that the rates are of, the last ones at the settings of now; 0 in recordings without this field.
    #[serde(default)]
    pub steps: u32,
    /// What was reached.
    pub actual: Option<Estimate>,
    /// G: the trainer, were every batch there at once.
    pub compute: Option<Estimate>,
    /// P: the workers of now, were every read free.
    pub prep: Option<Estimate>,
    /// F: the workers of now, were decoding free.
    pub fetch: Option<Estimate>,
    /// S: storage, were there workers enough.
    pub storage: Option<Estimate>,
    /// C: the same from memory.
    pub cache: Option<Estimate>,
    /// Whether the trainer waits for data for enough of its time to be called data-bound; `None` in recordings without
    /// this field.
    #[serde(default)]
    pub data_bound: Option<bool>,
    /// Cores that the trainer's own work keeps busy at once; `None` where it was not counted.
    #[serde(default)]
    pub trainer_threads: Option<f64>,
    /// Sentences on the rates that are not known, and on what they would take.
    pub unknown: Vec<String>,
}

/// How one batch was made by a worker (or by the trainer itself): a sample of all batches is kept, for the model of
/// the job. What is missing of `ready_ns - start_ns` is time that nothing explains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchService {
    pub rank: u32,
    pub loader: u16,
    /// Of the worker within its loader, from 0.
    pub worker: u32,
    pub start_ns: u64,
    pub ready_ns: u64,
    /// 0 when unknown.
    pub samples: u32,
    /// Blocked in reads.
    pub fetch_ns: u64,
    pub cpu_ns: u64,
    pub runnable_ns: u64,
    /// Bytes that came from storage meanwhile; `None` where it was not counted.
    pub read_bytes: Option<u64>,
    /// Mean number of the rank's workers that were reading (this one included) while this one read; 0 when it did
    /// not read at all.
    pub readers: f64,
    /// Mean number of the rank's workers that were making a batch (this one included) meanwhile.
    pub makers: f64,
    /// The part of `cpu_ns` that was spent inside reads; 0 where it is not known.
    #[serde(default)]
    pub cpu_read_ns: u64,
    /// Samples of it (or parts, where it has many) that were blocked in a read; 0 where the making of a batch is not divided by sample.
    #[serde(default)]
    pub reads: u32,
    /// Samples of it that its loader's cache did not have; `None` without a cache. Recordings have none.
    #[serde(default)]
    pub missed: Option<u32>,
    /// Over these reads, the sum of squares of `readers` about its mean: how much there is to learn from.
    #[serde(default)]
    pub readers_spread: f64,
    /// Over these, the sum of products of `readers` and of the time a whole batch of such reads would be blocked, each
    /// about its mean: divided by the spread it is how much longer the reading of a batch takes for one reader more.
    #[serde(default)]
    pub readers_effect_ns: f64,
    /// Spread and effect for the number of readers at the moment when each of these began, itself included, in place of its
    /// mean: storage that serves one after the other makes a read wait for those that came before it alone.
    #[serde(default)]
    pub ahead_spread: f64,
    #[serde(default)]
    pub ahead_effect_ns: f64,
    /// How many batches this one stands for: each slow one is recorded, of others one in so many; below 1 counts as 1.
    #[serde(default)]
    pub weight: f64,
}

/// One line of the audit, which is only ever added to. Lines of one decision bear its number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Counts the lines of a recording from 0.
    pub line: u64,
    pub time_ns: u64,
    pub decision: u64,
    pub act: Act,
    /// "controller" or a user's name.
    pub by: String,
    /// `None` where the line is not about one rank.
    pub rank: Option<u32>,
    pub loader: Option<u16>,
    /// Empty where the line is not about one knob.
    pub knob: String,
    pub from: Option<u64>,
    pub to: Option<u64>,
    /// What was seen: a sentence with its figures.
    pub saw: String,
    /// What was expected, as [`Advice::gain`].
    pub predicted: Option<Estimate>,
    /// What came of it, likewise.
    pub measured: Option<Estimate>,
    /// Why: a sentence.
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// A controller began, ended, or has another mode or budget.
    #[default]
    Mode,
    /// Would turn a knob, were it allowed to.
    Advise,
    /// Asks for a value.
    Request,
    /// The job has taken the value.
    Applied,
    /// The job has not taken it.
    Refused,
    /// The gain is proven: the value stays.
    Keep,
    /// Put back, because the gain is not proven or something got worse.
    Undo,
    /// Gives back what does not help: fewer workers, less prefetch.
    Release,
    /// Does nothing, because what it sees is not good enough to decide on.
    Hold,
    /// The job does another kind of work than before: what was learnt is forgotten.
    Drift,
    /// Will not act any more, for a while.
    Freeze,
}

impl Act {
    pub const ALL: [Act; 11] = [
        Act::Mode,
        Act::Advise,
        Act::Request,
        Act::Applied,
        Act::Refused,
        Act::Keep,
        Act::Undo,
        Act::Release,
        Act::Hold,
        Act::Drift,
        Act::Freeze,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Act::Mode => "mode",
            Act::Advise => "advise",
            Act::Request => "request",
            Act::Applied => "applied",
            Act::Refused => "refused",
            Act::Keep => "keep",
            Act::Undo => "undo",
            Act::Release => "release",
            Act::Hold => "hold",
            Act::Drift => "drift",
            Act::Freeze => "freeze",
        }
    }
}

impl KnobState {
    pub const fn name(self) -> &'static str {
        match self {
            KnobState::Applied => "applied",
            KnobState::Pending => "pending",
            KnobState::Refused => "refused",
            KnobState::Unavailable => "unavailable",
        }
    }
}

impl TuneMode {
    pub const fn name(self) -> &'static str {
        match self {
            TuneMode::Observe => "observe",
            TuneMode::Advise => "advise",
            TuneMode::Act => "act",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_without_an_end_survives_json() {
        let estimate = Estimate { value: 0.3, low: f64::NEG_INFINITY, high: f64::INFINITY };
        let json = serde_json::to_string(&estimate).unwrap();
        assert_eq!(serde_json::from_str::<Estimate>(&json).unwrap(), estimate);
        let nothing: Estimate = serde_json::from_str(r#"{"value":null,"low":null,"high":null}"#).unwrap();
        assert!(nothing.value.is_nan());
        assert!(serde_json::from_str::<Estimate>("{}").is_err());
    }
}
