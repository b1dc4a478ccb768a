use stallscope_model::Cause;

/// What a cause means, in a few words.
pub const fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::Compute => "own work, or the device's",
        Cause::Fetch => "the batch was being read",
        Cause::Prep => "the batch was being decoded",
        Cause::Starved => "its worker got no CPU",
        Cause::Transfer => "the batch was on its way",
        Cause::Preempted => "ready, but got no CPU",
        Cause::Snapshot => "a checkpoint was copied",
        Cause::Persist => "a checkpoint was written",
        Cause::Peer => "another rank was not there",
        Cause::Unknown => "nothing explains it",
    }
}
