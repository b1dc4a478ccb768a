//! Facts of the machine a job runs on.

use nix::unistd::{Uid, User};
use stallscope_model::HostFacts;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

pub(crate) fn facts() -> HostFacts {
    let wanted = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    // Where /proc is closed to us the facts are simply not known.
    let system = System::new_with_specifics(wanted).ok();
    let cpus = system.as_ref().map(System::cpus).unwrap_or_default();
    HostFacts {
        host: System::host_name().unwrap_or_default(),
        kernel: System::kernel_version().unwrap_or_default(),
        cpus: cpus.len() as u32,
        cpu_model: cpus.first().map(|cpu| cpu.brand().trim().to_string()).unwrap_or_default(),
        memory_bytes: system.as_ref().map_or(0, System::total_memory),
        gpus: gpus().unwrap_or_default(),
    }
}

/// Memory of this machine; 0 where it is not known.
pub fn node_memory_bytes() -> u64 {
    let wanted = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    System::new_with_specifics(wanted).map_or(0, |system| system.total_memory())
}

/// Names of the GPUs by NVML, which is opened at run time and absent on most machines.
fn gpus() -> Result<Vec<String>, nvml_wrapper::error::NvmlError> {
    let nvml = nvml_wrapper::Nvml::init()?;
    (0..nvml.device_count()?).map(|index| nvml.device_by_index(index)?.name()).collect()
}

/// What this program needs, in builds without optimisation too.
const LEAST_STACK_BYTES: u64 = 512 << 10;

/// Whether there is enough stack to go on: to run out of it ends a process at once, after the job has started as well.
///
/// # Errors
/// A sentence where the limit is lower.
pub fn has_stack() -> Result<(), String> {
    match rustix::process::getrlimit(rustix::process::Resource::Stack).current {
        Some(bytes) if bytes < LEAST_STACK_BYTES => Err(format!(
            "{} KiB of stack are needed, and this shell allows {}: raise it with `ulimit -s`",
            LEAST_STACK_BYTES >> 10,
            bytes >> 10
        )),
        _ => Ok(()),
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// `CLOCK_BOOTTIME` in nanoseconds.
pub(crate) fn boottime_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as u64
}

/// CPU time of this process so far and its resident memory now.
pub(crate) fn own_cost() -> (u64, u64) {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1).and_then(|rss| rss.parse::<u64>().ok()))
        .unwrap_or(0);
    (cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64, pages * rustix::param::page_size() as u64)
}

/// Whether this program was given more than its caller has, by set-uid or file capabilities. The dynamic loader then takes from
/// the environment what could mislead it.
pub(crate) fn was_executed_with_privilege() -> bool {
    // SAFETY: reads a word that the kernel left at the start of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Login name of `uid`, or the number where there is none. May ask a directory service, which takes its time.
pub(crate) fn user_name(uid: u32) -> String {
    login_name(uid).ok().flatten().unwrap_or_else(|| uid.to_string())
}

/// The same; `None` where there is no such user.
///
/// # Errors
/// A directory service did not answer.
pub(crate) fn login_name(uid: u32) -> nix::Result<Option<String>> {
    Ok(User::from_uid(Uid::from_raw(uid))?.map(|user| user.name))
}
