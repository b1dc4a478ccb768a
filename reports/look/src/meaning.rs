use stallscope_model::{Cause, EvidenceState, RunSummary};

/// What a cause means, in a few words.
pub const fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::Compute => "own work, or the device's",
        Cause::Fetch => "the batch was being read",
        Cause::Prep => "the batch was being decoded",
        Cause::Starved => "its maker got no CPU",
        Cause::Transfer => "the batch was on its way",
        Cause::Preempted => "ready, but got no CPU",
        Cause::Snapshot => "a checkpoint was copied",
        Cause::Persist => "a checkpoint was written",
        Cause::Peer => "another rank was not there",
        Cause::Unknown => "nothing explains it",
    }
}

/// What to know of a number of steps that the kernel alone shows.
pub fn steps_from_outside(summary: &RunSummary) -> Option<&'static str> {
    let by_kernel_alone = matches!(summary.shim, EvidenceState::Off | EvidenceState::Missing(_));
    by_kernel_alone.then_some(
        "seen from outside, a batch that was made ahead of need may count as one step with the next; the shim counts each",
    )
}
