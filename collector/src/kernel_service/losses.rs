//! Records that the kernel side could not send: how many there were, and making up for them from the slots.

use super::{KernelSide, Service};
use stallscope_abi::kernel::{
    Header, Kind, Lost, MAX_TASKS, Record, TaskNew, TaskSlot, bytes_of, flags, state,
};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// How often all slots are looked at, where records are lost without end.
const MAKE_UP_EVERY: Duration = Duration::from_millis(500);

/// Losses of a user who has too many; that user is sent them, and root.
const USER_SLOTS: &str = "too many tasks of one user";
const USER_RING: &str = "too many records of one user";

const LOST: [(Lost, &str); 6] = [
    (Lost::RingFull, "kernel ring full"),
    (Lost::NoSlot, "too many tasks"),
    (Lost::NoStorage, "no task storage"),
    (Lost::NoMount, "too many mounts"),
    (Lost::UserSlots, USER_SLOTS),
    (Lost::UserRing, USER_RING),
];

impl<K: KernelSide> Service<K> {
    pub(super) fn losses(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.kernel.losses().unwrap_or_default();
        LOST.iter().map(|(reason, name)| (*name, counts[*reason as usize])).collect()
    }

    /// What of these `uid` may know.
    pub(super) fn losses_of(&self, uid: u32) -> BTreeMap<&'static str, u64> {
        let mut losses = self.losses();
        if uid != 0 {
            losses.insert(USER_SLOTS, self.kernel.refused(uid));
            losses.insert(USER_RING, self.kernel.unsent(uid));
        }
        losses
    }

    /// A process whose beginning was not recorded, as the ring or its user's part of it was full, would be followed by nobody,
    /// and one whose end was not remembered for ever: a user can have both happen at will. The slots know better.
    pub(super) fn make_up_for_losses(&mut self) {
        let lost = self.kernel.losses().unwrap_or_default();
        let unsent = lost[Lost::RingFull as usize] + lost[Lost::UserRing as usize];
        if unsent == self.made_up_for || self.make_up_again > Instant::now() {
            return;
        }
        (self.made_up_for, self.make_up_again) = (unsent, Instant::now() + MAKE_UP_EVERY);
        let Service { kernel, callers, watched, .. } = self;
        let (mut there, mut unknown) = (HashSet::new(), Vec::new());
        for number in 0..MAX_TASKS {
            let Some(of) = kernel.identity(number) else { continue };
            let slot = kernel.slot(number);
            if slot.as_ref().is_some_and(is_gone) {
                continue;
            }
            there.insert((of.tgid, of.start_boottime_ns));
            let is_known = |tid| watched.has(number, tid);
            let slot = slot.filter(|slot| slot.flags & flags::WATCHED != 0 && !is_known(slot.tid));
            unknown.extend(slot.map(|slot| (begun(number, &slot), of)));
        }
        callers.iter_mut().for_each(|caller| caller.forget_all_but(&there));
        // Parents come before their children.
        unknown.sort_by_key(|(task, _)| task.start_boottime_ns);
        for (task, of) in unknown {
            watched.begins(&task, of);
            callers.iter_mut().for_each(|caller| caller.offer(&Record::TaskNew(task), bytes_of(&task), &of));
        }
    }
}

pub(super) fn is_gone(slot: &TaskSlot) -> bool {
    slot.state == state::EXITED || slot.state == state::FREE
}

/// What was recorded, or should have been, when the task in slot `number` began.
fn begun(number: u32, slot: &TaskSlot) -> TaskNew {
    let header = Header {
        kind: Kind::TaskNew as u16,
        size: size_of::<TaskNew>() as u16,
        slot: number,
        tid: slot.tid,
        tgid: slot.tgid,
        time_ns: slot.first_seen_ns,
    };
    let TaskSlot { ppid, flags, start_boottime_ns, comm, .. } = *slot;
    TaskNew { header, ppid, flags, start_boottime_ns, comm }
}
