//! A client's connection: requests of many threads over one socket.
//!
//! A thread that waits for an answer and finds no other reading reads for all; the others are woken when something came. So no
//! thread of ours is needed, and no thread waits longer than it wants to.

mod offer;

use super::error::{Error, Result, system};
use super::held::Held;
use super::message::{ANSWER_BYTES, Answer, FIRST_BYTES, First, Greeting, VERSION, Welcome, first};
use super::start::Folder;
use super::view::View;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A pool that takes nothing for so long, or does not say anything, is of no use.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

static SERIAL: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct Connection {
    socket: Held,
    /// Unlike that of any other connection of this process.
    serial: u64,
    /// What is left of a message that was offered and has begun to be sent.
    sending: Mutex<Vec<u8>>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    next: u32,
    /// Requests that somebody waits for, with their answers.
    awaited: HashMap<u32, Option<Answer>>,
    /// Claims that were granted, by sample.
    granted: HashMap<u32, u32>,
    bytes: Vec<u8>,
    somebody_reads: bool,
    dead: bool,
}

/// How waiting for an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Answered(Answer),
    /// A signal came.
    Interrupted,
    /// No answer came, or none comes any more.
    Dead,
}

impl Connection {
    /// Connects and says which space is wanted. An error of kind `NotFound` or `ConnectionRefused` says that there is
    /// no pool.
    pub(crate) fn open(folder: &Folder, greeting: &Greeting, limit: Duration) -> Result<(Connection, View)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(system("socket"))?;
        rustix::net::connect(&socket, &folder.address()?).map_err(system("connect"))?;
        // Where others may write into the folder, one of them may listen there: it would be given samples, and give some.
        // (By `nix`: `rustix` has no value for a pid of 0, that of who listens in an outer pid namespace.)
        let server = getsockopt(&socket, PeerCredentials)
            .map_err(|errno| system("getsockopt")(Errno::from_raw_os_error(errno as i32)))?;
        if server.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::AnotherUsers(folder.path().to_owned()));
        }
        let socket = Held::new(socket).ok_or_else(|| system("fstat")(Errno::BADF))?;
        let connection = Connection {
            socket,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            sending: Mutex::default(),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
        };
        if !connection.send(&[&greeting.encode()]) {
            return Err(system("send")(Errno::PIPE));
        }
        let view = connection.welcomed(folder, greeting, Instant::now() + limit)?;
        Ok((connection, view))
    }

    fn welcomed(&self, folder: &Folder, greeting: &Greeting, until: Instant) -> Result<View> {
        let foreign = || Error::NotAPool(folder.path().to_owned());
        let mut fds = Vec::new();
        let mut head = [0; FIRST_BYTES];
        self.receive_exactly(&mut head, &mut fds, until)?;
        let length = match first(head) {
            First::Ours(length) => length,
            First::Version(found) => {
                return Err(Error::Version { dir: folder.path().to_owned(), found, expected: VERSION });
            }
            First::Foreign => return Err(foreign()),
        };
        let mut rest = vec![0; length];
        self.receive_exactly(&mut rest, &mut fds, until)?;
        match Welcome::decode(&rest).ok_or_else(foreign)? {
            Welcome::Here { data_bytes, cgroup } => View::new(greeting.samples, data_bytes, cgroup, &fds),
            Welcome::Refused(why) => Err(Error::Refused(why)),
        }
    }

    fn receive_exactly(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>, until: Instant) -> Result<()> {
        let mut have = 0;
        while have < bytes.len() {
            let socket = self.socket.checked().ok_or_else(|| system("recv")(Errno::BADF))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut to = [IoSliceMut::new(&mut bytes[have..])];
            match rustix::net::recvmsg(socket, &mut to, &mut ancillary, flags) {
                Ok(received) if received.bytes > 0 => have += received.bytes,
                Ok(_) => return Err(system("recv")(Errno::CONNRESET)),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    if wait(socket, PollFlags::IN, until) == Ok(false) {
                        return Err(Error::System { call: "recv", source: io::ErrorKind::TimedOut.into() });
                    }
                    continue;
                }
                Err(errno) => return Err(system("recv")(errno)),
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    fds.extend(received);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.inbox().dead
    }

    /// Whether the other side still is there, by asking the kernel.
    pub(crate) fn looks_alive(&self) -> bool {
        let gone = self.socket.checked().is_none_or(|socket| {
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            !matches!(
                rustix::net::recv(socket, &mut [0; 1], flags),
                Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR)
            )
        });
        if gone {
            self.die();
        }
        !self.is_dead()
    }

    /// In a child that was forked, closes its copy, which would keep the parent's connection open beyond its end.
    pub(crate) fn close_copy(&self) {
        self.socket.close();
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn die(&self) {
        self.inbox().dead = true;
        self.arrived.notify_all();
    }

    /// A number for a request whose answer is waited for.
    pub(crate) fn number(&self) -> u32 {
        let mut inbox = self.inbox();
        loop {
            inbox.next = inbox.next.wrapping_add(1);
            let number = inbox.next;
            let granted = inbox.granted.values().any(|granted| *granted == number);
            if number != 0 && !granted && !inbox.awaited.contains_key(&number) {
                inbox.awaited.insert(number, None);
                return number;
            }
        }
    }

    /// Waits for another answer to the same request.
    pub(crate) fn again(&self, number: u32) {
        self.inbox().awaited.insert(number, None);
    }

    pub(crate) fn grant(&self, id: u32, number: u32) {
        self.inbox().granted.insert(id, number);
    }

    /// Under which number a sample was claimed; it is not claimed any more then.
    pub(crate) fn granted(&self, id: u32) -> Option<u32> {
        self.inbox().granted.remove(&id)
    }

    /// Sends all of it, as one piece among those of other threads; false: the connection is of no use any more.
    pub(crate) fn send(&self, pieces: &[&[u8]]) -> bool {
        let mut left = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *left);
        let sent =
            !self.is_dead() && self.send_piece(&before) && pieces.iter().all(|piece| self.send_piece(piece));
        if !sent {
            self.die();
        }
        sent
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    fn send_piece(&self, piece: &[u8]) -> bool {
        let mut left = piece;
        let mut until = Instant::now() + PATIENCE;
        while !left.is_empty() {
            let Some(socket) = self.socket.checked() else { return false };
            match rustix::net::send(socket, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    left = &left[sent..];
                    until = Instant::now() + PATIENCE;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match wait(socket, PollFlags::OUT, until) {
                    Ok(true) | Err(Errno::INTR) => {}
                    _ => return false,
                },
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits for the answer to a request. A signal ends the wait where `interruptible`, so that Python can handle it.
    pub(crate) fn wait(&self, number: u32, limit: Duration, interruptible: bool) -> Waited {
        let until = Instant::now() + limit;
        let mut inbox = self.inbox();
        let ended = loop {
            if let Some(Some(answer)) = inbox.awaited.get(&number) {
                break Waited::Answered(*answer);
            }
            if inbox.dead {
                break Waited::Dead;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // A pool that is stopped must not make every miss wait.
                inbox.dead = true;
                self.arrived.notify_all();
                break Waited::Dead;
            }
            if inbox.somebody_reads {
                let waited = self.arrived.wait_timeout(inbox, left);
                inbox = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(inbox, _)| inbox);
                continue;
            }
            inbox.somebody_reads = true;
            drop(inbox);
            let read = self.read(until);
            inbox = self.inbox();
            inbox.somebody_reads = false;
            match read {
                Ok(bytes) => inbox.take(&bytes),
                Err(Errno::INTR) if interruptible => {
                    self.arrived.notify_all();
                    break Waited::Interrupted;
                }
                Err(Errno::INTR) => {}
                Err(_) => inbox.dead = true,
            }
            self.arrived.notify_all();
        };
        inbox.awaited.remove(&number);
        ended
    }

    /// Some bytes; none when the time is over.
    fn read(&self, until: Instant) -> rustix::io::Result<Vec<u8>> {
        let socket = self.socket.checked().ok_or(Errno::BADF)?;
        if !wait(socket, PollFlags::IN, until)? {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; 4096];
        match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Errno::CONNRESET),
            Ok((received, _)) => {
                bytes.truncate(received);
                Ok(bytes)
            }
            Err(Errno::AGAIN) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }
}

impl Inbox {
    /// What answers nobody waits for say is known: those who did not wait to the end are noted.
    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while let Some(answer) = self.bytes.first_chunk::<ANSWER_BYTES>() {
            match Answer::decode(*answer) {
                Some((number, answer)) => {
                    if let Some(awaited) = self.awaited.get_mut(&number) {
                        *awaited = Some(answer);
                    }
                }
                None => self.dead = true,
            }
            self.bytes.drain(..ANSWER_BYTES);
        }
    }
}

/// Whether what is waited for came.
fn wait(socket: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> rustix::io::Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
    Ok(poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&left))? > 0)
}
