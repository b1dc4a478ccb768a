//! Time that nothing explains, and what it may be.

use super::{WORTH, diagnosis, of_time, other};
use crate::summary::Figures;
use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked};
use stallscope_model::{Cause, Diagnosis};
use stallscope_units::percent_in_words;

/// From here on what nothing explains is a finding.
const MUCH: f64 = 0.1;
/// From here on what nothing explains leads the verdict.
pub(crate) const MUCH_UNKNOWN: f64 = 0.25;

pub(super) fn unexplained(figures: &Figures<'_>) -> Option<Diagnosis> {
    let share = figures.share(Cause::Unknown);
    // What nobody saw of a loop without a loader may be its reading.
    let worth = if figures.reads_itself && figures.unseen_share() >= WORTH { WORTH } else { MUCH };
    if share < worth {
        return None;
    }
    let most = (0..=BLOCKED_KINDS).max_by_key(|kind| figures.unexplained.0[*kind])?;
    let what = match u8::try_from(most).ok().and_then(Blocked::from_u8) {
        Some(Blocked::Futex | Blocked::FutexNet) => "waiting for a lock or another thread",
        Some(Blocked::Net | Blocked::Unix) => "waiting on a socket of its own",
        Some(Blocked::Sleep) => "asleep by its own call",
        Some(Blocked::FileRead | Blocked::Fault) => "reading files outside any loader",
        Some(Blocked::Pipe | Blocked::Child) => "waiting for another process",
        Some(_) => "blocked in a device or something else",
        None => "not seen by kernel or shim",
    };
    let finding =
        format!("nothing explains {} of {}: mostly {what}", percent_in_words(share), figures.time());
    let own = "look in the training loop itself (logging, requests, locks), for instance with py-spy dump";
    let advice = match u8::try_from(most).ok().and_then(Blocked::from_u8) {
        _ if most == BLOCKED_KINDS => {
            "Add the evidence that is missing (see doctor), then measure again".to_owned()
        }
        // `next(iter(loader))`, or a loop that is left: what the workers have begun is waited for.
        Some(Blocked::Pipe | Blocked::Child) => format!(
            "An iterator of a loader that is dropped early waits for its workers to end: keep one, or give that loader \
             fewer workers and batches in advance. Else {own}"
        ),
        Some(Blocked::Futex) if may_wait_for_own_reader(figures) => format!(
            "Where a thread or a process of its own makes the next batch, the loop waits for that: let it begin earlier, or \
             divide its work. Else {own}"
        ),
        _ => format!("It is no data stall; {own}"),
    };
    let evidence = of_time(figures, share);
    Some(diagnosis("unexplained-time", Cause::Unknown, share, finding, evidence, other(advice)))
}

/// The share of training in which a loop without a loader sleeps until threads of its own are done that compute: they may make
/// its batches, of files that are in memory, or be a part of its own work.
pub(crate) fn by_threads(figures: &Figures<'_>) -> Option<f64> {
    Some(figures.asleep_for_threads_share).filter(|share| *share >= 0.05)
}

/// Without a loader, a thread of the job's own may read what the loop trains with: the loop then sleeps in a lock, as it does
/// for anything else that a thread does.
pub(crate) fn may_wait_for_own_reader(figures: &Figures<'_>) -> bool {
    let locked_ns = figures.unexplained.0[Blocked::Futex as usize];
    figures.reads_itself && 2 * locked_ns > figures.unexplained.0.iter().sum::<u64>()
}
