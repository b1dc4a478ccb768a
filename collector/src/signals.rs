//! The signals that a session hears.

use anyhow::Result;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal as Sig, sigaction};
use tokio::signal::unix::{Signal, SignalKind, signal};

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
        // A signal that our parent has us ignore (nohup, a shell's background) stays ignored, for the job too.
        let ignored = ignored_signals();
        let heard: std::io::Result<_> = kinds
            .into_iter()
            .filter(|kind| ignored >> (kind.as_raw_value() - 1) & 1 == 0)
            .map(|kind| Ok((kind, signal(kind)?)))
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
