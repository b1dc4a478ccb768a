//! Jobs that introduce themselves by nothing: trees of Pythons with loader workers, as /proc shows them to everybody. What it shows is
//! the processes' own to choose, and is compared, not believed: whether a tree is a job's its user's own collector finds out.

use super::pauses::Process;
use crate::procfs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process that was no Python is looked at again once in so many looks: it may have executed another program since, or another
/// process have its number.
const LOOKS_A_ROUND: u32 = 6;
/// Processes that are kept in mind; on a node with more, some are looked at again sooner.
const MOST: usize = 65_536;
/// Of a command line, so much is compared.
const COMPARED_BYTES: u64 = 4096;
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
        let found = roots(&seen);
        let now: BTreeSet<Process> = found.iter().map(|root| root.process).collect();
        let last = std::mem::replace(&mut self.last, now);
        found.into_iter().filter(|root| last.contains(&root.process)).collect()
    }
}

/// `None`: it is no Python, or gone.
fn python(pid: u32) -> Option<Seen> {
    let stat = procfs::text(pid, "stat")?;
    let name = stat.split_once('(')?.1.rsplit_once(')')?.0;
    let is_worker = name == WORKER;
    if !is_worker && !name.starts_with("python") {
        return None;
    }
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let command = procfs::beginning(pid, "cmdline", COMPARED_BYTES)?;
    Some(Seen {
        parent: procfs::parent(pid)?,
        start_ticks: procfs::start_ticks(pid)?,
        uid,
        is_worker,
        command,
    })
}

/// Roots of trees with a loader's worker: the topmost Python of the worker's user, without another program between.
fn roots(seen: &BTreeMap<u32, Seen>) -> Vec<Root> {
    let parent = |pid: u32| {
        let one = seen.get(&pid)?;
        seen.get(&one.parent).filter(|parent| parent.uid == one.uid && one.parent != pid).map(|_| one.parent)
    };
    let mut roots = BTreeMap::new();
    for (pid, one) in seen {
        let Some(trainer) = parent(*pid) else { continue };
        // A fork has its parent's command line.
        if !one.is_worker && (one.command.is_empty() || one.command != seen[&trainer].command) {
            continue;
        }
        // Numbers of processes may be read at different moments, so that they lead in a circle.
        let line = std::iter::successors(Some(trainer), |pid| parent(*pid)).take(seen.len());
        let Some(root) = line.last() else { continue };
        let Seen { start_ticks, uid, .. } = seen[&root];
        roots.insert(root, Root { process: (root, start_ticks), uid });
    }
    roots.into_values().collect()
}

/// Whether `pid` is one of the processes `known`, or comes from one.
pub(super) fn is_below(pid: u32, known: &BTreeSet<u32>) -> bool {
    const DEPTH: usize = 64;
    let line = std::iter::successors(Some(pid), |pid| procfs::parent(*pid).filter(|parent| *parent > 0));
    line.take(DEPTH).any(|pid| known.contains(&pid))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;

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
    fn this_test_is_no_python_and_below_itself() {
        let own = std::process::id();
        assert_eq!(python(own), None);
        assert!(is_below(own, &[own].into()) && is_below(own, &[procfs::parent(own).unwrap()].into()));
        assert!(!is_below(own, &[u32::MAX].into()));
    }

    #[test]
    fn a_root_is_found_at_its_second_look() {
        use std::process::{Command, Stdio};
        // Any program of that name with a fork of itself.
        let folder = std::env::temp_dir().join(format!("ss-found-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("python3");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut job = Command::new(&program);
        job.args(["-c", "( read end ); true"]).stdin(Stdio::piped());
        let mut job = job.spawn().unwrap();
        let mut finder = Finder::default();
        let pid = job.id();
        let is_there = |roots: &[Root]| roots.iter().any(|root| root.process.0 == pid);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !finder.last.iter().any(|process| process.0 == pid) {
            assert!(!is_there(&finder.look()) && std::time::Instant::now() < until);
        }
        assert!(is_there(&finder.look()));
        drop(job.stdin.take());
        job.wait().unwrap();
        assert!(!is_there(&finder.look()));
        fs::remove_dir_all(&folder).unwrap();
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
