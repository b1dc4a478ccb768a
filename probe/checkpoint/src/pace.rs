//! How fast a save may write: a limit that its owner changes while it writes.

use crate::arena::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A limit in bytes a second on what the background writes and reads back.
#[derive(Debug)]
pub struct Pace {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    bytes_per_s: Option<u64>,
    /// When all that was let through so far would have been written at the limit.
    free_at: Instant,
}

/// What may go out at once after a pause: limits below some GB/s would else forbid even one chunk.
const BURST: Duration = Duration::from_millis(5);

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            state: Mutex::new(State { bytes_per_s: None, free_at: Instant::now() }),
            changed: Condvar::new(),
        }
    }

    /// Sets the limit, none for as fast as the disk takes it. Holds at once, for a save under way too. A limit of 0 is
    /// one of a byte a second: it stops writing until it is changed.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let owed = state.free_at.saturating_duration_since(now).as_secs_f64();
        // What was let through and is not written by the old limit yet is owed at the new one: a raised limit holds at
        // once, and setting one over and over lets nothing slip.
        let rate = |limit: u64| limit.max(1) as f64;
        let owed = match (state.bytes_per_s, bytes_per_s) {
            (Some(old), Some(new)) => owed * rate(old) / rate(new),
            _ => 0.0,
        };
        state.free_at = later(now, owed);
        state.bytes_per_s = bytes_per_s;
        drop(state);
        self.changed.notify_all();
    }

    /// The limit in force, in bytes a second.
    pub fn limited_to(&self) -> Option<u64> {
        lock(&self.state).bytes_per_s
    }

    /// Waits until so many bytes may go.
    pub(crate) fn let_through(&self, bytes: u64) {
        let mut state = lock(&self.state);
        loop {
            let Some(limit) = state.bytes_per_s else { return };
            let now = Instant::now();
            if state.free_at <= now + BURST {
                let takes = Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64);
                state.free_at =
                    state.free_at.max(now).checked_add(takes).unwrap_or(now + Duration::from_secs(86_400));
                return;
            }
            let wait = state.free_at.saturating_duration_since(now);
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// So many seconds later, a year at most.
fn later(than: Instant, seconds: f64) -> Instant {
    than + Duration::from_secs_f64(seconds.clamp(0.0, 365.0 * 86_400.0))
}

/// Turns what loaders suffer while a save writes into its limit: halves it while they wait longer than without a save,
/// raises it by a quarter while they do not. Pure: the caller measures and applies.
#[derive(Clone, Debug)]
pub struct Yielding {
    limit: Option<f64>,
    floor_bytes_per_s: f64,
}

impl Yielding {
    /// Never slower than `floor_bytes_per_s`: a save that never ends protects nobody.
    pub fn new(floor_bytes_per_s: u64) -> Yielding {
        Yielding { limit: None, floor_bytes_per_s: floor_bytes_per_s.max(1) as f64 }
    }

    /// Takes what a step waited for its batch on average while writing, and without (same unit, both recent), and how
    /// fast writing went; gives the limit for the time to come, in bytes a second.
    pub fn observe(
        &mut self,
        wait_writing: f64,
        wait_quiet: f64,
        step: f64,
        written_bytes_per_s: f64,
    ) -> Option<u64> {
        // Two percent of a step are noise on any shared machine.
        let suffers = wait_writing - wait_quiet > 0.02 * step;
        self.limit = match (self.limit, suffers) {
            (None, false) => None,
            (None, true) => Some(written_bytes_per_s / 2.0),
            (Some(limit), true) => Some(limit / 2.0),
            // Beyond what the disk takes a limit says nothing.
            (Some(limit), false) if limit > 2.0 * written_bytes_per_s => None,
            (Some(limit), false) => Some(limit * 1.25),
        };
        self.limit = self.limit.map(|limit| limit.max(self.floor_bytes_per_s));
        self.limit.map(|limit| limit as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_raised_limit_frees_who_waits_under_the_old_one() {
        let pace = Arc::new(Pace::new());
        pace.limit(Some(0));
        pace.let_through(1 << 30);
        let waiting = {
            let pace = pace.clone();
            std::thread::spawn(move || pace.let_through(1 << 30))
        };
        pace.limit(None);
        waiting.join().unwrap();
    }

    #[test]
    fn setting_a_limit_over_and_over_lets_nothing_slip() {
        let pace = Pace::new();
        pace.limit(Some(1000));
        pace.let_through(1_000_000);
        for limit in [1000, 2000, 500, 1000] {
            pace.limit(Some(limit));
        }
        let owed = lock(&pace.state).free_at.saturating_duration_since(Instant::now());
        assert!(owed > Duration::from_secs(500), "of a thousand seconds at this limit");
    }

    #[test]
    fn a_save_yields_to_readers_and_takes_its_speed_back() {
        let mut yielding = Yielding::new(1 << 20);
        assert_eq!(yielding.observe(0.0, 0.0, 0.1, 1e9), None);
        let first = yielding.observe(0.05, 0.0, 0.1, 1e9).unwrap();
        assert_eq!(first, 500_000_000);
        let second = yielding.observe(0.05, 0.0, 0.1, 5e8).unwrap();
        assert!(second < first);
        for _ in 0..40 {
            yielding.observe(0.05, 0.0, 0.1, 1e6);
        }
        assert_eq!(yielding.observe(0.05, 0.0, 0.1, 1e6), Some(1 << 20), "never below its floor");
        let freed = (0..40).any(|_| yielding.observe(0.0, 0.0, 0.1, 1e7).is_none());
        assert!(freed, "the limit goes when it no longer limits");
    }
}
