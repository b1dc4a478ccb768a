//! What waits until a caller reads it.

use std::io::{ErrorKind, Write};

/// Memory that one with nothing in it may keep.
const KEPT_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Of these.
    sent: usize,
}

impl Outbox {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where more is put.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Sends as much as is taken. Whether there is still somebody to take more.
    pub(crate) fn flush(&mut self, mut to: impl Write) -> bool {
        let mut is_there = true;
        while !self.is_empty() && is_there {
            match to.write(&self.bytes[self.sent..]) {
                Ok(0) => is_there = false,
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => is_there = false,
            }
        }
        self.tidy();
        is_there
    }

    /// Each byte is moved once, however little is taken at a time, and what was taken gives its memory back.
    fn tidy(&mut self) {
        if self.sent * 2 < self.bytes.len() {
            return;
        }
        self.bytes.drain(..self.sent);
        self.sent = 0;
        if self.bytes.capacity() > KEPT_BYTES.max(4 * self.bytes.len()) {
            self.bytes.shrink_to(KEPT_BYTES.max(2 * self.bytes.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::io::{Error, Result};

    /// Takes so much at each flush.
    struct Slow<'a>(usize, &'a mut Vec<u8>);

    impl Write for Slow<'_> {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            let taken = bytes.len().min(std::mem::take(&mut self.0));
            if taken == 0 {
                return Err(Error::from(ErrorKind::WouldBlock));
            }
            self.1.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_come_in_their_order_and_give_their_memory_back() {
        let (mut outbox, mut read, mut put) = (Outbox::default(), Vec::new(), Vec::new());
        for round in 0..400_u32 {
            let more = round.to_ne_bytes().repeat(1000);
            outbox.end().extend_from_slice(&more);
            put.extend(more);
            assert!(outbox.flush(Slow(1500, &mut read)));
            assert_eq!(outbox.len(), put.len() - read.len());
        }
        assert!(outbox.bytes.capacity() > 1 << 20);
        assert!(outbox.flush(Slow(usize::MAX, &mut read)) && outbox.is_empty());
        assert!(outbox.bytes.capacity() <= KEPT_BYTES, "{}", outbox.bytes.capacity());
        assert!(read == put);
    }
}
