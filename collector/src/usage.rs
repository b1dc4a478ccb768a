//! What the job's processes use, and what its machine, or its part of it, has left.

use crate::cgroup::Groups;
use crate::procfs::{self, CpuTicks, Proportional, Resident};
use rustix::process::Pid;
use stallscope_control::{MachineCpus, NodeState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;

/// Looks between two walks over a process's page tables: they are dear.
const WALK_EVERY: u32 = 30;
/// As with the CPU time of the job's own processes, which is compared with it.
const MACHINE_SPAN_NS: u64 = 10_000_000_000;
/// Walks over those of new processes in one look.
const NEW_WALKS: usize = 8;

/// The use of all processes over time. Shared pages are counted once, but for those that came since the last walk. Where
/// the job has a cache, workers map its pages one after the other: shared memory is then counted apart, at no less than what
/// the cache keeps.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    processes: BTreeMap<u32, Process>,
    /// CPU time of processes that are gone, by rank.
    gone_ns: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Process {
    rank: u32,
    cpu_ns: u64,
    /// Looks since its page tables were walked.
    looks: u32,
    walked: Option<Walked>,
    memory_bytes: u64,
}

/// A process's memory when its page tables were walked.
#[derive(Clone, Copy, Debug)]
struct Walked {
    /// Shared pages divided among the processes that share them.
    proportional: Proportional,
    /// Shared pages counted whole.
    resident: Resident,
}

/// Of the processes of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankUsage {
    pub(crate) memory_bytes: u64,
    /// Of that, each process's but the trainer's.
    pub(crate) worker_bytes: Vec<u64>,
    /// Since the first look at it and before, as far as its processes were still there.
    pub(crate) cpu_ns: u64,
}

impl Usage {
    /// Looks at the processes of each rank, its trainer the first of them; about once a second. `cached_bytes`: what the
    /// job's caches keep, which is counted with the first rank.
    pub(crate) fn look(&mut self, ranks: &[(u32, Vec<u32>)], cached_bytes: u64) -> BTreeMap<u32, RankUsage> {
        let cached = cached_bytes > 0;
        let now: BTreeSet<u32> = ranks.iter().flat_map(|(_, pids)| pids).copied().collect();
        self.processes.retain(|pid, process| {
            let stays = now.contains(pid);
            if !stays {
                *self.gone_ns.entry(process.rank).or_default() += process.cpu_ns;
            }
            stays
        });
        let mut usage = BTreeMap::new();
        for (rank, pids) in ranks {
            let sum: &mut RankUsage = usage.entry(*rank).or_default();
            sum.cpu_ns = self.gone_ns.get(rank).copied().unwrap_or(0);
            for pid in pids {
                let process =
                    self.processes.entry(*pid).or_insert(Process { rank: *rank, ..Process::default() });
                process.cpu_ns = procfs::cpu_ns(*pid).unwrap_or(0).max(process.cpu_ns);
                process.look(*pid, cached);
                sum.cpu_ns += process.cpu_ns;
            }
        }
        self.walk(cached);
        let trainers: BTreeSet<u32> = ranks.iter().filter_map(|(_, pids)| pids.first()).copied().collect();
        for (pid, process) in &self.processes {
            if let Some(sum) = usage.get_mut(&process.rank) {
                sum.memory_bytes += process.memory_bytes;
                if !trainers.contains(pid) {
                    sum.worker_bytes.push(process.memory_bytes);
                }
            }
        }
        let walked = self.processes.values().filter_map(|process| process.walked);
        let shared_bytes: u64 = walked.map(|walked| walked.proportional.shmem_bytes).sum();
        if let Some(first) = ranks.first().and_then(|(rank, _)| usage.get_mut(rank)).filter(|_| cached) {
            first.memory_bytes = first.memory_bytes.saturating_add(cached_bytes.max(shared_bytes));
        }
        usage
    }

    /// Walks the page tables of those that are new, which share most of their memory with their parent, and of the
    /// one for which that was longest ago.
    fn walk(&mut self, cached: bool) {
        let (new, known): (Vec<_>, Vec<_>) =
            self.processes.iter_mut().partition(|(_, process)| process.walked.is_none());
        let oldest = known.into_iter().max_by_key(|(_, process)| process.looks);
        let due = oldest.filter(|(_, process)| process.looks >= WALK_EVERY);
        for (pid, process) in new.into_iter().take(NEW_WALKS).chain(due) {
            process.looks = 0;
            let seen = procfs::proportional(*pid).zip(procfs::resident(*pid));
            process.walked = seen.map(|(proportional, resident)| Walked { proportional, resident });
            process.look(*pid, cached);
        }
    }
}

impl Process {
    fn look(&mut self, pid: u32, cached: bool) {
        self.looks = self.looks.saturating_add(1);
        let Some(now) = procfs::resident(pid) else {
            self.memory_bytes = 0;
            return;
        };
        self.memory_bytes = match self.walked {
            Some(Walked { proportional, resident }) if cached => {
                let own_bytes = proportional.bytes.saturating_sub(proportional.shmem_bytes);
                own_bytes.saturating_add(now.own_bytes().saturating_sub(resident.own_bytes()))
            }
            Some(Walked { proportional, resident }) => {
                proportional.bytes.saturating_add(now.bytes.saturating_sub(resident.bytes)).min(now.bytes)
            }
            // A forked worker's private pages may be its trainer's still; the walk will tell.
            None => now.own_bytes(),
        };
    }
}

/// What all CPUs of the machine did of late.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// About one a second.
    looks: VecDeque<(u64, CpuTicks)>,
}

impl Machine {
    /// On average over the last ten seconds; `None` before a quarter of that.
    pub(crate) fn look(&mut self, now_ns: u64) -> Option<MachineCpus> {
        self.take(now_ns, CpuTicks::read()?)
    }

    fn take(&mut self, now_ns: u64, ticks: CpuTicks) -> Option<MachineCpus> {
        self.looks.push_back((now_ns, ticks));
        while self.looks.front().is_some_and(|(ns, _)| ns + MACHINE_SPAN_NS < now_ns) {
            self.looks.pop_front();
        }
        let (from_ns, before) = self.looks.front()?;
        let did = ticks.since(before);
        let busy = did.all * (1.0 - did.stolen_share) - did.idle;
        (now_ns - from_ns >= MACHINE_SPAN_NS / 4 && did.all > 0.0)
            .then_some(MachineCpus { idle: did.idle, busy: busy.max(0.0) })
    }
}

/// The machine as the job's trainers may use it, but for what others do on it.
pub(crate) fn node_state(trainers: &[u32]) -> NodeState {
    let groups = Groups::of(trainers);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of_meminfo = |name| procfs::kib_of(&meminfo, name).unwrap_or(0).saturating_mul(1024);
    let (mut limit_bytes, mut available_bytes) = (of_meminfo("MemTotal:"), of_meminfo("MemAvailable:"));
    for memory in groups.iter().filter_map(Groups::memory) {
        limit_bytes = limit_bytes.min(memory.limit_bytes);
        available_bytes = available_bytes.min(memory.available_bytes);
    }
    let pressure = fs::read_to_string("/proc/pressure/memory").ok();
    let pressure = pressure.and_then(|text| procfs::pressure_in(&text));
    NodeState {
        cpus: allowed_cpus(trainers).unwrap_or_else(all_cpus).min(quota(&groups)),
        memory_available_bytes: available_bytes,
        memory_limit_bytes: limit_bytes,
        // The process whose memory is reclaimed may be a neighbour's, or ours alone.
        memory_pressure_share: groups
            .iter()
            .filter_map(Groups::memory_pressure)
            .chain(pressure)
            .max_by(f64::total_cmp),
        shm_free_bytes: trainers.iter().filter_map(|pid| shm_free_bytes(*pid)).min(),
        descriptor_limit: trainers.iter().filter_map(|pid| procfs::descriptor_limit(*pid)).min().unwrap_or(0),
        machine: None,
        storage: None,
    }
}

/// CPUs that the job of these may use; `None` where none of them is there any more.
pub(crate) fn job_cpus(pids: &[u32]) -> Option<f64> {
    Some(allowed_cpus(pids)?.min(quota(&Groups::of(pids))))
}

fn quota(groups: &[Groups]) -> f64 {
    groups.iter().filter_map(Groups::cpus).min_by(f64::total_cmp).unwrap_or(f64::INFINITY)
}

fn all_cpus() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64)
}

/// CPUs that any of these may run on.
fn allowed_cpus(pids: &[u32]) -> Option<f64> {
    let sets = pids.iter().filter_map(|pid| {
        let pid = Pid::from_raw(i32::try_from(*pid).ok()?)?;
        rustix::thread::sched_getaffinity(Some(pid)).ok()
    });
    let allowed: BTreeSet<usize> = sets
        .flat_map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(move |cpu| set.is_set(*cpu)))
        .collect();
    (!allowed.is_empty()).then_some(allowed.len() as f64)
}

/// Headroom in a process's /dev/shm, where that is ours too: another's could be a file system that never answers.
fn shm_free_bytes(pid: u32) -> Option<u64> {
    let theirs = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
    if theirs != fs::read_link("/proc/self/ns/mnt").ok()? {
        return None;
    }
    let shm = rustix::fs::statvfs("/dev/shm").ok()?;
    shm.f_bavail.checked_mul(shm.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_keeps_the_time_of_workers_that_are_gone() {
        let pid = std::process::id();
        let mut usage = Usage::default();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let both = usage.look(&[(3, vec![pid, child.id()])], 0).remove(&3).unwrap();
        assert!(both.memory_bytes > 100_000);
        assert!(matches!(both.worker_bytes[..], [1..=100_000_000]), "of the child alone: {both:?}");
        let mut busy = usage.processes[&child.id()];
        busy.cpu_ns = 5_000_000_000;
        usage.processes.insert(child.id(), busy);
        child.kill().unwrap();
        child.wait().unwrap();
        let left = usage.look(&[(3, vec![pid])], 0).remove(&3).unwrap();
        assert!(left.cpu_ns >= 5_000_000_000 && left.worker_bytes.is_empty(), "{left:?}");
        assert_eq!(usage.processes.len(), 1);
        assert_eq!(usage.look(&[], 0), BTreeMap::new());
    }

    #[test]
    fn what_a_cache_keeps_counts_once() {
        let pid = std::process::id();
        let mut usage = Usage::default();
        let own = usage.look(&[(0, vec![pid])], 0)[&0].memory_bytes;
        let kept = 1 << 40;
        let both = Usage::default().look(&[(0, vec![pid]), (1, Vec::new())], kept);
        let beyond = both[&0].memory_bytes - kept;
        assert!(beyond > 0 && beyond <= 2 * own, "{beyond} of {own}");
        assert_eq!(both[&1].memory_bytes, 0);
    }

    #[test]
    fn what_the_machine_did_is_a_mean_over_seconds() {
        let second = |ns: u64| ns * 1_000_000_000;
        let ticks = |busy, idle, stolen| procfs::CpuTicks::of(2, busy, idle, stolen);
        let mut machine = Machine::default();
        assert_eq!(machine.take(second(100), ticks(1000, 1000, 0)), None);
        assert_eq!(machine.take(second(101), ticks(1100, 1100, 0)), None, "too short to be a mean");
        assert_eq!(
            machine.take(second(104), ticks(1600, 1200, 0)),
            Some(MachineCpus { idle: 0.5, busy: 1.5 })
        );
        // A quarter was stolen since; what is older than ten seconds does not count.
        assert_eq!(
            machine.take(second(114), ticks(2600, 1700, 500)),
            Some(MachineCpus { idle: 0.5, busy: 1.0 })
        );
        assert!(Machine::default().look(0).is_none());
    }

    #[test]
    fn a_job_has_the_cpus_that_it_is_bound_to() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let all = rustix::thread::sched_getaffinity(pid).unwrap();
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set(first);
        rustix::thread::sched_setaffinity(pid, &one).unwrap();
        let found = job_cpus(&[child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.is_some_and(|cpus| cpus > 0.0 && cpus <= 1.0), "{found:?}");
        assert_eq!(job_cpus(&[child.id()]), None);
    }

    #[test]
    fn this_machine_is_read() {
        let node = node_state(&[std::process::id()]);
        assert!(node.cpus >= 0.01 && node.cpus <= 4096.0, "{node:?}");
        assert!(node.memory_limit_bytes >= node.memory_available_bytes, "{node:?}");
        assert!(node.memory_available_bytes > 0 && node.descriptor_limit > 2, "{node:?}");
        // Nobody there: the machine itself.
        assert!(node_state(&[]).cpus >= 1.0);
    }
}
