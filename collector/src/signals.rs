//! The signals that a session hears.

use anyhow::Result;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal as Sig, sigaction};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that a batch system, a script or a timer sends to a job beside the usual ones, and that would end this process.
const FURTHER: [libc::c_int; 8] = [
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// By the signal's number: how often it came. A stream may tell of several as one.
static CAME: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];

pub(crate) struct Signals(Vec<(SignalKind, Signal)>);

impl Signals {
    pub(crate) fn new() -> Result<Signals> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
        ];
        let kinds = kinds.into_iter().chain(FURTHER.map(SignalKind::from_raw));
        // A signal that our parent has us ignore (nohup, a shell's background) stays ignored, for the job too.
        let ignored = ignored_signals();
        let heard: std::io::Result<_> = kinds
            .filter(|kind| ignored >> (kind.as_raw_value() - 1) & 1 == 0)
            .map(|kind| {
                count(kind)?;
                Ok((kind, signal(kind)?))
            })
            .collect();
        Ok(Signals(heard?))
    }

    pub(crate) async fn next(&mut self) -> SignalKind {
        std::future::poll_fn(|context| {
            for (kind, stream) in &mut self.0 {
                if let std::task::Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return std::task::Poll::Ready(*kind);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// The next one that ends a program which does not handle it, while there is nobody whom it could be passed on to.
    pub(crate) async fn ending(&mut self) -> SignalKind {
        loop {
            let kind = self.next().await;
            came(kind);
            if kind != SignalKind::user_defined1() {
                return kind;
            }
        }
    }
}

/// How often this signal has come to this process since the last question.
pub(crate) fn came(kind: SignalKind) -> u32 {
    CAME.get(kind.as_raw_value() as usize).map_or(0, |times| times.swap(0, Ordering::Relaxed))
}

/// In a copy of this process that is about to execute another program: from here on signals do to it what they will do to that one.
pub(crate) fn no_longer_handled() {
    for number in 1..CAME.len() as libc::c_int {
        // SAFETY: zeroes are one of its values, it is written to as long as it is here, and no handler is set.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(number, std::ptr::null(), &mut now) == 0 && now.sa_sigaction != libc::SIG_IGN {
                libc::signal(number, libc::SIG_DFL);
            }
        }
    }
}

/// Before anybody hears of such a signal, so that it is counted by then.
fn count(kind: SignalKind) -> std::io::Result<()> {
    let Some(times) = CAME.get(kind.as_raw_value() as usize) else { return Ok(()) };
    let count = move |info: &libc::siginfo_t| {
        // The kernel's is about the time that this process has used, and nobody else's.
        if (info.si_signo, info.si_code) != (libc::SIGXCPU, libc::SI_KERNEL) {
            times.fetch_add(1, Ordering::Relaxed);
        }
    };
    // SAFETY: it adds to an atomic, which may be done at any moment.
    unsafe { signal_hook_registry::register_sigaction(kind.as_raw_value(), count) }?;
    Ok(())
}

/// From here on a write beyond the limit on a file's size (`ulimit -f`) fails, and does not end this process. Programs
/// that it executes die of it as before.
pub fn take_file_limits_as_errors() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    if ignored_signals() >> (libc::SIGXFSZ - 1) & 1 == 0 {
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, which may be done at any moment.
        let _ = unsafe { sigaction(Sig::SIGXFSZ, &action) };
    }
}

/// From here on it is heard how children end, also where our parent has this process ignore that (SIGCHLD): `child` ignores it as it
/// would have.
pub(crate) fn hear_of(child: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    if ignored_signals() >> (libc::SIGCHLD - 1) & 1 == 0 {
        return;
    }
    let takes = |handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: nothing of ours handles it.
    let _ = unsafe { sigaction(Sig::SIGCHLD, &takes(SigHandler::SigDfl)) };
    let ignore = move || {
        // SAFETY: as above; a system call, which may be made between fork and exec.
        let _ = unsafe { sigaction(Sig::SIGCHLD, &takes(SigHandler::SigIgn)) };
        Ok(())
    };
    // SAFETY: it makes nothing but a system call.
    unsafe { child.pre_exec(ignore) };
}

/// The set of signals that this process ignores, bit 0 for signal 1.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
