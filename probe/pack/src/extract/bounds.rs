//! What extracting may take of a disk. Packs come from elsewhere, and some kilobytes of one are not to fill it.

use crate::error::{Error, Result};
use crate::snapshot::Entry;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Folders for each file, and for all: a record of 80 bytes can name two thousand, of a disk's block each.
const FOLDERS_A_FILE: u64 = 8;
const FOLDERS_OF_ANY: u64 = 4096;
/// Written bytes for each stored one, and for all, as of tables: a frame of 2 KB expands to 64 MiB.
const BYTES_A_STORED_ONE: u64 = 1024;
const BYTES_OF_ANY: u64 = 1 << 30;

/// What is left.
#[derive(Debug)]
pub(super) struct Bounds {
    folders: u64,
    bytes: u64,
    taken: Taken,
}

/// What one record took.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// That were made.
    pub(super) folders: u64,
    /// That were written: holes take none.
    pub(super) bytes: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds::of(FOLDERS_OF_ANY, BYTES_OF_ANY)
    }
}

impl Bounds {
    pub(super) fn of(folders: u64, bytes: u64) -> Bounds {
        Bounds { folders, bytes, taken: Taken::default() }
    }

    /// Before a record is extracted.
    pub(super) fn begin(&mut self, entry: &Entry<'_>, dir: &Path) -> Result<()> {
        if self.taken.add(entry.chunk, entry.offset, entry.stored_bytes) {
            return Ok(());
        }
        let dir = dir.display();
        // Records lie beside each other.
        Err(Error::Refused(format!(
            "the snapshot of {dir} has the same bytes of a chunk in several files; `stallscope pack rebuild {dir}` makes another one"
        )))
    }

    /// After it was.
    pub(super) fn end(&mut self, entry: &Entry<'_>, used: &Used, dir: &Path) -> Result<()> {
        // Of what a chunk has as a hole nothing is written, and so it leaves no more to others.
        let earned = used.bytes.min(entry.stored_bytes).saturating_mul(BYTES_A_STORED_ONE);
        let folders = self.folders.saturating_add(FOLDERS_A_FILE).checked_sub(used.folders);
        let bytes = self.bytes.saturating_add(earned).checked_sub(used.bytes);
        let what = match (folders, bytes) {
            (Some(folders), Some(bytes)) => {
                (self.folders, self.bytes) = (folders, bytes);
                return Ok(());
            }
            (None, _) => format!("lie in more than {FOLDERS_A_FILE} folders each"),
            _ => format!("expand to more than {BYTES_A_STORED_ONE} times what is stored of them"),
        };
        Err(Error::Refused(format!(
            "extracting ended early, as {} may be forged to fill a disk: its files {what}. Those that you name are extracted alone",
            dir.display()
        )))
    }
}

/// The parts of chunks that files were made of: chunk and begin, and end. Those that meet are one.
#[derive(Debug, Default)]
struct Taken(BTreeMap<(usize, u64), u64>);

impl Taken {
    /// Whether these bytes are not among them yet.
    fn add(&mut self, chunk: usize, begin: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let Some(end) = begin.checked_add(bytes) else { return false };
        // The last one that begins before the end: any other ends before that one begins.
        let before = self.0.range_mut((chunk, 0)..(chunk, end)).next_back();
        let (begin, joined) = match before {
            Some((_, before_end)) if *before_end > begin => return false,
            Some((key, before_end)) if *before_end == begin => {
                *before_end = end;
                (key.1, true)
            }
            _ => (begin, false),
        };
        let behind = self.0.remove(&(chunk, end));
        if behind.is_some() || !joined {
            self.0.insert((chunk, begin), behind.unwrap_or(end));
        }
        true
    }
}

/// Blocks of zeros are holes in what is written.
const BLOCK_BYTES: usize = 64 << 10;
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Writes a file from its begin on.
#[derive(Debug)]
pub(super) struct Sparse<'a> {
    file: &'a File,
    at: u64,
    ends_in_hole: bool,
}

impl Sparse<'_> {
    pub(super) fn of(file: &File) -> Sparse<'_> {
        Sparse { file, at: 0, ends_in_hole: false }
    }

    /// How many bytes of a piece it wrote.
    pub(super) fn write(&mut self, piece: &[u8]) -> io::Result<u64> {
        let (mut from, mut written) = (0, 0);
        let mut write = |begin: usize, end: usize| {
            written += (end - begin) as u64;
            self.file.write_all_at(&piece[begin..end], self.at + begin as u64)
        };
        for (number, block) in piece.chunks(BLOCK_BYTES).enumerate() {
            if *block == ZEROS[..block.len()] {
                let at = number * BLOCK_BYTES;
                write(from, at)?;
                from = at + block.len();
            }
        }
        write(from, piece.len())?;
        self.ends_in_hole = if piece.is_empty() { self.ends_in_hole } else { from == piece.len() };
        self.at += piece.len() as u64;
        Ok(written)
    }

    /// Gives it its length.
    pub(super) fn finish(self) -> io::Result<()> {
        if self.ends_in_hole { self.file.set_len(self.at) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn bytes_are_taken_once() {
        let mut taken = Taken::default();
        for (chunk, begin, bytes, is_new) in [
            (0, 64, 10, true),
            (0, 84, 10, true),
            (1, 64, 30, true),
            (0, 70, 4, false),
            (0, 73, 5, false),
            (0, 60, 5, false),
            (0, 60, 100, false),
            (0, 93, 10, false),
            (0, 70, 0, true),
            (0, u64::MAX, 1, false),
            // Between two.
            (0, 74, 10, true),
            (0, 74, 1, false),
            (0, 94, 6, true),
            (0, 60, 4, true),
            (0, 99, 1, false),
            (2, 0, u64::MAX, true),
        ] {
            assert_eq!(taken.add(chunk, begin, bytes), is_new, "{chunk} {begin} {bytes}");
        }
        let parts: Vec<_> = taken.0.into_iter().collect();
        assert_eq!(parts, [((0, 60), 100), ((1, 64), 94), ((2, 0), u64::MAX)]);
    }

    #[test]
    fn blocks_of_zeros_are_left_out_wherever_they_are() {
        const BLOCK: usize = BLOCK_BYTES;
        let ones = |bytes: usize| vec![1; bytes];
        let zeros = |bytes: usize| vec![0; bytes];
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut expected = Vec::new();
        let mut sparse = Sparse::of(file.as_file());
        for (piece, written) in [
            ([zeros(BLOCK), ones(BLOCK), zeros(BLOCK), ones(BLOCK)].concat(), 2 * BLOCK),
            ([ones(3 * BLOCK), zeros(BLOCK)].concat(), 3 * BLOCK),
            // Zeros that are no whole block, and a last block that has fewer bytes.
            ([zeros(BLOCK - 1), ones(1), zeros(BLOCK), zeros(7)].concat(), BLOCK),
            (Vec::new(), 0),
        ] {
            assert_eq!(sparse.write(&piece).unwrap(), written as u64);
            expected.extend(piece);
        }
        sparse.finish().unwrap();
        assert!(std::fs::read(file.path()).unwrap() == expected);
    }
}
