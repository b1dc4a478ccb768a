//! The signals that a session hears.

use anyhow::Result;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal as Sig, sigaction};
use std::sync::atomic::{AtomicI32, Ordering};
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

/// By the signal's number: the process that sent the last one; 0: the kernel, or a process outside of what can be seen from here.
static SENDERS: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];

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
                note_senders(kind)?;
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

    /// The next one that ends a program which does not handle it.
    pub(crate) async fn ending(&mut self) -> SignalKind {
        loop {
            let kind = self.next().await;
            if kind != SignalKind::user_defined1() {
                return kind;
            }
        }
    }
}

/// The process that sent the last signal of this kind; `None` for the kernel, and for one that cannot be seen from here.
pub(crate) fn sender(kind: SignalKind) -> Option<u32> {
    let sender = SENDERS.get(kind.as_raw_value() as usize)?.load(Ordering::Relaxed);
    u32::try_from(sender).ok().filter(|sender| *sender != 0)
}

/// Before anybody hears of such a signal, so that its sender is known by then.
fn note_senders(kind: SignalKind) -> std::io::Result<()> {
    let Some(noted) = SENDERS.get(kind.as_raw_value() as usize) else { return Ok(()) };
    let note = move |info: &libc::siginfo_t| {
        let by_process = matches!(info.si_code, libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE);
        // SAFETY: signals of these codes have a sender.
        noted.store(if by_process { unsafe { info.si_pid() } } else { 0 }, Ordering::Relaxed);
    };
    // SAFETY: it stores to an atomic, which may be done at any moment.
    unsafe { signal_hook_registry::register_sigaction(kind.as_raw_value(), note) }?;
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

/// The set of signals that this process ignores, bit 0 for signal 1.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
