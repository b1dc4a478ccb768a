//! How many workers a rank has had at the same time. A loader without persistent workers starts new ones for each epoch, and
//! where nobody tells which follows which, all that ever were say little.

use crate::process::Process;
use std::collections::HashSet;

/// The most of these processes that were there at once. Those of an epoch may still be ending when the next one's are there already: of two
/// with the same number the later one has taken the other's place.
pub(crate) fn most(workers: &[&Process]) -> u32 {
    // As many as ever were there at once were there when one of them began.
    let spans: Vec<(u64, u64)> = workers.iter().map(|process| span(process)).collect();
    let there = |at_ns: u64| {
        let those =
            spans.iter().zip(workers).filter(|((from_ns, to_ns), _)| *from_ns <= at_ns && at_ns <= *to_ns);
        those.map(|(_, process)| process.seat()).collect::<HashSet<_>>().len()
    };
    let most = spans.iter().map(|(from_ns, _)| there(*from_ns)).max().unwrap_or(0);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// From when to when it was there. Its end may be reported late, and its last state be read afterwards.
pub(crate) fn span(process: &Process) -> (u64, u64) {
    let to_ns = process.exited_ns.map_or(u64::MAX, |exited_ns| exited_ns.min(process.last_seen_ns));
    (process.first_seen_ns.min(to_ns), to_ns)
}
