//! Which files a job was blocked in: the right ones, and nothing left out.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::{Seen, Workload, file, kernel};
use stallscope_abi::files::{FileKey, FileWait};
use stallscope_abi::kernel::{Blocked, Times};
use stallscope_ebpf::{Kernel, Options, Waits};

/// Kinds of waits that are summed by file.
const KINDS: [Blocked; 4] = [Blocked::FileRead, Blocked::FileWrite, Blocked::Fault, Blocked::Sync];

/// The sums of `workload`'s tree at its end, and what its tasks' own accounts say.
fn waits(kernel: &mut Kernel, arguments: &[&str]) -> (Waits, Vec<Times>) {
    let mut workload = Workload::spawn(arguments);
    let pid = workload.pid();
    let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
    workload.begin();
    seen.drain_until_exit(kernel, pid);
    workload.wait();
    let waits = kernel.waits().unwrap();
    kernel.unwatch(pid).unwrap();
    let left = kernel.waits().unwrap();
    assert!(left.files.is_empty() && left.mounts.is_empty(), "forgotten with the tree: {left:?}");
    assert!(waits.mounts.iter().all(|(key, _)| key.root == pid), "{waits:?}");
    (waits, seen.exits().map(|exit| exit.total).collect())
}

/// The same of a run in which it was blocked in `kind`. Where a disk is faster than the CPU, as in an emulated
/// machine, that may take some.
fn blocked(kernel: &mut Kernel, arguments: &[&str], kind: Blocked) -> (Waits, Vec<Times>) {
    for _ in 0..20 {
        let (waits, times) = waits(kernel, arguments);
        let waited_ns: u64 = waits.mounts.iter().map(|(_, wait)| wait.wait_ns).sum();
        assert_eq!(waited_ns, blocked_ns(&times, &KINDS), "{arguments:?}: {waits:?}");
        if blocked_ns(&times, &[kind]) > 0 {
            return (waits, times);
        }
    }
    panic!("{arguments:?} never blocked");
}

fn blocked_ns(times: &[Times], kinds: &[Blocked]) -> u64 {
    times.iter().flat_map(|times| kinds.iter().map(|kind| times.blocked_ns[*kind as usize])).sum()
}

fn of<'a>(waits: &'a Waits, path: &Path) -> &'a (FileKey, FileWait) {
    let inode = path.metadata().unwrap().ino();
    waits.files.iter().find(|(key, _)| key.inode == inode).unwrap_or_else(|| panic!("{path:?}: {waits:?}"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim_end_matches('\0')
}

#[test]
fn every_wait_in_a_file_is_of_a_file_or_of_none() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    for (deed, kind) in
        [("read", Blocked::FileRead), ("fault", Blocked::Fault), ("write-sync", Blocked::Sync)]
    {
        let path = file(&format!("waited-{deed}"));
        let (waits, times) = blocked(&mut kernel, &[deed, "1", path.to_str().unwrap()], kind);
        let (key, wait) = of(&waits, &path);
        // A sleep that ended by a switch that was not traced is of none.
        let nameless_ns: u64 =
            waits.mounts.iter().filter(|(mount, _)| mount.mount == 0).map(|(_, wait)| wait.wait_ns).sum();
        assert!(
            wait.waits > 0 && wait.wait_ns > blocked_ns(&times, &[kind]).saturating_sub(nameless_ns) / 2,
            "{deed}: {waits:?} {times:?}"
        );
        let mount = waits.mounts.iter().find(|(mount, _)| mount.mount == key.mount).unwrap();
        assert!(mount.1.wait_ns >= wait.wait_ns && mount.0.inode == 0);
    }
}

#[test]
fn files_are_named_as_the_file_system_does() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let long = "n".repeat(100);
    for name in ["named", &long] {
        let path = file(name);
        let (waits, _) = blocked(&mut kernel, &["read", "1", path.to_str().unwrap()], Blocked::FileRead);
        let (key, wait) = of(&waits, &path);
        assert_eq!(text(&wait.name), &name[..name.len().min(63)]);
        let parent = path.parent().unwrap();
        let (major, minor) = key.device();
        let numbers = format!("{} ", key.mount);
        let device = format!(" {major}:{minor} ");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.starts_with(&numbers) && line.contains(&device));
        let point = Path::new(line.unwrap_or_else(|| panic!("{key:?}\n{mounts}")).split(' ').nth(4).unwrap());
        assert!(path.starts_with(point), "{path:?} is not on {point:?}");
        if parent == point {
            assert_eq!((text(&wait.parent), wait.whole), ("", 1));
        } else {
            assert_eq!(text(&wait.parent), parent.file_name().unwrap().to_str().unwrap());
            assert_eq!(wait.whole == 1, parent.parent().unwrap() == point);
        }
    }
}

#[test]
fn another_process_is_left_out() {
    let Some(mut kernel) = kernel(&Options::default()) else { return };
    let path = file("of-another");
    let watched = Workload::spawn(&["sleep"]);
    kernel.watch(watched.pid()).unwrap();
    let mut other = Workload::spawn(&["read", "1", path.to_str().unwrap()]);
    other.begin();
    other.wait();
    let waits = kernel.waits().unwrap();
    let inode = path.metadata().unwrap().ino();
    assert!(waits.files.iter().all(|(key, _)| key.inode != inode), "{waits:?}");
    let mut watched = watched;
    watched.begin();
    watched.wait();
}
