//! What is in the folder, and what is evicted from it: chunks of other packs, and of older states of this one, that no process has open. The
//! caller holds the account.

use super::budget::{Chunks, Kept, oldest_first};
use super::files::{Named, ask_for, chunk_name, lock_name, named, open};
use super::store::Store;
use crate::id::Id;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use stallscope_folder::Folder;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::time::{Duration, SystemTime};

/// How often a lock is asked for that another process has, and the pause between.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// All that is in the folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) total: u64,
    pub(super) states: BTreeMap<String, Chunks>,
}

impl Store {
    /// Removes what a process left that is gone, and says how many bytes it had. None where one is still at it.
    pub(super) fn remove_if_stale(&self, name: &str) -> io::Result<Option<u64>> {
        let bytes = match open(&self.folder, name, OFlags::RDONLY) {
            Ok(file) if !ask_for(&file, FlockOperation::NonBlockingLockExclusive)? => return Ok(None),
            Ok(file) => file.metadata()?.len(),
            // Whatever it is, it is nobody's claim.
            Err(_) => 0,
        };
        self.folder.remove(OsStr::new(name))?;
        Ok(Some(bytes))
    }

    /// What is there, without what was left unfinished.
    pub(super) fn look(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        for entry in Dir::new(rustix::fs::openat(&self.folder, ".", flags, Mode::empty())?)? {
            let entry = entry?;
            let Some((name, what)) =
                entry.file_name().to_str().ok().and_then(|name| Some((name, named(name)?)))
            else {
                continue;
            };
            let Ok(facts) = rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
                continue;
            }
            let (bytes, at) = (
                facts.st_size as u64,
                i128::from(facts.st_mtime) * 1_000_000_000 + i128::from(facts.st_mtime_nsec),
            );
            match what {
                Named::Lock(state) => listing.states.entry(state.to_owned()).or_default().opened = at,
                Named::Unfinished(..) => {
                    if !matches!(self.remove_if_stale(name), Ok(Some(_))) {
                        listing.total = listing.total.saturating_add(bytes);
                    }
                }
                Named::Chunk(state, _) => {
                    listing.total = listing.total.saturating_add(bytes);
                    let kept = &mut listing.states.entry(state.to_owned()).or_default().kept;
                    kept.push(Kept { name: name.to_owned(), bytes, at });
                }
            }
        }
        Ok(listing)
    }

    /// Chunks of this state that another one left, which nobody has open: a chunk never changes, and a pack keeps most of its own.
    pub(super) fn adopt(&self, listing: &mut Listing, chunks: &[(Id, u64)]) {
        let wanted: HashMap<Id, u64> = chunks.iter().copied().collect();
        let mut own = listing.states.remove(&self.state).unwrap_or_default();
        let mut there: HashSet<String> = own.kept.iter().map(|kept| kept.name.clone()).collect();
        let missing = |kept: &Kept, there: &HashSet<String>| match named(&kept.name) {
            Some(Named::Chunk(_, id)) if wanted.get(&id) == Some(&kept.bytes) => {
                Some(chunk_name(&self.state, id)).filter(|name| !there.contains(name))
            }
            _ => None,
        };
        for (state, others) in &mut listing.states {
            if !others.kept.iter().any(|kept| missing(kept, &there).is_some()) {
                continue;
            }
            let Some(unused) = Unused::lock(&self.folder, state) else { continue };
            others.kept.retain(|kept| {
                let Some(name) = missing(kept, &there) else { return true };
                if self.folder.rename(OsStr::new(&kept.name), OsStr::new(&name)).is_err() {
                    return true;
                }
                there.insert(name.clone());
                own.kept.push(Kept { name, ..kept.clone() });
                false
            });
            drop(unused);
        }
        listing.states.insert(self.state.clone(), own);
    }

    /// Removes so many bytes of others' chunks, or as many as nobody uses, and says how many these were.
    pub(super) fn evict(&self, mut others: Vec<(String, Chunks)>, excess: u64) -> u64 {
        oldest_first(&mut others);
        let mut gone = 0;
        for (state, chunks) in others {
            if gone >= excess {
                break;
            }
            let Some(unused) = Unused::lock(&self.folder, &state) else { continue };
            let all: u64 = chunks.kept.iter().map(|kept| kept.bytes).sum();
            let of_this = self.remove_of(chunks, excess - gone);
            if of_this == all {
                // While it is locked: who opens this state now finds that it is another file than the one it has locked.
                let _ = self.folder.remove(OsStr::new(&lock_name(&state)));
            }
            gone += of_this;
            drop(unused);
        }
        gone
    }

    /// The last ones first.
    pub(super) fn remove_of(&self, mut chunks: Chunks, excess: u64) -> u64 {
        let mut gone = 0;
        while gone < excess
            && let Some(kept) = chunks.kept.pop()
        {
            if self.folder.remove(OsStr::new(&kept.name)).is_ok() {
                gone += kept.bytes;
            }
        }
        gone
    }
}

/// A state that no process has open, and that none opens meanwhile.
#[derive(Debug)]
struct Unused(Option<File>);

impl Unused {
    fn lock(folder: &Folder, state: &str) -> Option<Unused> {
        match open(folder, &lock_name(state), OFlags::RDONLY) {
            Ok(file) => ask_for(&file, FlockOperation::NonBlockingLockExclusive)
                .is_ok_and(|is_given| is_given)
                .then_some(Unused(Some(file))),
            // Who has it open has made one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Unused(None)),
            Err(_) => None,
        }
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Marks a state as in use, and as opened now. None where another process evicts it all the while.
pub(super) fn in_use(folder: &Folder, state: &str) -> io::Result<Option<File>> {
    let name = lock_name(state);
    for _ in 0..TRIES {
        // A disk on which a file is open for writing can't be made read-only.
        let file = open(folder, &name, OFlags::RDONLY | OFlags::CREATE)?;
        if ask_for(&file, FlockOperation::NonBlockingLockShared)? {
            let (own, now) =
                (rustix::fs::fstat(&file)?, rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW));
            if now.is_ok_and(|now| (now.st_dev, now.st_ino) == (own.st_dev, own.st_ino)) {
                // At worst it is evicted sooner.
                let _ = file.set_modified(SystemTime::now());
                return Ok(Some(file));
            }
            continue;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}
