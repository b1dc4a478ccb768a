//! Who calls.

use super::Book;
use crate::containers::{THEIR_ROOT, is_the_nodes_root};
use crate::procfs::{self, Opened};
use stallscope_wire::{NodeClient, ShimHello};
use tokio::net::UnixStream;

/// Processes from one to the root of its job at most.
const DEPTH: usize = 64;

/// A caller, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// Where the process is seen from here.
    pub(super) pid: Option<u32>,
    /// Root of the node, who may all and has no bounds.
    pub(super) is_root: bool,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> Option<Peer> {
        let peer = stream.peer_cred().ok()?;
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        Some(Peer { uid: peer.uid(), pid, is_root: peer.uid() == 0 && is_the_nodes_root(stream, pid) })
    }

    /// Root of a container alone.
    pub(super) fn is_containers_root(&self) -> bool {
        self.uid == 0 && !self.is_root
    }

    /// Whose the job is, or who asks. Root alone speaks for others.
    pub(super) fn speaks_for(&self, client: &NodeClient) -> u32 {
        match client {
            NodeClient::Job(job) => job.owner.filter(|_| self.is_root).unwrap_or(self.uid),
            _ => self.uid,
        }
    }

    /// When a process that it calls its own was started, in ticks since the machine did; `None` for one of another user, which may have
    /// the number of the caller's, once that has ended, or of what the caller has started.
    pub(super) fn started(&self, pid: u32) -> Option<u64> {
        let ticks = procfs::start_ticks(pid)?;
        let is_its = || Opened::of(pid, self.uid).is_some() && procfs::start_ticks(pid) == Some(ticks);
        (self.is_root || is_its()).then_some(ticks)
    }

    /// Control groups of a process that it calls its own; none of one of another user, as above.
    pub(super) fn cgroups(&self, pid: u32) -> Vec<String> {
        let Some(ticks) = procfs::start_ticks(pid) else { return Vec::new() };
        let cgroups = procfs::cgroups(pid);
        if self.started(pid) == Some(ticks) { cgroups } else { Vec::new() }
    }

    /// The process that `shim` names, where the caller is it or comes from it.
    pub(super) fn root(&self, shim: &ShimHello) -> Option<(u32, u64)> {
        let mut ancestors = std::iter::successors(self.pid, |pid| procfs::parent(*pid)).take(DEPTH);
        let pid = ancestors.find(|pid| *pid == shim.pid && *pid > 1)?;
        self.started(pid).filter(|ticks| *ticks == shim.start_ticks).map(|ticks| (pid, ticks))
    }

    /// Whose share of what all users have together it takes of.
    pub(super) fn payer(&self, book: &Book) -> u32 {
        if self.is_containers_root() { THEIR_ROOT } else { book.payer(self.uid) }
    }
}
