//! What files of /proc say of a process. The readers of text take any bytes: what they do not understand is `None`.

mod opened;
#[cfg(test)]
pub(crate) mod staged;

pub(crate) use opened::Opened;

use crate::host;
use rustix::param::{clock_ticks_per_second, page_size};
use stallscope_ledger::HostCpus;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

/// Most that is read of a file of a process, unless more may be true of it. A process says itself where its arguments and its
/// environment lie (PR_SET_MM_MAP), and so that they are terabytes long; the kernel passes 6 MiB at most.
const MOST_BYTES: u64 = 1 << 20;

/// Of one process, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Everything that is mapped and in memory.
    pub(crate) bytes: u64,
    /// The part of it that lies in files and shared memory.
    pub(crate) shared_bytes: u64,
}

impl Resident {
    pub(crate) fn own_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.shared_bytes)
    }
}

fn file(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// The beginning of a file of a process.
pub(crate) fn beginning(pid: u32, name: &str, most_bytes: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file(pid, name)).ok()?.take(most_bytes).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

pub(crate) fn text(pid: u32, name: &str) -> Option<String> {
    // Names of programs are any bytes.
    beginning(pid, name, MOST_BYTES).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The words of its command line.
pub(crate) fn command(pid: u32) -> Vec<String> {
    let bytes = beginning(pid, "cmdline", MOST_BYTES).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Its environment: entries `NAME=VALUE`, each ended by a 0.
pub(crate) fn environment(pid: u32) -> Option<Vec<u8>> {
    beginning(pid, "environ", MOST_BYTES)
}

/// The value of the variable `name` in such an environment.
pub(crate) fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let entries = environment.split(|byte| *byte == 0);
    entries.filter_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).next()
}

pub(crate) fn resident(pid: u32) -> Option<Resident> {
    resident_in(&text(pid, "statm")?, page_size() as u64)
}

/// Memory of a process, shared pages divided among the processes that share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proportional {
    pub(crate) bytes: u64,
    /// Of these, memory that is shared on purpose: /dev/shm and memfds.
    pub(crate) shmem_bytes: u64,
}

/// The kernel walks the page tables for it: about a millisecond a gigabyte.
pub(crate) fn proportional(pid: u32) -> Option<Proportional> {
    let rollup = text(pid, "smaps_rollup")?;
    let of = |name| kib_of(&rollup, name)?.checked_mul(1024);
    Some(Proportional { bytes: of("Pss:")?, shmem_bytes: of("Pss_Shmem:").unwrap_or(0) })
}

/// CPU time of all threads of a process so far.
pub(crate) fn cpu_ns(pid: u32) -> Option<u64> {
    ticks_in(&text(pid, "stat")?)?.checked_mul(1_000_000_000 / clock_ticks_per_second().max(1))
}

/// The same of its main thread alone.
pub(crate) fn main_cpu_ns(pid: u32) -> Option<u64> {
    text(pid, "schedstat")?.split_ascii_whitespace().next()?.parse().ok()
}

/// For how long a thread has had a CPU, or waited for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadDemand {
    pub(crate) tid: u32,
    pub(crate) is_main: bool,
    pub(crate) wanted_ns: u64,
}

/// Of each thread of a process.
pub(crate) fn thread_demands(pid: u32) -> Vec<ThreadDemand> {
    let Ok(threads) = fs::read_dir(file(pid, "task")) else { return Vec::new() };
    let tids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let demand = |tid: u32| {
        let schedstat = text(pid, &format!("task/{tid}/schedstat"))?;
        let mut fields = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
        let (cpu_ns, runnable_ns) = (fields.next()?.ok()?, fields.next()?.ok()?);
        Some(ThreadDemand { tid, is_main: tid == pid, wanted_ns: cpu_ns.saturating_add(runnable_ns) })
    };
    tids.filter_map(demand).collect()
}

/// The process that started it, or took its place.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let stat = text(pid, "stat")?;
    // The second field, the program's name, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// When it began, in ticks since the machine did: tells it from others that have its number later.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = text(pid, "stat")?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// How long ago that was.
pub(crate) fn age(start_ticks: u64) -> Duration {
    let started = Duration::from_secs(start_ticks / clock_ticks_per_second().max(1));
    Duration::from_nanos(host::boottime_ns()).saturating_sub(started)
}

/// Paths of its control groups, one for each hierarchy.
pub(crate) fn cgroups(pid: u32) -> Vec<String> {
    let lines = text(pid, "cgroup").unwrap_or_default();
    let paths = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.map(str::to_owned).collect()
}

/// Descriptors that a process has open.
pub(crate) fn descriptors(pid: u32) -> Option<u64> {
    let folder = file(pid, "fd");
    // Newer kernels say it without being asked for each.
    match fs::metadata(&folder).ok()?.len() {
        0 => Some(fs::read_dir(&folder).ok()?.count() as u64),
        open => Some(open),
    }
}

/// Most descriptors that a process may have open.
pub(crate) fn descriptor_limit(pid: u32) -> Option<u64> {
    limit_in(&text(pid, "limits")?, "Max open files")
}

/// The line of `/proc/PID/stat` from its third field on: the second, the program's name, may hold anything.
fn ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    user.checked_add(system)
}

fn resident_in(statm: &str, page_bytes: u64) -> Option<Resident> {
    let mut fields = statm.split_ascii_whitespace().skip(1);
    let mut bytes = || fields.next()?.parse::<u64>().ok()?.checked_mul(page_bytes);
    Some(Resident { bytes: bytes()?, shared_bytes: bytes()? })
}

/// The figure behind `name` in lines like `Pss:   348 kB`.
pub(crate) fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The soft limit called `name`; what is unlimited is as much as there is.
fn limit_in(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        limit => limit.parse().ok(),
    }
}

/// What the machine's CPUs did since it started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    cpus: u32,
    all: u64,
    idle: u64,
    /// Its host gave them to others meanwhile.
    stolen: u64,
}

impl CpuTicks {
    #[cfg(test)]
    pub(crate) fn of(cpus: u32, busy: u64, idle: u64, stolen: u64) -> CpuTicks {
        CpuTicks { cpus, all: busy + idle + stolen, idle, stolen }
    }

    pub(crate) fn read() -> Option<CpuTicks> {
        cpu_ticks_in(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// What they did since `before`.
    pub(crate) fn since(&self, before: &CpuTicks) -> HostCpus {
        let all = self.all.saturating_sub(before.all);
        if all == 0 {
            return HostCpus::default();
        }
        // Some of its counters go back at times.
        let share = |now: u64, before: u64| (now.saturating_sub(before) as f64 / all as f64).min(1.0);
        let cpus = f64::from(self.cpus);
        HostCpus {
            all: cpus,
            idle: cpus * share(self.idle, before.idle),
            stolen_share: share(self.stolen, before.stolen),
            ..HostCpus::default()
        }
    }
}

/// user nice system idle iowait irq softirq steal; what guests of this machine used is in the first two.
fn cpu_ticks_in(stat: &str) -> Option<CpuTicks> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let ticks = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let all = ticks.iter().try_fold(0_u64, |sum, ticks| sum.checked_add(*ticks))?;
    let of_one = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    let cpus = u32::try_from(stat.lines().filter(of_one).count()).unwrap_or(u32::MAX);
    // A CPU whose tasks all wait for storage is one that another task could have.
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    Some(CpuTicks { cpus, all, idle, stolen: *ticks.get(7)? })
}

/// The share of the last ten seconds in a file like `/proc/pressure/memory` in which some task waited.
pub(crate) fn pressure_in(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = some.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    let percent: f64 = percent.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// Time in which some task waited for memory, by a file like `/proc/pressure/memory`, in microseconds.
pub(crate) fn waited_us_in(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

#[cfg(fuzzing)]
pub(crate) fn read_any(text: &str) {
    ticks_in(text);
    resident_in(text, u64::MAX);
    kib_of(text, "Pss:");
    limit_in(text, "Max open files");
    pressure_in(text);
    waited_us_in(text);
    if let (Some(one), Some(other)) = (cpu_ticks_in(text), cpu_ticks_in(&text.replace('1', "2"))) {
        let since = one.since(&other);
        assert!(since.idle <= since.all && (0.0..=1.0).contains(&since.stolen_share), "{since:?}");
    }
    variable(text.as_bytes(), "A");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "42 (a) 1 (b) R) S 1 42 42 0 -1 4194560 9 0 0 0 250 50 7 8 20 0 4 0 12345 6 7";
        assert_eq!(ticks_in(stat), Some(300));
        let before = cpu_ticks_in("cpu  100 0 50 800 20 0 10 20 100 0\ncpu0 7\n").unwrap();
        let after = cpu_ticks_in("cpu  160 0 50 815 25 0 10 40 160 0\ncpu0 7\ncpu1 7\nintr 9\n").unwrap();
        let did = after.since(&before);
        assert_eq!((before.all, did.all, did.stolen_share), (1000, 2.0, 0.2));
        assert!((did.idle - 0.4).abs() < 1e-9, "{did:?}");
        assert_eq!(before.since(&after), HostCpus::default());
        assert_eq!(cpu_ticks_in("cpu  1 2 3 4 5 6 7\n"), None);
        assert_eq!(
            resident_in("5000 300 100 1 0 200 0\n", 4096),
            Some(Resident { bytes: 300 * 4096, shared_bytes: 100 * 4096 })
        );
        let rollup = "5653-7ffc ---p 0 0 0 [rollup]\nRss:     1760 kB\nPss:      348 kB\nPss_Dirty: 112 kB\n";
        assert_eq!(kib_of(rollup, "Pss:"), Some(348));
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax processes  96365  96365  processes\n\
            Max open files            20000                 30000                files     \n";
        assert_eq!(limit_in(limits, "Max open files"), Some(20_000));
        assert_eq!(limit_in(&limits.replace("20000", "unlimited"), "Max open files"), Some(u64::MAX));
        let pressure = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=2\n";
        assert_eq!((pressure_in(pressure), waited_us_in(pressure)), (Some(0.125), Some(1)));
        for wrong in ["", "some", "some avg10=", "some avg10=NaN", "some avg10=-1", "full avg10=3.0"] {
            assert_eq!(pressure_in(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn of_what_a_process_says_of_itself_a_part_is_read() {
        let bytes = 64 << 20;
        let child = staged::Staged::with_words_at(staged::mapped(bytes), bytes as u64, || {});
        let (environment, words) = (environment(child.0).unwrap(), command(child.0));
        assert!(environment.len() as u64 <= MOST_BYTES, "{}", environment.len());
        assert!(words.iter().map(String::len).sum::<usize>() as u64 <= MOST_BYTES);
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"AB=1\0A=b=c\0A=d\0E=\0F\0";
        let value = |name| variable(environment, name);
        assert_eq!(
            [value("A"), value("E"), value("F"), value("B")],
            [Some(&b"b=c"[..]), Some(b""), None, None]
        );
    }

    #[test]
    fn this_process_is_read() {
        let pid = std::process::id();
        let resident = resident(pid).unwrap();
        assert!(resident.bytes >= resident.shared_bytes && resident.bytes > 100_000);
        assert!(proportional(pid).is_some_and(|found| found.bytes <= resident.bytes * 2));
        assert!(cpu_ns(pid).is_some());
        assert!(descriptors(pid).is_some_and(|open| open > 2));
        assert!(descriptor_limit(pid).is_some_and(|limit| limit > 2));
        assert_eq!(cpu_ns(u32::MAX), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let text = String::from_utf8_lossy(&bytes);
            ticks_in(&text);
            resident_in(&text, u64::MAX);
            kib_of(&text, "Pss:");
            limit_in(&text, "Max");
            pressure_in(&text);
            cpu_ticks_in(&format!("cpu {text}"));
        }

        #[test]
        fn any_figures_are_taken(figures in prop::collection::vec(any::<u64>(), 0..20), name in "\\PC{0,20}") {
            let fields: Vec<String> = figures.iter().map(u64::to_string).collect();
            let fields = fields.join(" ");
            ticks_in(&format!("1 ({name}) S {fields}"));
            resident_in(&fields, 65_536);
            cpu_ticks_in(&format!("cpu  {fields}"));
            kib_of(&format!("Pss: {fields} kB"), "Pss:");
        }
    }
}
