//! Serves the node, or one caller within its own process.

use super::Service;
use crate::caller::Caller;
use crate::confine::{self, Account};
use crate::descriptors::{self, Alarm};
use crate::metrics::Metrics;
use crate::node::NodeMetrics;
use crate::node_socket::NodeSocket;
use crate::notify::Notify;
use crate::watch_audit::WatchAudit;
use anyhow::Result;
use stallscope_ebpf::{Kernel, Options};
use stallscope_model::NodeSummary;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a collector that was started for one caller waits for it.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// How the node's collector serves.
#[derive(Debug)]
pub struct ServeOptions<'a> {
    /// Unless systemd hands over a socket that it listens at.
    pub socket: &'a Path,
    /// Until the first caller and all others are gone.
    pub only_until_idle: bool,
    /// Whether users other than root may have system calls hooked, at a price for each call of every process of the node.
    pub syscalls_for_everyone: bool,
    pub metrics: Option<Metrics<NodeSummary>>,
    /// Who may connect, besides root: members of this group alone, by its name or number. Else everybody.
    pub group: Option<&'a str>,
    /// Whom root becomes: a user's name or number. Without one `stallscope`, where there is such a user, else `nobody`.
    pub user: Option<&'a str>,
}

/// The node's collector can be called.
#[derive(Debug)]
pub struct Serving {
    /// Where.
    pub socket: String,
    /// A sentence that says where metrics are served.
    pub metrics: Option<String>,
    /// A sentence that says what keeps it from doing more than it has to.
    pub confined: String,
    /// A sentence for each layer of that which could not be had.
    pub not_confined: Vec<String>,
}

/// Serves everybody until the process ends, which keeps nothing of its privileges that serving does not take. Calls
/// `listening` once it can be called. The process must have one thread.
///
/// # Errors
/// The programs can't be loaded (no privilege, no BTF), the socket or the metrics' address can't be bound, or there is no
/// user to become.
pub fn serve(options: ServeOptions<'_>, listening: impl FnOnce(&Serving)) -> Result<()> {
    let ServeOptions { socket, only_until_idle, syscalls_for_everyone, metrics, group, user } = options;
    let account = Account::find(user)?;
    let mut service = Service::load(syscalls_for_everyone)?;
    service.places = descriptors::places();
    // Whatever is opened, made or started comes before there is no right to any more.
    let metrics = metrics.map(Metrics::bind).transpose()?;
    let (shown, socket) = match NodeSocket::passed()? {
        Some(passed) => ("systemd's socket".to_owned(), passed),
        None => (socket.display().to_string(), NodeSocket::bind(socket, group, only_until_idle)?),
    };
    let mut notify = Notify::find();
    let mut confinement = confine::confine(account.as_ref(), &mut service.kernel, &socket)?;
    let mut metrics = metrics.map(NodeMetrics::start).transpose()?;
    confinement.push(confine::syscalls::filter_syscalls());
    let serving = Serving {
        socket: shown,
        metrics: metrics.as_ref().map(NodeMetrics::whereabouts),
        confined: confine::sentence(&confinement),
        not_confined: confine::lacking(&confinement)
            .map(|lacking| format!("not confined by {lacking}"))
            .collect(),
    };
    listening(&serving);
    if let Some(notify) = &notify {
        notify.serves(&serving.confined);
    }
    service.confinement = confinement;
    service.alarm = Alarm::ready();
    // One that serves a single job shares that job's terminal.
    service.audit = (!only_until_idle).then(WatchAudit::default);
    let mut had_a_caller = false;
    let begun = Instant::now();
    loop {
        // With nobody watched there is nothing to drain: sleep until somebody calls.
        let idle = service.callers.is_empty() && service.leaving.is_empty() && !only_until_idle;
        if let Some(metrics) = &mut metrics {
            metrics.publish(idle, || service.figures());
        }
        let limit = notify.as_ref().and_then(Notify::due_in);
        let due = service
            .wait(Some(&socket.listener), if idle { Sleep::AtMost(limit) } else { Sleep::UntilRound })?;
        if let Some(notify) = &mut notify {
            notify.is_alive();
        }
        service.accept(&socket.listener);
        // The process that had us started may have died before calling.
        had_a_caller |= !service.callers.is_empty() || begun.elapsed() > FIRST_CALL;
        service.hear();
        service.hand_out(due);
        service.say_who_watches();
        if only_until_idle && had_a_caller && service.callers.is_empty() {
            socket.remove();
            return Ok(());
        }
    }
}

/// How long to wait where nobody stirs.
pub(super) enum Sleep {
    UntilRound,
    /// `None`: for ever.
    AtMost(Option<Duration>),
}

/// Kernel programs that this process loaded for itself, before there is a job to watch.
pub(crate) struct Within(Service<Kernel>);

impl Within {
    /// Takes a second or two, as the kernel verifies each program.
    ///
    /// # Errors
    /// The programs can't be loaded (no privilege, no BTF).
    pub(crate) fn load() -> Result<Within> {
        Ok(Within(Service::load(true)?))
    }

    /// Serves one caller on a thread of its own, until that caller hangs up.
    ///
    /// # Errors
    /// There are no descriptors or threads left.
    pub(crate) fn serve(self) -> Result<UnixStream> {
        let Within(mut service) = self;
        let (ours, theirs) = UnixStream::pair()?;
        service.callers.push(Caller::new(theirs)?);
        std::thread::Builder::new().name("kernel evidence".into()).spawn(move || {
            while !service.callers.is_empty()
                && let Ok(due) = service.wait(None, Sleep::UntilRound)
            {
                service.hear();
                service.hand_out(due);
            }
        })?;
        Ok(ours)
    }
}

impl Service<Kernel> {
    fn load(syscalls_for_everyone: bool) -> Result<Service<Kernel>> {
        Ok(Service::new(Kernel::load(&Options::default())?, syscalls_for_everyone))
    }
}
