//! Telling a pool something that it may do without.

use super::Connection;
use rustix::io::Errno;
use rustix::net::SendFlags;

impl Connection {
    /// Sends what the socket takes at once, and the rest with what comes next; false: nothing of it was sent. Waits for
    /// nobody.
    pub(crate) fn offer(&self, message: &[u8]) -> bool {
        let Ok(mut left) = self.sending.try_lock() else { return false };
        if self.is_dead() {
            return false;
        }
        while !left.is_empty() {
            match self.send_some(&left) {
                0 => return false,
                sent => drop(left.drain(..sent)),
            }
        }
        match self.send_some(message) {
            0 => false,
            sent => {
                left.extend_from_slice(&message[sent..]);
                true
            }
        }
    }

    /// How many bytes the socket takes at once.
    fn send_some(&self, bytes: &[u8]) -> usize {
        let Some(socket) = self.socket.checked() else { return 0 };
        match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Err(_) => {
                self.die();
                0
            }
        }
    }
}
