//! The chunks that are kept in the folder: read, claimed, finished, given up; and counted, so that they stay within their limit.

use super::account::Account;
use super::budget::{Limit, Space};
use super::evict::in_use;
use super::files::{ask_for, chunk_name, folder_at, open, state_of, unfinished_name};
use crate::error::{Doing, Result};
use crate::id::Id;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use stallscope_folder::Folder;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How long a process waits for another one's account.
const PATIENCE: Duration = Duration::from_millis(200);
/// The same as a pack is opened, when others may count, too.
const PATIENCE_AT_OPENING: Duration = Duration::from_secs(5);
/// What a disk does that may fail, as a trait: tests make it fail.
pub(super) trait Medium: Debug + Send + Sync {
    fn space(&self, folder: &Folder) -> io::Result<Space>;
    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()>;
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct System;

impl Medium for System {
    fn space(&self, folder: &Folder) -> io::Result<Space> {
        let facts = rustix::fs::fstatvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
        Ok(Space { all: bytes(facts.f_blocks), free: bytes(facts.f_bavail) })
    }

    fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
                Err(Errno::INTR) => {}
                // Whether there is space shows as it is written.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return file.set_len(bytes),
                other => return Ok(other?),
            }
        }
    }

    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }
}

/// The folder, for one state of one pack.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) folder: Folder,
    pub(super) state: String,
    limit: Limit,
    medium: Box<dyn Medium>,
    /// While it is open nobody evicts this state's chunks: here, and in processes that are forked from this one.
    _in_use: Option<File>,
}

/// What comes of wanting to fetch a chunk.
#[derive(Debug)]
pub(super) enum Claim {
    Own(Unfinished),
    /// Another one was first, and has it.
    Kept,
    /// Another one fetches it, or has the account.
    Taken,
    /// There is no space.
    Full,
}

/// A chunk that this process fetches. The file is locked, so that others know when its process is gone.
#[derive(Debug)]
pub(super) struct Unfinished {
    file: File,
    id: Id,
    bytes: u64,
}

impl Store {
    /// `chunks`: those of this state. Its older states, and other packs, leave what is above the limit, and to this one what it has as well.
    pub(super) fn open(
        path: &Path,
        limit: Limit,
        medium: Box<dyn Medium>,
        version: [u8; 32],
        chunks: &[(Id, u64)],
    ) -> Result<Store> {
        let doing = "keep chunks in";
        let folder = folder_at(path)?;
        let state = state_of(version);
        let in_use = in_use(&folder, &state).doing(doing, path)?;
        let store = Store { folder, state, limit, medium, _in_use: in_use };
        if let Some(account) = Account::lock(&store.folder, PATIENCE_AT_OPENING).doing(doing, path)? {
            let mut listing = store.look().doing(doing, path)?;
            store.adopt(&mut listing, chunks);
            let space = store.medium.space(&store.folder).doing(doing, path)?;
            let excess = limit.excess(listing.total, space, 0).unwrap_or(u64::MAX);
            let own = listing.states.remove(&store.state).unwrap_or_default();
            let gone = store.evict(listing.states.into_iter().collect(), excess);
            // Who lowers the limit means what is there, too.
            let own_gone = store.remove_of(own, excess.saturating_sub(gone));
            account.set(listing.total.saturating_sub(gone + own_gone)).doing(doing, path)?;
        }
        Ok(store)
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of a chunk that has so many of them; none where it is not kept, or not whole.
    pub(super) fn read(&self, id: Id, bytes: u64, range: Range<u64>) -> Option<Vec<u8>> {
        let name = chunk_name(&self.state, id);
        let file = open(&self.folder, &name, OFlags::RDONLY).ok()?;
        let read = || {
            if file.metadata()?.len() != bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut to = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut to, range.start).map(|()| to)
        };
        match read() {
            Ok(read) => Some(read),
            Err(_) => {
                self.forget(id);
                None
            }
        }
    }

    /// Removes a chunk; whether it is gone. None where it was not there.
    pub(super) fn forget(&self, id: Id) -> Option<bool> {
        let name = chunk_name(&self.state, id);
        let account = Account::lock(&self.folder, PATIENCE).ok().flatten();
        let facts = rustix::fs::statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_gone = self.folder.remove(OsStr::new(&name)).is_ok();
        if let (true, Some(account)) = (is_gone, account) {
            account.less(facts.st_size as u64);
        }
        Some(is_gone)
    }

    /// Takes it upon this process to fetch a chunk, which has so many bytes. `may_look`: whether all files may be looked at for what can be evicted.
    pub(super) fn claim(&self, id: Id, bytes: u64, may_look: &dyn Fn() -> bool) -> io::Result<Claim> {
        let Some(account) = Account::lock(&self.folder, PATIENCE)? else { return Ok(Claim::Taken) };
        let is_whole = |file: File| file.metadata().is_ok_and(|facts| facts.len() == bytes);
        if open(&self.folder, &chunk_name(&self.state, id), OFlags::RDONLY).is_ok_and(is_whole) {
            return Ok(Claim::Kept);
        }
        let name = unfinished_name(&self.state, id);
        if self.folder.has(OsStr::new(&name)) {
            match self.remove_if_stale(&name)? {
                Some(gone) => account.less(gone),
                None => return Ok(Claim::Taken),
            }
        }
        let Some(total) = self.space_for(&account, bytes, may_look)? else { return Ok(Claim::Full) };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = open(&self.folder, &name, flags)?;
        let begun = ask_for(&file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|_| self.medium.allocate(&file, bytes))
            .and_then(|()| account.set(total.saturating_add(bytes)));
        match begun {
            Ok(()) => Ok(Claim::Own(Unfinished { file, id, bytes })),
            Err(error) => {
                let _ = self.folder.remove(OsStr::new(&name));
                Err(error)
            }
        }
    }

    /// How many bytes there are, where so many more may come to them.
    fn space_for(
        &self,
        account: &Account,
        more: u64,
        may_look: &dyn Fn() -> bool,
    ) -> io::Result<Option<u64>> {
        let needed = |total| {
            let space = self.medium.space(&self.folder)?;
            let excess = self.limit.excess(total, space, more);
            // Though the limit may allow it.
            Ok::<_, io::Error>((excess, more.saturating_sub(space.free)))
        };
        let known = account.total();
        if let Some(total) = known {
            match needed(total)? {
                (Some(0), 0) => return Ok(Some(total)),
                // The disk is full, and says so by itself.
                (Some(0), _) if !may_look() => return Ok(Some(total)),
                (Some(0), _) => {}
                _ if !may_look() => return Ok(None),
                _ => {}
            }
        }
        let mut listing = self.look()?;
        listing.states.remove(&self.state);
        let mut total = listing.total;
        if let (Some(excess), short) = needed(total)?
            && excess.max(short) > 0
        {
            let others = listing.states.into_iter().collect();
            total = total.saturating_sub(self.evict(others, self.limit.evicted_for(excess.max(short))));
        }
        account.set(total)?;
        Ok((needed(total)?.0 == Some(0)).then_some(total))
    }

    pub(super) fn write(&self, unfinished: &Unfinished, bytes: &[u8], at: u64) -> io::Result<()> {
        self.medium.write(&unfinished.file, bytes, at)
    }

    /// All of it is there.
    pub(super) fn finish(&self, unfinished: Unfinished) -> io::Result<()> {
        let (from, to) =
            (unfinished_name(&self.state, unfinished.id), chunk_name(&self.state, unfinished.id));
        // Who looks at all files meanwhile would find it under both names, or under none.
        let account = Account::lock(&self.folder, PATIENCE).ok().flatten();
        let renamed = self.folder.rename(OsStr::new(&from), OsStr::new(&to));
        drop(account);
        if renamed.is_err() {
            self.give_up(unfinished);
        }
        renamed
    }

    pub(super) fn give_up(&self, unfinished: Unfinished) {
        let name = unfinished_name(&self.state, unfinished.id);
        let account = Account::lock(&self.folder, PATIENCE).ok().flatten();
        if let (Ok(()), Some(account)) = (self.folder.remove(OsStr::new(&name)), account) {
            account.less(unfinished.bytes);
        }
        // A process that was forked meanwhile has it open, too.
        let _ = rustix::fs::flock(&unfinished.file, FlockOperation::Unlock);
    }
}
