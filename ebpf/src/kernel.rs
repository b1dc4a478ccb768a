//! The loaded kernel side, as one object.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, Queue, RingBuf};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel, include_bytes_aligned};
use stallscope_abi::files::{FileKey, KeptFile, MAX_FILES, MAX_MOUNTS, MountWait};
use stallscope_abi::kernel::{
    Header, Kind, LOST_REASONS, Lost, MAX_TASKS, Plain, Record, Slice, TaskExit, TaskNew, TaskSlot, VERSION,
    flags, user,
};

use crate::Error;
use crate::doctor;
use crate::filled::Filled;
use crate::programs::{ProgramStatus, Programs, RELEASE, Role, SEED};
use crate::shares::surplus;
use crate::slots::{Identity, Slots, Still};
use crate::subordinates::Subordinates;
use crate::tables::{Table, Waits};
use crate::users::Users;

static OBJECT: &[u8] = include_bytes_aligned!("../programs/stallscope.bpf.o");

/// What `.rodata.abi` of an object with our layouts holds.
const ABI: [u32; 4] =
    [VERSION, size_of::<TaskSlot>() as u32, size_of::<Slice>() as u32, size_of::<TaskExit>() as u32];

/// What the ring keeps before each record.
const RECORD_HEAD_BYTES: usize = 8;

/// The key in `seeds` by which the iterator knows that it has seen the tasks before: no process has that number.
const SEEN_BEFORE: u32 = u32::MAX;

/// Rounds of the seeding iterator; each finds the children that were forked behind the one before.
const MAX_SEED_ROUNDS: usize = 32;

/// What is fixed when the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// An interval of one state at least this long is a [`Slice`] of its own.
    pub min_slice_ns: u64,
    /// Size of the ring buffer: a power of two, at least a page.
    pub ring_bytes: u32,
    /// Of records that one user's tasks may send in a tenth of a second; root's may fill the ring.
    pub user_bytes: u32,
    /// Tasks tracked at once, at most [`MAX_TASKS`].
    pub max_tasks: u32,
    /// Files kept at once, at most [`MAX_FILES`].
    pub max_files: u32,
    /// Sums by mount kept at once, at most [`MAX_MOUNTS`].
    pub max_mounts: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            min_slice_ns: 1_000_000,
            ring_bytes: 4 << 20,
            user_bytes: 2 << 20,
            max_tasks: MAX_TASKS,
            max_files: MAX_FILES,
            max_mounts: MAX_MOUNTS,
        }
    }
}

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
    /// Loads the programs and attaches none.
    ///
    /// # Errors
    /// No privilege, no type information in the kernel, or a program without which nothing works refused.
    pub fn load(options: &Options) -> Result<Kernel, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Architecture(std::env::consts::ARCH));
        }
        if !options.ring_bytes.is_power_of_two() || options.ring_bytes < 4096 {
            return Err(Error::RingSize(options.ring_bytes));
        }
        if let Some(missing) = doctor::missing_privilege() {
            return Err(Error::NoPrivilege(missing));
        }
        let btf = Btf::from_sys_fs()
            .map_err(|source| Error::NoBtf { path: doctor::BTF_PATH, source: Box::new(source) })?;
        let wakeup_bytes = u64::from(options.ring_bytes / 4);
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            // aya has no type for task storage; the kernel side alone uses that map.
            .allow_unsupported_maps()
            .verifier_log_level(VerifierLogLevel::DISABLE)
            .map_max_entries("events", options.ring_bytes)
            .override_global("min_slice_ns", &options.min_slice_ns, true)
            .override_global("wakeup_bytes", &wakeup_bytes, true)
            .override_global("user_bytes", &u64::from(options.user_bytes), true)
            .override_global("max_tasks", &u64::from(options.max_tasks.min(MAX_TASKS)), true)
            .override_global("max_files", &u64::from(options.max_files.min(MAX_FILES)), true)
            .override_global("max_mounts", &u64::from(options.max_mounts.min(MAX_MOUNTS)), true)
            .load(OBJECT)?;

        check_abi(&ebpf)?;
        let programs = Programs::load(&mut ebpf, &btf)?;
        let slots = match ebpf.map("slots") {
            Some(Map::Array(array)) => Slots::map(array)?,
            _ => return Err(no_map("slots")),
        };
        let users = match ebpf.map("users") {
            Some(Map::Array(array)) => Users::map(array)?,
            _ => return Err(no_map("users")),
        };
        let events = RingBuf::try_from(take_map(&mut ebpf, "events")?)?;
        // SAFETY: the ring buffer keeps its descriptor open through the call.
        let filled = Filled::of(unsafe { BorrowedFd::borrow_raw(events.as_raw_fd()) })?;
        let mut kernel = Kernel {
            slots,
            users,
            subordinates: Subordinates::of_this_machine(),
            free_slots: Queue::try_from(take_map(&mut ebpf, "free_slots")?)?,
            seeds: HashMap::try_from(take_map(&mut ebpf, "seeds")?)?,
            events,
            ring_bytes: options.ring_bytes as usize,
            filled,
            lost: PerCpuArray::try_from(take_map(&mut ebpf, "lost")?)?,
            files: table(&mut ebpf, "file_waits")?,
            max_files: options.max_files.min(MAX_FILES),
            mounts: table(&mut ebpf, "mount_waits")?,
            ebpf,
            programs,
            roots: BTreeMap::new(),
            syscalls: false,
            swept_at_lost: 0,
        };
        for slot in 0..options.max_tasks.min(MAX_TASKS) {
            kernel.free_slots.push(slot, 0)?;
        }
        Ok(kernel)
    }

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
        let found = self.seed(root, place);
        match found {
            Ok(tasks) if tasks.iter().any(|task| task.header.tgid == root) => {
                self.roots.insert(root, uid);
                Ok(tasks)
            }
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

    /// Asks for [`Slice`]s and boundary records of a task that is neither a leader nor named pt_data_pin.
    pub fn watch_task(&self, slot: u32) {
        self.slots.set_flags(slot, flags::WATCHED);
    }

    /// The files that tasks of all trees were blocked in, as many as [`stallscope_abi::files::MAX_FILES`], and the
    /// sums by mount, which lack nothing but [`Lost::NoMount`].
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

    /// What the kernel side has lost since it was loaded, by [`Lost`]. A slice that did not fit is carried by
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
    /// [`Lost::UserSlots`] what is theirs.
    pub fn refused(&self, uid: u32) -> u64 {
        self.users.refused(self.payer(uid))
    }

    /// Records of user `uid`'s trees that were not sent, as these had sent too much: of [`Lost::UserRing`] what is theirs.
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

    fn attach(&mut self) -> Result<(), Error> {
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
            if !found {
                break;
            }
            // Tasks without a slot are there in each round, and are to be counted once.
            self.seeds.insert(SEEN_BEFORE, 0, 0)?;
        }
        let seeded: Vec<u32> = self.seeds.keys().collect::<Result<_, _>>()?;
        for tgid in seeded {
            self.seeds.remove(&tgid)?;
        }
        Ok(tasks)
    }

    /// Hands back the slots of tasks whose end was lost in a full ring.
    fn sweep(&mut self) -> Result<(), Error> {
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

    fn hand_back(&mut self, slot: u32) -> Result<(), Error> {
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

fn check_abi(ebpf: &Ebpf) -> Result<(), Error> {
    let map = ebpf.map(".rodata.abi").ok_or_else(|| no_map(".rodata.abi"))?;
    let found = Array::<_, [u32; 4]>::try_from(map)?.get(&0, 0)?;
    if found == ABI { Ok(()) } else { Err(Error::Version { found, expected: ABI }) }
}

fn take_map(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, Error> {
    ebpf.take_map(name).ok_or_else(|| no_map(name))
}

fn table<T: Plain>(ebpf: &mut Ebpf, name: &'static str) -> Result<Table<T>, Error> {
    Table::new(take_map(ebpf, name)?).ok_or_else(|| no_map(name))
}

fn no_map(name: &str) -> Error {
    Error::from(aya::EbpfError::MapError(aya::maps::MapError::InvalidName { name: name.to_owned() }))
}

/// Returns when every run of a program that was under way has ended. Best effort: where the kernel has no such
/// barrier (nohz_full), runs end within microseconds anyway.
fn wait_for_programs() {
    // SAFETY: membarrier takes no pointers. MEMBARRIER_CMD_GLOBAL waits for an RCU grace period.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
