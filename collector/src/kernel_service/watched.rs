//! Watched tasks, whose present interval is sent each round, by slot; and the ends of those whose record of it was lost.

use super::losses::is_gone;
use stallscope_abi::kernel::{Header, Kind, TaskExit, TaskNew, TaskSlot, Times, flags};
use stallscope_ebpf::{Identity, Still};
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(super) struct Watched {
    tasks: HashMap<u32, Task>,
    lost_ends: Vec<(TaskExit, Identity)>,
}

pub(super) struct Task {
    pub(super) tid: u32,
    of: Identity,
    /// What it was, and still may be, when its slot was last sent to all callers.
    pub(super) still: Option<Still>,
    /// When it was last known to be there.
    seen_ns: u64,
    total: Times,
    /// It was gone in the last round already: the record of its end would have been drained since.
    was_gone: bool,
}

/// What a slot says of the task that had it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    There,
    Gone,
    Unknown,
}

impl Watched {
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn has(&self, slot: u32, tid: u32) -> bool {
        self.tasks.get(&slot).is_some_and(|task| task.tid == tid)
    }

    /// `task` has its slot from now on, if it is one to be watched.
    pub(super) fn begins(&mut self, task: &TaskNew, of: Identity) {
        if task.flags & flags::WATCHED == 0 {
            return;
        }
        let Header { tid, slot, time_ns, .. } = task.header;
        let new = Task { tid, of, still: None, seen_ns: time_ns, total: Times::default(), was_gone: false };
        let key = new.key();
        if let Some(before) = self.tasks.insert(slot, new).filter(|before| before.key() != key) {
            self.lost_ends.push(before.end(slot));
        }
    }

    /// Its end was recorded.
    pub(super) fn ends(&mut self, slot: u32) {
        self.tasks.remove(&slot);
    }

    /// They live on, and are followed no more.
    pub(super) fn forget(&mut self, is_followed_no_more: impl Fn(u32) -> bool) {
        self.tasks.retain(|slot, _| !is_followed_no_more(*slot));
    }

    /// Looks at each; once a round, when what was recorded has been drained.
    pub(super) fn look(&mut self, mut at: impl FnMut(u32, &mut Task) -> Look) {
        let Watched { tasks, lost_ends } = self;
        tasks.retain(|slot, task| {
            let is_gone = at(*slot, task) == Look::Gone;
            let is_lost = is_gone && std::mem::replace(&mut task.was_gone, is_gone);
            lost_ends.extend(is_lost.then(|| task.end(*slot)));
            !is_lost
        });
    }

    /// The ends of which no record came.
    pub(super) fn lost_ends(&mut self) -> Vec<(TaskExit, Identity)> {
        let mut ends = std::mem::take(&mut self.lost_ends);
        if !ends.is_empty() {
            // A tree that was taken up again has other slots.
            let there: HashSet<_> = self.tasks.values().map(Task::key).collect();
            ends.retain(|(exit, of)| !there.contains(&(exit.header.tid, of.start_boottime_ns)));
        }
        ends
    }
}

impl Task {
    fn key(&self) -> (u32, u64) {
        (self.tid, self.of.start_boottime_ns)
    }

    pub(super) fn look(&mut self, slot: &TaskSlot) -> Look {
        if slot.tid != self.tid {
            return Look::Gone;
        }
        (self.seen_ns, self.total) = (slot.since_ns, slot.total);
        if is_gone(slot) { Look::Gone } else { Look::There }
    }

    /// What should have been recorded when it ended. With what status is not known.
    fn end(&self, slot: u32) -> (TaskExit, Identity) {
        let header = Header {
            kind: Kind::TaskExit as u16,
            size: size_of::<TaskExit>() as u16,
            slot,
            tid: self.tid,
            tgid: self.of.tgid,
            time_ns: self.seen_ns,
        };
        (TaskExit { header, total: self.total, ..TaskExit::default() }, self.of)
    }
}
