//! The part of the service's time that one user may take, over all of their connections. Root, and who has some left, never wait.

use crate::cpu_share::CpuShares;
use crate::descriptors::Alarm;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often who has none left is thought of.
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Clone, Default)]
pub(super) struct Share {
    shares: Arc<Mutex<CpuShares>>,
    alarm: Alarm,
}

impl Share {
    /// For the main thread, which serves.
    pub(super) fn with_alarm() -> Share {
        Share { alarm: Alarm::ready(), ..Share::default() }
    }

    fn has(&self, payer: u32) -> bool {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner).has(payer)
    }

    /// Does something for a user, without a pause.
    pub(super) fn during<T>(&self, payer: u32, does: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = does();
        self.shares.lock().unwrap_or_else(PoisonError::into_inner).took(payer, begun.elapsed());
        done
    }

    /// The same, in which something may be closed that the user has passed along.
    pub(super) fn closing<T>(&self, payer: u32, does: impl FnOnce() -> T) -> T {
        self.during(payer, || self.alarm.during(does))
    }

    /// Until that user has some left.
    pub(super) async fn turn(&self, payer: u32) {
        while !self.has(payer) {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_their_share_waits_and_others_do_not() {
        let share = Share::default();
        for uid in [0, 7] {
            // It has half a second at once.
            share.shares.lock().unwrap_or_else(PoisonError::into_inner).took(uid, Duration::from_millis(900));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            tokio::select! {
                biased;
                () = share.turn(7) => panic!("at a fifth of the time it has none for two seconds"),
                () = share.turn(8) => {}
            }
            share.turn(0).await;
            share.turn(7).await;
        });
    }
}
