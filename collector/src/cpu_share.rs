//! How much of the service's time one user may take by asking: to take up a tree walks all tasks of the node, and to hook
//! system calls waits for all CPUs. A user who has had their share waits, and nobody else does.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a user who asks for nothing for a while may then take at once: some ten trees of a busy node.
const AT_ONCE_NS: i64 = 500_000_000;

/// Of each second after that. Debts are paid back too, however long a request took.
const SHARE_PERCENT: i64 = 20;

#[derive(Default)]
pub(crate) struct CpuShares(HashMap<u32, Balance>);

/// What a user had left at a moment.
struct Balance {
    left_ns: i64,
    at: Instant,
}

impl CpuShares {
    /// Whether something may be done for user `uid` now. Root, who runs the service, always has its turn.
    pub(crate) fn has(&self, uid: u32) -> bool {
        self.left_ns(uid, Instant::now()) > 0
    }

    /// A key by which those whose users have most left come first. Root is one of those who have all.
    pub(crate) fn turn(&self, uid: u32) -> Reverse<i64> {
        Reverse(self.left_ns(uid, Instant::now()))
    }

    /// Something was done for `uid`.
    pub(crate) fn took(&mut self, uid: u32, time: Duration) {
        self.took_at(uid, time, Instant::now());
    }

    fn took_at(&mut self, uid: u32, time: Duration, now: Instant) {
        if uid == 0 {
            return;
        }
        let took_ns = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let left_ns = self.left_ns(uid, now).saturating_sub(took_ns);
        self.0.insert(uid, Balance { left_ns, at: now });
        // A user with nothing to pay back is as one who never came.
        if self.0.len().is_power_of_two() {
            let paid: Vec<u32> =
                self.0.keys().copied().filter(|uid| self.left_ns(*uid, now) >= AT_ONCE_NS).collect();
            self.0.retain(|uid, _| !paid.contains(uid));
        }
    }

    fn left_ns(&self, uid: u32, now: Instant) -> i64 {
        let Some(balance) = self.0.get(&uid) else { return AT_ONCE_NS };
        let since_ns =
            i64::try_from(now.saturating_duration_since(balance.at).as_nanos()).unwrap_or(i64::MAX);
        balance.left_ns.saturating_add(since_ns / 100 * SHARE_PERCENT).min(AT_ONCE_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_their_share_and_leaves_others_theirs() {
        let (mut shares, begun) = (CpuShares::default(), Instant::now());
        let after = |ms| begun + Duration::from_millis(ms);
        shares.took_at(4242, Duration::from_millis(700), begun);
        assert!(shares.left_ns(4242, after(999)) <= 0, "200 ms more than at once, at 200 ms a second");
        assert!(shares.left_ns(4242, after(1001)) > 0);
        assert!(shares.left_ns(4343, begun) > 0 && shares.left_ns(0, begun) > 0);
        shares.took_at(0, Duration::from_secs(3600), begun);
        assert!(shares.left_ns(0, begun) > 0, "root runs the service");
        assert_eq!(shares.left_ns(4242, after(60_000)), AT_ONCE_NS, "no more is saved up");
    }

    #[test]
    fn users_who_owe_nothing_are_forgotten() {
        let (mut shares, begun) = (CpuShares::default(), Instant::now());
        for uid in 1..10_000 {
            shares.took_at(uid, Duration::from_millis(1), begun + Duration::from_secs(uid.into()));
        }
        assert!(shares.0.len() < 5, "{}", shares.0.len());
    }
}
