//! What this machine allows, and how to get the rest.

use std::fs;

use crate::{Kernel, Options, ProgramState, ProgramStatus};

pub(crate) const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Inode of the initial pid namespace, the same on every kernel.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The check that matters to clients of a collector too.
pub const PID_NAMESPACE: &str = "pid namespace";

/// One thing that kernel evidence needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it; empty when `ok`.
    pub how_to_get: &'static str,
}

/// Everything that kernel evidence needs on this machine. Changes nothing.
pub fn checks() -> Vec<Check> {
    let missing = missing_privilege();
    let privileged = missing.is_none();
    let mut checks = vec![
        check(
            "architecture",
            cfg!(target_arch = "x86_64"),
            std::env::consts::ARCH.to_owned(),
            "kernel programs are built for x86-64 only",
        ),
        check(
            "kernel",
            kernel_at_least(5, 15),
            kernel_release(),
            "use Linux 5.15 or later (tried: 6.1, 6.12, 6.18)",
        ),
        check(
            "kernel types",
            fs::metadata(BTF_PATH).is_ok(),
            BTF_PATH.to_owned(),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' are",
        ),
        check(
            "privilege",
            privileged,
            missing.map_or_else(
                || "may load kernel programs".to_owned(),
                |missing| format!("not root, and {missing}"),
            ),
            "start `sudo stallscope collect` once per node, or as a user with CAP_BPF and CAP_PERFMON (`setcap cap_bpf,cap_perfmon+ep` on a copy of the program)",
        ),
        check(
            PID_NAMESPACE,
            in_initial_pid_namespace(),
            pid_namespace(),
            "run the collector on the host, or its container with --pid=host",
        ),
    ];
    if privileged {
        checks.push(programs());
    }
    checks
}

/// Has the kernel load what a run has it load. Trying something alike instead would be about something else: some
/// kernels refuse programs on functions, which we have none of, and take ours.
fn programs() -> Check {
    let (ok, detail) = match Kernel::load(&Options::default()) {
        Ok(kernel) => (true, loaded(&kernel.programs())),
        Err(error) => (false, error.to_string()),
    };
    check(
        "kernel programs",
        ok,
        detail,
        "use Linux 5.15 or later with CONFIG_BPF_EVENTS=y, not in lockdown, and in a container one that may call bpf()",
    )
}

/// How many load, and which of those that a run can do without do not.
fn loaded(programs: &[ProgramStatus]) -> String {
    let lacking: Vec<String> = programs
        .iter()
        .filter_map(|program| match &program.state {
            ProgramState::Missing(reason) | ProgramState::Broken(reason) => {
                Some(format!("; fewer figures without {}: {reason}", program.name))
            }
            ProgramState::Attached | ProgramState::Off => None,
        })
        .collect();
    format!("{} of {} load{}", programs.len() - lacking.len(), programs.len(), lacking.concat())
}

/// Whether this process may load kernel programs: as root, or with CAP_BPF and CAP_PERFMON.
pub fn may_load_programs() -> bool {
    missing_privilege().is_none()
}

/// What this process lacks to load kernel programs, and what that is for.
pub(crate) fn missing_privilege() -> Option<&'static str> {
    let effective =
        status_field("self", "CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or(0);
    let has = |capability: u32| effective >> capability & 1 == 1 || effective >> CAP_SYS_ADMIN & 1 == 1;
    match (has(CAP_BPF), has(CAP_PERFMON)) {
        (true, true) => None,
        (true, false) => Some("CAP_PERFMON is missing, which lets kernel programs look at tasks"),
        (false, true) => Some("CAP_BPF is missing, which lets programs into the kernel"),
        (false, false) => Some("CAP_BPF and CAP_PERFMON are missing"),
    }
}

/// How many pid namespaces there are from that of /proc down to that of `pid`, a number or `self`. Everybody may know.
pub fn pid_namespaces(pid: &str) -> Option<usize> {
    // A kernel without such namespaces says nothing of them.
    let tgid = status_field(pid, "Tgid:")?;
    Some(status_field(pid, "NSpid:").unwrap_or(tgid).split_whitespace().count())
}

/// The process (tgid) to which the task `pid` belongs; `None` when there is no such task.
pub fn process_of(pid: u32) -> Option<u32> {
    status_field(&pid.to_string(), "Tgid:")?.parse().ok()
}

/// The real user of a process: the one who started it, whatever rights it has by now.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    status_field(&pid.to_string(), "Uid:")?.split_whitespace().next()?.parse().ok()
}

fn check(name: &'static str, ok: bool, detail: String, how_to_get: &'static str) -> Check {
    Check { name, ok, detail, how_to_get: if ok { "" } else { how_to_get } }
}

fn status_field(pid: &str, field: &str) -> Option<String> {
    // A name need not be UTF-8: the kernel cuts it off after 15 bytes.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    String::from_utf8_lossy(&status)
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .map(|value| value.trim().to_owned())
}

fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|release| release.trim().to_owned())
        .unwrap_or_default()
}

fn kernel_at_least(major: u32, minor: u32) -> bool {
    let release = kernel_release();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

fn in_initial_pid_namespace() -> bool {
    pid_namespace() == INITIAL_PID_NAMESPACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_whatever_its_name() {
        // SAFETY: a text that ends with 0 and outlives the call, which names this thread alone.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"trainingslauf-\xc3".as_ptr()) };
        let name = fs::read("/proc/thread-self/comm").unwrap();
        assert_eq!(name, b"trainingslauf-\xc3\n");
        assert!(status_field("thread-self", "Tgid:").is_some());
    }

    #[test]
    fn every_check_says_what_was_found_and_what_to_do() {
        for check in checks() {
            assert!(!check.detail.is_empty(), "{check:?}");
            assert_eq!(check.ok, check.how_to_get.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn what_can_be_done_without_is_named_and_no_reason_to_fail() {
        let status = |name, state| ProgramStatus { name, state };
        let mut programs = vec![status("sched_switch", ProgramState::Off), status("seed", ProgramState::Off)];
        assert_eq!(loaded(&programs), "2 of 2 load");
        programs.push(status("task_rename", ProgramState::Missing("no such tracepoint".to_owned())));
        assert_eq!(loaded(&programs), "2 of 3 load; fewer figures without task_rename: no such tracepoint");
    }

    #[test]
    fn a_thread_stands_for_its_process() {
        let process = std::process::id();
        // SAFETY: takes nothing and cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        assert_eq!(process_of(process), Some(process));
        assert_eq!(process_of(thread), Some(process));
        assert_eq!(process_of(u32::MAX), None);
    }

    #[test]
    fn a_process_in_a_namespace_of_its_own_has_one_number_more() {
        assert_eq!(pid_namespaces("self"), pid_namespaces(&std::process::id().to_string()));
        assert_eq!(pid_namespaces(&u32::MAX.to_string()), None);
    }
}
