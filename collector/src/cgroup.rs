//! What the control groups of a process let it use, of both versions. A process may be in one group for CPU and in
//! another for memory, and every group above it limits it too.

use crate::procfs;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Limits that are larger are none: version 1 writes its "unlimited" so.
const UNLIMITED_BYTES: u64 = 1 << 60;
/// Groups above each other that are looked at.
const DEPTH: usize = 32;

/// Memory of a group that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) limit_bytes: u64,
    /// Until the limit, were cached files dropped.
    pub(crate) available_bytes: u64,
}

/// Periods of a CPU quota in which the group's tasks ran, since it was made; in some they used it up and waited for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaPeriods {
    pub(crate) all: u64,
    pub(crate) used_up: u64,
}

/// The groups of one process, from its own up to the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    memory: Vec<Folder>,
    cpu: Vec<Folder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Groups {
    /// Of all these processes; those that are in the same groups, as the ranks of a job are, count once.
    pub(crate) fn of(pids: &[u32]) -> Vec<Groups> {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let memberships: BTreeSet<String> =
            pids.iter().map(|pid| procfs::text(*pid, "cgroup").unwrap_or_default()).collect();
        let folders = |groups: &str, controller| {
            let found = folders(groups, &mounts, controller).unwrap_or_default();
            found.into_iter().filter(|folder| folder.path.is_dir()).collect()
        };
        memberships
            .iter()
            .map(|groups| Groups { memory: folders(groups, "memory"), cpu: folders(groups, "cpu") })
            .collect()
    }

    /// CPUs that the tightest quota allows; `None`: there is none.
    pub(crate) fn cpus(&self) -> Option<f64> {
        self.cpu.iter().filter_map(Folder::cpus).min_by(f64::total_cmp)
    }

    /// Of each group that has a CPU quota.
    pub(crate) fn quota_periods(&self) -> Vec<(&Path, QuotaPeriods)> {
        let limited = self.cpu.iter().filter(|folder| folder.cpus().is_some());
        limited.filter_map(|folder| Some((folder.path.as_path(), folder.quota_periods()?))).collect()
    }

    /// The group with the least headroom; `None`: no group has a limit.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let limited: Vec<Memory> = self.memory.iter().filter_map(Folder::memory).collect();
        Some(Memory {
            limit_bytes: limited.iter().map(|memory| memory.limit_bytes).min()?,
            available_bytes: limited.iter().map(|memory| memory.available_bytes).min()?,
        })
    }

    /// Time in which some task of any of the groups waited for memory, in microseconds; 0 where groups tell of none.
    pub(crate) fn waited_for_memory_us(&self) -> u64 {
        let texts = self.memory.iter().filter_map(|folder| folder.read("memory.pressure"));
        texts.filter_map(|text| procfs::waited_us_in(&text)).max().unwrap_or(0)
    }

    /// The highest memory pressure of any of the groups; `None` where groups tell of none.
    pub(crate) fn memory_pressure(&self) -> Option<f64> {
        let pressures = self.memory.iter().filter_map(|folder| folder.read("memory.pressure"));
        pressures.filter_map(|text| procfs::pressure_in(&text)).max_by(f64::total_cmp)
    }
}

impl Folder {
    fn read(&self, name: &str) -> Option<String> {
        fs::read(self.path.join(name)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.read(name)?.trim().parse().ok()
    }

    fn cpus(&self) -> Option<f64> {
        match self.version {
            Version::Two => quota_in(&self.read("cpu.max")?),
            Version::One => {
                let (quota, period) = (self.read("cpu.cfs_quota_us")?, self.read("cpu.cfs_period_us")?);
                quota_in(&format!("{} {}", quota.trim(), period.trim()))
            }
        }
    }

    fn quota_periods(&self) -> Option<QuotaPeriods> {
        let stat = self.read("cpu.stat")?;
        Some(QuotaPeriods { all: of(&stat, "nr_periods")?, used_up: of(&stat, "nr_throttled")? })
    }

    fn memory(&self) -> Option<Memory> {
        let (limits, used, cached) = match self.version {
            // Beyond the second the kernel holds the group's processes up, which comes before the first.
            Version::Two => {
                (&["memory.max", "memory.high"][..], "memory.current", ["inactive_file", "active_file"])
            }
            Version::One => (
                &["memory.limit_in_bytes"][..],
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
        };
        let known = limits.iter().filter_map(|limit| self.number(limit));
        let limit_bytes = known.filter(|bytes| *bytes < UNLIMITED_BYTES).min()?;
        let stat = self.read("memory.stat").unwrap_or_default();
        let cached = cached.iter().filter_map(|name| of(&stat, name)).fold(0, u64::saturating_add);
        let used_bytes = self.number(used)?.saturating_sub(cached);
        Some(Memory { limit_bytes, available_bytes: limit_bytes.saturating_sub(used_bytes) })
    }
}

/// "QUOTA PERIOD" in microseconds as CPUs; `None` for "max" and -1, which mean all of them.
fn quota_in(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// The figure behind `name` in lines like `inactive_file 4096`.
fn of(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

/// The folders of the groups that hold a process for `controller`, its own first. By the lines of its
/// `/proc/PID/cgroup` and of our own `/proc/self/mountinfo`.
fn folders(groups: &str, mounts: &str, controller: &str) -> Option<Vec<Folder>> {
    let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let first = lines().find(|(names, _)| names.split(',').any(|name| name == controller));
    let (version, group) = match first {
        Some((_, group)) => (Version::One, group),
        None => (Version::Two, lines().find(|(names, _)| names.is_empty())?.1),
    };
    let (root, mount) = mounts.lines().find_map(|line| mounted(line, version, controller))?;
    // Where the group is not below what is mounted here (another namespace's), the mount's own root is the nearest.
    let below = group.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    let below = Path::new(below.trim_start_matches('/'));
    if below.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return None;
    }
    let folders = below.ancestors().take(DEPTH);
    Some(folders.map(|folder| Folder { path: Path::new(&mount).join(folder), version }).collect())
}

/// Root and place of the mount in a line of mountinfo, if it is the one of this controller.
fn mounted(line: &str, version: Version, controller: &str) -> Option<(String, String)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let kind = system.next()?;
    let options = system.nth(1)?;
    let right = match version {
        Version::Two => kind == "cgroup2",
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
    };
    let mut fields = mount.split(' ').skip(3);
    let (root, place) = (fields.next()?, fields.next()?);
    right.then(|| (root.to_owned(), place.to_owned()))
}

#[cfg(fuzzing)]
pub(crate) fn read_any(groups: &str, mounts: &str) {
    for controller in ["memory", "cpu"] {
        assert!(folders(groups, mounts, controller).is_none_or(|found| found.len() <= DEPTH + 1));
    }
    quota_in(groups);
    of(groups, "inactive_file");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "25 1 0:20 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        26 1 0:21 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
    const TWO: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn paths(groups: &str, mounts: &str, controller: &str) -> Vec<String> {
        let found = folders(groups, mounts, controller).unwrap_or_default();
        found.into_iter().map(|folder| folder.path.display().to_string()).collect()
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        assert_eq!(
            paths("0::/user.slice/run-7.scope\n", TWO, "memory"),
            ["/sys/fs/cgroup/user.slice/run-7.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup/"]
        );
        let hybrid = "4:memory:/slurm/job_7\n1:cpu,cpuacct:/\n0::/\n";
        assert_eq!(
            paths(hybrid, ONE, "memory"),
            ["/sys/fs/cgroup/memory/slurm/job_7", "/sys/fs/cgroup/memory/slurm", "/sys/fs/cgroup/memory/"]
        );
        assert_eq!(paths(hybrid, ONE, "cpu"), ["/sys/fs/cgroup/cpu,cpuacct/"]);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = "9 8 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(paths("0::/docker/ab/job\n", mounts, "cpu"), ["/sys/fs/cgroup/job", "/sys/fs/cgroup/"]);
        assert_eq!(paths("0::/elsewhere\n", mounts, "cpu"), ["/sys/fs/cgroup/"]);
    }

    #[test]
    fn what_leads_out_or_makes_no_sense_is_left_alone() {
        for groups in ["", "0::/../../etc\n", "0::/a/./b\n", "no group", "0:x", "::"] {
            assert!(paths(groups, TWO, "memory").iter().all(|path| path.starts_with("/sys/fs/cgroup")));
        }
        assert!(paths("0::/../../etc\n", TWO, "memory").is_empty());
        assert!(paths("0::/a\n", "rubbish - cgroup2", "memory").is_empty());
    }

    #[test]
    fn processes_in_one_group_count_once() {
        let own = std::process::id();
        assert_eq!(Groups::of(&[own, own]).len(), 1);
    }

    #[test]
    fn quotas_and_limits_are_read() {
        assert_eq!(quota_in("150000 100000\n"), Some(1.5));
        for none in ["max 100000", "-1 100000", "0 100000", "5 0", "", "1 2 3", "x y"] {
            assert_eq!(quota_in(none), None, "{none}");
        }
        let folder = std::env::temp_dir().join(format!("stallscope-cgroup-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("memory.max", "1000000\n");
        write("memory.current", "900000\n");
        write("memory.stat", "anon 5\ninactive_file 300000\nactive_file 100000\nactive_file_x 7\n");
        write("memory.pressure", "some avg10=20.00 avg60=0.00 avg300=0.00 total=1\n");
        write("cpu.max", "50000 100000\n");
        let own = Folder { path: folder.clone(), version: Version::Two };
        let groups = Groups { memory: vec![own.clone()], cpu: vec![own] };
        assert_eq!(groups.memory(), Some(Memory { limit_bytes: 1_000_000, available_bytes: 500_000 }));
        assert_eq!((groups.cpus(), groups.memory_pressure()), (Some(0.5), Some(0.2)));
        assert_eq!(groups.waited_for_memory_us(), 1);
        assert!(groups.quota_periods().is_empty(), "there is no account of them");
        write("cpu.stat", "usage_usec 9\nnr_periods 40\nnr_throttled 30\nthrottled_usec 7\n");
        assert_eq!(groups.quota_periods(), [(&*folder, QuotaPeriods { all: 40, used_up: 30 })]);
        write("cpu.max", "max 100000\n");
        assert!(groups.quota_periods().is_empty(), "what an earlier quota did is over");
        write("memory.high", "700000\n");
        assert_eq!(groups.memory(), Some(Memory { limit_bytes: 700_000, available_bytes: 200_000 }));
        write("memory.max", "max\n");
        write("memory.high", "max\n");
        assert_eq!(groups.memory(), None);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "5\n");
        let old = Folder { path: folder.clone(), version: Version::One };
        assert_eq!(old.memory(), None);
        write("memory.limit_in_bytes", "4\n");
        assert_eq!(old.memory(), Some(Memory { limit_bytes: 4, available_bytes: 0 }));
        write("cpu.cfs_quota_us", "200000\n");
        write("cpu.cfs_period_us", "100000\n");
        assert_eq!(old.cpus(), Some(2.0));
        fs::remove_dir_all(&folder).unwrap();
    }

    proptest! {
        #[test]
        fn any_text_is_taken(groups in "\\PC{0,80}", mounts in "\\PC{0,80}", stat in "\\PC{0,80}") {
            folders(&groups, &mounts, "memory");
            folders(&format!("0::/{groups}"), TWO, "cpu");
            quota_in(&stat);
            of(&stat, "anon");
        }
    }
}
