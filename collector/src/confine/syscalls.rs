//! The filter of system calls: what the node's collector does while it serves, and nothing else.

use super::{layer, not};
use anyhow::Result;
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use stallscope_wire::Layer;
use std::collections::BTreeMap;

/// Calls with any arguments. None of them opens, starts or connects anything.
const ALLOWED: &[c_long] = &[
    // Callers and clients of the metrics: they are taken up, heard and answered.
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_fcntl,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    // Files of /proc, and what is open already.
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory, without code: see below for the rest.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Time, threads, signals and the end.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_membarrier,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_setitimer,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // The socket goes at the end; Landlock says which file that may be.
    libc::SYS_unlinkat,
    libc::SYS_wait4,
];

/// Of x86-64 alone, where the C library uses them still.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// Commands of bpf(2), from linux/bpf.h. Neither a map nor a program can be made, and none be had by its number.
const BPF_COMMANDS: [u64; 9] = [
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    15, // BPF_OBJ_GET_INFO_BY_FD
    17, // BPF_RAW_TRACEPOINT_OPEN
    24, // BPF_MAP_LOOKUP_BATCH
    28, // BPF_LINK_CREATE
    33, // BPF_ITER_CREATE
];

/// Flags of openat(2) with which a file would be written, made or cut.
const WRITING: i32 = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;

/// Puts the filter on all threads. A call that is not on the list fails as one without privilege does.
pub(crate) fn filter_syscalls() -> Layer {
    match while_serving().and_then(|allowed| Ok((allowed.len(), apply(allowed)?))) {
        Ok((calls, ())) => layer("seccomp", format!("{calls} system calls")),
        Err(error) => not("seccomp", format!("{error:#}")),
    }
}

/// The same for a process that makes the calls `allowed` alone, with any arguments.
///
/// # Errors
/// The kernel has no such filters.
pub(crate) fn allow_only(allowed: &[c_long]) -> Result<()> {
    apply(allowed.iter().map(|call| (*call, Vec::new())).collect())
}

/// Calls, each where one of its rules holds, or always where it has none.
type Allowed = BTreeMap<c_long, Vec<SeccompRule>>;

fn apply(allowed: Allowed) -> Result<()> {
    let refusal = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter: BpfProgram =
        SeccompFilter::new(allowed, refusal, SeccompAction::Allow, architecture)?.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}

fn while_serving() -> Result<Allowed> {
    let mut allowed: Allowed = ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new())).collect();
    let commands = BPF_COMMANDS.iter().map(|command| only_where(0, SeccompCmpOp::Eq, *command));
    allowed.insert(libc::SYS_bpf, commands.collect::<Result<_>>()?);
    // What the standard library asks of a socket.
    allowed.insert(libc::SYS_ioctl, vec![only_where(1, SeccompCmpOp::Eq, libc::FIONBIO)?]);
    // To the connected peer. With an address, or MSG_FASTOPEN, it would connect, and Landlock isn't asked.
    let no_address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    let no_connection = condition(3, SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64), 0)?;
    allowed.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![no_address, no_connection])?]);
    // The end of an answer. Of the other direction, it would make a socket that listens one that can connect.
    allowed.insert(libc::SYS_shutdown, vec![only_where(1, SeccompCmpOp::Eq, libc::SHUT_WR as u64)?]);
    for (call, argument, bits) in [
        (libc::SYS_openat, 2, WRITING),
        (libc::SYS_mmap, 2, libc::PROT_EXEC),
        (libc::SYS_mprotect, 2, libc::PROT_EXEC),
    ] {
        allowed.insert(call, vec![only_where(argument, SeccompCmpOp::MaskedEq(bits as u64), 0)?]);
    }
    Ok(allowed)
}

/// A call where its argument number `argument`, of 32 bits, compares so.
fn only_where(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule> {
    Ok(SeccompRule::new(vec![condition(argument, operator, value)?])?)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?)
}
