//! A file of chunks, each at its place in the image.

use crate::arena::lock;
use crate::error::{Doing, Result};
use crate::files::{Files, Out, write_all};
use crate::image::{BLOCK, CHUNK_BYTES, Layout};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

/// Space is allocated for so many chunks at a time. A file system lets direct writes into space that is there go on side by
/// side, and those that make a file longer or fill a hole only one after the other (ext4 and XFS): with 4 threads on
/// ext4 that was half the bandwidth. Allocating waits for the writes under way, so it is seldom done: every 1 GiB.
const ALLOCATED_CHUNKS: usize = 256;

/// A file that is made when its first chunk comes.
pub(crate) struct Shard<'a> {
    files: &'a dyn Files,
    layout: &'a Layout,
    path: PathBuf,
    /// Whether this is the file of those chunks that are expected to stay as they are.
    still: bool,
    out: OnceLock<Box<dyn Out>>,
    making: Mutex<()>,
    space: Mutex<Space>,
}

#[derive(Default)]
struct Space {
    /// Ends of ranges of chunks by their beginnings.
    made: BTreeMap<usize, usize>,
    /// Chunks that are written, or are about to be: their space stays.
    taken: HashSet<usize>,
    /// The file system makes none, or has no more.
    refused: bool,
}

impl<'a> Shard<'a> {
    pub(crate) fn new(files: &'a dyn Files, layout: &'a Layout, path: PathBuf, still: bool) -> Shard<'a> {
        Shard {
            files,
            layout,
            path,
            still,
            out: OnceLock::new(),
            making: Mutex::new(()),
            space: Mutex::new(Space::default()),
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.out.get().is_some()
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Writes the chunk with this number. `image` reaches to the next block beyond the layout's bytes.
    pub(crate) fn write(&self, at: usize, image: &[u8]) -> Result<()> {
        let out = self.out()?;
        self.allocate(out, at);
        let bytes = self.blocks(at..at + 1);
        write_all(out, &image[bytes.start as usize..bytes.end as usize], bytes.start)
            .doing("write", &self.path)
    }

    /// Gives back the space of chunks that did not come, and makes none from now on. A chunk that comes later, or at the
    /// same time, keeps its bytes: it is taken under the lock that is held here, before anything of it is written.
    pub(crate) fn give_back(&self) {
        let mut space = lock(&self.space);
        space.refused = true;
        let Some(out) = self.out.get() else { return };
        for (begin, end) in std::mem::take(&mut space.made) {
            for chunks in ranges(begin..end, |at| !space.taken.contains(&at)) {
                let bytes = self.blocks(chunks);
                // Where that fails, the checkpoint takes more space than it has to.
                let _ = out.release(bytes.start, bytes.end - bytes.start);
            }
        }
    }

    /// Cuts off what the last block has beyond the image, gives back the space of chunks that did not come, and syncs.
    pub(crate) fn finish(&self) -> Result<()> {
        let Some(out) = self.out.get() else { return Ok(()) };
        self.give_back();
        out.set_len(self.layout.bytes).doing("set the length of", &self.path)?;
        out.sync().doing("sync", &self.path)
    }

    fn out(&self) -> Result<&dyn Out> {
        if self.out.get().is_none() {
            let _one = lock(&self.making);
            if self.out.get().is_none() {
                let out = self.files.create(&self.path, true).doing("make", &self.path)?;
                let _ = self.out.set(out);
            }
        }
        Ok(&**self.out.get().expect("made above, or by who held the lock"))
    }

    /// For a chunk and those that follow it into this file, most likely.
    fn allocate(&self, out: &dyn Out, at: usize) {
        let mut space = lock(&self.space);
        space.taken.insert(at);
        let is_made = space.made.range(..=at).next_back().is_some_and(|(_, end)| at < *end);
        if space.refused || is_made {
            return;
        }
        let window = (at / ALLOCATED_CHUNKS + 1) * ALLOCATED_CHUNKS;
        let last = space.made.range(at..).next().map_or(window, |(next, _)| window.min(*next));
        let end = (at..last.min(self.layout.still.len()))
            .find(|next| self.layout.still[*next] != self.still)
            .unwrap_or(last.min(self.layout.still.len()))
            .max(at + 1);
        let bytes = self.blocks(at..end);
        if out.reserve(bytes.start, bytes.end - bytes.start).is_ok() {
            space.made.insert(at, end);
        } else {
            space.refused = true;
            // A full disk may have given a part of it, which others need now. Nothing was written there yet: no chunk is
            // written before this has seen to its space.
            let _ = out.release(bytes.start, bytes.end - bytes.start);
        }
    }

    /// Where chunks lie, up to the next whole block.
    fn blocks(&self, chunks: Range<usize>) -> Range<u64> {
        let end = (chunks.end as u64 * CHUNK_BYTES).min(self.layout.bytes).next_multiple_of(BLOCK);
        chunks.start as u64 * CHUNK_BYTES..end
    }
}

/// The longest ranges within `all` of which all are `wanted`.
fn ranges(all: Range<usize>, wanted: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for at in all.filter(|at| wanted(*at)) {
        match found.last_mut() {
            Some(last) if last.end == at => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_long_as_they_can_be() {
        let wanted = [true, true, false, true, false, false, true, true];
        assert_eq!(ranges(0..8, |at| wanted[at]), [0..2, 3..4, 6..8]);
        assert_eq!(ranges(1..7, |at| wanted[at]), [1..2, 3..4, 6..7]);
        assert!(ranges(4..6, |at| wanted[at]).is_empty());
    }
}
