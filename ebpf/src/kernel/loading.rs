//! Loads the object, and takes its programs and maps apart.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{Array, HashMap, Map, PerCpuArray, Queue, RingBuf};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel, include_bytes_aligned};
use stallscope_abi::files::{MAX_FILES, MAX_MOUNTS};
use stallscope_abi::kernel::{MAX_TASKS, Plain, Slice, TaskExit, TaskSlot, VERSION};

use super::Kernel;
use crate::Error;
use crate::doctor;
use crate::filled::Filled;
use crate::programs::Programs;
use crate::slots::Slots;
use crate::subordinates::Subordinates;
use crate::tables::Table;
use crate::users::Users;

static OBJECT: &[u8] = include_bytes_aligned!("../../programs/stallscope.bpf.o");

/// What `.rodata.abi` of an object with our layouts holds.
const ABI: [u32; 4] =
    [VERSION, size_of::<TaskSlot>() as u32, size_of::<Slice>() as u32, size_of::<TaskExit>() as u32];

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
            .map_max_entries("seeds", options.max_tasks.min(MAX_TASKS))
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
