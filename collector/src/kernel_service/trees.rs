//! The process trees that are watched: taken up for those who may watch them, and let go when the last caller is gone.

use super::connections::TURN;
use super::{KernelSide, Service};
use crate::caller::Caller;
use crate::containers::NOT_THE_NODES;
use anyhow::{Result, bail, ensure};
use stallscope_abi::kernel::{Record, TaskNew, bytes_of};
use stallscope_ebpf::Identity;
use stallscope_wire::{Accepted, ProgramState, Reply};
use std::collections::HashSet;
use std::time::Instant;

/// Why a caller that asked for system calls does without.
const FOR_ROOT: &str = "the node's collector hooks system calls for root alone; `stallscope collect --syscalls-for-everyone` does for all";

/// A process whose descendants are watched with it.
pub(crate) struct Tree {
    /// `start_boottime`: the number may be another process next.
    start_ns: u64,
    /// Of its root.
    slot: u32,
}

fn leader_of(tasks: &[TaskNew], process: u32) -> Option<&TaskNew> {
    tasks.iter().find(|task| task.header.tid == process && task.header.tgid == process)
}

impl<K: KernelSide> Service<K> {
    /// Takes up the process tree of `root` for `caller`, if it is theirs.
    pub(super) fn watch(&mut self, caller: &mut Caller, root: u32) -> Result<()> {
        shares_numbers(&self.kernel, caller)?;
        may_watch(&self.kernel, caller, root)?;
        let mut tasks = self.kernel.watch(root)?;
        if let (Some(known), Some(found)) = (self.trees.get(&root), leader_of(&tasks, root))
            && known.start_ns != found.start_boottime_ns
        {
            // The number has come round: what was summed up by it is of the earlier process.
            self.let_go(root);
            tasks = self.kernel.watch(root)?;
        }
        let is_watched = self.trees.contains_key(&root);
        let leader = leader_of(&tasks, root);
        let of = leader.and_then(|task| Some((task, self.kernel.identity(task.header.slot)?)));
        // Or it comes round between these questions.
        let is_theirs = |of: &Identity| of.is_known_to(caller.uid) && is_around(&self.kernel, caller, root);
        let Some((leader, _)) = of.filter(|(_, of)| is_theirs(of)) else {
            // Others, who may know of it, may watch it.
            if !is_watched {
                self.let_go(root);
            }
            bail!("process {root} is not yours, or has ended; ask its owner, or root, to profile it");
        };
        self.trees.insert(root, Tree { start_ns: leader.start_boottime_ns, slot: leader.header.slot });
        if caller.roots.is_empty() {
            let mut programs = self.programs();
            if caller.syscalls == Some(false) {
                programs.push(ProgramState {
                    program: "sys_enter".into(),
                    attached: false,
                    reason: FOR_ROOT.into(),
                });
            }
            caller.say(&Reply::Watching(Accepted { tasks: tasks.len() as u32, programs }));
        }
        let before = caller.roots.get(&root).copied();
        caller.take_up(root, leader.start_boottime_ns);
        if let Some(audit) = &mut self.audit {
            let now = Instant::now();
            before.into_iter().for_each(|start_ns| audit.ends(caller.watch(root, start_ns), now));
            audit.begins(caller.watch(root, leader.start_boottime_ns), caller.syscalls == Some(true), now);
        }
        self.introduce(caller, &tasks);
        Ok(())
    }

    /// Tells a caller of the tasks that a tree has by now.
    pub(super) fn introduce(&mut self, caller: &mut Caller, tasks: &[TaskNew]) {
        for task in tasks {
            if let Some(of) = self.kernel.identity(task.header.slot) {
                self.watched.begins(task, of);
                caller.offer(&Record::TaskNew(*task), bytes_of(task), &of);
            }
        }
    }

    fn let_go(&mut self, root: u32) {
        self.trees.remove(&root);
        let Service { kernel, watched, .. } = self;
        watched.forget(|slot| kernel.root(slot) == Some(root));
        // The process may be long gone, and its tasks with it.
        let _ = self.kernel.unwatch(root);
    }

    /// Lets go of trees that nobody watches any more, and takes up again those that were a part of them, of each user what
    /// they have time left for: both walk all tasks of the node, and hundreds may come at once.
    pub(super) fn settle(&mut self) {
        let mut leaving: Vec<(u32, u32)> = self.leaving.iter().map(|(root, payer)| (*root, *payer)).collect();
        leaving.sort_by_cached_key(|(_, payer)| self.shares.turn(*payer));
        let turn = Instant::now();
        for (root, payer) in leaving {
            if turn.elapsed() >= TURN {
                self.behind = true;
                break;
            }
            if !self.shares.has(payer) {
                continue;
            }
            let begun = Instant::now();
            self.leaving.remove(&root);
            if self.callers.iter().all(|other| !other.roots.contains_key(&root)) {
                let within = self.trees_within(root);
                self.let_go(root);
                for caller in &mut self.callers {
                    // Those within it, and those that it was within.
                    let is_around = caller.follows_process(root);
                    let orphans = caller.roots.keys().filter(|root| is_around || within.contains(root));
                    caller.orphans.extend(orphans.copied());
                }
            }
            self.shares.took(payer, begun.elapsed());
        }
        let mut callers = std::mem::take(&mut self.callers);
        for caller in &mut callers {
            while turn.elapsed() < 2 * TURN
                && self.shares.has(caller.payer)
                && let Some(root) = caller.orphans.pop_first()
            {
                let begun = Instant::now();
                if let Some(start_ns) = caller.roots.get(&root).copied() {
                    self.take_up_again(caller, root, start_ns);
                }
                self.shares.took(caller.payer, begun.elapsed());
            }
        }
        self.callers = callers;
        self.behind |= turn.elapsed() >= 2 * TURN;
    }

    /// Watched trees that are followed as part of the tree of `root`.
    fn trees_within(&self, root: u32) -> HashSet<u32> {
        let within =
            |(other, tree): &(&u32, &Tree)| **other != root && self.kernel.root(tree.slot) == Some(root);
        self.trees.iter().filter(within).map(|(other, _)| *other).collect()
    }

    /// A root that has ended meanwhile may have left its number to a process of somebody else.
    fn take_up_again(&mut self, caller: &mut Caller, root: u32, start_ns: u64) {
        if may_watch(&self.kernel, caller, root).is_err() {
            return;
        }
        let tasks = self.kernel.watch(root).unwrap_or_default();
        match leader_of(&tasks, root).filter(|leader| leader.start_boottime_ns == start_ns) {
            Some(leader) => {
                if let Some(tree) = self.trees.get_mut(&root) {
                    tree.slot = leader.header.slot;
                }
                self.introduce(caller, &tasks);
            }
            None => self.let_go(root),
        }
    }
}

/// Comes before any question about a process: to a caller with other numbers it would be about another process.
pub(super) fn shares_numbers(kernel: &impl KernelSide, caller: &Caller) -> Result<()> {
    ensure!(
        kernel.shares_pid_namespace(caller.pid),
        "your stallscope runs in a pid namespace of its own; start the container with the host's"
    );
    Ok(())
}

/// # Errors
/// There is no such process, or it is of another user, also where it took their rights by executing a program, or of another
/// container where its root asks.
pub(super) fn may_watch(kernel: &impl KernelSide, caller: &Caller, root: u32) -> Result<()> {
    let owner = kernel.owner(root).ok_or_else(|| anyhow::anyhow!("there is no process {root}"))?;
    ensure!(
        caller.is_root() || caller.uid == owner,
        "process {root} belongs to another user; ask them, or root, to profile it"
    );
    ensure!(is_around(kernel, caller, root), "process {root} is not in your container; {NOT_THE_NODES}");
    Ok(())
}

/// Whether a process is in the caller's containers, where it is root of these alone.
fn is_around(kernel: &impl KernelSide, caller: &Caller, root: u32) -> bool {
    caller.containers.as_ref().is_none_or(|containers| kernel.is_in(root, containers))
}
