//! How many workers a rank has had at the same time. A loader without persistent workers starts new ones for each epoch, and
//! where nobody tells which follows which, all that ever were say little.

use crate::process::Process;

/// The most of these processes that were there at once.
pub(crate) fn most(workers: &[&Process]) -> u32 {
    // As many as ever were there at once were there when one of them began.
    let spans: Vec<(u64, u64)> = workers.iter().map(|process| span(process)).collect();
    let there =
        |at_ns: u64| spans.iter().filter(|(from_ns, to_ns)| *from_ns <= at_ns && at_ns <= *to_ns).count();
    let most = spans.iter().map(|(from_ns, _)| there(*from_ns)).max().unwrap_or(0);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// From when to when it was there. Its end may be reported late, and its last state be read afterwards.
pub(crate) fn span(process: &Process) -> (u64, u64) {
    let to_ns = process.exited_ns.map_or(u64::MAX, |exited_ns| exited_ns.min(process.last_seen_ns));
    (process.first_seen_ns.min(to_ns), to_ns)
}
