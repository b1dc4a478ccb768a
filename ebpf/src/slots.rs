//! The array of task accounts that the kernel side writes, mapped into this process.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use aya::maps::MapData;
use memmap2::{MmapOptions, MmapRaw};
use stallscope_abi::kernel::{MAX_TASKS, TaskSlot, flags, state};

use crate::Error;

/// `scratch.wake_ns` of abi.h, and the bits of it that say how the task was woken.
const SCRATCH_WAKE: usize = 0;
const WOKEN_BITS: u64 = 7;
/// The word that begins with `scratch.leader`, followed by `notes`, `reading` and `index`.
const SCRATCH_LEADER: usize = 4;
/// Byte of that word which holds `scratch.reading`.
const READING_BYTE: usize = 5;
/// The word that begins with `scratch.root`.
const SCRATCH_ROOT: usize = 7;

/// A task that does nothing. The kernel side moves `seq` on with everything that it books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Still {
    pub tid: u32,
    pub tgid: u32,
    seq: u32,
}

/// Which task is in a slot, for as long as the record of its end was not drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub tgid: u32,
    /// `start_boottime` of the task.
    pub start_boottime_ns: u64,
    /// [`stallscope_abi::kernel::flags`].
    pub flags: u32,
    /// Effective user when it was taken up, or last executed a program.
    pub uid: u32,
}

impl Identity {
    /// Whether user `uid` may know what the task does, as with ptrace: it is theirs, and has no rights that they lack.
    pub fn is_known_to(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid && self.flags & flags::PRIVILEGED == 0
    }
}

#[derive(Debug)]
pub(crate) struct Slots(MmapRaw);

impl Slots {
    pub(crate) fn map(array: &MapData) -> Result<Slots, Error> {
        let length = MAX_TASKS as usize * size_of::<TaskSlot>();
        let map = MmapOptions::new()
            .len(length)
            .map_raw(array.fd().as_fd().as_raw_fd())
            .map_err(Error::system("mapping the task accounts"))?;
        Ok(Slots(map))
    }

    fn at(&self, slot: u32) -> Option<*mut TaskSlot> {
        // In bounds: the mapping holds MAX_TASKS slots.
        (slot < MAX_TASKS).then(|| self.0.as_mut_ptr().cast::<TaskSlot>().wrapping_add(slot as usize))
    }

    /// A copy of a slot in which all fields belong together, as of now: a task that was woken and has no CPU
    /// yet is runnable in it. `None` for a number out of range, or a slot that never stands still.
    pub(crate) fn copy(&self, slot: u32) -> Option<TaskSlot> {
        let at = self.at(slot)?;
        for _ in 0..1000 {
            // SAFETY: `at` lies within the mapping and is aligned (the array's stride is a multiple of 8).
            // The kernel side writes meanwhile, hence volatile; a torn copy is thrown away below.
            let (before, copy, after) = unsafe {
                let before = ptr::read_volatile(&raw const (*at).seq);
                compiler_fence(Ordering::SeqCst);
                let copy = ptr::read_volatile(at);
                compiler_fence(Ordering::SeqCst);
                (before, copy, ptr::read_volatile(&raw const (*at).seq))
            };
            if before == after && before % 2 == 0 {
                return Some(fold_wake(copy));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Reads a tenth of what [`Slots::copy`] does: see [`Still`].
    pub(crate) fn still(&self, slot: u32, before_ns: u64) -> Option<Still> {
        let at = self.at(slot)?;
        // SAFETY: as in `copy`, field by field; each is a whole word or less and may be of another moment than the
        // others. `seq`, read first and last, tells.
        let (before, (tid, tgid, state, since_ns, woken_ns, siblings_ns, reported_ns), after) = unsafe {
            let before = ptr::read_volatile(&raw const (*at).seq);
            compiler_fence(Ordering::SeqCst);
            let fields = (
                ptr::read_volatile(&raw const (*at).tid),
                ptr::read_volatile(&raw const (*at).tgid),
                ptr::read_volatile(&raw const (*at).state),
                ptr::read_volatile(&raw const (*at).since_ns),
                ptr::read_volatile(&raw const (*at).scratch[SCRATCH_WAKE]) & !WOKEN_BITS,
                ptr::read_volatile(&raw const (*at).sibling_cpu_ns),
                ptr::read_volatile(&raw const (*at).sent_sibling_cpu_ns),
            );
            compiler_fence(Ordering::SeqCst);
            (before, fields, ptr::read_volatile(&raw const (*at).seq))
        };
        let blocked = state == state::BLOCKED && woken_ns <= since_ns && since_ns < before_ns;
        let stands = before == after && before % 2 == 0;
        (stands && blocked && siblings_ns == reported_ns).then_some(Still { tid, tgid, seq: before })
    }

    pub(crate) fn identity(&self, slot: u32) -> Option<Identity> {
        let at = self.at(slot)?;
        // SAFETY: as in `copy`, field by field. They are set when the slot is handed out and when a program is executed,
        // which is before whatever is recorded of it.
        unsafe {
            Some(Identity {
                tgid: ptr::read_volatile(&raw const (*at).tgid),
                start_boottime_ns: ptr::read_volatile(&raw const (*at).start_boottime_ns),
                flags: ptr::read_volatile(&raw const (*at).flags),
                uid: ptr::read_volatile(&raw const (*at).uid),
            })
        }
    }

    /// The watched process from which the task in `slot` descends.
    pub(crate) fn root(&self, slot: u32) -> Option<u32> {
        self.copy(slot).map(|copy| copy.scratch[SCRATCH_ROOT] as u32).filter(|&root| root != 0)
    }

    /// Who is charged for `slot`: a place of [`crate::users`].
    pub(crate) fn user(&self, slot: u32) -> Option<u16> {
        // SAFETY: as in `copy`; set when the slot is handed out.
        self.at(slot).map(|at| unsafe { ptr::read_volatile(&raw const (*at).user) })
    }

    pub(crate) fn set_flags(&self, slot: u32, set: u32) {
        if let Some(at) = self.at(slot) {
            // SAFETY: as in `copy`; the kernel side changes `flags` atomically too.
            unsafe {
                std::sync::atomic::AtomicU32::from_ptr(&raw mut (*at).flags).fetch_or(set, Ordering::Relaxed)
            };
        }
    }

    /// Whether the task in `slot` has left and nobody handed the slot back yet; marks it handed back.
    pub(crate) fn take_back_exited(&self, slot: u32) -> bool {
        self.at(slot).is_some_and(|at| {
            // SAFETY: as in `copy`; no task owns an exited slot, so that the kernel side does not write it.
            unsafe {
                let exited = ptr::read_volatile(&raw const (*at).state) == state::EXITED;
                if exited {
                    ptr::write_volatile(&raw mut (*at).state, state::FREE);
                }
                exited
            }
        })
    }

    /// Marks a slot whose task is no longer tracked.
    pub(crate) fn mark_free(&self, slot: u32) {
        if let Some(at) = self.at(slot) {
            // SAFETY: as in `take_back_exited`.
            unsafe { ptr::write_volatile(&raw mut (*at).state, state::FREE) };
        }
    }

    /// Forgets that tasks were inside a read. To be called when no system call hook runs any more.
    pub(crate) fn clear_reading(&self) {
        for slot in 0..MAX_TASKS {
            if let Some(at) = self.at(slot) {
                // SAFETY: as in `copy`; a single byte, which the kernel side may clear at the same time.
                unsafe {
                    let word = (&raw mut (*at).scratch).cast::<u64>().add(SCRATCH_LEADER);
                    ptr::write_volatile(word.cast::<u8>().add(READING_BYTE), 0);
                }
            }
        }
    }
}

/// The kernel side books a wake-up when the task gets a CPU; until then only its time is known.
fn fold_wake(mut slot: TaskSlot) -> TaskSlot {
    let woken_ns = slot.scratch[SCRATCH_WAKE] & !WOKEN_BITS;
    if slot.state == state::BLOCKED && woken_ns > slot.since_ns {
        if let Some(blocked_ns) = slot.total.blocked_ns.get_mut(usize::from(slot.blocked_in)) {
            *blocked_ns += woken_ns - slot.since_ns;
        }
        slot.state = state::RUNNABLE;
        slot.since_ns = woken_ns;
    }
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_abi::kernel::Blocked;

    #[test]
    fn a_woken_task_without_a_cpu_is_runnable() {
        let mut slot =
            TaskSlot { state: state::BLOCKED, blocked_in: Blocked::Net as u8, ..TaskSlot::default() };
        slot.since_ns = 1000;
        // The three lowest bits say how it was woken.
        slot.scratch[SCRATCH_WAKE] = 1504 | 7;
        let now = fold_wake(slot);
        assert_eq!((now.state, now.since_ns), (state::RUNNABLE, 1504));
        assert_eq!(now.total.blocked_ns[Blocked::Net as usize], 504);

        // A wake-up before the sleep began says nothing.
        slot.scratch[SCRATCH_WAKE] = 900;
        assert_eq!(fold_wake(slot), slot);
    }
}
