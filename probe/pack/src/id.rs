//! What chunks and packs are called.

use crate::fields::bytes_at;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The end of a chunk's file name; before it stands its id.
pub(crate) const CHUNK_SUFFIX: &str = ".chunk";

/// Of a chunk: nanoseconds since 1970, big-endian, so that ids sort by write time as bytes and as text; then random bytes.
/// Of a pack: random bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// A chunk's, written at this time.
    pub fn written(ns: u64, random: [u8; 8]) -> Id {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&ns.to_be_bytes());
        id[8..].copy_from_slice(&random);
        Id(id)
    }

    /// Random bytes.
    pub fn random() -> Id {
        Id(random())
    }

    /// When a chunk of this id was written, nanoseconds since 1970.
    pub fn written_ns(self) -> u64 {
        u64::from_be_bytes(bytes_at(&self.0, 0).unwrap_or_default())
    }

    /// The name of its file in a pack.
    pub fn file_name(self) -> String {
        format!("{self}{CHUNK_SUFFIX}")
    }

    /// Of a chunk's file name; none of any other.
    pub fn of_file_name(name: &[u8]) -> Option<Id> {
        let hex: &[u8; 32] = name.strip_suffix(CHUNK_SUFFIX.as_bytes())?.try_into().ok()?;
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Id(id))
    }
}

fn digit(hex: u8) -> Option<u8> {
    match hex {
        b'0'..=b'9' => Some(hex - b'0'),
        b'a'..=b'f' => Some(hex - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Gives out ids of chunks, each later than all before, whatever the clock does.
#[derive(Debug)]
pub(crate) struct Ids {
    last_ns: u64,
    random: [u8; 8],
}

impl Ids {
    /// All later than `last`.
    pub(crate) fn after(last: Option<Id>) -> Ids {
        Ids { last_ns: last.map_or(0, Id::written_ns), random: random() }
    }

    pub(crate) fn next(&mut self) -> Id {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_ns = (now.as_nanos() as u64).max(self.last_ns.saturating_add(1));
        Id::written(self.last_ns, self.random)
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            // So few bytes fail only where a filter of system calls forbids the call. The addresses and the clock are
            // still no other process's.
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
                let seed = format!("{now} {} {:p}", std::process::id(), &bytes);
                let hash = blake3::hash(seed.as_bytes());
                bytes.copy_from_slice(&hash.as_bytes()[..N]);
                break;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_write_time_whatever_the_clock_does() {
        let future = Id::written(u64::MAX / 2, [0xff; 8]);
        let mut ids = Ids::after(Some(future));
        let (first, second) = (ids.next(), ids.next());
        assert!(future < first && first < second);
        assert!(first.to_string() < second.to_string());
    }

    #[test]
    fn only_a_whole_id_names_a_chunk() {
        let id = Id::random();
        assert_eq!(Id::of_file_name(id.file_name().as_bytes()), Some(id));
        for other in ["", ".chunk", "snapshot", "0g000000000000000000000000000000.chunk", "00.chunk"] {
            assert_eq!(Id::of_file_name(other.as_bytes()), None, "{other}");
        }
    }
}
