//! What the kernel programs account per task and send through the ring buffer.

/// Version of every layout in this module and [`crate::files`]; the committed object carries it and the loader compares.
pub const VERSION: u32 = 9;

/// Tasks that can be tracked at the same time; one [`TaskSlot`] each.
pub const MAX_TASKS: u32 = 16_384;

/// Users whose slots are counted at once, two of whom are [`user`]s.
pub const MAX_USERS: u32 = 1024;

/// What a task was blocked in, named at `sched_switch` from its saved registers.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blocked {
    /// `read`, `pread`, `open`, `stat`, `getdents` … of a regular file or a directory, or io_uring/AIO waits.
    FileRead = 0,
    /// `write`, `pwrite` … to a regular file.
    FileWrite = 1,
    /// A page fault (no syscall in the saved registers).
    Fault = 2,
    /// An internet socket.
    Net = 3,
    /// A Unix socket.
    Unix = 4,
    /// `fsync`, `fdatasync`, `sync_file_range`, `msync`, `syncfs`.
    Sync = 5,
    /// `rename`, `link`, `unlink` and their kin.
    Rename = 6,
    /// `read`, `write` or `poll` of a pipe.
    Pipe = 7,
    /// A futex, woken by anything but the next two kinds.
    Futex = 8,
    /// A futex whose waker had itself just been woken from a socket, or by a thread that had: what a wait for another
    /// rank looks like.
    FutexNet = 9,
    /// A futex, no lock, of a thread group leader, whose waker had in the meantime waited for a read of a file, or been
    /// woken by a thread that had: what a wait for a reader thread looks like.
    FutexRead = 10,
    /// `poll`, `select`, `epoll_wait` that is none of the above.
    Poll = 11,
    /// `nanosleep` and its kin.
    Sleep = 12,
    /// Waiting for a child process.
    Child = 13,
    /// Anything else, `ioctl` of a device included.
    Other = 14,
}

pub const BLOCKED_KINDS: usize = 15;

impl Blocked {
    pub const ALL: [Blocked; BLOCKED_KINDS] = [
        Blocked::FileRead,
        Blocked::FileWrite,
        Blocked::Fault,
        Blocked::Net,
        Blocked::Unix,
        Blocked::Sync,
        Blocked::Rename,
        Blocked::Pipe,
        Blocked::Futex,
        Blocked::FutexNet,
        Blocked::FutexRead,
        Blocked::Poll,
        Blocked::Sleep,
        Blocked::Child,
        Blocked::Other,
    ];

    pub const fn from_u8(value: u8) -> Option<Blocked> {
        if (value as usize) < BLOCKED_KINDS { Some(Self::ALL[value as usize]) } else { None }
    }
}

/// What a task is doing right now ([`TaskSlot::state`]).
pub mod state {
    /// No task has the slot.
    pub const FREE: u8 = 0;
    pub const RUNNING: u8 = 1;
    pub const RUNNABLE: u8 = 2;
    pub const BLOCKED: u8 = 3;
    pub const EXITED: u8 = 4;
}

/// Bits of [`TaskSlot::flags`] and [`TaskNew::flags`].
pub mod flags {
    /// Sends [`super::Slice`]s and boundary records. Set for thread group leaders and `pt_data_pin` threads by
    /// the kernel side; user space may set it for others.
    pub const WATCHED: u32 = 1;
    pub const LEADER: u32 = 2;
    /// Existed when the job was attached to (found by iterator).
    pub const AT_ATTACH: u32 = 4;
    /// It, or what it descends from in the job, has rights that its user lacks, or may not be looked into by them: it executed
    /// a program that gains privilege (set-uid, set-gid, file capabilities). Root alone may know what it does.
    pub const PRIVILEGED: u32 = 8;
}

/// Where a task's time went; the same in slots (since it is tracked) and slices (within the slice).
///
/// `cpu_ns + runnable_ns + sum(blocked_ns)` is exactly the time covered.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub cpu_ns: u64,
    /// Part of `cpu_ns` spent inside reads of regular files and internet sockets. Without syscall hooks only
    /// the short runs between two sleeps in reads are known to be that.
    pub cpu_read_ns: u64,
    pub runnable_ns: u64,
    pub blocked_ns: [u64; BLOCKED_KINDS],
}

/// One task's account in the mmapped array. Written by the kernel side; `flags` by user space too.
///
/// `seq` is odd while the kernel side writes; a reader takes a copy and retries when `seq` moved or is odd.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskSlot {
    pub seq: u32,
    pub flags: u32,
    pub tid: u32,
    pub tgid: u32,
    /// tgid of the parent process.
    pub ppid: u32,
    /// Times this slot has been handed out.
    pub generation: u32,
    pub state: u8,
    /// [`Blocked`] while `state` is BLOCKED.
    pub blocked_in: u8,
    /// Who is charged for it: an index of [`UserSlots`].
    pub user: u16,
    /// Effective user when it was taken up, or last executed a program.
    pub uid: u32,
    /// Since when `state` holds.
    pub since_ns: u64,
    /// `start_boottime` of the task: with `tgid` it names a process for good.
    pub start_boottime_ns: u64,
    pub first_seen_ns: u64,
    /// Everything accounted since the task is tracked (up to `since_ns`).
    pub total: Times,
    /// CPU time of the *other* threads of this task's process; kept for leaders only.
    pub sibling_cpu_ns: u64,
    /// For how long those that ended a leader's sleeps in a futex were themselves runnable without a CPU in these.
    pub sibling_runnable_ns: u64,
    /// Bytes that read syscalls returned (`ioac.rchar`), and that storage delivered (`ioac.read_bytes`); kept for watched tasks alone.
    pub rchar: u64,
    pub read_bytes: u64,
    pub comm: [u8; 16],
    /// What earlier slices already carried away; `total - sent` is the slice under way, which began at
    /// `slice_start_ns`.
    pub sent: Times,
    pub sent_sibling_cpu_ns: u64,
    pub sent_sibling_runnable_ns: u64,
    pub slice_start_ns: u64,
    /// Internals of the kernel side.
    pub scratch: [u64; 14],
}

#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Slice = 1,
    Wait = 2,
    Wake = 3,
    BatchRead = 4,
    TaskNew = 5,
    TaskExec = 6,
    TaskExit = 7,
    Save = 8,
}

/// Begins every record of the ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// A [`Kind`].
    pub kind: u16,
    /// Bytes of the whole record.
    pub size: u16,
    pub slot: u32,
    pub tid: u32,
    pub tgid: u32,
    /// When what the record tells was complete.
    pub time_ns: u64,
}

/// An interval of a watched task's life: `header.time_ns - start_ns` is the sum of `times`.
///
/// Slices of one task follow each other without a gap. An interval of one state that lasts at least the
/// configured minimum is a slice of its own; shorter ones share one. So their number is bounded by time, not
/// by the number of syscalls or switches.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub header: Header,
    pub start_ns: u64,
    pub times: Times,
    /// CPU time of the other threads of the process meanwhile (leaders only).
    pub sibling_cpu_ns: u64,
    /// Of the time asleep in a futex, for how long the thread of this process that ended it was runnable without a CPU
    /// (leaders only).
    pub sibling_runnable_ns: u64,
    pub rchar: u64,
    pub read_bytes: u64,
}

/// A watched task's wait that another task of the job ended: blocked in a pipe (poll or read) or, for the
/// trainer beside a pin-memory thread, in a futex woken by that thread that is no lock. `header.time_ns` is the wake-up.
/// Waits shorter than 20 us are not recorded.
///
/// `errand_*`: what the waker did from its own wake-up, or from what it handed on before, until it ended this wait:
/// on a CPU, runnable without one, and blocked in files, page faults and the network; the rest of the time it was
/// blocked in something else, the interpreter's lock mostly. All 0 where the waker is watched: its slices tell.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    pub header: Header,
    pub start_ns: u64,
    pub waker_tid: u32,
    pub waker_tgid: u32,
    /// [`Blocked`].
    pub blocked_in: u32,
    pub pad: u32,
    pub errand_start_ns: u64,
    pub errand_cpu_ns: u64,
    pub errand_runnable_ns: u64,
    pub errand_read_ns: u64,
}

/// A thread group leader woke a sibling that slept in an untimed lock (futex operation 0x189): in a trainer the
/// index feeder (a batch was handed over), in a worker the result feeder (a batch is ready). Not recorded when the
/// sibling slept for less than 20 us.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    pub header: Header,
    pub woken_tid: u32,
    pub pad: u32,
    /// The leader's CPU time since it is tracked, at that moment.
    pub cpu_ns: u64,
}

/// With syscall hooks only: a watched task has read a message header (4 bytes) from a pipe.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchRead {
    pub header: Header,
    pub fd: u32,
    pub pad: u32,
}

/// With syscall hooks only: a leader does what makes a checkpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Save {
    pub header: Header,
    /// One of [`save`].
    pub what: u32,
    pub pad: u32,
    /// Size of the file that is being closed.
    pub bytes: u64,
}

/// What a [`Save`] tells of.
pub mod save {
    /// It creates a file, or empties one, to write it.
    pub const BEGUN: u32 = 1;
    /// It closes a written file of at least 64 KiB, syncs one, or renames one.
    pub const DONE: u32 = 2;
}

/// A task joined the job. [`Kind::TaskExec`] has the same layout and tells of its new name: it executed a
/// program, or a thread was renamed (`pt_data_worker`, `pt_data_pin`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskNew {
    pub header: Header,
    pub ppid: u32,
    pub flags: u32,
    pub start_boottime_ns: u64,
    pub comm: [u8; 16],
}

/// A task left; its slot may be reused once user space has handed it back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskExit {
    pub header: Header,
    /// As `wait(2)` encodes it.
    pub status: u32,
    pub pad: u32,
    pub total: Times,
}

/// How many slots a user's tasks have, what they send, and sums by mount and by file the trees that are charged to them: taken less returned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSlots {
    /// By the kernel side.
    pub taken: u64,
    /// By user space.
    pub returned: u64,
    /// Tasks that were given none: [`Lost::UserSlots`].
    pub refused: u64,
    /// By the kernel side.
    pub mounts_taken: u64,
    /// By user space.
    pub mounts_returned: u64,
    /// By the kernel side.
    pub files_taken: u64,
    /// By user space.
    pub files_returned: u64,
    /// By the kernel side: since when `sent_bytes` of records were sent.
    pub sent_since_ns: u64,
    pub sent_bytes: u64,
    /// Records that were not sent: [`Lost::UserRing`].
    pub unsent: u64,
}

/// Places in the array of [`UserSlots`] that are given away from the beginning.
pub mod user {
    /// The sum of all others.
    pub const EVERYBODY: u16 = 0;
    /// Root, who has no limit of its own.
    pub const ROOT: u16 = 1;
}

/// Why the kernel side lost something; index into its per-CPU counters.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The ring buffer was full.
    RingFull = 0,
    /// More than [`MAX_TASKS`] tasks at once.
    NoSlot = 1,
    /// Task storage could not be had.
    NoStorage = 2,
    /// Waits on more than [`crate::files::MAX_MOUNTS`] mounts at once.
    NoMount = 3,
    /// The user whose tree it is has as many slots as are still free.
    UserSlots = 4,
    /// Tasks of the user whose tree it is have sent as much of late as one user's may.
    UserRing = 5,
}

pub const LOST_REASONS: usize = 6;

const _: () = {
    assert!(size_of::<Times>() == 8 * (3 + BLOCKED_KINDS));
    assert!(size_of::<TaskSlot>() == 32 + 24 + 2 * size_of::<Times>() + 32 + 16 + 24 + 112);
    assert!(size_of::<Header>() == 24);
    assert!(size_of::<Slice>() == 24 + 8 + size_of::<Times>() + 32);
    assert!(size_of::<Wait>() == 80);
    assert!(size_of::<Wake>() == 40);
    assert!(size_of::<BatchRead>() == 32);
    assert!(size_of::<Save>() == 40);
    assert!(size_of::<TaskNew>() == 56);
    assert!(size_of::<TaskExit>() == 32 + size_of::<Times>());
};

/// One record of the ring buffer, copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    Slice(Slice),
    Wait(Wait),
    Wake(Wake),
    BatchRead(BatchRead),
    TaskNew(TaskNew),
    TaskExec(TaskNew),
    TaskExit(TaskExit),
    Save(Save),
}

impl Record {
    /// Copies a record out of `bytes`; `None` when its kind is unknown or it is shorter than its kind says.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        let kind = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        Some(match kind {
            k if k == Kind::Slice as u16 => Record::Slice(copy(bytes)?),
            k if k == Kind::Wait as u16 => Record::Wait(copy(bytes)?),
            k if k == Kind::Wake as u16 => Record::Wake(copy(bytes)?),
            k if k == Kind::BatchRead as u16 => Record::BatchRead(copy(bytes)?),
            k if k == Kind::TaskNew as u16 => Record::TaskNew(copy(bytes)?),
            k if k == Kind::TaskExec as u16 => Record::TaskExec(copy(bytes)?),
            k if k == Kind::TaskExit as u16 => Record::TaskExit(copy(bytes)?),
            k if k == Kind::Save as u16 => Record::Save(copy(bytes)?),
            _ => return None,
        })
    }

    pub fn header(&self) -> &Header {
        match self {
            Record::Slice(r) => &r.header,
            Record::Wait(r) => &r.header,
            Record::Wake(r) => &r.header,
            Record::BatchRead(r) => &r.header,
            Record::TaskNew(r) | Record::TaskExec(r) => &r.header,
            Record::TaskExit(r) => &r.header,
            Record::Save(r) => &r.header,
        }
    }
}

impl TaskSlot {
    /// Copies a slot out of `bytes`; `None` when there are too few.
    pub fn parse(bytes: &[u8]) -> Option<TaskSlot> {
        copy(bytes)
    }
}

/// The bytes that [`Record::parse`] and [`TaskSlot::parse`] read.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` types have no padding, so each of their bytes is initialised, and the slice borrows `value`.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Marks the structs of this module that any bytes make a valid value of and that have no padding.
pub trait Plain: Copy + private::Sealed {}

pub(crate) mod private {
    pub trait Sealed {}
}

impl<T: Copy + private::Sealed> Plain for T {}
impl private::Sealed for TaskSlot {}
impl private::Sealed for Slice {}
impl private::Sealed for Wait {}
impl private::Sealed for Wake {}
impl private::Sealed for BatchRead {}
impl private::Sealed for TaskNew {}
impl private::Sealed for TaskExit {}
impl private::Sealed for Save {}
impl private::Sealed for UserSlots {}

/// The value that `bytes` begins with, copied out; `None` when there are too few. The reverse of [`bytes_of`].
pub fn copy<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked, the read is unaligned, and `Plain` types are integers and arrays of
    // integers only, for which every bit pattern is a value.
    Some(unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast::<T>()) })
}
