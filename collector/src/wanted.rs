//! How many of a job's threads want a CPU at once, while it trains: those that have one, and those that wait for one.

use crate::procfs;
use stallscope_ledger::{Member, Wanted};
use std::collections::HashMap;

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
    next_ns: u64,
}

impl Wanting {
    /// Once a second; `members`: who trains.
    pub(crate) fn second(&mut self, now_ns: u64, members: impl FnOnce() -> Vec<Member>) -> Wanted {
        if self.began.as_ref().is_some_and(|began| now_ns < began.next_ns) {
            return self.found;
        }
        let pids = members().into_iter().flat_map(|member| member.pids);
        let now: Vec<procfs::ThreadDemand> = pids.flat_map(procfs::thread_demands).take(MOST).collect();
        match &mut self.began {
            _ if now.is_empty() => {}
            None => {
                let threads = now.iter().map(|thread| (thread.tid, thread.wanted_ns)).collect();
                self.began = Some(Began { at_ns: now_ns, threads, next_ns: now_ns + SOON_NS });
            }
            Some(began) => {
                let past_ns = now_ns - began.at_ns;
                began.next_ns = now_ns + past_ns;
                self.found = since(&began.threads, &now, past_ns);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn threads_are_counted_by_how_long_they_wanted_a_cpu() {
        let thread = |tid, wanted_ns| procfs::ThreadDemand { tid, wanted_ns, is_main: tid == 1 };
        let before = HashMap::from([(1, 100), (2, 500), (9, 7)]);
        let now = [thread(1, 600), thread(2, 500), thread(3, 1000), thread(4, 5000)];
        assert_eq!(since(&before, &now, 1000), Wanted { threads: 2.5, main_threads: 0.5 });
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
