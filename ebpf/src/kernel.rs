//! The loaded kernel side, as one object.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray, Queue, RingBuf};
use stallscope_abi::files::{FileKey, KeptFile, MountWait};
use stallscope_abi::kernel::{Header, Kind, LOST_REASONS, Record, TaskSlot, flags};

use crate::Error;
use crate::filled::Filled;
use crate::programs::{ProgramStatus, Programs, Role, SWITCHES};
use crate::shares::surplus;
use crate::slots::{Identity, Slots, Still};
use crate::subordinates::Subordinates;
use crate::tables::{Table, Waits};
use crate::users::Users;

mod loading;
mod trees;
pub use loading::Options;
use trees::wait_for_programs;

/// What the ring keeps before each record.
const RECORD_HEAD_BYTES: usize = 8;

/// The kernel programs, loaded; attached while at least one process is watched.
///
/// Dropping it detaches and forgets everything.
pub struct Kernel {
    ebpf: Ebpf,
    programs: Programs,
    slots: Slots,
    free_slots: Queue<MapData, u32>,
    users: Users,
    subordinates: Subordinates,
    /// The root of a process's tree in the lower half, the place of the charged user in the upper.
    seeds: HashMap<MapData, u32, u64>,
    events: RingBuf<MapData>,
    ring_bytes: usize,
    filled: Filled,
    lost: PerCpuArray<MapData, u64>,
    files: Table<KeptFile>,
    max_files: u32,
    mounts: Table<MountWait>,
    /// Roots of the watched trees, each with the user who is charged for it.
    roots: BTreeMap<u32, u32>,
    syscalls: bool,
    /// How many records were lost when the slots were last swept.
    swept_at_lost: u64,
}

impl Kernel {
    /// Attaches the system call hooks, or detaches them: with them `cpu_read_ns` and `BatchRead` records are
    /// known, at a price for every system call on the machine. They too are attached only while a process is
    /// watched.
    ///
    /// # Errors
    /// The kernel refused to attach them.
    pub fn set_syscalls(&mut self, wanted: bool) -> Result<(), Error> {
        let were_wanted = std::mem::replace(&mut self.syscalls, wanted);
        if wanted && !self.roots.is_empty() {
            self.attach()?;
        }
        if were_wanted && !wanted {
            self.programs.detach(|role| role == Role::Syscalls);
            wait_for_programs();
            self.slots.clear_reading();
        }
        Ok(())
    }

    /// For tests: while `wanted` is false no switch is traced, as under some hypervisors for a while.
    ///
    /// # Errors
    /// The kernel refused to attach the program again.
    #[doc(hidden)]
    pub fn trace_switches(&mut self, wanted: bool) -> Result<(), Error> {
        if wanted {
            return self.attach();
        }
        self.programs.detach_one(SWITCHES);
        Ok(())
    }

    /// Hands every waiting record to `take`, in the order of writing, with the task whose record it is as far as its slot
    /// is one, and returns how many there were: at most what the ring holds, so that no job keeps the caller busy for ever.
    /// [`stallscope_abi::kernel::Record::parse`] reads them.
    ///
    /// # Errors
    /// A slot could not be handed back to the kernel side.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8], Option<Identity>)) -> Result<usize, Error> {
        let (mut count, mut read_bytes) = (0, 0);
        // What fills it again from here on is heard of again.
        self.filled.seen();
        while read_bytes < self.ring_bytes {
            let Some(record) = self.events.next() else { break };
            count += 1;
            read_bytes += record.len() + RECORD_HEAD_BYTES;
            take(&record, slot_of(&record).and_then(|slot| self.slots.identity(slot)));
            let exit = exit_header(&record);
            drop(record);
            if let Some(header) = exit
                && self.slots.take_back_exited(header.slot)
            {
                self.hand_back(header.slot)?;
            }
        }
        self.sweep()?;
        Ok(count)
    }

    /// Becomes readable when the ring buffer is a quarter full. The kernel side wakes nobody before that, to
    /// spare the job interrupts: drain every 50 to 100 ms anyway, and earlier when this says so.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.filled.as_fd()
    }

    /// What the task in `slot` is doing as of now. `None` for a number out of range.
    pub fn slot(&self, slot: u32) -> Option<TaskSlot> {
        self.slots.copy(slot)
    }

    /// The task in `slot`, where it has been blocked since before `before_ns` and no other thread of its process
    /// has run: as long as this does not change, neither does what [`Kernel::slot`] says.
    pub fn still(&self, slot: u32, before_ns: u64) -> Option<Still> {
        self.slots.still(slot, before_ns)
    }

    /// Which task `slot` was handed out to last. `None` for a number out of range.
    pub fn identity(&self, slot: u32) -> Option<Identity> {
        self.slots.identity(slot)
    }

    /// The watched process from which the task in `slot` descends, whatever its parent is by now. Valid until
    /// the record of its end was drained.
    pub fn root(&self, slot: u32) -> Option<u32> {
        self.slots.root(slot)
    }

    /// Asks for `Slice`s and boundary records of a task that is neither a leader nor named pt_data_pin.
    pub fn watch_task(&self, slot: u32) {
        self.slots.set_flags(slot, flags::WATCHED);
    }

    /// The files that tasks of all trees were blocked in, as many as [`stallscope_abi::files::MAX_FILES`], and the
    /// sums by mount, which lack nothing but `Lost::NoMount`.
    ///
    /// Frees slots for further files, for all users alike, so that it is to be called about once a second.
    ///
    /// # Errors
    /// They could not be read.
    pub fn waits(&self) -> Result<Waits, Error> {
        let files = self.files.entries()?;
        self.trim(&files)?;
        let files = files.into_iter().map(|(key, file)| (key, file.wait)).collect();
        Ok(Waits { files, mounts: self.mounts.entries()? })
    }

    /// So many files stay that a user who is alone, and may have half of all, finds a quarter of these free; and who
    /// waited for the fewest keeps them.
    fn trim(&self, files: &[(FileKey, KeptFile)]) -> Result<(), Error> {
        let kept = files.iter().map(|(key, file)| {
            let user = self.roots.get(&key.root).copied().unwrap_or(key.uid);
            (user, file.last_ns, *key)
        });
        for (user, key) in surplus(kept, self.max_files as usize * 3 / 8) {
            if self.files.remove(&key)? {
                self.users.files_returned(user, 1);
            }
        }
        Ok(())
    }

    /// What the kernel side has lost since it was loaded, by `Lost`. A slice that did not fit is carried by
    /// the next one of its task: it is counted, its time is not lost.
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn losses(&self) -> Result<[u64; LOST_REASONS], Error> {
        let mut losses = [0; LOST_REASONS];
        for (reason, total) in (0u32..).zip(&mut losses) {
            *total = self.lost.get(&reason, 0)?.iter().sum();
        }
        Ok(losses)
    }

    /// Tasks of user `uid`'s trees that are not followed because that user has as many slots as are still free: of
    /// `Lost::UserSlots` what is theirs.
    pub fn refused(&self, uid: u32) -> u64 {
        self.users.refused(self.payer(uid))
    }

    /// Records of user `uid`'s trees that were not sent, as these had sent too much: of `Lost::UserRing` what is theirs.
    pub fn unsent(&self, uid: u32) -> u64 {
        self.users.unsent(self.payer(uid))
    }

    /// The user who is charged for what `uid` takes: of a range of ids in /etc/subuid its owner.
    pub fn payer(&self, uid: u32) -> u32 {
        self.subordinates.payer(uid)
    }

    /// Whom ids belong to from here on.
    pub fn set_subordinates(&mut self, subordinates: Subordinates) {
        self.subordinates = subordinates;
    }

    /// Every program and whether it is attached, can be, or why not.
    pub fn programs(&self) -> Vec<ProgramStatus> {
        self.programs.status()
    }

    /// CPU time that the programs took so far. Counted only while `kernel.bpf_stats_enabled` is on, or the
    /// descriptor of [`Kernel::count_run_time`] is open; else 0.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn run_time(&self) -> Result<Duration, Error> {
        let mut sum = Duration::ZERO;
        for (_, program) in self.ebpf.programs() {
            sum += program.info()?.run_time();
        }
        Ok(sum)
    }

    /// Has the kernel count what programs cost, at some 20 ns for every run, until the result is dropped.
    ///
    /// # Errors
    /// It takes CAP_SYS_ADMIN and a 5.8 kernel.
    pub fn count_run_time() -> Result<OwnedFd, Error> {
        aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| Error::System {
            what: "counting what kernel programs cost",
            source: error.io_error,
        })
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("programs", &self.programs)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

fn slot_of(record: &[u8]) -> Option<u32> {
    record.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)
}

fn exit_header(record: &[u8]) -> Option<Header> {
    let kind = u16::from_ne_bytes(record.get(..2)?.try_into().ok()?);
    if kind != Kind::TaskExit as u16 {
        return None;
    }
    Record::parse(record).map(|record| *record.header())
}
