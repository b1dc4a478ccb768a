//! What the kernel service asks of the kernel: in tests and fuzzing a model answers.

use crate::containers::Containers;
use stallscope_abi::kernel::{LOST_REASONS, TaskNew, TaskSlot};
use stallscope_ebpf::{Error, Identity, Kernel, ProgramStatus, Still, Waits};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The functions of [`Kernel`], which says what they do, and what /proc says of processes.
pub(crate) trait KernelSide {
    fn watch(&mut self, pid: u32) -> Result<Vec<TaskNew>, Error>;
    fn unwatch(&mut self, pid: u32) -> Result<(), Error>;
    fn set_syscalls(&mut self, wanted: bool) -> Result<(), Error>;
    fn drain(&mut self, take: impl FnMut(&[u8], Option<Identity>)) -> Result<usize, Error>;
    fn fd(&self) -> BorrowedFd<'_>;
    fn slot(&self, slot: u32) -> Option<TaskSlot>;
    fn still(&self, slot: u32, before_ns: u64) -> Option<Still>;
    fn identity(&self, slot: u32) -> Option<Identity>;
    fn root(&self, slot: u32) -> Option<u32>;
    fn waits(&self) -> Result<Waits, Error>;
    fn losses(&self) -> Result<[u64; LOST_REASONS], Error>;
    fn refused(&self, uid: u32) -> u64;
    fn unsent(&self, uid: u32) -> u64;
    fn payer(&self, uid: u32) -> u32;
    fn programs(&self) -> Vec<ProgramStatus>;
    fn run_time(&self) -> Result<Duration, Error>;

    /// Whose process `pid` is; `None` where there is none of that number, which may be a thread's.
    fn owner(&self, pid: u32) -> Option<u32>;

    /// Whether `pid` has the numbers of processes that we have.
    fn shares_pid_namespace(&self, pid: u32) -> bool;

    /// Whether process `pid` is in all of these containers.
    fn is_in(&self, pid: u32, all: &Containers) -> bool;
}

impl KernelSide for Kernel {
    fn watch(&mut self, pid: u32) -> Result<Vec<TaskNew>, Error> {
        self.watch(pid)
    }

    fn unwatch(&mut self, pid: u32) -> Result<(), Error> {
        self.unwatch(pid)
    }

    fn set_syscalls(&mut self, wanted: bool) -> Result<(), Error> {
        self.set_syscalls(wanted)
    }

    fn drain(&mut self, take: impl FnMut(&[u8], Option<Identity>)) -> Result<usize, Error> {
        self.drain(take)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    fn slot(&self, slot: u32) -> Option<TaskSlot> {
        self.slot(slot)
    }

    fn still(&self, slot: u32, before_ns: u64) -> Option<Still> {
        self.still(slot, before_ns)
    }

    fn identity(&self, slot: u32) -> Option<Identity> {
        self.identity(slot)
    }

    fn root(&self, slot: u32) -> Option<u32> {
        self.root(slot)
    }

    fn waits(&self) -> Result<Waits, Error> {
        self.waits()
    }

    fn losses(&self) -> Result<[u64; LOST_REASONS], Error> {
        self.losses()
    }

    fn refused(&self, uid: u32) -> u64 {
        self.refused(uid)
    }

    fn unsent(&self, uid: u32) -> u64 {
        self.unsent(uid)
    }

    fn payer(&self, uid: u32) -> u32 {
        self.payer(uid)
    }

    fn programs(&self) -> Vec<ProgramStatus> {
        self.programs()
    }

    fn run_time(&self) -> Result<Duration, Error> {
        self.run_time()
    }

    fn owner(&self, pid: u32) -> Option<u32> {
        // To the kernel side a thread's number stands for its process, which others may watch, and not to us.
        if stallscope_ebpf::doctor::process_of(pid) != Some(pid) {
            return None;
        }
        std::fs::metadata(format!("/proc/{pid}")).ok().map(|meta| meta.uid())
    }

    /// Asked of what every user may read of a process: its namespaces themselves are shown to who may trace it.
    fn shares_pid_namespace(&self, pid: u32) -> bool {
        let depth = |process: &str| stallscope_ebpf::doctor::pid_namespaces(process);
        // Nothing is sent of a process that is gone already. In whatever namespace it is, it has a number in ours;
        // so at our depth it is in ours.
        depth(&pid.to_string()).is_some_and(|found| Some(found) == depth("self"))
    }

    fn is_in(&self, pid: u32, all: &Containers) -> bool {
        all.have(pid)
    }
}
