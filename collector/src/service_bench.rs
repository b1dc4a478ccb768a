//! The kernel service with a model for a kernel, for tests and fuzzing: processes begin, end, change their rights and
//! leave their numbers to others; callers come, ask and go (callers.rs).

mod callers;

#[allow(unreachable_pub, reason = "for fuzzing")]
pub use callers::ServiceBench;
#[cfg(test)]
pub(crate) use callers::hello;

use crate::containers::Containers;
use crate::kernel_service::KernelSide;
use stallscope_abi::files::{FileKey, FileWait, MountWait};
use stallscope_abi::kernel::{
    Header, Kind, LOST_REASONS, Lost, Record, Slice, TaskExit, TaskNew, TaskSlot, bytes_of, flags, state,
};
use stallscope_ebpf::{Error, Identity, ProgramStatus, Still, Waits};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Few, so that they run out.
const SLOTS: u32 = 24;
const RING_RECORDS: usize = 64;

const USERS: [u32; 3] = [0, 4242, 4343];

struct Process {
    ppid: u32,
    start_ns: u64,
    uid: u32,
    flags: u32,
    slot: Option<u32>,
}

/// What the kernel programs and /proc would say.
pub(crate) struct KernelModel {
    processes: BTreeMap<u32, Process>,
    slots: Vec<TaskSlot>,
    roots_of_slots: Vec<u32>,
    free: Vec<u32>,
    roots: BTreeSet<u32>,
    waits: BTreeMap<FileKey, u64>,
    ring: VecDeque<Vec<u8>>,
    lost: [u64; LOST_REASONS],
    swept_at_lost: u64,
    syscalls: bool,
    /// Also the serial number of records.
    now_ns: u64,
    /// The owner of a task when a record was made, by its time.
    owners: BTreeMap<u64, (u32, u32)>,
    /// How often trees were taken up, and how long that takes.
    pub(crate) watches: u64,
    pub(crate) a_watch_takes: Duration,
    pub(crate) an_unwatch_takes: Duration,
    nowhere: UnixStream,
}

impl KernelModel {
    fn new() -> KernelModel {
        KernelModel {
            processes: BTreeMap::new(),
            slots: vec![TaskSlot::default(); SLOTS as usize],
            roots_of_slots: vec![0; SLOTS as usize],
            free: (0..SLOTS).collect(),
            roots: BTreeSet::new(),
            waits: BTreeMap::new(),
            ring: VecDeque::new(),
            lost: [0; LOST_REASONS],
            swept_at_lost: 0,
            syscalls: false,
            now_ns: 0,
            owners: BTreeMap::new(),
            watches: 0,
            a_watch_takes: Duration::ZERO,
            an_unwatch_takes: Duration::ZERO,
            nowhere: UnixStream::pair().expect("a pair of sockets").0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.now_ns += 1;
        self.now_ns
    }

    fn send(&mut self, record: &[u8]) {
        if self.ring.len() < RING_RECORDS {
            self.ring.push_back(record.to_vec());
        } else {
            self.lost[Lost::RingFull as usize] += 1;
        }
    }

    fn header(&mut self, pid: u32, kind: Kind, size: usize) -> Option<Header> {
        let time_ns = self.tick();
        let process = self.processes.get(&pid)?;
        let slot = process.slot?;
        self.owners.insert(time_ns, (process.uid, process.flags));
        Some(Header { kind: kind as u16, size: size as u16, slot, tid: pid, tgid: pid, time_ns })
    }

    fn task_new(&mut self, pid: u32, kind: Kind) -> Option<TaskNew> {
        let header = self.header(pid, kind, size_of::<TaskNew>())?;
        let process = self.processes.get(&pid)?;
        let flags = flags::WATCHED | flags::LEADER | process.flags;
        Some(TaskNew {
            header,
            ppid: process.ppid,
            flags,
            start_boottime_ns: process.start_ns,
            ..TaskNew::default()
        })
    }

    fn track(&mut self, pid: u32, root: u32) -> bool {
        let now_ns = self.tick();
        let Some(process) = self.processes.get_mut(&pid) else { return false };
        if process.slot.is_some() {
            return true;
        }
        let Some(slot) = self.free.pop() else {
            self.lost[Lost::NoSlot as usize] += 1;
            return false;
        };
        process.slot = Some(slot);
        self.owners.insert(now_ns, (process.uid, process.flags));
        self.roots_of_slots[slot as usize] = root;
        self.slots[slot as usize] = TaskSlot {
            tid: pid,
            tgid: pid,
            ppid: process.ppid,
            uid: process.uid,
            flags: process.flags | flags::WATCHED | flags::LEADER,
            state: state::BLOCKED,
            since_ns: now_ns,
            first_seen_ns: now_ns,
            start_boottime_ns: process.start_ns,
            ..TaskSlot::default()
        };
        true
    }

    pub(crate) fn begin(&mut self, pid: u32, parent: u32, uid: u32) {
        let start_ns = self.tick();
        if self.processes.contains_key(&pid) {
            return;
        }
        let of_parent = self.processes.get(&parent);
        let (uid, flags) = of_parent.map_or((uid, 0), |parent| (parent.uid, parent.flags));
        let root = of_parent.and_then(|parent| parent.slot).map(|slot| self.roots_of_slots[slot as usize]);
        self.processes.insert(pid, Process { ppid: parent, start_ns, uid, flags, slot: None });
        if let Some(root) = root
            && self.track(pid, root)
            && let Some(new) = self.task_new(pid, Kind::TaskNew)
        {
            self.send(bytes_of(&new));
        }
    }

    /// Executes a program: one of another user's with the rights of that user.
    pub(crate) fn execute(&mut self, pid: u32, uid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.uid != uid {
            (process.uid, process.flags) = (uid, process.flags | flags::PRIVILEGED);
        }
        if let Some(slot) = process.slot {
            let slot = &mut self.slots[slot as usize];
            (slot.uid, slot.flags) = (process.uid, slot.flags | process.flags);
        }
        if let Some(new) = self.task_new(pid, Kind::TaskExec) {
            self.send(bytes_of(&new));
        }
    }

    /// Runs, and waits for a file.
    pub(crate) fn work(&mut self, pid: u32) {
        if let Some(header) = self.header(pid, Kind::Slice, size_of::<Slice>()) {
            let slot = &self.slots[header.slot as usize];
            let uid = if slot.flags & flags::PRIVILEGED == 0 { slot.uid } else { 0 };
            let key = FileKey { root: self.roots_of_slots[header.slot as usize], uid, ..FileKey::default() };
            *self.waits.entry(key).or_default() += 1;
            self.send(bytes_of(&Slice { header, ..Slice::default() }));
        }
    }

    /// With records of a process, so that none of others fits.
    pub(crate) fn fill_ring(&mut self, pid: u32) {
        (self.ring.len()..RING_RECORDS).for_each(|_| self.work(pid));
    }

    pub(crate) fn exit(&mut self, pid: u32) {
        if let Some(header) = self.header(pid, Kind::TaskExit, size_of::<TaskExit>()) {
            self.slots[header.slot as usize].state = state::EXITED;
            self.send(bytes_of(&TaskExit { header, ..TaskExit::default() }));
        }
        self.processes.remove(&pid);
    }

    fn hand_back(&mut self, slot: u32) {
        self.slots[slot as usize].state = state::FREE;
        self.free.push(slot);
    }
}

impl KernelSide for KernelModel {
    fn watch(&mut self, pid: u32) -> Result<Vec<TaskNew>, Error> {
        self.watches += 1;
        std::thread::sleep(self.a_watch_takes);
        if !self.processes.contains_key(&pid) {
            return Err(Error::NoProcess(pid));
        }
        self.roots.insert(pid);
        let mut tree = BTreeSet::from([pid]);
        loop {
            let children = self.processes.iter().filter(|(_, process)| tree.contains(&process.ppid));
            let before = tree.len();
            tree.extend(children.map(|(pid, _)| *pid).collect::<Vec<_>>());
            if tree.len() == before {
                break;
            }
        }
        let found: Vec<u32> = tree.into_iter().filter(|member| self.track(*member, pid)).collect();
        if !found.contains(&pid) {
            let _ = self.unwatch(pid);
            return Err(Error::TooManyTasks(pid));
        }
        Ok(found.into_iter().filter_map(|pid| self.task_new(pid, Kind::TaskNew)).collect())
    }

    fn unwatch(&mut self, pid: u32) -> Result<(), Error> {
        std::thread::sleep(self.an_unwatch_takes);
        if !self.roots.remove(&pid) {
            return Err(Error::NotWatched(pid));
        }
        let roots = &self.roots_of_slots;
        let of_root = |process: &mut Process| process.slot.take_if(|slot| roots[*slot as usize] == pid);
        let released: Vec<u32> = self.processes.values_mut().filter_map(of_root).collect();
        released.into_iter().for_each(|slot| self.hand_back(slot));
        self.waits.retain(|key, _| key.root != pid);
        Ok(())
    }

    fn set_syscalls(&mut self, wanted: bool) -> Result<(), Error> {
        self.syscalls = wanted;
        Ok(())
    }

    fn drain(&mut self, mut take: impl FnMut(&[u8], Option<Identity>)) -> Result<usize, Error> {
        let mut count = 0;
        while let Some(bytes) = self.ring.pop_front() {
            count += 1;
            let record = Record::parse(&bytes);
            let slot = record.as_ref().map(|record| record.header().slot);
            take(&bytes, slot.and_then(|slot| self.identity(slot)));
            if let (Some(Record::TaskExit(_)), Some(slot)) = (record, slot)
                && self.slots[slot as usize].state == state::EXITED
            {
                self.hand_back(slot);
            }
        }
        if self.lost[Lost::RingFull as usize] != self.swept_at_lost {
            self.swept_at_lost = self.lost[Lost::RingFull as usize];
            let left: Vec<u32> =
                (0..SLOTS).filter(|slot| self.slots[*slot as usize].state == state::EXITED).collect();
            left.into_iter().for_each(|slot| self.hand_back(slot));
        }
        Ok(count)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.nowhere.as_fd()
    }

    fn slot(&self, slot: u32) -> Option<TaskSlot> {
        self.slots.get(slot as usize).copied()
    }

    fn still(&self, _: u32, _: u64) -> Option<Still> {
        None
    }

    fn identity(&self, slot: u32) -> Option<Identity> {
        let slot = self.slots.get(slot as usize)?;
        Some(Identity {
            tgid: slot.tgid,
            start_boottime_ns: slot.start_boottime_ns,
            flags: slot.flags,
            uid: slot.uid,
        })
    }

    fn root(&self, slot: u32) -> Option<u32> {
        self.roots_of_slots.get(slot as usize).copied().filter(|root| *root != 0)
    }

    fn waits(&self) -> Result<Waits, Error> {
        let mounts = self.waits.iter().map(|(key, waits)| (*key, MountWait { wait_ns: 0, waits: *waits }));
        let files =
            self.waits.iter().map(|(key, waits)| (*key, FileWait { waits: *waits, ..FileWait::default() }));
        Ok(Waits { files: files.collect(), mounts: mounts.collect() })
    }

    fn losses(&self) -> Result<[u64; LOST_REASONS], Error> {
        Ok(self.lost)
    }

    fn refused(&self, _: u32) -> u64 {
        0
    }

    fn unsent(&self, _: u32) -> u64 {
        0
    }

    fn payer(&self, uid: u32) -> u32 {
        uid
    }

    fn programs(&self) -> Vec<ProgramStatus> {
        Vec::new()
    }

    fn run_time(&self) -> Result<Duration, Error> {
        Ok(Duration::ZERO)
    }

    fn owner(&self, pid: u32) -> Option<u32> {
        self.processes.get(&pid).map(|process| process.uid)
    }

    fn shares_pid_namespace(&self, _: u32) -> bool {
        true
    }

    /// There is one, and the odd ones are in it.
    fn is_in(&self, pid: u32, _: &Containers) -> bool {
        pid % 2 == 1
    }
}
