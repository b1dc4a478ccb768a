//! One budget of bytes per second for all readers together.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Makes each read wait its turn, as the one arm of a disk does.
#[derive(Debug)]
pub(crate) struct Pacer {
    bytes_per_s: f64,
    latency: Duration,
    free_at: Mutex<Instant>,
}

impl Pacer {
    /// `latency` comes on top of every read; reads pass their latencies side by side.
    pub(crate) fn new(bytes_per_s: f64, latency: Duration) -> Self {
        Self { bytes_per_s, latency, free_at: Mutex::new(Instant::now()) }
    }

    /// Returns when `bytes` more may have been read.
    pub(crate) fn wait(&self, bytes: usize) {
        let now = Instant::now();
        thread::sleep(self.reserve(now, bytes).saturating_duration_since(now));
    }

    // Nothing is saved up while idle, else a pause would be followed by reads at full speed.
    fn reserve(&self, now: Instant, bytes: usize) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = now.max(*free_at) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        *free_at + self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn readers_share_the_budget() {
        let pacer = Pacer::new(100.0, Duration::ZERO);
        let now = Instant::now() + SECOND;
        assert_eq!(pacer.reserve(now, 100), now + SECOND);
        assert_eq!(pacer.reserve(now, 200), now + 3 * SECOND);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let pacer = Pacer::new(100.0, Duration::ZERO);
        let later = Instant::now() + 60 * SECOND;
        assert_eq!(pacer.reserve(later, 100), later + SECOND);
    }

    #[test]
    fn latency_delays_a_read_but_not_the_next_one() {
        let pacer = Pacer::new(100.0, 5 * SECOND);
        let now = Instant::now() + SECOND;
        assert_eq!(pacer.reserve(now, 100), now + 6 * SECOND);
        assert_eq!(pacer.reserve(now, 100), now + 7 * SECOND);
    }
}
