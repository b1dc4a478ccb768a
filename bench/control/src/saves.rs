//! The checkpoints of a simulated job, by the interval of the real checkpointer, and the failures that they are made for.

use stallscope_checkpoint::interval::{Interval, Rule, Settings, Step};
use stallscope_control::Random;
use stallscope_model::{CheckpointAccount, CheckpointRule};

const SECOND: f64 = 1e9;
/// Of the time, what the checkpointer may take by its own rule.
const OVERHEAD: f64 = 0.05;

/// How a job saves and fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saving {
    /// The script's interval, in seconds.
    pub(crate) every_s: u64,
    /// Training stands still for it.
    pub(crate) blocked_ns: f64,
    /// Of a state that is written while training goes on.
    pub(crate) bytes: f64,
    pub(crate) bytes_per_s: f64,
    /// Share of the disk that reads lose meanwhile.
    pub(crate) share: f64,
    /// On average; as the script says, too.
    pub(crate) mtbf_s: f64,
    /// Failures that come together, within as many seconds each.
    pub(crate) burst: (u32, f64),
    /// Until training goes on after one.
    pub(crate) restart_s: f64,
}

/// When it fails, by seed, in seconds.
fn failures(of: &Saving, seed: u64, length_s: f64) -> Vec<f64> {
    let mut random = Random::new(seed ^ 0xfa11);
    let (mut at, mut all) = (0.0, Vec::new());
    let (count, apart_s) = (of.burst.0.max(1), of.burst.1);
    while at < length_s {
        at += random.exponential() * of.mtbf_s * f64::from(count);
        let mut one = at;
        for _ in 0..count {
            all.push(one);
            one += random.exponential() * apart_s;
        }
    }
    all.sort_by(f64::total_cmp);
    all
}

/// What became of a step's end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct After {
    /// Training stands still: for the copy, and for the save before it.
    pub(crate) snapshot_ns: u64,
    pub(crate) persist_ns: u64,
    /// The job failed: samples that have to be trained on again, and how long it takes to begin.
    pub(crate) lost: f64,
    pub(crate) restart_ns: u64,
}

pub(crate) struct Saver {
    of: Saving,
    interval: Interval,
    failures: Vec<f64>,
    /// All that was trained on and counts, and what of it is safe.
    samples: f64,
    safe: f64,
    /// Being written: what is safe then, since when and until when, in nanoseconds.
    writing: Option<(f64, f64, f64)>,
    /// Of the next step, what it stands still for saves.
    blocked_ns: f64,
    last_ns: f64,
    account: Option<CheckpointAccount>,
}

impl Saver {
    pub(crate) fn new(of: Saving, seed: u64, length_s: u64) -> Saver {
        let settings = Settings {
            rule: Rule::EverySeconds(of.every_s as f64),
            overhead: OVERHEAD,
            mtbf_s: of.mtbf_s,
            concurrent: 1,
        };
        let mut failures = failures(&of, seed, length_s as f64);
        failures.reverse();
        Saver {
            of,
            interval: Interval::new(settings),
            failures,
            samples: 0.0,
            safe: 0.0,
            writing: None,
            blocked_ns: 0.0,
            last_ns: 0.0,
            account: None,
        }
    }

    /// The knob; 0 gives it back to the script. The interval that is in force then, in seconds.
    pub(crate) fn turn(&mut self, seconds: u64) -> u64 {
        self.interval.set_interval_s((seconds > 0).then_some(seconds as f64));
        self.interval.interval_s().round() as u64
    }

    /// What of the disk is left to reads now.
    pub(crate) fn disk_left(&self, now_ns: f64) -> f64 {
        if self.writing.is_some_and(|(.., until_ns)| now_ns < until_ns) { 1.0 - self.of.share } else { 1.0 }
    }

    pub(crate) fn account(&self) -> Option<CheckpointAccount> {
        self.account
    }

    fn report(&mut self) {
        let ns = |seconds: f64| (seconds * SECOND) as u64;
        let of = &self.interval;
        self.account = Some(CheckpointAccount {
            budget_ppm: None,
            spent_ns: ns(of.spent_s()),
            trained_ns: ns(of.trained_s()),
            rule: Some(CheckpointRule {
                cost_ns: ns(of.cost_s()),
                persist_ns: ns(of.persist_s()),
                mtbf_ns: ns(of.settings().mtbf_s),
                interval_ns: ns(of.budget_interval_s()),
            }),
        });
    }

    /// A step ended with so many samples.
    pub(crate) fn step(&mut self, end_ns: u64, samples: u32) -> After {
        let now_ns = end_ns as f64;
        self.samples += f64::from(samples);
        let saving = self.writing.is_some() || self.blocked_ns > 0.0;
        if let Some((safe, since_ns, until_ns)) = self.writing.filter(|(.., until_ns)| now_ns >= *until_ns) {
            (self.safe, self.writing) = (safe, None);
            self.interval.drained((until_ns - since_ns) / SECOND);
            self.report();
        }
        let blocked_s = std::mem::take(&mut self.blocked_ns) / SECOND;
        let wall_s = (now_ns - self.last_ns).max(0.0) / SECOND;
        self.last_ns = now_ns;
        self.interval.step(Step { wall_s, blocked_s, saving });
        if self.failures.last().is_some_and(|at| at * SECOND <= now_ns) {
            return self.fail(now_ns);
        }
        if self.interval.due().is_some() { self.save(now_ns) } else { After::default() }
    }

    fn save(&mut self, now_ns: f64) -> After {
        // One at a time: it waits for the one before.
        let waits_ns = self.writing.map_or(0.0, |(.., until_ns)| (until_ns - now_ns).max(0.0));
        if let Some((safe, since_ns, until_ns)) = self.writing.take() {
            self.safe = safe;
            self.interval.drained((until_ns - since_ns) / SECOND);
        }
        self.interval.begun();
        let begins_ns = now_ns + waits_ns;
        let until_ns = begins_ns + self.of.blocked_ns + self.of.bytes / self.of.bytes_per_s * SECOND;
        self.writing = Some((self.samples, begins_ns, until_ns));
        self.blocked_ns = waits_ns + self.of.blocked_ns;
        After { snapshot_ns: self.of.blocked_ns as u64, persist_ns: waits_ns as u64, ..After::default() }
    }

    /// What is not safe is trained on once more. The settings stay, and what the cache has: it is training alone that begins again.
    fn fail(&mut self, now_ns: f64) -> After {
        while self.failures.last().is_some_and(|at| at * SECOND <= now_ns) {
            self.failures.pop();
        }
        let lost = self.samples - self.safe;
        (self.samples, self.writing) = (self.safe, None);
        self.last_ns = now_ns + self.of.restart_s * SECOND;
        After { lost, restart_ns: (self.of.restart_s * SECOND) as u64, ..After::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVING: Saving = Saving {
        every_s: 10,
        blocked_ns: 0.5e9,
        bytes: 100e6,
        bytes_per_s: 100e6,
        share: 0.5,
        mtbf_s: 1e6,
        burst: (1, 0.0),
        restart_s: 20.0,
    };

    #[test]
    fn it_saves_at_the_interval_in_force_and_says_what_that_costs() {
        let mut saver = Saver::new(SAVING, 1, 1000);
        let mut stood_ns = 0;
        let (mut now_ns, mut saves) = (0, 0);
        for _ in 0..1000 {
            now_ns += 100_000_000 + stood_ns;
            let after = saver.step(now_ns, 1);
            stood_ns = after.snapshot_ns + after.persist_ns;
            saves += u32::from(after.snapshot_ns > 0);
            assert_eq!(saver.disk_left(now_ns as f64 + 1.0) < 1.0, saver.writing.is_some());
        }
        assert!((9..=11).contains(&saves), "{saves}");
        let account = saver.account().expect("reported");
        let share = account.spent_ns as f64 / account.trained_ns as f64;
        assert!((0.03..0.07).contains(&share), "{share}");
        assert!((saver.turn(40), saver.turn(0)) == (40, 10));
    }

    #[test]
    fn a_failure_loses_what_was_not_safe() {
        let mut saver = Saver::new(SAVING, 1, 1000);
        saver.failures = vec![15.0];
        let (mut lost, mut now_ns) = (0.0, 0);
        for _ in 0..200 {
            now_ns += 100_000_000;
            let after = saver.step(now_ns, 1);
            lost += after.lost;
            now_ns += after.snapshot_ns + after.restart_ns;
        }
        // What was trained on from the save at 10 s, which was safe at about 12 s, to the failure.
        assert!((35.0..=50.0).contains(&lost), "{lost}");
    }

    #[test]
    fn failures_come_as_often_in_bursts() {
        let count = |burst| {
            let saving = Saving { mtbf_s: 100.0, burst, ..SAVING };
            (0..40).map(|seed| failures(&saving, seed, 10_000.0).len()).sum::<usize>() as f64 / 40.0
        };
        assert!((90.0..=115.0).contains(&count((1, 0.0))), "{}", count((1, 0.0)));
        assert!((90.0..=130.0).contains(&count((4, 30.0))), "{}", count((4, 30.0)));
    }
}
