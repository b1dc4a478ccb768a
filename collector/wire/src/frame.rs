//! Binary frames from the kernel service: `u32` length of what follows, `u8` [`Tag`], payload, all in native
//! byte order (both ends are on one machine).

use crate::Error;

/// No frame is longer; the largest payload is a task slot.
pub const LIMIT_BYTES: usize = 64 << 10;

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// One record of the ring buffer.
    Record = 1,
    /// One task slot whose present state is still going on.
    Slot = 2,
    /// [`Tick`]: everything up to its time has been sent.
    Tick = 3,
    /// tids, `u32` each, of tasks that have been blocked ever since their last [`Tag::Slot`]: most of a job's
    /// are at most moments, and what a slot tells of them is long.
    Still = 4,
    /// One file that tasks were blocked in, with sums so far: key and wait of `stallscope-abi`'s module `files`.
    /// Sent about once a second, those with the longest waits alone.
    FileWait = 5,
    /// The same of a mount; all of them.
    MountWait = 6,
}

/// Ends each round of frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tick {
    pub now_ns: u64,
    /// Losses so far, by reason.
    pub lost: Vec<(String, u64)>,
    /// CPU time of the kernel programs so far, where the kernel counts it.
    pub run_time_ns: Option<u64>,
}

/// Appends one frame to `out`.
pub fn push(out: &mut Vec<u8>, tag: Tag, payload: &[u8]) {
    debug_assert!(payload.len() < LIMIT_BYTES);
    out.extend_from_slice(&(payload.len() as u32 + 1).to_ne_bytes());
    out.push(tag as u8);
    out.extend_from_slice(payload);
}

/// Takes whole frames off the front of a growing buffer.
#[derive(Debug, Default)]
pub struct Splitter {
    buffer: Vec<u8>,
}

impl Splitter {
    /// Adds bytes as they arrived and hands every whole frame to `each`. Unknown tags are skipped: a newer
    /// service may send them.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Tag, &[u8])) -> Result<(), Error> {
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(head) = self.buffer.get(at..at + 4) {
            let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length == 0 || length > LIMIT_BYTES {
                // The start of the next frame is not known any more.
                self.buffer.clear();
                return Err(Error::Malformed(format!("a frame of {length} bytes")));
            }
            let Some(body) = self.buffer.get(at + 4..at + 4 + length) else { break };
            match body[0] {
                1 => each(Tag::Record, &body[1..]),
                2 => each(Tag::Slot, &body[1..]),
                3 => each(Tag::Tick, &body[1..]),
                4 => each(Tag::Still, &body[1..]),
                5 => each(Tag::FileWait, &body[1..]),
                6 => each(Tag::MountWait, &body[1..]),
                _ => {}
            }
            at += 4 + length;
        }
        self.buffer.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_cut(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20), cut in 1usize..64) {
            let mut bytes = Vec::new();
            for payload in &payloads {
                push(&mut bytes, Tag::Record, payload);
            }
            let mut seen = Vec::new();
            let mut splitter = Splitter::default();
            for chunk in bytes.chunks(cut) {
                splitter.feed(chunk, |_, payload| seen.push(payload.to_vec())).unwrap();
            }
            prop_assert_eq!(seen, payloads);
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = Splitter::default().feed(&bytes, |_, _| {});
        }
    }
}
