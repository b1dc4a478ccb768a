//! One client's connection: what came and what is to go, neither of which can grow without end.

use super::claims::Who;
use super::message::{HEADER_BYTES, MOST_BYTES, Request};
use super::space::Space;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Answers of 8 bytes to somebody who does not read them.
const MOST_UNSENT_BYTES: usize = 64 * 1024;

/// What is read from one client before the others have their turn.
const TURN_BYTES: usize = 1 << 20;

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goes {
    On,
    Closed,
}

/// Bytes of a fill that are still to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) id: u32,
    pub(crate) who: Who,
    pub(crate) left: u64,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: u64,
    pub(crate) socket: OwnedFd,
    /// Readable once the process has ended, also where another process holds the socket.
    pub(crate) process: Option<OwnedFd>,
    /// Which space it uses; none before it has greeted.
    pub(crate) space: Option<u64>,
    /// To have greeted, or to have read what is to go.
    pub(crate) until_ms: Option<u64>,
    pub(crate) stream: Option<Stream>,
    /// It was refused: once it has the reason, it goes.
    pub(crate) leaving: bool,
    pub(crate) input: VecDeque<u8>,
    output: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(number: u64, socket: OwnedFd, process: Option<OwnedFd>, until_ms: u64) -> Peer {
        Peer {
            number,
            socket,
            process,
            space: None,
            until_ms: Some(until_ms),
            stream: None,
            leaving: false,
            input: VecDeque::new(),
            output: Vec::new(),
        }
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Puts bytes in line for sending.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Sends what is in line as far as the socket takes it.
    pub(crate) fn send(&mut self) -> Goes {
        while !self.output.is_empty() {
            match rustix::net::send(&self.socket, &self.output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let fits = self.output.len() <= MOST_UNSENT_BYTES;
                    return if fits { Goes::On } else { Goes::Closed };
                }
                Err(_) => return Goes::Closed,
            }
        }
        if self.leaving { Goes::Closed } else { Goes::On }
    }

    /// The first message, with the space's descriptors. A socket that has not been written to takes it whole.
    pub(crate) fn welcome(&mut self, message: &[u8], space: &Space) -> Goes {
        let fds: [BorrowedFd<'_>; 2] = [space.index().for_clients(), space.data().for_clients()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(self.socket.as_fd(), &[IoSlice::new(message)], &mut ancillary, flags) {
            Ok(sent) if sent == message.len() => Goes::On,
            _ => Goes::Closed,
        }
    }

    /// Reads what is there, up to a client's share of a turn; `handle` takes from `input` what it can use.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], mut handle: impl FnMut(&mut Peer) -> Goes) -> Goes {
        let mut read = 0;
        while read < TURN_BYTES {
            let most = buffer.len().min(MOST_BYTES + HEADER_BYTES - self.input.len().min(MOST_BYTES));
            match rustix::net::recv(&self.socket, &mut buffer[..most], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Goes::Closed,
                Ok((received, _)) => {
                    self.input.extend(&buffer[..received]);
                    read += received;
                    if handle(self) == Goes::Closed {
                        return Goes::Closed;
                    }
                    if received < most {
                        return Goes::On;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Goes::On,
                Err(_) => return Goes::Closed,
            }
        }
        Goes::On
    }

    /// The next whole request that has come; an error where what came is none.
    pub(crate) fn request(&mut self) -> Result<Option<Request>, ()> {
        if self.input.len() < HEADER_BYTES {
            return Ok(None);
        }
        let mut header = [0; HEADER_BYTES];
        header.iter_mut().zip(&self.input).for_each(|(to, from)| *to = *from);
        let length = Request::length(header).ok_or(())?;
        if self.input.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.input.drain(..HEADER_BYTES);
        let rest: Vec<u8> = self.input.drain(..length).collect();
        Request::decode(header, &rest).ok_or(()).map(Some)
    }
}
