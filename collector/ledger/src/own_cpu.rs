//! How many CPUs the job's own processes use while they train: who is short of one either takes them from itself or is
//! kept from them.

use crate::process::Process;
use stallscope_model::{Phase, StepLedger};
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Default)]
pub(crate) struct OwnCpu {
    /// CPU time of each process, all its threads, at the last look.
    before: BTreeMap<u32, u64>,
    looked_ns: u64,
    cpu_ns: u64,
    wall_ns: u64,
}

impl OwnCpu {
    /// Takes what was used since the last steps were closed, where those closed now are all of training.
    pub(crate) fn look(
        &mut self,
        processes: &BTreeMap<u32, Process>,
        closed: &VecDeque<StepLedger>,
        now_ns: u64,
    ) {
        if closed.is_empty() {
            return;
        }
        let used = |process: &Process| {
            let did = process.so_far();
            did.times.cpu_ns.saturating_add(did.sibling_cpu_ns)
        };
        let now: BTreeMap<u32, u64> = processes.iter().map(|(pid, process)| (*pid, used(process))).collect();
        if self.looked_ns > 0 && closed.iter().all(|step| step.phase == Phase::Training) {
            let since =
                |(pid, ns): (&u32, &u64)| ns.saturating_sub(self.before.get(pid).copied().unwrap_or(0));
            self.cpu_ns = now.iter().map(since).fold(self.cpu_ns, u64::saturating_add);
            self.wall_ns = self.wall_ns.saturating_add(now_ns.saturating_sub(self.looked_ns));
        }
        (self.before, self.looked_ns) = (now, now_ns);
    }

    /// In use at once, on average; `None` as long as no training was seen.
    pub(crate) fn cores(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.cpu_ns as f64 / self.wall_ns as f64)
    }
}
