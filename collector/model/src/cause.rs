use serde::{Deserialize, Serialize};
use std::ops::{AddAssign, Index, IndexMut};

/// Where a trainer's time went. The causes of a step add up to its wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Doing its own work, or waiting for the device. Seen, not the remainder.
    Compute,
    /// Waiting for a batch whose producer is reading.
    Fetch,
    /// Waiting for a batch whose producer is on a CPU.
    Prep,
    /// Waiting for a batch whose producer is runnable and gets no CPU.
    Starved,
    /// Waiting while a finished batch crosses process, pin-memory thread or bus.
    Transfer,
    /// Runnable, outside any wait, and gets no CPU itself.
    Preempted,
    /// Blocked while a checkpoint is copied out of its tensors.
    Snapshot,
    /// Blocked while a checkpoint is serialised, written, synced, renamed, or an earlier one drains.
    Persist,
    /// Waiting for another rank.
    Peer,
    /// What nothing explains. Shown, never spread over the others.
    Unknown,
}

impl Cause {
    pub const COUNT: usize = 10;
    pub const ALL: [Cause; Self::COUNT] = [
        Cause::Compute,
        Cause::Fetch,
        Cause::Prep,
        Cause::Starved,
        Cause::Transfer,
        Cause::Preempted,
        Cause::Snapshot,
        Cause::Persist,
        Cause::Peer,
        Cause::Unknown,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Cause::Compute => "compute",
            Cause::Fetch => "fetch",
            Cause::Prep => "prep",
            Cause::Starved => "starved",
            Cause::Transfer => "transfer",
            Cause::Preempted => "preempted",
            Cause::Snapshot => "snapshot",
            Cause::Persist => "persist",
            Cause::Peer => "peer",
            Cause::Unknown => "unknown",
        }
    }

    /// Waits for a batch: what a faster loader could remove.
    pub const fn is_data_stall(self) -> bool {
        matches!(self, Cause::Fetch | Cause::Prep | Cause::Starved | Cause::Transfer)
    }

    /// Waits for a checkpoint.
    pub const fn is_checkpoint_stall(self) -> bool {
        matches!(self, Cause::Snapshot | Cause::Persist)
    }
}

/// Nanoseconds by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Causes(pub [u64; Cause::COUNT]);

impl Causes {
    /// The sums below are held at the largest where figures from a file are beyond all reason.
    pub fn total_ns(&self) -> u64 {
        self.0.into_iter().fold(0, u64::saturating_add)
    }

    /// Share of the total, 0 to 1; 0 when there is no time at all.
    pub fn share(&self, cause: Cause) -> f64 {
        ratio(self[cause], self.total_ns())
    }

    pub fn data_stall_ns(&self) -> u64 {
        self.sum_of(Cause::is_data_stall)
    }

    pub fn checkpoint_stall_ns(&self) -> u64 {
        self.sum_of(Cause::is_checkpoint_stall)
    }

    fn sum_of(&self, is_one: fn(Cause) -> bool) -> u64 {
        self.iter().filter(|(cause, _)| is_one(*cause)).map(|(_, ns)| ns).fold(0, u64::saturating_add)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause, self[cause]))
    }
}

/// Share of its time from which on a job that computes is called after that, whatever it waits for in the rest.
pub const COMPUTE_BOUND_SHARE: f64 = 0.75;
const DATA_BOUND_SHARE: f64 = 0.1;

/// Whether a job is called after its waits for data, by the shares of its time that are waits and its own work: so that
/// whatever names a bottleneck names the same one.
pub fn is_data_bound(stall_share: f64, compute_share: f64) -> bool {
    stall_share >= DATA_BOUND_SHARE && compute_share < COMPUTE_BOUND_SHARE
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Index<Cause> for Causes {
    type Output = u64;
    fn index(&self, cause: Cause) -> &u64 {
        &self.0[cause as usize]
    }
}

impl IndexMut<Cause> for Causes {
    fn index_mut(&mut self, cause: Cause) -> &mut u64 {
        &mut self.0[cause as usize]
    }
}

impl AddAssign<&Causes> for Causes {
    fn add_assign(&mut self, other: &Causes) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }
}
