//! Who connects to a job's collector: its processes with the shim, further tasks of the job, and viewers.

use crate::control::{Control, Peer};
use crate::engine::Engine;
use crate::procfs;
use anyhow::{Context, Result};
use stallscope_ring::{Fact, Greeting, LineReader, Reader, Received};
use stallscope_wire::{Client, Hello, Reply, Request};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Events that wait for the session; more than it can take make the connections wait, never the job.
const EVENTS: usize = 256;

/// Connections at a time; more than a job has processes that are measured, and viewers. Later ones wait.
const CONNECTIONS: usize = 8192;

/// Of lines that have not ended, or wait for the session, of all connections together. Where the node's policy started the
/// collector, this memory is charged to the service, which all users share.
const HELD_BYTES: usize = 16 << 20;

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens at a job's socket.
#[derive(Debug)]
pub(crate) struct Server {
    listener: UnixListener,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    connections: u64,
    joined: usize,
    free: Arc<Semaphore>,
    held: Arc<AtomicUsize>,
}

pub(crate) enum Event {
    ShimArrived {
        connection: u64,
        pid: u32,
        greeting: Box<Greeting>,
        lane: OwnedFd,
    },
    ShimReported {
        connection: u64,
        fact: Fact,
    },
    /// The page of a process's knobs.
    PageArrived {
        connection: u64,
        page: OwnedFd,
    },
    ShimGone {
        connection: u64,
    },
    /// Another task of the job, by the pid of its root, where it is one of theirs who say so.
    Joined {
        pid: Option<u32>,
        recording: oneshot::Sender<Reply>,
    },
    Left,
    Asked {
        request: Request,
        peer: Peer,
        reply: oneshot::Sender<Reply>,
    },
    /// A viewer is gone or hung up.
    ViewerGone {
        connection: u64,
    },
    /// Somebody sent what is no message of ours; `reason` when it was a shim.
    Refused {
        pid: u32,
        reason: Option<String>,
    },
}

impl Server {
    /// # Errors
    /// The socket can't be bound.
    pub(crate) fn bind(socket: &Path) -> Result<Server> {
        let listener =
            UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let (sender, events) = mpsc::channel(EVENTS);
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        Ok(Server { listener, events, sender, connections: 0, joined: 0, free, held: Arc::default() })
    }

    /// Further tasks of the job that are still running.
    pub(crate) fn joined(&self) -> usize {
        self.joined
    }

    async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                Some(event) = self.events.recv() => {
                    match event {
                        Event::Joined { .. } => self.joined += 1,
                        Event::Left => self.joined -= 1,
                        _ => {}
                    }
                    return event;
                }
                (stream, place) = patiently(async || {
                    let place = self.free.clone().acquire_owned().await.map_err(io::Error::other)?;
                    Ok((self.listener.accept().await?.0, place))
                }) => {
                    self.connections += 1;
                    let lines = Lines::new(stream, place, self.held.clone());
                    tokio::spawn(serve(lines, self.connections, self.sender.clone()));
                },
            }
        }
    }
}

/// What `accept` gives in the end. Without a descriptor to spare a connection stays in the queue, and the pause keeps us from
/// spinning.
async fn patiently<T>(accept: impl AsyncFn() -> io::Result<T>) -> T {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// The next event; never returns where nobody listens.
pub(crate) async fn next(server: &mut Option<Server>) -> Event {
    match server {
        Some(server) => server.next().await,
        None => std::future::pending().await,
    }
}

pub(crate) fn handle(engine: &mut Engine, control: &mut Control, event: Event) {
    match event {
        Event::ShimArrived { connection, pid, greeting, lane } => match Reader::open(lane) {
            Ok(reader) => engine.shim_arrived(connection, pid, *greeting, reader),
            Err(error) => engine.shim_refused(pid, &error.to_string()),
        },
        Event::ShimReported { connection, fact } => engine.shim_reported(connection, fact),
        Event::PageArrived { connection, page } => engine.page_arrived(connection, &page),
        Event::ShimGone { connection } => engine.shim_gone(connection),
        Event::Joined { recording, .. } => {
            let path =
                engine.recording().map_or_else(|| "no recording".into(), |path| path.display().to_string());
            // A caller that hung up meanwhile needs no answer.
            let _ = recording.send(Reply::Joined { recording: path });
        }
        Event::Left => {}
        Event::Asked { request, peer, reply } => control.asked(engine, request, peer, reply),
        Event::ViewerGone { connection } => control.viewer_gone(engine, connection),
        Event::Refused { pid, reason: Some(reason) } => engine.shim_refused(pid, &reason),
        Event::Refused { reason: None, .. } => engine.stranger_refused(),
    }
}

/// One connection from its greeting to its end.
async fn serve(mut lines: Lines, connection: u64, events: mpsc::Sender<Event>) {
    let Some((first, lane)) = lines.next().await else { return };
    let hello = stallscope_wire::decode::<Hello>(first.as_bytes()).and_then(Hello::accept);
    // A send fails only when the session is over; then there is nobody to tell.
    let _ = match (hello, lane) {
        (Ok(Client::Shim), Some(lane)) => shim(&mut lines, connection, &first, lane, &events).await,
        (Ok(Client::Viewer), _) => viewer(&mut lines, connection, &events).await,
        (Ok(Client::Run { pid }), _) => task(&mut lines, pid, &events).await,
        (Ok(_), _) => {
            lines
                .answer(&Reply::Error(
                    "a job's collector has no kernel evidence to give; ask `stallscope collect`".into(),
                ))
                .await;
            Ok(())
        }
        (Err(error), lane) => {
            lines.answer(&Reply::Error(error.to_string())).await;
            let reason = lane.is_some().then(|| error.to_string());
            events.send(Event::Refused { pid: lines.peer(), reason }).await
        }
    };
}

type Sent = Result<(), mpsc::error::SendError<Event>>;

async fn shim(
    lines: &mut Lines,
    connection: u64,
    first: &str,
    lane: OwnedFd,
    events: &mpsc::Sender<Event>,
) -> Sent {
    let greeting: Greeting = match serde_json::from_str(first) {
        Ok(greeting) => greeting,
        Err(error) => {
            return events.send(Event::Refused { pid: lines.peer(), reason: Some(error.to_string()) }).await;
        }
    };
    let pid = lines.peer();
    events.send(Event::ShimArrived { connection, pid, greeting: Box::new(greeting), lane }).await?;
    let mut page = None;
    while let Some((line, fd)) = lines.next().await {
        // It may have come with a line before its own.
        page = fd.or(page);
        match (serde_json::from_str::<Fact>(&line), page.take()) {
            (Ok(Fact::Page { .. }), Some(page)) => {
                events.send(Event::PageArrived { connection, page }).await?;
            }
            (Ok(fact), early) => {
                page = early;
                events.send(Event::ShimReported { connection, fact }).await?;
            }
            (Err(_), early) => page = early,
        }
    }
    events.send(Event::ShimGone { connection }).await
}

async fn viewer(lines: &mut Lines, connection: u64, events: &mpsc::Sender<Event>) -> Sent {
    // A peer whose user the kernel does not name has the rights of nobody.
    let uid = lines.stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
    let peer = Peer { connection, uid };
    while let Some((line, _)) = lines.next().await {
        match stallscope_wire::decode::<Request>(line.as_bytes()) {
            Ok(request) => {
                let (reply, answer) = oneshot::channel();
                events.send(Event::Asked { request, peer, reply }).await?;
                let Ok(answer) = answer.await else { break };
                lines.answer(&answer).await;
            }
            Err(error) => lines.answer(&Reply::Error(error.to_string())).await,
        }
    }
    events.send(Event::ViewerGone { connection }).await
}

async fn task(lines: &mut Lines, pid: u32, events: &mpsc::Sender<Event>) -> Sent {
    let (recording, answer) = oneshot::channel();
    let theirs = lines.stream.peer_cred().is_ok_and(|peer| is_theirs(pid, &peer));
    events.send(Event::Joined { pid: theirs.then_some(pid), recording }).await?;
    if let Ok(answer) = answer.await {
        lines.answer(&answer).await;
    }
    while lines.next().await.is_some() {}
    events.send(Event::Left).await
}

/// Whether `peer` may have process `pid` measured: its own child, or itself. Beside root's session, as with sudo, the
/// kernel would be asked as root, which may know of all.
fn is_theirs(pid: u32, peer: &UCred) -> bool {
    let is_peer = |pid: u32| peer.pid().is_some_and(|peer| peer as u32 == pid);
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    let is_near = is_peer(pid) || procfs::parent(pid).is_some_and(is_peer);
    peer.uid() == 0 || is_near && owner.is_ok_and(|owner| owner == peer.uid())
}

/// A connection as lines.
struct Lines {
    stream: UnixStream,
    reader: LineReader,
    held: Held,
    _place: OwnedSemaphorePermit,
}

/// What one connection has of the bytes that all of them hold.
struct Held {
    own: usize,
    all: Arc<AtomicUsize>,
}

impl Held {
    /// Whether all of them together may hold so much.
    fn is(&mut self, bytes: usize) -> bool {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
        self.own = bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= HELD_BYTES
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

impl Lines {
    fn new(stream: UnixStream, place: OwnedSemaphorePermit, all: Arc<AtomicUsize>) -> Lines {
        Lines { stream, reader: LineReader::default(), held: Held { own: 0, all }, _place: place }
    }

    /// The next line; `None` when the other side is gone or sends none within the limits.
    async fn next(&mut self) -> Option<(String, Option<OwnedFd>)> {
        loop {
            match self.reader.receive(self.stream.as_fd()) {
                // Held until the next is asked for: by then the session has taken it.
                Ok(Received::Line(line, fd)) => return self.held.is(line.len()).then_some((line, fd)),
                Ok(Received::WouldBlock) => {
                    if !self.held.is(self.reader.unfinished_bytes()) {
                        return None;
                    }
                    self.stream.readable().await.ok()?;
                    // `receive` reads past tokio, which learns only from a read of its own that the socket is
                    // empty again.
                    let _ = self.stream.try_io(tokio::io::Interest::READABLE, || {
                        match rustix::net::recv(
                            &self.stream,
                            &mut [0u8; 1][..],
                            rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT,
                        ) {
                            Err(rustix::io::Errno::AGAIN) => Err(std::io::ErrorKind::WouldBlock.into()),
                            _ => Ok(()),
                        }
                    });
                }
                Ok(Received::Closed) | Err(_) => return None,
            }
        }
    }

    /// pid of the other side, by the kernel's word and in our own pid namespace, whatever a greeting says.
    fn peer(&self) -> u32 {
        self.stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or(0) as u32
    }

    async fn answer(&mut self, reply: &Reply) {
        // The client may be gone; the next read shows it.
        let _ = self.stream.write_all(&stallscope_wire::encode(reply)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::cell::Cell;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream as Blocking;

    #[test]
    fn lines_that_never_end_take_a_bounded_memory() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut server = Server::bind(&socket).unwrap();
            let calls = tokio::task::spawn_blocking(move || {
                let mut open: Vec<Blocking> = Vec::new();
                for _ in 0..400 {
                    let mut call = Blocking::connect(&socket).unwrap();
                    // Of one that is ended meanwhile there is an error.
                    let _ = call.write_all(&[b'x'; 60_000]);
                    open.push(call);
                }
                open.iter_mut().for_each(|call| call.set_nonblocking(true).unwrap());
                let waits = |call: &mut Blocking| {
                    call.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
                };
                for _ in 0..500 {
                    open.retain_mut(waits);
                    if open.len() * 60_000 <= HELD_BYTES {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                let waiting = open.len();
                drop(open);
                let mut answer = String::new();
                while !answer.contains("error") {
                    let mut call = Blocking::connect(&socket).unwrap();
                    call.write_all(b"no greeting\n").unwrap();
                    // Those before may not have been noticed to be gone.
                    let _ = call.read_to_string(&mut answer);
                }
                waiting
            });
            let waiting = tokio::select! {
                calls = calls => calls.unwrap(),
                () = async { loop { server.next().await; } } => unreachable!(),
            };
            assert!(waiting * 60_000 <= HELD_BYTES && waiting > 200, "{waiting} wait");
        });
    }

    #[test]
    fn a_connection_that_cannot_be_accepted_waits_for_a_descriptor() {
        let tried = Cell::new(0);
        let accept = async || {
            tried.set(tried.get() + 1);
            if tried.get() < 3 { Err(io::Error::from_raw_os_error(libc::EMFILE)) } else { Ok(tried.get()) }
        };
        let begun = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(patiently(accept)), 3);
        assert!(begun.elapsed() >= 2 * PAUSE, "it pauses after each");
    }
}
