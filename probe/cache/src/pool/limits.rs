//! How much memory there is, and who pays for it.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that the pool may use at most, and the control group that its pages are charged to: that of the process that
/// writes them, the pool, which was started in the group of the job that came first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) most_bytes: u64,
    pub(crate) cgroup: String,
}

impl Limits {
    pub(crate) fn of_this_process() -> Limits {
        // Names of groups and mounts need not be UTF-8.
        let read = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let machine = total_in(&read("/proc/meminfo")).unwrap_or(u64::MAX);
        let (cgroup, folder) = group_in(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let limit = folder.and_then(|folder| {
            let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
            let groups = folder.group.ancestors().take_while(|group| group.starts_with(&folder.mount));
            groups
                .flat_map(|group| [group.join("memory.max"), group.join("memory.limit_in_bytes")])
                .filter_map(number)
                .min()
        });
        Limits { most_bytes: machine.min(limit.unwrap_or(u64::MAX)), cgroup }
    }
}

fn total_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    mount: PathBuf,
    group: PathBuf,
}

/// The name of the group that memory is charged to, and its folder where it is to be seen.
fn group_in(groups: &str, mountinfo: &str) -> (String, Option<Folder>) {
    let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let first = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let (kind, group) = match first {
        Some((_, group)) => ("cgroup", group),
        None => (
            "cgroup2",
            lines().find(|(controllers, _)| controllers.is_empty()).map_or("/", |(_, group)| group),
        ),
    };
    let folder = mountinfo.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let right = system.next()? == kind
            && (kind == "cgroup2" || system.nth(1)?.split(',').any(|option| option == "memory"));
        let mut fields = place.split(' ').skip(3);
        let (root, mount) = (fields.next()?, Path::new(fields.next()?));
        let below =
            Path::new(group.strip_prefix(root.trim_end_matches('/')).unwrap_or("").trim_start_matches('/'));
        let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        (right && inside).then(|| Folder { mount: mount.into(), group: mount.join(below) })
    });
    (group.to_owned(), folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn there_is_memory_here() {
        let limits = Limits::of_this_process();
        assert!(limits.most_bytes > 1 << 20 && limits.most_bytes < 1 << 50, "{limits:?}");
        assert!(limits.cgroup.starts_with('/'), "{limits:?}");
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let one = "25 1 0:20 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
        let two = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = |groups: &str, mounts: &str| {
            let (name, folder) = group_in(groups, mounts);
            (name, folder.map(|folder| folder.group.display().to_string()))
        };
        assert_eq!(
            found("4:memory:/slurm/job_7\n0::/\n", one),
            ("/slurm/job_7".into(), Some("/sys/fs/cgroup/memory/slurm/job_7".into()))
        );
        assert_eq!(
            found("0::/run-7.scope\n", two),
            ("/run-7.scope".into(), Some("/sys/fs/cgroup/run-7.scope".into()))
        );
        assert_eq!(found("0::/../../etc\n", two), ("/../../etc".into(), None));
        assert_eq!(total_in("MemTotal:       16 kB\n"), Some(16384));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(groups in "\\PC{0,80}", mounts in "\\PC{0,80}") {
            group_in(&groups, &format!("1 2 3 4 5 {mounts} - cgroup2 x y"));
            group_in(&format!("0::/{groups}"), &mounts);
            total_in(&format!("MemTotal:{groups}"));
        }
    }
}
