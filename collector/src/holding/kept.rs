//! Files that a job keeps open (as h5py does), of which the kernel tells no reads. That they are read again and again shows in what the
//! job reads from storage in all.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;

/// Open by the same descriptor for so many looks (four a second until the holder knows of files, then one), a file is kept open.
const KEPT_LOOKS: u32 = 20;
/// Of all such files the job has to have read so many times their size since: more than their first pass and what else it reads.
const TIMES: u64 = 2;
/// A descriptor that was not looked at for so long is closed.
const FORGOTTEN_LOOKS: u32 = 120;
/// Looks between two words about the same files.
const LOOKS_A_WORD: u32 = 10;
/// Descriptors that are remembered.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// By process and descriptor.
    open: HashMap<(u32, OsString), Open>,
    /// What each process had read from storage at the last look.
    read: HashMap<u32, u64>,
    read_bytes: u64,
    last_word: u32,
}

#[derive(Debug)]
struct Open {
    path: OsString,
    bytes: u64,
    since: u32,
    last: u32,
}

impl Kept {
    /// A descriptor leads to `path` in this look; how large that file is, is asked once.
    pub(super) fn sees(
        &mut self,
        look: u32,
        (pid, number): (u32, OsString),
        path: &OsString,
        bytes: impl FnOnce() -> Option<u64>,
    ) {
        let known = self.open.get_mut(&(pid, number.clone())).filter(|open| open.path == *path);
        if let Some(open) = known {
            open.last = look;
        } else if self.open.len() < MOST
            && let Some(bytes) = bytes()
        {
            self.open.insert((pid, number), Open { path: path.clone(), bytes, since: look, last: look });
        }
    }

    /// What a process has read from storage since it began.
    pub(super) fn has_read(&mut self, pid: u32, bytes: u64) {
        // Of one that is new here, what it read before it was known is not counted.
        let before = self.read.insert(pid, bytes).unwrap_or(bytes);
        self.read_bytes = self.read_bytes.saturating_add(bytes.saturating_sub(before));
    }

    /// Files that the job keeps open and reads again, from time to time.
    pub(super) fn read_again(&mut self, look: u32) -> Vec<OsString> {
        if look.wrapping_sub(self.last_word) < LOOKS_A_WORD {
            return Vec::new();
        }
        self.last_word = look;
        self.open.retain(|_, open| look.wrapping_sub(open.last) < FORGOTTEN_LOOKS);
        let is_kept = |open: &&Open| open.last.wrapping_sub(open.since) >= KEPT_LOOKS;
        let kept: HashMap<&OsString, u64> =
            self.open.values().filter(is_kept).map(|open| (&open.path, open.bytes)).collect();
        let all_bytes = kept.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let are_again = all_bytes > 0 && self.read_bytes >= all_bytes.saturating_mul(TIMES);
        if are_again { kept.into_keys().cloned().collect() } else { Vec::new() }
    }

    /// Only these processes are there.
    pub(super) fn are_left(&mut self, processes: &[u32]) {
        let there: HashSet<u32> = processes.iter().copied().collect();
        self.open.retain(|(pid, _), _| there.contains(pid));
        self.read.retain(|pid, _| there.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is heard of a file of 100 MiB in 100 looks, at each of which the job has read so much more.
    fn heard(by: impl Fn(u32) -> (u32, &'static str), read_bytes: u64) -> Vec<OsString> {
        let mut kept = Kept::default();
        let mut heard = Vec::new();
        for look in 1..=100 {
            let (pid, number) = by(look);
            kept.sees(look, (pid, number.into()), &"/data/train.h5".into(), || Some(100 * MIB));
            kept.has_read(1, u64::from(look) * read_bytes);
            heard.extend(kept.read_again(look));
        }
        heard
    }

    #[test]
    fn a_file_that_stays_open_is_read_again_once_twice_its_size_was_read() {
        assert!(heard(|_| (1, "7"), 2 * MIB).is_empty(), "198 MiB");
        assert_eq!(heard(|_| (1, "7"), 3 * MIB).len(), 4, "after 68 looks, every tenth");
    }

    #[test]
    fn one_that_is_opened_anew_is_not_kept_open() {
        assert!(heard(|look| (1, if look % 20 < 10 { "7" } else { "8" }), 20 * MIB).len() < 9);
        assert!(heard(|look| (look, "7"), 20 * MIB).is_empty(), "by other processes");
    }

    #[test]
    fn what_several_processes_have_open_counts_once_and_what_a_process_read_before_not() {
        let mut kept = Kept::default();
        for look in 1..=40 {
            for pid in 1..=4 {
                kept.sees(look, (pid, "3".into()), &"/data/a".into(), || Some(100 * MIB));
                kept.has_read(pid, 1 << 40);
            }
            assert!(kept.read_again(look).is_empty());
        }
        (1..=4).for_each(|pid| kept.has_read(pid, (1 << 40) + 50 * MIB));
        assert_eq!(kept.read_again(50), ["/data/a"]);
        kept.are_left(&[9]);
        assert!(kept.read_again(60).is_empty() && kept.read.is_empty());
    }
}
