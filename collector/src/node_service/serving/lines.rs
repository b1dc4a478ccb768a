//! What a caller says, line by line.
//!
//! With its bytes a caller may pass descriptors along, which the kernel closes as they are read or the connection is closed. Before
//! Linux 6.16 nothing has it refuse them, and a close may last as long as its user likes: so each read is of its user's
//! share, and a close that waits is ended.

use super::Share;
use stallscope_wire::NODE_LINE_BYTES;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{Instant, timeout_at};

pub(super) struct Lines {
    read: OwnedReadHalf,
    payer: u32,
    share: Share,
    /// What was read beyond the last line.
    bytes: Vec<u8>,
}

impl Lines {
    pub(super) fn new(read: OwnedReadHalf, payer: u32, share: Share) -> Lines {
        Lines { read, payer, share, bytes: Vec::new() }
    }

    /// The next line; `None` where none comes within its limit. `within`: so long a caller that says nothing is waited for.
    pub(super) async fn next(&mut self, within: Option<Duration>) -> Option<Vec<u8>> {
        let until = within.map(|within| Instant::now() + within);
        loop {
            if let Some(end) = self.bytes.iter().take(NODE_LINE_BYTES).position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                return Some(std::mem::replace(&mut self.bytes, rest));
            }
            if self.bytes.len() >= NODE_LINE_BYTES {
                return None;
            }
            match until {
                Some(until) => timeout_at(until, self.read.readable()).await.ok()?.ok()?,
                None => self.read.readable().await.ok()?,
            }
            self.share.turn(self.payer).await;
            let mut piece = [0; 4096];
            match self.share.closing(self.payer, || self.read.try_read(&mut piece)) {
                Ok(0) => return None,
                Ok(read) => self.bytes.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }
}
