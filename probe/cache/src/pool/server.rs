//! The pool's process: one thread that waits for nobody in particular.

mod greet;

use super::claims::Answers;
use super::error::{Result, system};
use super::limits::Limits;
use super::message::{ANSWER_BYTES, Answer, Request};
use super::peer::{Goes, Peer, Stream};
use super::space::Space;
use super::start::Place;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Who connects says by then what it wants, and who is refused has read why.
const MANNERS_MS: u64 = 5000;

/// Who started the pool looks for it within a second or so.
const FIRST_MS: u64 = 5000;

const MOST_CLIENTS: u64 = 4096;

/// Connections that are accepted before clients have their turn.
const ARRIVALS: usize = 64;

/// Descriptors of a client, and those that are no client's.
const FDS_A_CLIENT: u64 = 2;
const OTHER_FDS: u64 = 64;
/// Of the latter, those that are refused at a time because the pool is full.
const MOST_REFUSED: u64 = 8;

#[derive(Debug)]
pub(crate) struct Server {
    place: Place,
    limits: Limits,
    linger: Duration,
    began: Instant,
    spaces: BTreeMap<u64, Space>,
    peers: BTreeMap<u64, Peer>,
    /// Since when a space has had no client.
    empty: BTreeMap<u64, u64>,
    empty_since_ms: u64,
    next: u64,
    buffer: Vec<u8>,
    most_clients: u64,
}

impl Server {
    pub(crate) fn new(place: Place, limits: Limits, linger: Duration) -> Server {
        Server {
            place,
            limits,
            linger,
            began: Instant::now(),
            spaces: BTreeMap::new(),
            peers: BTreeMap::new(),
            empty: BTreeMap::new(),
            empty_since_ms: 0,
            next: 1,
            buffer: vec![0; 1 << 16],
            most_clients: most_clients(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Serves until the last client has been gone for a while.
    pub(crate) fn run(&mut self) -> Result<()> {
        loop {
            let next_ms = self.expire();
            let now_ms = self.now_ms();
            let linger_ms = self.linger.as_millis() as u64;
            let mut until_ms = next_ms;
            if self.peers.is_empty() {
                let nobody_came = self.next == 1;
                let end_ms =
                    self.empty_since_ms + if nobody_came { linger_ms.max(FIRST_MS) } else { linger_ms };
                if end_ms <= now_ms {
                    self.spaces.values().for_each(Space::close);
                    return Ok(());
                }
                until_ms = Some(until_ms.map_or(end_ms, |until_ms| until_ms.min(end_ms)));
            }
            let wait = until_ms.map(|until_ms| Duration::from_millis(until_ms.saturating_sub(now_ms)));
            self.turn(wait)?;
        }
    }

    /// Waits until something happens, and does what it asks for.
    fn turn(&mut self, wait: Option<Duration>) -> Result<()> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.place.listener.as_fd(), PollFlags::IN)];
        let mut whose = Vec::new();
        for peer in self.peers.values() {
            let flags = if peer.has_output() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::from_borrowed_fd(peer.socket.as_fd(), flags));
            whose.push((peer.number, false));
            if let Some(process) = &peer.process {
                fds.push(PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN));
                whose.push((peer.number, true));
            }
        }
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(system("poll")(errno)),
        }
        let knocks = !fds[0].revents().is_empty();
        let ready: Vec<(u64, bool)> = fds[1..]
            .iter()
            .zip(whose)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, whose)| whose)
            .collect();
        drop(fds);
        let mut answers = Vec::new();
        for (number, process_ended) in ready {
            // What a process sent before its end is read first: it comes earlier in `ready`.
            if process_ended || self.serve(number, &mut answers) == Goes::Closed {
                self.close(number, &mut answers);
            }
        }
        if knocks {
            self.accept();
        }
        self.deliver(answers);
        Ok(())
    }

    fn accept(&mut self) {
        for _ in 0..ARRIVALS {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let Ok(socket) = rustix::net::accept_with(&self.place.listener, flags) else { return };
            let Ok(credentials) = getsockopt(&socket, PeerCredentials) else { continue };
            // Without a place to wait in: it sees the end, and does without. Where others may enter the folder, their
            // connections would take the places of this user's.
            let is_own = credentials.uid() == rustix::process::geteuid().as_raw();
            let peers = self.peers.len() as u64;
            if !is_own || peers >= self.most_clients + MOST_REFUSED {
                continue;
            }
            // Without a number here, of an outer pid namespace, it is 0, which `rustix` has no value for.
            let process =
                Pid::from_raw(credentials.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let number = self.next;
            self.next += 1;
            let until_ms = self.now_ms() + MANNERS_MS;
            let mut peer = Peer::new(number, socket, process, until_ms);
            if peers >= self.most_clients {
                // Who only sees the end takes the pool for absent and starts another one, again and again.
                let why = format!("it has descriptors for {} clients only (ulimit -n)", self.most_clients);
                greet::refuse(&mut peer, why, until_ms);
            }
            self.peers.insert(number, peer);
        }
    }

    fn serve(&mut self, number: u64, answers: &mut Answers) -> Goes {
        let Some(mut peer) = self.peers.remove(&number) else { return Goes::On };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut goes = peer.receive(&mut buffer, |peer| self.handle(peer, answers));
        self.buffer = buffer;
        if goes == Goes::On && peer.has_output() {
            goes = peer.send();
        }
        self.peers.insert(number, peer);
        goes
    }

    /// Takes from what came all that is whole.
    fn handle(&mut self, peer: &mut Peer, answers: &mut Answers) -> Goes {
        loop {
            if peer.leaving {
                peer.input.clear();
                return Goes::On;
            }
            let Some(space) = peer.space else {
                match self.greet(peer) {
                    Some(goes) => return goes,
                    None => continue,
                }
            };
            let now_ms = self.now_ms();
            let Some(space) = self.spaces.get_mut(&space) else { return Goes::Closed };
            if let Some(stream) = peer.stream {
                if !pour(peer, stream, space, now_ms, answers) {
                    return Goes::On;
                }
                continue;
            }
            match peer.request() {
                Ok(Some(Request::Resize { request, capacity_bytes })) => {
                    let fits = self.resize(peer, capacity_bytes);
                    let answer = if fits { Answer::Yes } else { Answer::No };
                    answers.push(((peer.number, request), answer));
                }
                Ok(Some(request)) => {
                    if act(peer, request, space, now_ms, answers) == Goes::Closed {
                        return Goes::Closed;
                    }
                }
                Ok(None) => return Goes::On,
                Err(()) => return Goes::Closed,
            }
        }
    }

    fn close(&mut self, number: u64, answers: &mut Answers) {
        let now_ms = self.now_ms();
        let Some(peer) = self.peers.remove(&number) else { return };
        if let Some(number) = peer.space
            && let Some(space) = self.spaces.get_mut(&number)
        {
            space.left(peer.number, now_ms, answers);
            if space.clients() == 0 {
                self.empty.insert(number, now_ms);
            }
        }
        if self.peers.is_empty() {
            self.empty_since_ms = now_ms;
        }
    }

    /// Sends answers; a client that takes none is closed, which may lead to more of them.
    fn deliver(&mut self, mut answers: Answers) {
        while !answers.is_empty() {
            let mut closed = Vec::new();
            for ((number, request), answer) in answers.drain(..) {
                if let Some(peer) = self.peers.get_mut(&number) {
                    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
                    answer.encode(request, &mut bytes);
                    peer.say(&bytes);
                    if peer.send() == Goes::Closed {
                        closed.push(number);
                    }
                }
            }
            for number in closed {
                self.close(number, &mut answers);
            }
        }
    }

    /// Ends what took too long; when to look again.
    fn expire(&mut self) -> Option<u64> {
        let now_ms = self.now_ms();
        let mut answers = Vec::new();
        let late = |peer: &Peer| peer.until_ms.is_some_and(|until_ms| until_ms <= now_ms);
        let late: Vec<u64> = self.peers.values().filter(|peer| late(peer)).map(|peer| peer.number).collect();
        for number in late {
            self.close(number, &mut answers);
        }
        let linger_ms = self.linger.as_millis() as u64;
        let over: Vec<u64> = self
            .empty
            .iter()
            .filter(|(_, since_ms)| **since_ms + linger_ms <= now_ms)
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.empty.remove(&number);
            if let Some(space) = self.spaces.remove(&number) {
                space.close();
            }
        }
        let next_space =
            self.spaces.values_mut().filter_map(|space| space.expire(now_ms, &mut answers)).min();
        self.deliver(answers);
        let next_peer = self.peers.values().filter_map(|peer| peer.until_ms).min();
        let next_empty = self.empty.values().map(|since_ms| since_ms + linger_ms).min();
        [next_space, next_peer, next_empty].into_iter().flatten().min()
    }
}

/// As many as there are descriptors for.
fn most_clients() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let fds = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    MOST_CLIENTS.min(fds.saturating_sub(OTHER_FDS) / FDS_A_CLIENT)
}

/// Hands bytes of a fill on; false: all that came is used up.
fn pour(peer: &mut Peer, stream: Stream, space: &mut Space, now_ms: u64, answers: &mut Answers) -> bool {
    let here = (peer.input.len() as u64).min(stream.left) as usize;
    // Whole words, up to the last piece.
    let here = if here as u64 == stream.left { here } else { here / 8 * 8 };
    if here == 0 {
        return false;
    }
    let left = stream.left - here as u64;
    let piece = &peer.input.make_contiguous()[..here];
    let goes_on = space.receive(stream.id, stream.who, piece, now_ms, answers);
    if !goes_on && left == 0 {
        space.in_vain(stream.id, stream.who, answers);
    }
    peer.input.drain(..here);
    peer.stream = (left > 0).then_some(Stream { left, ..stream });
    true
}

fn act(peer: &mut Peer, request: Request, space: &mut Space, now_ms: u64, answers: &mut Answers) -> Goes {
    let who = |request| (peer.number, request);
    match request {
        Request::Claim { request, id, limit_ms, tag } => {
            space.claim((id, tag), who(request), now_ms, limit_ms, answers);
        }
        Request::Fill { request, id, tag, bytes, at, next_at } => {
            space.fill((id, at, next_at), (tag, bytes), who(request), now_ms, answers);
        }
        Request::Bytes { request, id, bytes } => {
            if bytes == 0 || space.missing(id, who(request)).is_some_and(|missing| missing != bytes) {
                return Goes::Closed;
            }
            peer.stream = Some(Stream { id, who: who(request), left: bytes });
        }
        Request::GiveUp { request, id } => space.give_up(id, who(request), now_ms, answers),
        Request::Used(uses) => space.used(&uses),
        Request::Planned(planned) => space.planned(&planned),
        Request::Scored(scored) => space.scored(&scored),
        Request::Epoch => space.epoch(),
        Request::Joint(joint) => space.joint(peer.number, joint),
        // Needs the other spaces, too.
        Request::Resize { .. } => {}
    }
    Goes::On
}

#[cfg(test)]
mod tests;
