//! Jobs that introduce themselves by nothing: trees of Pythons with loader workers, as /proc shows them to everybody. What it shows is
//! the processes' own to choose, and is compared, not believed: whether a tree is a job's its user's own collector finds out.

mod commands;

pub(super) use self::commands::HeldUp;
use self::commands::Readers;
use super::pauses::Process;
use crate::procfs;
use stallscope_ebpf::Subordinates;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process that was no Python is looked at again once in so many looks: it may have executed another program since, or another
/// process have its number.
const LOOKS_A_ROUND: u32 = 6;
/// Processes that are kept in mind; on a node with more, some are looked at again sooner.
const MOST: usize = 65_536;
/// Of one user so many roots are handed on, and so many Pythons looked into: the service, which all users have, looks where each
/// comes from.
const ROOTS_OF_A_USER: usize = 64;
const PYTHONS_OF_A_USER: usize = 4096;
/// The name that torch gives a loader's worker; before, one is known by its parent's command line.
const WORKER: &str = "pt_data_worker";

/// Looks for such trees.
#[derive(Debug, Default)]
pub(super) struct Finder {
    /// Numbers of processes that were no Pythons.
    others: BTreeSet<u32>,
    looks: u32,
    /// Roots that the last look found: a loader is there for longer, and a shim introduces its job meanwhile.
    last: BTreeSet<Process>,
    readers: Readers,
    /// One user may have 65,536 ids, and has one thread that reads of them all.
    subordinates: Subordinates,
}

/// A Python, as one look saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    parent: u32,
    start_ticks: u64,
    uid: u32,
    is_worker: bool,
    command: Vec<u8>,
}

/// A root that was found at this look and at the one before, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) process: Process,
    pub(super) uid: u32,
}

impl Finder {
    pub(super) fn new(subordinates: Subordinates) -> Finder {
        Finder { subordinates, ..Finder::default() }
    }

    /// Those who hold up who looks, each once.
    pub(super) fn held_up(&mut self) -> Vec<HeldUp> {
        self.readers.held_up()
    }

    pub(super) fn look(&mut self) -> Vec<Root> {
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_A_ROUND) || self.others.len() > MOST {
            self.others.clear();
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut seen = BTreeMap::new();
        for pid in pids {
            if self.others.contains(&pid) {
                continue;
            }
            match python(pid) {
                Some(found) => {
                    seen.insert(pid, found);
                }
                None => {
                    self.others.insert(pid);
                }
            }
        }
        self.read_commands(&mut seen);
        let found = roots(&seen);
        let now: BTreeSet<Process> = found.iter().map(|root| root.process).collect();
        let last = std::mem::replace(&mut self.last, now);
        self.of_each(found.into_iter().filter(|root| last.contains(&root.process)))
    }

    /// As many of each user as there may be.
    fn of_each(&self, roots: impl Iterator<Item = Root>) -> Vec<Root> {
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        let is_within = |root: &Root| {
            let count = of_user.entry(self.subordinates.payer(root.uid)).or_default();
            *count += 1;
            *count <= ROOTS_OF_A_USER
        };
        roots.filter(is_within).collect()
    }

    /// Those whose command lines cannot be had are none.
    fn read_commands(&mut self, seen: &mut BTreeMap<u32, Seen>) {
        let mut of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, one) in &*seen {
            let of_user = of.entry(self.subordinates.payer(one.uid)).or_default();
            if of_user.len() < PYTHONS_OF_A_USER {
                of_user.push(*pid);
            }
        }
        let mut commands = self.readers.read(of);
        seen.retain(|pid, one| {
            let command = commands.remove(pid);
            let is_read = command.is_some();
            one.command = command.unwrap_or_default();
            is_read
        });
    }
}

/// Without its command line. `None`: it is no Python, or gone.
fn python(pid: u32) -> Option<Seen> {
    let stat = procfs::text(pid, "stat")?;
    let name = stat.split_once('(')?.1.rsplit_once(')')?.0;
    let is_worker = name == WORKER;
    if !is_worker && !name.starts_with("python") {
        return None;
    }
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let (parent, start_ticks) = (procfs::parent(pid)?, procfs::start_ticks(pid)?);
    Some(Seen { parent, start_ticks, uid, is_worker, command: Vec::new() })
}

/// Roots of trees with a loader's worker: the topmost Python of the worker's user, without another program between.
fn roots(seen: &BTreeMap<u32, Seen>) -> Vec<Root> {
    let parent = |pid: u32| {
        let one = seen.get(&pid)?;
        seen.get(&one.parent).filter(|parent| parent.uid == one.uid && one.parent != pid).map(|_| one.parent)
    };
    let (mut roots, mut tops) = (BTreeMap::new(), HashMap::new());
    for (pid, one) in seen {
        let Some(trainer) = parent(*pid) else { continue };
        // A fork has its parent's command line.
        if !one.is_worker && (one.command.is_empty() || one.command != seen[&trainer].command) {
            continue;
        }
        let root = top(trainer, parent, &mut tops);
        let Seen { start_ticks, uid, .. } = seen[&root];
        roots.insert(root, Root { process: (root, start_ticks), uid });
    }
    roots.into_values().collect()
}

/// The last process on the way from `pid` to its parents. `tops`: those that are known by now, as all processes may be one line.
fn top(pid: u32, parent: impl Fn(u32) -> Option<u32>, tops: &mut HashMap<u32, u32>) -> u32 {
    let (mut at, mut way) = (pid, Vec::new());
    let found = loop {
        // Numbers of processes may be read at different moments, so that they lead in a circle.
        if let Some(known) = tops.insert(at, at) {
            tops.insert(at, known);
            break known;
        }
        way.push(at);
        match parent(at) {
            Some(parent) => at = parent,
            None => break at,
        }
    };
    tops.extend(way.into_iter().map(|pid| (pid, found)));
    found
}

/// Whether `pid` is one of the processes `known`, or comes from one. A number is another process's once the one that had it has ended.
pub(super) fn is_below(pid: u32, known: &BTreeSet<Process>) -> bool {
    const DEPTH: usize = 64;
    let line = std::iter::successors(Some(pid), |pid| procfs::parent(*pid).filter(|parent| *parent > 0));
    line.take(DEPTH).any(|pid| {
        let mut of_number = known.range((pid, 0)..=(pid, u64::MAX)).peekable();
        let start_ticks = of_number.peek().and_then(|_| procfs::start_ticks(pid));
        of_number.any(|(_, ticks)| start_ticks == Some(*ticks))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn one(parent: u32, uid: u32, command: &str) -> Seen {
        Seen { parent, start_ticks: 9, uid, is_worker: command == WORKER, command: command.into() }
    }

    fn found(seen: &[(u32, Seen)]) -> Vec<u32> {
        roots(&seen.iter().cloned().collect()).into_iter().map(|root| root.process.0).collect()
    }

    #[test]
    fn a_python_with_loader_workers_is_a_job_and_its_launcher_the_root() {
        let torchrun = [
            (10, one(1, 7, "torchrun")),
            (11, one(10, 7, "train 0")),
            (12, one(10, 7, "train 1")),
            (13, one(11, 7, "train 0")),
            (14, one(12, 7, WORKER)),
        ];
        assert_eq!(found(&torchrun), [10]);
        assert_eq!(found(&torchrun[1..]), [11, 12], "started by no Python");
        assert_eq!(found(&torchrun[..3]), [0; 0], "without workers");
        let mut others = torchrun.clone();
        others[0].1.uid = 0;
        assert_eq!(found(&others), [11, 12], "started by another user");
        assert_eq!(found(&[(11, one(1, 7, "train")), (12, one(11, 8, "train"))]), [0; 0]);
        assert_eq!(found(&[(11, one(1, 7, "")), (12, one(11, 7, ""))]), [0; 0], "both say nothing");
    }

    #[test]
    fn one_users_processes_take_no_longer_than_there_are_of_them() {
        // Each is the next one's parent, and both a trainer and its worker.
        let line: Vec<_> = (1..=30_000).map(|pid| (pid, one(pid - 1, 7, "train"))).collect();
        assert_eq!(found(&line), [1]);
        let finder = Finder::new(Subordinates::parse(b"7:100000:65536", b""));
        let root = |pid, uid| Root { process: (pid, 9), uid };
        let many = (1..1000).map(|pid| root(pid, if pid % 2 == 0 { 7 } else { 100_000 + pid }));
        let kept = finder.of_each(many.chain([root(1000, 8)]));
        assert_eq!((kept.len(), kept.last()), (ROOTS_OF_A_USER + 1, Some(&root(1000, 8))));
    }

    #[test]
    fn this_test_is_no_python_and_below_itself() {
        let own = std::process::id();
        let process = |pid| (pid, procfs::start_ticks(pid).unwrap());
        assert_eq!(python(own), None);
        assert!(is_below(own, &[process(own)].into()));
        assert!(is_below(own, &[process(procfs::parent(own).unwrap())].into()));
        assert!(!is_below(own, &[(u32::MAX, 1)].into()));
        let (pid, ticks) = process(own);
        assert!(!is_below(own, &[(pid, ticks - 1)].into()), "one that had its number before");
    }

    /// Any program of that name with a fork of itself, until its stdin ends.
    struct Job(std::process::Child, PathBuf);

    impl Job {
        fn start() -> Job {
            use std::process::{Command, Stdio};
            static JOBS: AtomicU32 = AtomicU32::new(0);
            let number = JOBS.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("ss-found-{}-{number}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            let program = folder.join("python3");
            std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
            let mut job = Command::new(&program);
            job.args(["-c", "( read end ); true"]).stdin(Stdio::piped());
            Job(job.spawn().unwrap(), folder)
        }
    }

    impl Drop for Job {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
            let _ = fs::remove_dir_all(&self.1);
        }
    }

    #[test]
    fn a_root_is_found_at_its_second_look() {
        let mut job = Job::start();
        let mut finder = Finder::default();
        let pid = job.0.id();
        let is_there = |roots: &[Root]| roots.iter().any(|root| root.process.0 == pid);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !finder.last.iter().any(|process| process.0 == pid) {
            assert!(!is_there(&finder.look()) && std::time::Instant::now() < until);
        }
        assert!(is_there(&finder.look()));
        drop(job.0.stdin.take());
        job.0.wait().unwrap();
        assert!(!is_there(&finder.look()));
    }

    #[test]
    fn who_locks_a_command_line_keeps_nobody_elses_jobs_from_being_found() {
        static LOCKED: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "SKIPPED: who_locks_a_command_line_keeps_nobody_elses_jobs_from_being_found takes root"
            );
            return;
        }
        let child = procfs::staged::Staged::new(|| {
            // SAFETY: system calls, in the child alone.
            unsafe {
                libc::prctl(libc::PR_SET_NAME, c"python3".as_ptr());
                libc::syscall(libc::SYS_setresuid, 65_001, 65_001, 65_001);
            }
        });
        LOCKED.store(child.0, Ordering::Relaxed);
        let readers = Readers::that_read(|pid| {
            while pid == LOCKED.load(Ordering::Relaxed) {
                std::thread::park();
            }
            fs::read(format!("/proc/{pid}/cmdline")).ok()
        });
        let mut job = Job::start();
        let (done, looked) = std::sync::mpsc::channel();
        let root = job.0.id();
        std::thread::spawn(move || {
            let mut finder = Finder { readers, ..Finder::default() };
            while !finder.look().iter().any(|found| found.process.0 == root) {}
            done.send(finder.held_up()).unwrap();
        });
        let held_up =
            looked.recv_timeout(std::time::Duration::from_secs(60)).expect("it never looked to the end");
        assert_eq!(held_up, [HeldUp { payer: 65_001, pid: child.0 }]);
        drop(job.0.stdin.take());
    }

    proptest! {
        #[test]
        fn any_numbers_are_taken(parents in prop::collection::vec(0_u32..12, 0..12)) {
            let seen = parents.iter().zip(0..).map(|(parent, pid)| (pid, one(*parent, 7, WORKER)));
            let seen: Vec<_> = seen.collect();
            prop_assert!(found(&seen).len() <= seen.len());
        }
    }
}
