//! The process trees that are watched: their tasks' slots, and the hooks that are attached for them.

use std::collections::{BTreeSet, HashSet};

use stallscope_abi::kernel::{Lost, MAX_TASKS, Record, TaskNew, flags, user};

use super::Kernel;
use crate::Error;
use crate::doctor;
use crate::programs::{RELEASE, Role, SEED};

/// The key in `seeds` by which the iterator knows that it has seen the tasks before: no process has that number.
const SEEN_BEFORE: u32 = u32::MAX;

/// Rounds of the seeding iterator; each finds the children that were forked behind the one before.
const MAX_SEED_ROUNDS: usize = 32;

impl Kernel {
    /// Follows process `pid` (a number in the initial pid namespace; a thread's stands for its process) and all
    /// that descends from it. Returns its tasks so far; [`Kernel::drain`] does not announce those with
    /// [`flags::AT_ATTACH`] again, but tells of every later one.
    ///
    /// # Errors
    /// There is no such process, it ended meanwhile, or too many tasks are followed already.
    pub fn watch(&mut self, pid: u32) -> Result<Vec<TaskNew>, Error> {
        let root = doctor::process_of(pid).ok_or(Error::NoProcess(pid))?;
        // Whose it was first: tasks that have a slot stay charged to them.
        let payer = || doctor::user_of(root).map(|uid| self.payer(uid));
        let uid = self.roots.get(&root).copied().or_else(payer);
        let uid = uid.ok_or(Error::NoProcess(pid))?;
        let kept: BTreeSet<u32> = self.roots.values().copied().collect();
        let place = self.users.place(uid, &kept).ok_or(Error::TooManyUsers(pid))?;
        if let Err(error) = self.attach() {
            self.detach_if_unwatched();
            return Err(error);
        }
        let without_slot = self.without_slot()?;
        let was_watched = self.roots.contains_key(&root);
        let found = self.seed(root, place);
        match found {
            Ok(tasks) if tasks.iter().any(|task| task.header.tgid == root) => {
                self.roots.insert(root, uid);
                Ok(tasks)
            }
            // Others have it, and go on.
            found if was_watched => found.and(Err(Error::ProcessGone(pid))),
            found => {
                self.roots.insert(root, uid);
                self.unwatch(root)?;
                let full = self.without_slot()? > without_slot;
                found.and(Err(if full { Error::TooManyTasks(pid) } else { Error::ProcessGone(pid) }))
            }
        }
    }

    /// Stops following what descends from `pid`, a process given to [`Kernel::watch`]. When it was the last,
    /// nothing stays attached.
    ///
    /// # Errors
    /// `pid` is not being watched.
    pub fn unwatch(&mut self, pid: u32) -> Result<(), Error> {
        let root = doctor::process_of(pid).filter(|root| self.roots.contains_key(root)).unwrap_or(pid);
        let uid = self.roots.remove(&root).ok_or(Error::NotWatched(pid))?;
        self.detach_if_unwatched();
        self.seeds.insert(root, u64::from(root), 0)?;
        // Tasks forked behind the iterator's back are found in the next round.
        for _ in 0..MAX_SEED_ROUNDS {
            let released = self.programs.iterate(&mut self.ebpf, RELEASE)?;
            wait_for_programs();
            for number in released.chunks_exact(4) {
                let slot = u32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
                self.slots.mark_free(slot);
                self.hand_back(slot)?;
            }
            if released.is_empty() {
                break;
            }
        }
        self.seeds.remove(&root)?;
        let files = self.files.forget(root)?;
        self.users.files_returned(uid, files);
        let mounts = self.mounts.forget(root)?;
        self.users.mounts_returned(uid, mounts);
        Ok(())
    }

    /// Does whatever takes a privilege in [`Kernel::watch`] and after it once, with nobody watched, and leaves nothing
    /// attached: a process that can do this now can watch later.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn rehearse(&mut self) -> Result<(), Error> {
        let attached = self.programs.attach(&mut self.ebpf, |role| role != Role::Iterator);
        self.programs.detach(|_| true);
        attached?;
        // Nobody has this number.
        self.seed(u32::MAX, user::ROOT)?;
        self.programs.iterate(&mut self.ebpf, RELEASE)?;
        self.waits()?;
        self.losses().map(drop)
    }

    /// The processes being watched.
    pub fn watched(&self) -> impl Iterator<Item = u32> + '_ {
        self.roots.keys().copied()
    }

    pub(super) fn attach(&mut self) -> Result<(), Error> {
        let syscalls = self.syscalls;
        self.programs.attach(&mut self.ebpf, |role| match role {
            Role::Needed | Role::Extra => true,
            Role::Syscalls => syscalls,
            Role::Iterator => false,
        })
    }

    fn detach_if_unwatched(&mut self) {
        if self.roots.is_empty() {
            self.programs.detach(|_| true);
        }
    }

    /// Tracks `root` and its descendants, and returns all of them.
    fn seed(&mut self, root: u32, user: u16) -> Result<Vec<TaskNew>, Error> {
        // However this or an earlier call ends: what stays in the map would be tracked for the next who watches, and take up entries.
        self.forget_seeds()?;
        let tasks = self.seed_in_rounds(root, user);
        let cleared = self.forget_seeds();
        tasks.and_then(|tasks| cleared.map(|()| tasks))
    }

    fn seed_in_rounds(&mut self, root: u32, user: u16) -> Result<Vec<TaskNew>, Error> {
        self.seeds.insert(root, u64::from(root) | u64::from(user) << 32, 0)?;
        let mut seen = HashSet::new();
        let mut tasks = Vec::new();
        for _ in 0..MAX_SEED_ROUNDS {
            let written = self.programs.iterate(&mut self.ebpf, SEED)?;
            let mut found = false;
            for bytes in written.chunks_exact(size_of::<TaskNew>()) {
                let Some(Record::TaskNew(task)) = Record::parse(bytes) else { continue };
                if seen.insert((task.header.slot, task.header.tid)) {
                    found |= task.flags & flags::AT_ATTACH != 0;
                    tasks.push(task);
                }
            }
            // Tasks without a slot are there in each round, and are to be counted once. Where processes have taken up all entries of the
            // map, there are no slots for those that another round would find.
            if !found || self.seeds.insert(SEEN_BEFORE, 0, 0).is_err() {
                break;
            }
        }
        Ok(tasks)
    }

    fn forget_seeds(&mut self) -> Result<(), Error> {
        let seeded: Vec<u32> = self.seeds.keys().collect::<Result<_, _>>()?;
        for tgid in seeded {
            self.seeds.remove(&tgid)?;
        }
        Ok(())
    }

    /// Hands back the slots of tasks whose end was lost in a full ring.
    pub(super) fn sweep(&mut self) -> Result<(), Error> {
        let losses = self.losses()?;
        let lost = losses[Lost::RingFull as usize] + losses[Lost::UserRing as usize];
        if lost == self.swept_at_lost {
            return Ok(());
        }
        self.swept_at_lost = lost;
        for slot in 0..MAX_TASKS {
            if self.slots.take_back_exited(slot) {
                self.hand_back(slot)?;
            }
        }
        Ok(())
    }

    pub(super) fn hand_back(&mut self, slot: u32) -> Result<(), Error> {
        let place = self.slots.user(slot);
        self.free_slots.push(slot, 0)?;
        place.into_iter().for_each(|place| self.users.returned(place));
        Ok(())
    }

    /// Tasks that were given no slot so far.
    fn without_slot(&self) -> Result<u64, Error> {
        let losses = self.losses()?;
        Ok(losses[Lost::NoSlot as usize] + losses[Lost::UserSlots as usize])
    }
}

/// Returns when every run of a program that was under way has ended. Best effort: where the kernel has no such
/// barrier (nohz_full), runs end within microseconds anyway.
pub(super) fn wait_for_programs() {
    // SAFETY: membarrier takes no pointers. MEMBARRIER_CMD_GLOBAL waits for an RCU grace period.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
