use crate::{Loss, Overhead, Probe};
use serde::{Deserialize, Serialize};

/// What the node's privileged collector is doing: how much it watches, never whose or what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeSummary {
    /// Sessions that get evidence.
    pub sessions: u64,
    /// Process trees that they watch.
    pub trees: u64,
    /// Tasks of these trees whose slices are sent.
    pub tasks: u64,
    /// Every kernel program; off as well when no session needs it.
    pub programs: Vec<Probe>,
    /// Since the collector began.
    pub losses: Vec<Loss>,
    pub overhead: Overhead,
}
