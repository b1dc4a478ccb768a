//! What is tried again and when, and when a request is sent a second time: decisions alone, on numbers that are passed in.

use std::time::Duration;

/// The first pause before something is tried again is up to this; each further one up to twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long to wait before a request that has failed for the `failed`th time, from 1 on, is sent again. `asked`: how long the store asked for; `chance`: from 0
/// to 1; `left`: of the time that the read may take. None where that is over by then.
pub(crate) fn pause(failed: u32, asked: Option<Duration>, chance: f64, left: Duration) -> Option<Duration> {
    let most = FIRST_PAUSE.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    // From half of it on, so that workers that failed together don't come back together.
    let own = most.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
    let pause = own.max(asked.unwrap_or_default());
    (pause < left).then_some(pause)
}

/// Of how many requests of a kind the time is kept, and from how many on it is used.
const KEPT: usize = 128;
const LEAST_SEEN: usize = 20;
/// Before so many were seen.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Nothing is sent twice sooner.
const SOONEST: Duration = Duration::from_millis(10);
/// Of all requests at most one in so many is sent twice: where a store gets slow for all of them, twice as many would make it slower.
const ONE_IN: u64 = 10;
/// So many may be at once.
const MOST_SAVED: u64 = 4;
/// Requests of at most 64 KiB, 512 KiB, 4 MiB, and larger ones.
const KINDS: usize = 4;

/// How long requests take, by which it is known when one takes too long.
#[derive(Debug)]
pub(crate) struct Seen {
    kinds: [Times; KINDS],
    /// In `ONE_IN`ths of a second request.
    saved: u64,
}

#[derive(Debug, Default)]
struct Times {
    kept: Vec<Duration>,
    next: usize,
}

fn kind_of(bytes: u64) -> usize {
    [64 << 10, 512 << 10, 4 << 20].iter().position(|most| bytes <= *most).unwrap_or(KINDS - 1)
}

impl Seen {
    pub(crate) fn new() -> Seen {
        // The first request of a process may be the slow one.
        Seen { kinds: Default::default(), saved: ONE_IN }
    }

    /// A request for so many bytes is sent: from when on a second one is worth it, if none has come by then. That is the 95th percentile of those of
    /// its kind.
    pub(crate) fn sent(&mut self, bytes: u64) -> Duration {
        self.saved = (self.saved + 1).min(MOST_SAVED * ONE_IN);
        let times = &self.kinds[kind_of(bytes)];
        if times.kept.len() < LEAST_SEEN {
            return UNKNOWN;
        }
        let mut sorted = times.kept.clone();
        sorted.sort_unstable();
        sorted[(sorted.len() * 95).div_ceil(100) - 1].max(SOONEST)
    }

    /// Whether a second one may be sent.
    pub(crate) fn may_send_twice(&mut self) -> bool {
        let left = self.saved.checked_sub(ONE_IN);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }

    /// A request was answered after so long.
    pub(crate) fn took(&mut self, bytes: u64, time: Duration) {
        let Times { kept, next } = &mut self.kinds[kind_of(bytes)];
        match kept.get_mut(*next) {
            Some(oldest) => *oldest = time,
            None => kept.push(time),
        }
        *next = (*next + 1) % KEPT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LEFT: Duration = Duration::from_secs(60);

    #[test]
    fn pauses_double_up_to_ten_seconds_and_end_with_the_time() {
        let longest: Vec<_> =
            (1..=9).map(|failed| pause(failed, None, 1.0, LEFT).map(|one| one.as_millis())).collect();
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(longest, expected.map(Some));
        assert_eq!(pause(1, None, 0.0, LEFT), Some(50 * MS), "never at once");
        assert_eq!(pause(1, None, 0.5, LEFT), Some(75 * MS));
        assert_eq!(pause(u32::MAX, None, 1.0, LEFT), Some(LONGEST_PAUSE));
        assert_eq!(pause(3, None, 1.0, 400 * MS), None, "there would be no time left");
        assert_eq!(pause(3, None, 1.0, 401 * MS), Some(400 * MS));
    }

    #[test]
    fn a_store_that_asks_for_a_pause_has_it() {
        assert_eq!(pause(1, Some(5000 * MS), 1.0, LEFT), Some(5000 * MS));
        assert_eq!(pause(9, Some(MS), 1.0, LEFT), Some(LONGEST_PAUSE), "and no shorter one than without");
        assert_eq!(pause(1, Some(Duration::from_secs(3600)), 1.0, LEFT), None, "but not all of the time");
    }

    #[test]
    fn a_request_is_sent_twice_after_the_95th_percentile_of_its_kind() {
        let mut seen = Seen::new();
        for number in 1..LEAST_SEEN as u32 {
            seen.took(1000, number * MS);
        }
        assert_eq!(seen.sent(1000), UNKNOWN, "too few are known");
        for number in LEAST_SEEN as u32..=100 {
            seen.took(1000, number * MS);
        }
        assert_eq!(seen.sent(1000), 95 * MS);
        assert_eq!(seen.sent(64 << 10), 95 * MS, "of the same kind");
        assert_eq!(seen.sent(65 << 10), UNKNOWN, "of another one");
        for _ in 0..KEPT {
            seen.took(1000, MS);
        }
        assert_eq!(seen.sent(1000), SOONEST, "the oldest are forgotten, and no percentile is too soon");
    }

    #[test]
    fn one_in_ten_requests_may_be_sent_twice() {
        let mut seen = Seen::new();
        assert!(seen.may_send_twice() && !seen.may_send_twice(), "one at the begin");
        let mut twice = 0;
        for _ in 0..1000 {
            seen.sent(1000);
            twice += u32::from(seen.may_send_twice());
        }
        assert_eq!(twice, 100);
        for _ in 0..1000 {
            seen.sent(1000);
        }
        let at_once = (0..100).filter(|_| seen.may_send_twice()).count();
        assert_eq!(at_once as u64, MOST_SAVED, "what was saved in a quiet hour is not spent in a bad one");
    }
}
