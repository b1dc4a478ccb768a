//! A process apart that has the kernel drop a file's pages. To do so it begins to write those that are dirty, for which it waits for a
//! page's lock: another's read of a part of that page has it, for as long as the storage or a limit of its control group lets that read last.

use crate::apart;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

/// What takes longer may take for ever.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

#[derive(Debug)]
pub(crate) struct Dropper {
    dropper: OwnedFd,
    /// The last is not known to be done.
    is_busy: bool,
}

impl Dropper {
    /// To be called while this process has one thread.
    pub(crate) fn start() -> Result<Dropper, Errno> {
        apart::start(drop_all).map(|dropper| Dropper { dropper, is_busy: false })
    }

    /// Has the first `bytes` of the file dropped, as far as nobody uses them. `false`: not now, or it may wait for ever.
    pub(crate) fn drops(&mut self, file: &OwnedFd, bytes: u64) -> bool {
        if self.is_busy && !self.is_done(Timespec::default()) {
            return false;
        }
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let bytes = bytes.to_ne_bytes();
        self.is_busy = sendmsg(&self.dropper, &[IoSlice::new(&bytes)], &mut beside, flags).is_ok();
        self.is_busy && self.is_done(PATIENCE)
    }

    fn is_done(&mut self, patience: Timespec) -> bool {
        let _ = poll(&mut [PollFd::new(&self.dropper, PollFlags::IN)], Some(&patience));
        let answer = recv(&self.dropper, &mut [0][..], RecvFlags::DONTWAIT);
        let is_done = answer.is_ok_and(|(length, _)| length > 0);
        self.is_busy = !is_done;
        is_done
    }
}

fn drop_all(holder: &OwnedFd) {
    let mut bytes = [0; size_of::<u64>()];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(holder, into, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(heard) if heard.bytes > 0 => {}
            _ => return,
        }
        let bytes = NonZeroU64::new(u64::from_ne_bytes(bytes));
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                for file in files {
                    let _ = fadvise(&file, 0, bytes, Advice::DontNeed);
                }
            }
        }
        if send(holder, &[1], SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, write};

    #[test]
    fn pages_are_dropped_and_one_who_waits_is_not_waited_for() {
        let Some(folder) = folder() else { return };
        let path = folder.path().join("a");
        write(&path, 1 << 20);
        let file = OwnedFd::from(std::fs::File::open(&path).unwrap());
        let mut dropper = Dropper::start().unwrap();
        assert!(dropper.drops(&file, 1 << 20));
        assert!(dropper.drops(&file, 1 << 20));
        // What it does not answer in time it has not done.
        let (silent, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut dropper = Dropper { dropper: silent.into(), is_busy: false };
        assert!(!dropper.drops(&file, 1 << 20));
        assert!(dropper.is_busy && !dropper.drops(&file, 1 << 20));
    }
}
