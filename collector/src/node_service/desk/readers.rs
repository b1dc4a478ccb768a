//! What jobs read from storage that several of them read from, so that none is tuned at the cost of the others.

use super::Desk;
use stallscope_wire::{Beside, Reading};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Jobs report what they read every few seconds, and hear of the others as often.
const EVERY: Duration = Duration::from_secs(5);
/// One that reads nothing is a reader for as long: slow storage has pauses of seconds.
const STAYS: Duration = Duration::from_secs(30);
/// No machine reads more in a second; a job that says so counts as this much.
const MOST: u64 = 1 << 44;

#[derive(Debug, Default)]
pub(super) struct Readers {
    /// And when it last read something.
    jobs: BTreeMap<u64, (Reading, Instant)>,
    /// Jobs that others read beside, as they last heard.
    shares: BTreeSet<u64>,
    due: Option<Instant>,
}

impl Readers {
    /// As a job last reported.
    pub(super) fn reads(&mut self, id: u64, reading: Option<Reading>, now: Instant) {
        if let Some(Reading { device, bytes_per_s }) = reading {
            self.jobs.insert(id, (Reading { device, bytes_per_s: bytes_per_s.min(MOST) }, now));
        } else if let Some((known, last)) = self.jobs.get_mut(&id) {
            known.bytes_per_s = 0;
            if now.saturating_duration_since(*last) >= STAYS {
                self.jobs.remove(&id);
            }
        }
    }

    pub(super) fn leave(&mut self, id: u64) {
        self.jobs.remove(&id);
        self.shares.remove(&id);
    }

    /// What the others read beside each job that `hears` of it, where it is time for that.
    fn beside(&mut self, now: Instant, hears: impl Fn(u64) -> bool) -> Vec<(u64, Beside)> {
        if self.due.is_some_and(|due| now < due) {
            return Vec::new();
        }
        self.due = Some(now + EVERY);
        let mut devices: BTreeMap<u32, Beside> = BTreeMap::new();
        for (reading, _) in self.jobs.values() {
            let all = devices.entry(reading.device).or_default();
            all.jobs += 1;
            all.bytes_per_s += reading.bytes_per_s;
        }
        let mut news = Vec::new();
        for (id, (reading, _)) in self.jobs.iter().filter(|(id, _)| hears(**id)) {
            let all = devices.get(&reading.device).copied().unwrap_or_default();
            if all.jobs > 1 {
                let bytes_per_s = all.bytes_per_s - reading.bytes_per_s;
                news.push((*id, Beside { jobs: all.jobs - 1, bytes_per_s }));
            }
        }
        let shares: BTreeSet<u64> = news.iter().map(|(id, _)| *id).collect();
        let alone = self.shares.difference(&shares).filter(|id| hears(**id));
        news.extend(alone.map(|id| (*id, Beside::default())));
        self.shares = shares;
        news
    }
}

impl Desk {
    /// What sessions are to know of the others that read from their jobs' storage.
    pub(in crate::node_service) fn take_beside(&mut self) -> Vec<(u64, Beside)> {
        let jobs = &self.jobs;
        self.readers.beside(self.now, |id| jobs.get(&id).is_some_and(|job| job.wants_session() == Some(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: u32, bytes_per_s: u64) -> Option<Reading> {
        Some(Reading { device, bytes_per_s })
    }

    fn beside(jobs: u32, bytes_per_s: u64) -> Beside {
        Beside { jobs, bytes_per_s }
    }

    #[test]
    fn each_job_hears_what_the_others_read_from_its_storage() {
        let (mut readers, now) = (Readers::default(), Instant::now());
        let rates = [(1, of(7, 100)), (2, of(7, 50)), (3, of(7, 5)), (4, of(8, 900)), (5, None)];
        rates.into_iter().for_each(|(id, reading)| readers.reads(id, reading, now));
        // The third is not tuned.
        let hears = |id| id != 3;
        assert_eq!(readers.beside(now, hears), [(1, beside(2, 55)), (2, beside(2, 105))]);
        assert_eq!(readers.beside(now + EVERY / 2, hears), [], "not more often than they report");
        readers.leave(1);
        readers.reads(3, None, now + EVERY);
        assert_eq!(readers.beside(now + EVERY, hears), [(2, beside(1, 0))], "a pause is no end");
        readers.reads(3, None, now + STAYS);
        assert_eq!(readers.beside(now + STAYS, hears), [(2, Beside::default())], "it is alone now");
        assert_eq!(readers.beside(now + STAYS + EVERY, hears), [], "and has heard so");
    }

    #[test]
    fn no_job_says_that_it_reads_without_end() {
        let (mut readers, now) = (Readers::default(), Instant::now());
        (0..1000).for_each(|id| readers.reads(id, of(7, u64::MAX), now));
        let news = readers.beside(now, |_| true);
        assert_eq!((news.len(), news[0].1), (1000, beside(999, 999 * MOST)));
    }
}
