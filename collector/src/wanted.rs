//! How many of a job's threads want a CPU at once, while it trains: those that have one, and those that wait for one. And how often
//! the CPU quota of its control groups keeps it from one.

use crate::cgroup::{Groups, QuotaPeriods};
use crate::procfs;
use stallscope_ledger::{Member, Wanted};
use std::collections::HashMap;
use std::path::PathBuf;

/// From the first look to the second; each next pause is twice as long as the one before.
const SOON_NS: u64 = 5_000_000_000;
/// Threads that are looked at: each takes the read of a file.
const MOST: usize = 4096;

/// Over all the time since the job began to train.
#[derive(Debug, Default)]
pub(crate) struct Wanting {
    began: Option<Began>,
    found: Wanted,
}

#[derive(Debug)]
struct Began {
    at_ns: u64,
    /// Of each thread by then: with a CPU, and waiting for one.
    threads: HashMap<u32, u64>,
    quotas: HashMap<PathBuf, QuotaPeriods>,
    next_ns: u64,
}

impl Wanting {
    /// Once a second; `members`: who trains.
    pub(crate) fn second(&mut self, now_ns: u64, members: impl FnOnce() -> Vec<Member>) -> Wanted {
        if self.began.as_ref().is_some_and(|began| now_ns < began.next_ns) {
            return self.found;
        }
        let members = members();
        let pids = members.iter().flat_map(|member| &member.pids);
        let now: Vec<procfs::ThreadDemand> =
            pids.flat_map(|pid| procfs::thread_demands(*pid)).take(MOST).collect();
        let quotas = quotas(&members);
        match &mut self.began {
            _ if now.is_empty() => {}
            None => {
                let threads = now.iter().map(|thread| (thread.tid, thread.wanted_ns)).collect();
                self.began = Some(Began { at_ns: now_ns, threads, quotas, next_ns: now_ns + SOON_NS });
            }
            Some(began) => {
                let past_ns = now_ns - began.at_ns;
                began.next_ns = now_ns + past_ns;
                self.found = since(&began.threads, &now, past_ns);
                self.found.quota_used_up_share = used_up(&began.quotas, &quotas);
            }
        }
        self.found
    }
}

/// One that is new since has done all that it did since.
fn since(before: &HashMap<u32, u64>, now: &[procfs::ThreadDemand], past_ns: u64) -> Wanted {
    let mut wanted = Wanted::default();
    for thread in now {
        let since_ns = thread.wanted_ns.saturating_sub(before.get(&thread.tid).copied().unwrap_or(0));
        let share = (since_ns as f64 / past_ns.max(1) as f64).min(1.0);
        wanted.threads += share;
        wanted.main_threads += if thread.is_main { share } else { 0.0 };
    }
    wanted
}

fn quotas(members: &[Member]) -> HashMap<PathBuf, QuotaPeriods> {
    let trainers: Vec<u32> = members.iter().map(|member| member.pid).collect();
    let groups = Groups::of(&trainers);
    let periods = groups.iter().flat_map(Groups::quota_periods);
    periods.map(|(group, periods)| (group.to_owned(), periods)).collect()
}

/// Share of the periods since, of the group that used its quota up most often.
fn used_up(before: &HashMap<PathBuf, QuotaPeriods>, now: &HashMap<PathBuf, QuotaPeriods>) -> f64 {
    let shares = now.iter().map(|(group, now)| {
        let before = before.get(group).copied().unwrap_or_default();
        let periods = now.all.saturating_sub(before.all);
        now.used_up.saturating_sub(before.used_up) as f64 / periods.max(1) as f64
    });
    shares.fold(0.0, f64::max).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn threads_are_counted_by_how_long_they_wanted_a_cpu() {
        let thread = |tid, wanted_ns| procfs::ThreadDemand { tid, wanted_ns, is_main: tid == 1 };
        let before = HashMap::from([(1, 100), (2, 500), (9, 7)]);
        let now = [thread(1, 600), thread(2, 500), thread(3, 1000), thread(4, 5000)];
        let found = since(&before, &now, 1000);
        assert_eq!(found, Wanted { threads: 2.5, main_threads: 0.5, quota_used_up_share: 0.0 });
    }

    #[test]
    fn the_group_that_holds_a_job_back_most_counts() {
        let of = |periods: &[(&str, u64, u64)]| -> HashMap<PathBuf, QuotaPeriods> {
            let periods = periods.iter();
            periods
                .map(|(group, all, used_up)| (group.into(), QuotaPeriods { all: *all, used_up: *used_up }))
                .collect()
        };
        let before = of(&[("/pod", 1000, 1000), ("/pod/job", 100, 50)]);
        let now = of(&[("/pod", 1100, 1000), ("/pod/job", 200, 130), ("/new", 10, 0)]);
        assert_eq!(used_up(&before, &now), 0.8);
        assert_eq!((used_up(&before, &before), used_up(&before, &of(&[]))), (0.0, 0.0));
    }

    #[test]
    fn threads_of_this_process_are_seen() {
        static OVER: AtomicBool = AtomicBool::new(false);
        let spin = std::thread::spawn(|| {
            while !OVER.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let pid = std::process::id();
        let spun = || {
            procfs::thread_demands(pid)
                .into_iter()
                .any(|thread| !thread.is_main && thread.wanted_ns > 20_000_000)
        };
        while !spun() {
            std::thread::yield_now();
        }
        OVER.store(true, Ordering::Relaxed);
        spin.join().unwrap();
        let member = || vec![Member { rank: 0, pid, pids: vec![pid], seen_until_ns: 0, checkpoints: None }];
        let mut wanting = Wanting::default();
        assert_eq!(wanting.second(1, Vec::new), Wanted::default(), "nobody trains yet");
        wanting.second(2, member);
        assert_eq!(wanting.second(3, || panic!("it is not time")), Wanted::default());
        wanting.second(SOON_NS + 2, member);
        assert_eq!(wanting.began.as_ref().map(|began| began.next_ns), Some(2 * SOON_NS + 2));
        assert_eq!(procfs::thread_demands(u32::MAX).len(), 0);
    }
}
