//! The handover: a Unix stream socket, JSON lines, the lane's descriptor beside the first line.

use crate::error::{Error, Result};
use crate::message::Greeting;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A longer line ends the conversation.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// About as much as the kernel takes in one piece.
const PIECE_BYTES: usize = 16 * 1024;

/// Descriptors that are received at a time; a shim sends one, the rest is closed.
const MAX_FDS: usize = 4;

/// Sends the first line with the lane beside it. Never waits.
///
/// # Errors
/// [`Error::LineTooLong`], or [`Error::Socket`] when the socket is gone or did not take the whole line at once;
/// the connection is of no use then.
pub fn send_greeting(socket: BorrowedFd<'_>, greeting: &Greeting, lane: BorrowedFd<'_>) -> Result<()> {
    send_with(socket, greeting, lane)
}

/// Sends a later line with a descriptor beside it. Never waits.
///
/// # Errors
/// As [`send_greeting`].
pub fn send_with(socket: BorrowedFd<'_>, message: &impl Serialize, fd: BorrowedFd<'_>) -> Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    send(socket, &line(message)?, &mut ancillary)
}

/// Sends a later line, usually a [`crate::Fact`]. Never waits.
///
/// # Errors
/// As [`send_greeting`].
pub fn send_line(socket: BorrowedFd<'_>, message: &impl Serialize) -> Result<()> {
    send(socket, &line(message)?, &mut SendAncillaryBuffer::default())
}

/// Sends several lines in as few pieces as possible: each piece takes memory of the socket beyond its bytes, and a
/// receiver that is busy must not make a long introduction fail. Never waits.
///
/// # Errors
/// As [`send_greeting`].
pub fn send_lines<T: Serialize>(socket: BorrowedFd<'_>, messages: &[T]) -> Result<()> {
    let mut piece = Vec::new();
    for message in messages {
        piece.extend(line(message)?);
        if piece.len() >= PIECE_BYTES {
            send(socket, &piece, &mut SendAncillaryBuffer::default())?;
            piece.clear();
        }
    }
    if piece.is_empty() { Ok(()) } else { send(socket, &piece, &mut SendAncillaryBuffer::default()) }
}

fn line(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > MAX_LINE_BYTES { Err(Error::LineTooLong) } else { Ok(line) }
}

fn send(socket: BorrowedFd<'_>, line: &[u8], ancillary: &mut SendAncillaryBuffer<'_, '_, '_>) -> Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(line)], ancillary, flags)
        .map_err(|errno| Error::Socket(errno.into()))?;
    if sent == line.len() { Ok(()) } else { Err(Error::Socket(io::ErrorKind::WriteZero.into())) }
}

/// What [`LineReader::receive`] found.
#[derive(Debug)]
pub enum Received {
    /// One line without its end, and the first descriptor that came up to and with it.
    Line(String, Option<OwnedFd>),
    /// Nothing whole yet: wait until the socket is readable.
    WouldBlock,
    /// The other side is gone; an unfinished line is dropped.
    Closed,
}

/// The receiving side of one connection. Works on any stream socket, blocking or not, and never waits.
#[derive(Debug, Default)]
pub struct LineReader {
    bytes: Vec<u8>,
    /// How much of `bytes` is known to hold no line end.
    searched: usize,
    fd: Option<OwnedFd>,
}

impl LineReader {
    /// Gives the next line, reading from `socket` as needed. Call it until it says `WouldBlock` or `Closed`.
    ///
    /// # Errors
    /// [`Error::LineTooLong`] beyond [`MAX_LINE_BYTES`], [`Error::Socket`] when receiving fails; close the
    /// connection then. Bytes that are no UTF-8 are replaced, so JSON refuses them later.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Received> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Received::Line(line, self.fd.take()));
            }
            if self.bytes.len() > MAX_LINE_BYTES {
                return Err(Error::LineTooLong);
            }
            match self.fill(socket) {
                Ok(0) => return Ok(Received::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::WouldBlock),
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(Error::Socket(errno.into())),
            }
        }
    }

    /// What has come of the next line.
    pub fn unfinished_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn take_line(&mut self) -> Option<String> {
        let Some(offset) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let rest = self.bytes.split_off(self.searched + offset + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        self.searched = 0;
        line.pop();
        Some(
            String::from_utf8(line)
                .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()),
        )
    }

    fn fill(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut chunk = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut chunk)], &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    self.fd.get_or_insert(fd);
                }
            }
        }
        self.bytes.extend_from_slice(&chunk[..received.bytes]);
        Ok(received.bytes)
    }
}
