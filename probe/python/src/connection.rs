//! The socket to the collector: connect, greet, tell facts; again, at most once a second, when it is gone.

use crate::introduction::Introduction;
use crate::own_fd::OwnFd;
use crate::{clock, fork, knobs, lane};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use stallscope_ring::{
    Fact, Greeting, PROTOCOL_VERSION, ProcessKind, Writer, send_greeting, send_line, send_lines, send_with,
};
use std::sync::Mutex;

const RETRY_NS: u64 = 1_000_000_000;

/// A job that keeps making new loaders keeps its latest facts only.
const MAX_FACTS: usize = 256;

static CONNECTION: Mutex<Option<Connection>> = Mutex::new(None);

struct Connection {
    path: String,
    capacity: u32,
    greeting: Greeting,
    /// What a collector that comes later has to be sent again.
    facts: Vec<Fact>,
    lane: Option<OwnFd>,
    socket: Option<OwnFd>,
    next_look_ns: u64,
    /// Of a job that nobody launched with `run`, whose collector comes once it trains.
    introduction: Option<Introduction>,
}

/// Names the collector's socket and what to say there; `greeting` is a JSON object with the fields of
/// `stallscope_ring::Greeting` that Python knows. Connects at the first event.
#[pyfunction]
pub(crate) fn configure(path: String, greeting: &str, capacity: u32) -> PyResult<()> {
    let greeting: Greeting =
        serde_json::from_str(greeting).map_err(|error| PyValueError::new_err(error.to_string()))?;
    fork::watch();
    if let Ok(mut connection) = CONNECTION.try_lock() {
        *connection = Some(Connection {
            path,
            capacity,
            greeting,
            facts: vec![],
            lane: None,
            socket: None,
            next_look_ns: 0,
            introduction: None,
        });
    }
    Ok(())
}

/// As long as this process trains and has no collector, `line` goes to the node's service, which listens at `path`.
#[pyfunction]
pub(crate) fn introduce(path: String, line: &str) {
    if let Ok(mut guard) = CONNECTION.try_lock()
        && let Some(connection) = guard.as_mut()
    {
        connection.introduction = Some(Introduction::new(path, line));
    }
}

/// Tells the collector a fact, now or when it is there; a JSON object as `stallscope_ring::Fact` has it.
#[pyfunction]
pub(crate) fn fact(json: &str) -> PyResult<()> {
    let fact = serde_json::from_str(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
    crate::guard::observe((), || tell(fact));
    Ok(())
}

/// Looks after the connection; cheap enough for every batch.
#[pyfunction]
pub(crate) fn poll() {
    crate::guard::observe((), || look(clock::now_ns()));
}

/// Says that something cannot be measured: a sentence.
pub(crate) fn unavailable(what: &str) {
    tell(Fact::Unavailable { what: what.to_owned() });
}

pub(crate) fn tell(fact: Fact) {
    if let Ok(mut guard) = CONNECTION.try_lock()
        && let Some(connection) = guard.as_mut()
    {
        connection.tell(fact);
    }
}

/// Tells a fact that somebody else remembers, `fd` beside it.
pub(crate) fn say(fact: &Fact, fd: Option<BorrowedFd<'_>>) {
    if let Ok(mut guard) = CONNECTION.try_lock()
        && let Some(connection) = guard.as_mut()
    {
        connection.say(fact, fd);
    }
}

/// As [`poll`], when the time is known.
pub(crate) fn look(now_ns: u64) {
    if let Ok(mut guard) = CONNECTION.try_lock()
        && let Some(connection) = guard.as_mut()
    {
        connection.look(now_ns);
    }
}

/// In a forked child: socket, lane and facts are the parent's.
pub(crate) fn forget() {
    if let Ok(mut guard) = CONNECTION.try_lock()
        && let Some(connection) = guard.as_mut()
    {
        connection.socket = None;
        connection.lane = None;
        connection.facts.clear();
        connection.greeting.kind = ProcessKind::Other;
        connection.next_look_ns = 0;
    }
}

impl Connection {
    fn tell(&mut self, fact: Fact) {
        if let Fact::Kind { kind, rank } = &fact {
            self.greeting.kind = *kind;
            self.greeting.rank = *rank;
            if self.socket.is_none() && self.introduction.is_some() {
                // It may have begun to train.
                self.next_look_ns = 0;
            }
        }
        self.say(&fact, None);
        self.facts.retain(|known| !replaces(&fact, known));
        if self.facts.len() == MAX_FACTS {
            self.facts.remove(0);
        }
        self.facts.push(fact);
    }

    fn say(&mut self, fact: &Fact, fd: Option<BorrowedFd<'_>>) {
        if let Some(socket) = &self.socket {
            let sent = socket.checked().is_some_and(|socket| send(socket, fact, fd).is_ok());
            if !sent {
                self.socket = None;
            }
        }
    }

    fn look(&mut self, now_ns: u64) {
        if now_ns < self.next_look_ns {
            return;
        }
        self.next_look_ns = now_ns + RETRY_NS;
        if self.socket.as_ref().is_some_and(is_gone) {
            self.socket = None;
        }
        if self.socket.is_none() {
            self.socket = self.connect();
        }
        if self.socket.is_none()
            && self.greeting.kind == ProcessKind::Trainer
            && let Some(introduction) = &mut self.introduction
            && let Some(soon_ns) = introduction.ask(now_ns)
        {
            self.next_look_ns = now_ns + soon_ns;
        }
    }

    fn connect(&mut self) -> Option<OwnFd> {
        let address = SocketAddrUnix::new(&self.path).ok()?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        if !is_trusted(&socket) {
            return None;
        }
        let socket = OwnFd::adopt(socket)?;
        if self.lane.as_ref().is_none_or(|fd| fd.checked().is_none()) {
            let (writer, fd) = Writer::create(self.capacity).ok()?;
            self.lane = Some(OwnFd::adopt(fd)?);
            lane::set(writer);
        }
        self.greeting.stallscope = PROTOCOL_VERSION;
        self.greeting.role = "shim".into();
        self.greeting.lane_version = stallscope_abi::lane::VERSION;
        self.greeting.shim_version = env!("CARGO_PKG_VERSION").into();
        self.greeting.pid = std::process::id();
        self.greeting.ppid = std::os::unix::process::parent_id();
        send_greeting(socket.checked()?, &self.greeting, self.lane.as_ref()?.checked()?).ok()?;
        let knobs = knobs::introduce(|fact, page| send_with(socket.checked()?, fact, page).ok())?;
        send_lines(socket.checked()?, &self.facts).ok()?;
        send_lines(socket.checked()?, &knobs).ok()?;
        Some(socket)
    }
}

fn send(
    socket: BorrowedFd<'_>,
    fact: &Fact,
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), stallscope_ring::Error> {
    match fd {
        Some(fd) => send_with(socket, fact, fd),
        None => send_line(socket, fact),
    }
}

/// Whether `new` makes `old` superfluous.
fn replaces(new: &Fact, old: &Fact) -> bool {
    match (new, old) {
        (Fact::Loader(new), Fact::Loader(old)) => new.loader == old.loader,
        (Fact::Workers { loader: new, .. }, Fact::Workers { loader: old, .. }) => new == old,
        (Fact::Kind { .. }, Fact::Kind { .. }) => true,
        (new, old) => new == old,
    }
}

/// The user that those are whom a user namespace does not know.
const OVERFLOW_UID: u32 = 65534;

/// Whether who listens may have the lane and turn knobs: the job's own user, or root, as with sudo. Where the socket's folder was
/// removed from one that all may write to, another user may have made it again. Root's job may be in a container, and its
/// collector a user's outside.
fn is_trusted(socket: &impl AsFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // By `nix`: `rustix` has no value for a pid of 0, that of a collector in an outer pid namespace.
    let Ok(listener) = getsockopt(socket, PeerCredentials).map(|credentials| credentials.uid()) else {
        return false;
    };
    own == 0 || listener == 0 || listener == own || listener == OVERFLOW_UID && is_in_user_namespace()
}

fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().ne(["0", "0", "4294967295"])
}

fn is_gone(socket: &OwnFd) -> bool {
    let Some(socket) = socket.checked() else { return true };
    let mut byte = [0; 1];
    match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
        Ok((0, _)) => true,
        // A collector has nothing to say; a byte is read away and ignored.
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}
