//! A job that nobody launched with `run` introduces itself to the node's service, which then has a collector started for it.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// As long as there is no collector, it is asked for again after so long.
const AGAIN_NS: u64 = 2_000_000_000;
/// One that was asked for is looked for so often, for a while.
const SOON_NS: u64 = 100_000_000;
const SOON_FOR_NS: u64 = 1_000_000_000;

pub(crate) struct Introduction {
    /// Of the service's socket.
    path: String,
    /// What is sent there.
    line: Vec<u8>,
    asked_ns: Option<u64>,
}

impl Introduction {
    pub(crate) fn new(path: String, line: &str) -> Introduction {
        Introduction { path, line: format!("{line}\n").into_bytes(), asked_ns: None }
    }

    /// There is no collector: asks for one, unless that was done a moment ago. Never waits, and takes no answer: a collector is
    /// one. Returns in how many ns one may be looked for, if that is sooner than usual.
    pub(crate) fn ask(&mut self, now_ns: u64) -> Option<u64> {
        if self.asked_ns.is_none_or(|asked| now_ns.saturating_sub(asked) >= AGAIN_NS) {
            match self.send() {
                // Others call without end, and there is a place for a moment now and then.
                Err(rustix::io::Errno::AGAIN) => return Some(SOON_NS),
                // Where no service is, it is asked again.
                _ => self.asked_ns = Some(now_ns),
            }
        }
        self.asked_ns.filter(|asked| now_ns.saturating_sub(*asked) < SOON_FOR_NS).map(|_| SOON_NS)
    }

    fn send(&self) -> rustix::io::Result<()> {
        let address = SocketAddrUnix::new(&self.path)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        rustix::net::send(&socket, &self.line, SendFlags::NOSIGNAL).map(drop)
    }
}
