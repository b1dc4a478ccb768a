//! How many CPUs the job's own processes use while they train: who is short of one either takes them from itself or is
//! kept from them. And how many of them its trainers use at once, whether or not a loader hands over their batches.

use crate::process::Process;
use stallscope_model::{Phase, StepLedger};
use std::collections::{BTreeMap, VecDeque};

/// CPU time of a main thread that says enough about the threads beside it.
const ENOUGH_CPU_NS: u64 = 100_000_000;

/// What all CPUs of the job's machine did while it was looked at, on average; of none: nobody looked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostCpus {
    pub all: f64,
    pub idle: f64,
    /// Share of the time of all that the machine's host gave to others.
    pub stolen_share: f64,
    /// The job's threads that had one or waited for one, while it trained; of these, main threads. 0: nobody counted.
    pub wanted: Wanted,
}

/// Threads that want a CPU at once, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wanted {
    pub threads: f64,
    pub main_threads: f64,
    /// Of the periods of the job's CPU quota, those in which it used it up and waited for the next; 0 where it has none.
    pub quota_used_up_share: f64,
}

/// Of a quota's periods.
const HELD_BACK: f64 = 0.2;

impl Wanted {
    /// So many for each CPU, and for each main thread, that it is no matter of one worker more or less: each process takes as many
    /// as there are CPUs, or more.
    pub(crate) fn are_far_too_many(&self, cpus: u32) -> bool {
        self.threads >= 2.0 * f64::from(cpus) && self.threads >= 3.0 * self.main_threads && cpus > 0
    }

    /// Often enough that it is not a burst of threads at times that waits, but the job.
    pub(crate) fn are_held_back(&self) -> bool {
        self.quota_used_up_share >= HELD_BACK
    }
}

/// Of the CPUs of a machine, what others may keep busy on one that the job has to itself: services, and who looks at it.
const TO_ITSELF: f64 = 0.1;

impl HostCpus {
    /// CPUs that the job could have beside those of now, were it given more: idle ones. Where nobody else keeps any busy it would be on
    /// a larger machine of its own, which gives as many as it `has` now. `None` where nobody looked; `own`: CPUs that it keeps busy.
    pub(crate) fn spare(&self, own: Option<f64>, has: u32) -> Option<f64> {
        let others = self.all - self.idle - own.unwrap_or(0.0);
        let alone = others <= TO_ITSELF * self.all;
        (self.all > 0.0).then(|| if alone { self.idle.max(f64::from(has)) } else { self.idle })
    }
}

/// CPU time of a process, or of several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) main_ns: u64,
    /// Of all threads, the main one included.
    pub(crate) all_ns: u64,
}

impl Used {
    pub(crate) fn of(process: &Process) -> Used {
        let did = process.so_far();
        let main_ns = did.times.cpu_ns;
        Used { main_ns, all_ns: main_ns.saturating_add(did.sibling_cpu_ns) }
    }

    pub(crate) fn add(&mut self, other: Used) {
        self.main_ns = self.main_ns.saturating_add(other.main_ns);
        self.all_ns = self.all_ns.saturating_add(other.all_ns);
    }

    fn since(self, before: Used) -> Used {
        Used {
            main_ns: self.main_ns.saturating_sub(before.main_ns),
            all_ns: self.all_ns.saturating_sub(before.all_ns),
        }
    }

    /// CPUs in use by all threads while the main one is on one; `None` where it was for too short.
    pub(crate) fn threads(&self) -> Option<f64> {
        (self.main_ns >= ENOUGH_CPU_NS).then(|| self.all_ns as f64 / self.main_ns as f64)
    }
}

#[derive(Debug, Default)]
pub(crate) struct OwnCpu {
    /// Of each process at the last look.
    before: BTreeMap<u32, Used>,
    looked_ns: u64,
    /// Of all processes, and of trainers alone.
    all: Used,
    trainers: Used,
    wall_ns: u64,
}

impl OwnCpu {
    /// Takes what was used since the last steps were closed, where those closed now are all of training.
    pub(crate) fn look(
        &mut self,
        processes: &BTreeMap<u32, Process>,
        is_trainer: impl Fn(u32) -> bool,
        closed: &VecDeque<StepLedger>,
        now_ns: u64,
    ) {
        if closed.is_empty() {
            return;
        }
        let now: BTreeMap<u32, Used> =
            processes.iter().map(|(pid, process)| (*pid, Used::of(process))).collect();
        if self.looked_ns > 0 && closed.iter().all(|step| step.phase == Phase::Training) {
            for (pid, used) in &now {
                let since = used.since(self.before.get(pid).copied().unwrap_or_default());
                self.all.add(since);
                if is_trainer(*pid) {
                    self.trainers.add(since);
                }
            }
            self.wall_ns = self.wall_ns.saturating_add(now_ns.saturating_sub(self.looked_ns));
        }
        (self.before, self.looked_ns) = (now, now_ns);
    }

    /// In use at once, on average; `None` as long as no training was seen.
    pub(crate) fn cores(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.all.all_ns as f64 / self.wall_ns as f64)
    }

    /// CPUs that trainers use at once while their main threads are on one; `None` where too little was seen.
    pub(crate) fn trainer_threads(&self) -> Option<f64> {
        self.trainers.threads()
    }
}
