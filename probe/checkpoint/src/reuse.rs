//! Which chunks are on disk already. Reasons in docs/checkpoints.md.

use crate::files::Files;
use crate::manifest::{Digest, Part, StoredFile};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Most files of earlier saves that a checkpoint holds: each costs a name and a sync of nothing, but readers open all.
const MOST_LINKS: usize = 8;

/// The same where every checkpoint is kept.
const MOST_SHARING: u64 = 8;

/// How many checkpoints may hold a file together: one fewer than are kept, so that what damages it leaves a whole one. Where
/// only one is kept there is none to be spared.
fn may_share(keep: Option<usize>) -> u64 {
    match keep {
        None => MOST_SHARING,
        Some(0 | 1) => u64::MAX,
        Some(keep) => (keep as u64 - 1).min(MOST_SHARING),
    }
}

/// The last committed checkpoint of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub(crate) dir: PathBuf,
    pub(crate) part: Part,
}

/// What becomes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It differs from the last checkpoint's: written to the shard.
    Changed,
    /// It is as before, and is written once more, to a file of such chunks.
    Still,
    /// It lies in this file of the base, which is linked into the new checkpoint.
    Linked(usize),
}

/// The base of a save in progress.
#[derive(Debug)]
pub(crate) struct Reuse<'a> {
    base: Option<&'a Base>,
    files: &'a dyn Files,
    into: &'a Path,
    /// By file of the base: whether it is worth holding.
    worth: Vec<bool>,
    /// By file of the base: its name in the new folder, once it is linked there; none where it can't be.
    links: Vec<OnceLock<Option<String>>>,
}

impl<'a> Reuse<'a> {
    pub(crate) fn new(
        base: Option<&'a Base>,
        image: (u64, u64),
        files: &'a dyn Files,
        into: &'a Path,
        keep: Option<usize>,
    ) -> Reuse<'a> {
        let base = base.filter(|base| (base.part.image_bytes, base.part.chunk_bytes) == image);
        let mut worth = base.map(|base| worth_holding(&base.part)).unwrap_or_default();
        for (worth, file) in worth.iter_mut().zip(base.iter().flat_map(|base| &base.part.files)) {
            *worth &= base.is_some_and(|base| holders(&base.dir.join(&file.name)) < may_share(keep));
        }
        let links = worth.iter().map(|_| OnceLock::new()).collect();
        Reuse { base, files, into, worth, links }
    }

    pub(crate) fn fate(&self, chunk: usize, digest: &Digest, expected_still: bool) -> Fate {
        let before = self.base.and_then(|base| base.part.chunks.get(chunk));
        match before {
            Some(before) if before.blake3 == *digest => {
                let file = before.file as usize;
                match self.worth[file].then(|| self.link(file)) {
                    Some(true) => Fate::Linked(file),
                    // No links here: then a file of still chunks has no use either.
                    Some(false) => Fate::Changed,
                    None => Fate::Still,
                }
            }
            None if expected_still => Fate::Still,
            _ => Fate::Changed,
        }
    }

    fn link(&self, file: usize) -> bool {
        let Some(base) = self.base else { return false };
        let linked = self.links[file].get_or_init(|| {
            let StoredFile { name, linked, .. } = &base.part.files[file];
            let second = if *linked { name.clone() } else { format!("from-{}-{name}", base.part.save) };
            self.files.link(&base.dir.join(name), &self.into.join(&second)).is_ok().then_some(second)
        });
        linked.is_some()
    }

    /// The linked files, with their place among the base's.
    pub(crate) fn linked(&self) -> Vec<(usize, StoredFile)> {
        let Some(base) = self.base else { return Vec::new() };
        let linked = self.links.iter().enumerate().filter_map(|(at, link)| {
            let name = link.get()?.clone()?;
            Some((at, StoredFile { name, stored_bytes: base.part.files[at].stored_bytes, linked: true }))
        });
        linked.collect()
    }
}

/// Names that a file has: one for each checkpoint that holds it, and those that somebody else gave it.
fn holders(file: &Path) -> u64 {
    file.symlink_metadata().map_or(u64::MAX, |file| file.nlink())
}

/// Files of chunks that did not change, at least half of which is in use: so that the space which a checkpoint holds is
/// at most twice what it needs. A shard of changing chunks is never held for the few in it that did not.
fn worth_holding(part: &Part) -> Vec<bool> {
    let mut used = vec![0_u64; part.files.len()];
    for (at, chunk) in part.chunks.iter().enumerate() {
        used[chunk.file as usize] += part.chunk_len(at);
    }
    let still = |file: &StoredFile| file.linked || file.name.starts_with("still-");
    let mut worth: Vec<bool> = part
        .files
        .iter()
        .zip(&used)
        .map(|(file, used)| still(file) && *used > 0 && *used >= file.stored_bytes / 2)
        .collect();
    let mut largest: Vec<usize> = (0..worth.len()).filter(|at| worth[*at]).collect();
    largest.sort_by_key(|at| std::cmp::Reverse(used[*at]));
    for at in largest.into_iter().skip(MOST_LINKS) {
        worth[at] = false;
    }
    worth
}
