//! What is kept of a job's files in the page cache.

use serde::{Deserialize, Serialize};

/// What a holder has locked of a job's files, and what came before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSummary {
    /// What it may hold.
    pub budget_bytes: u64,
    /// What there is memory for at the moment.
    pub target_bytes: u64,
    /// In whole pages, now and at most.
    pub bytes: u64,
    pub most_bytes: u64,
    /// Now, and when it held most.
    pub files: u64,
    pub most_files: u64,
    /// Files of the job's that were seen to be opened.
    pub known_files: u64,
    /// Read from storage to hold files.
    pub brought_bytes: u64,
    /// Files let go because they were written to, replaced or deleted.
    pub changed_files: u64,
    /// Files let go because there was less memory for them.
    pub released_files: u64,
    /// Opens of which no account was kept, and times at which the kernel had more to tell than it keeps.
    pub lost: u64,
    /// What limits it, for people; empty: nothing.
    pub limit: String,
}
