//! Where a task's time went.

use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked, Times};

const PARTS: usize = 2 + BLOCKED_KINDS;

/// Where a task's time went, and what the other threads of its process used meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) times: Times,
    pub(crate) sibling_cpu_ns: u64,
    /// Of the time asleep in a futex: for so long the thread that ended the sleep was itself without a CPU.
    pub(crate) sibling_runnable_ns: u64,
}

/// What siblings did while the thread slept for one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Helped {
    pub(crate) cpu_ns: u64,
    pub(crate) runnable_ns: u64,
}

impl Activity {
    pub(crate) fn blocked(kind: Blocked, ns: u64) -> Activity {
        let mut activity = Activity::default();
        activity.times.blocked_ns[kind as usize] = ns;
        activity
    }

    pub(crate) fn of(&self, kind: Blocked) -> u64 {
        self.times.blocked_ns[kind as usize]
    }

    /// Asleep in a futex, of both kinds.
    pub(crate) fn in_futex_ns(&self) -> u64 {
        self.of(Blocked::Futex).saturating_add(self.of(Blocked::FutexRead))
    }

    /// Of the time asleep in a futex: while siblings were on a CPU, and, not among that, while the one that ended the sleep
    /// was without one.
    pub(crate) fn helped(&self) -> Helped {
        let asleep_ns = self.in_futex_ns();
        let runnable_ns = asleep_ns.min(self.sibling_runnable_ns);
        Helped { cpu_ns: (asleep_ns - runnable_ns).min(self.sibling_cpu_ns), runnable_ns }
    }

    pub(crate) fn add(&mut self, other: &Activity) {
        let (mine, theirs) = (&mut self.times, &other.times);
        mine.cpu_ns = mine.cpu_ns.saturating_add(theirs.cpu_ns);
        mine.cpu_read_ns = mine.cpu_read_ns.saturating_add(theirs.cpu_read_ns);
        mine.runnable_ns = mine.runnable_ns.saturating_add(theirs.runnable_ns);
        for (a, b) in mine.blocked_ns.iter_mut().zip(theirs.blocked_ns) {
            *a = a.saturating_add(b);
        }
        self.sibling_cpu_ns = self.sibling_cpu_ns.saturating_add(other.sibling_cpu_ns);
        self.sibling_runnable_ns = self.sibling_runnable_ns.saturating_add(other.sibling_runnable_ns);
    }

    pub(super) fn parts(&self) -> [u64; PARTS] {
        let mut parts = [0; PARTS];
        parts[0] = self.times.cpu_ns;
        parts[1] = self.times.runnable_ns;
        parts[2..].copy_from_slice(&self.times.blocked_ns);
        parts
    }

    /// Time accounted for, which can exceed 64 bits only in a record that makes no sense.
    pub(super) fn whole_ns(&self) -> u128 {
        self.parts().iter().map(|ns| u128::from(*ns)).sum()
    }

    /// The same mixture over `span_ns`: its parts add up to exactly that. Nanoseconds that rounding leaves over
    /// go to the parts that lost most by it. A mixture of nothing is time blocked in something unnamed.
    pub(crate) fn fit(&self, span_ns: u64) -> Activity {
        let whole = self.whole_ns();
        if whole == u128::from(span_ns) {
            return *self;
        }
        if whole == 0 {
            return Activity::blocked(Blocked::Other, span_ns);
        }
        let parts = self.parts();
        let mut shares = [0u64; PARTS];
        let mut rests = [0u128; PARTS];
        for i in (0..PARTS).filter(|i| parts[*i] > 0) {
            let product = u128::from(parts[i]) * u128::from(span_ns);
            shares[i] = (product / whole) as u64;
            rests[i] = product % whole;
        }
        for _ in 0..span_ns - shares.iter().sum::<u64>() {
            let mut most = 0;
            for i in 1..PARTS {
                if rests[i] > rests[most] {
                    most = i;
                }
            }
            shares[most] += 1;
            rests[most] = 0;
        }
        let mut blocked_ns = [0; BLOCKED_KINDS];
        blocked_ns.copy_from_slice(&shares[2..]);
        let times = Times {
            cpu_ns: shares[0],
            cpu_read_ns: scale(self.times.cpu_read_ns, shares[0], parts[0]).min(shares[0]),
            runnable_ns: shares[1],
            blocked_ns,
        };
        let fit = |ns: u64| u64::try_from(u128::from(ns) * u128::from(span_ns) / whole).unwrap_or(u64::MAX);
        Activity {
            times,
            sibling_cpu_ns: fit(self.sibling_cpu_ns),
            sibling_runnable_ns: fit(self.sibling_runnable_ns),
        }
    }
}

/// `value * part / whole` without overflow; 0 when `whole` is.
pub(crate) fn scale(value: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(value) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}
