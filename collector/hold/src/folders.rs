//! The job's folders, in which the kernel tells of each file that is opened or written to (inotify), whether its pages were in
//! memory or not.

use crate::lister::Lister;
use crate::locked::{FUSE, keeps};
use crate::plan::Name;
use crate::walk::{self, Found, Onwards};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that are watched at most, each of which takes a kilobyte of the kernel's.
const MOST: usize = 1 << 14;
/// Folders beside each other in which the job had files open, after which all beside them are watched: a folder for each class.
const BESIDE: usize = 3;
/// Different files of a folder that the job was seen to have open, after which it is watched: one alone may be a table of labels,
/// if it is smaller than a data set.
const FILES: usize = 2;
const DATA_SET_BYTES: u64 = 64 << 20;
/// Folders of which such files are remembered.
const MOST_LOOKED_AT: usize = 4096;
/// Folders beside others that are watched at once, of those that were listed.
const LISTED: usize = 256;
/// Events that are taken at once.
const EVENTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Folders {
    inotify: OwnedFd,
    onwards: Onwards,
    lister: Lister,
    paths: HashMap<u32, PathBuf>,
    numbers: HashMap<PathBuf, u32>,
    /// Files seen open in folders that are not watched yet.
    open: HashMap<PathBuf, Vec<OsString>>,
    /// Of folders that hold folders: those in which files were seen open.
    around: HashMap<PathBuf, Vec<PathBuf>>,
    /// Those whose folders were asked for.
    looked_around: HashSet<PathBuf>,
    /// Folders that are watched, of which it is not known now whether their paths still lead to them.
    unknown: BTreeSet<u32>,
    /// Folders watched at most, which leaves watches to other programs of this user.
    most: usize,
    /// Where the job has file systems that are not to be asked.
    unseen: Vec<PathBuf>,
    /// Folders that could not be watched, and whether for the kernel's limit.
    refused: HashSet<PathBuf>,
    is_limited: bool,
    /// File systems of folders that are not watched, as nothing of them can be held.
    pub(crate) skipped: BTreeSet<&'static str>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Opened(Name),
    Written(Name),
    /// The name is another file's now, or none's.
    Gone(Name),
    FolderGone(u32),
    /// The kernel had more events than it keeps: what became of files since is not known.
    Lost,
}

/// Folders that may be watched, by what this process's own /proc says.
pub(crate) fn most() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    let limit = limit.and_then(|limit| limit.trim().parse::<usize>().ok()).unwrap_or(usize::MAX);
    MOST.min(limit / 2)
}

impl Folders {
    /// To be called while this process has one thread.
    pub(crate) fn new(onwards: Onwards, most: usize, unseen: Vec<PathBuf>) -> Result<Folders, Errno> {
        Ok(Folders {
            lister: Lister::start()?,
            inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
            onwards,
            paths: HashMap::new(),
            numbers: HashMap::new(),
            open: HashMap::new(),
            around: HashMap::new(),
            looked_around: HashSet::new(),
            unknown: BTreeSet::new(),
            most,
            unseen,
            refused: HashSet::new(),
            is_limited: false,
            skipped: BTreeSet::new(),
        })
    }

    /// How many folders are not watched, and why, for people.
    pub(crate) fn limit(&self) -> Option<String> {
        let count = self.refused.len();
        let folders = if count == 1 { "folder is" } else { "folders are" };
        let why = match self.is_limited {
            true => format!(
                ": {} are watched, and {}",
                self.paths.len(),
                "half of fs.inotify.max_user_watches is the most"
            ),
            false => String::new(),
        };
        (count > 0).then(|| format!("{count} {folders} not watched{why}"))
    }

    /// Folders that are watched.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.paths.len()
    }

    pub(crate) fn path(&self, name: &Name) -> Option<PathBuf> {
        self.paths.get(&name.0).map(|folder| folder.join(&name.1))
    }

    /// The job keeps this file open and reads it again.
    pub(crate) fn reads_again(&mut self, file: &Path) -> Option<Name> {
        let folder = file.parent().filter(|folder| !self.is_unseen(folder))?;
        self.watch(folder);
        Some((*self.numbers.get(folder)?, file.file_name()?.to_owned()))
    }

    fn is_unseen(&self, folder: &Path) -> bool {
        self.unseen.iter().any(|unseen| folder.starts_with(unseen))
    }

    /// The job has this file open, to read it.
    pub(crate) fn has_open(&mut self, file: &Path) {
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return };
        if self.numbers.contains_key(folder) {
            return;
        }
        if self.is_unseen(folder) {
            self.skipped.insert(FUSE);
            return;
        }
        if self.open.len() >= MOST_LOOKED_AT {
            self.open.clear();
        }
        let names = self.open.entry(folder.to_owned()).or_default();
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        let is_large = || walk::find(file).is_ok_and(|found| found.identity.size >= DATA_SET_BYTES);
        let is_the_jobs = names.len() >= FILES || is_large();
        if is_the_jobs {
            self.open.remove(folder);
            self.watch(folder);
        }
        if let Some(around) = folder.parent().filter(|around| around.parent().is_some()) {
            self.has_open_within(around, folder);
        }
    }

    /// In a folder of that one.
    fn has_open_within(&mut self, around: &Path, folder: &Path) {
        if self.looked_around.contains(around) {
            return;
        }
        if self.around.len() >= MOST_LOOKED_AT {
            self.around.clear();
        }
        let beside = self.around.entry(around.to_owned()).or_default();
        if beside.len() < BESIDE && !beside.iter().any(|known| known == folder) {
            beside.push(folder.to_owned());
        }
        // Where it is busy it is asked the next time.
        if beside.len() == BESIDE && self.lister.asks(around) {
            self.around.remove(around);
            if self.looked_around.len() >= MOST_LOOKED_AT {
                self.looked_around.clear();
            }
            self.looked_around.insert(around.to_owned());
        }
    }

    /// Watches folders that lie beside those in which the job has files open, some of them if there are many.
    pub(crate) fn watch_beside(&mut self) {
        for _ in 0..LISTED {
            let Some(folder) = self.lister.next() else { return };
            self.watch(&folder);
        }
    }

    fn watch(&mut self, folder: &Path) {
        if self.numbers.contains_key(folder) {
            return;
        }
        let Some(found) = walk::find(folder).ok().filter(Found::is_folder) else { return };
        let Some(kind) = self.onwards.kind(&found) else { return };
        if let Err(which) = keeps(kind) {
            self.skipped.insert(which);
            return;
        }
        if self.paths.len() >= self.most {
            self.is_limited = true;
            self.refuse(folder);
            return;
        }
        match self.add(&found) {
            Ok(number) => {
                self.refused.remove(folder);
                // The same folder by another path.
                if let Some(earlier) = self.paths.insert(number, folder.to_owned()) {
                    self.numbers.remove(&earlier);
                }
                self.numbers.insert(folder.to_owned(), number);
            }
            Err(error) => {
                self.is_limited |= error == Errno::NOSPC;
                self.refuse(folder);
            }
        }
    }

    fn refuse(&mut self, folder: &Path) {
        if self.refused.len() < MOST {
            self.refused.insert(folder.to_owned());
        }
    }

    /// The folder that was opened, wherever its path leads by now.
    fn add(&self, found: &Found) -> Result<u32, Errno> {
        let wanted = WatchFlags::OPEN
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        inotify::add_watch(&self.inotify, self.onwards.path(found), wanted).map(|number| number as u32)
    }

    /// Folders that are others by their paths now, as after one above them was replaced, of which the kernel says nothing. What is
    /// there now is watched instead.
    pub(crate) fn replaced(&mut self, folders: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut replaced = Vec::new();
        for number in folders {
            let Some(path) = self.paths.get(&number).cloned() else { continue };
            let found = walk::find(&path);
            // Nothing within is held, or it would be known; until it is, what is heard of it is about files by their paths.
            if found.as_ref().is_err_and(|error| *error == Errno::AGAIN) {
                self.unknown.insert(number);
                continue;
            }
            let found = found
                .ok()
                .filter(Found::is_folder)
                .filter(|found| self.onwards.kind(found).is_some_and(|kind| keeps(kind).is_ok()));
            let now = found.as_ref().map(|found| self.add(found));
            if now == Some(Ok(number)) {
                continue;
            }
            self.paths.remove(&number);
            self.numbers.remove(&path);
            let _ = inotify::remove_watch(&self.inotify, number as i32);
            replaced.push(number);
            if now.is_some() {
                self.watch(&path);
            }
        }
        replaced
    }

    pub(crate) fn all(&self) -> Vec<u32> {
        self.paths.keys().copied().collect()
    }

    /// Those of which it was not known whether they were replaced.
    pub(crate) fn take_unknown(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.unknown)
    }

    /// What has happened since the last call, some of it if that is much.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut bytes = [MaybeUninit::uninit(); 64 << 10];
        let mut reader = Reader::new(&self.inotify, &mut bytes);
        let mut gone = Vec::new();
        while events.len() < EVENTS || !reader.is_buffer_empty() {
            let Ok(event) = reader.next() else { break };
            let (number, what) = (event.wd() as u32, event.events());
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                events.push(Event::Lost);
                continue;
            }
            let ended =
                ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED;
            if what.intersects(ended) {
                gone.push(number);
                events.push(Event::FolderGone(number));
                continue;
            }
            let Some(name) = event.file_name().filter(|_| !what.contains(ReadFlags::ISDIR)) else { continue };
            let name = (number, OsStr::from_bytes(name.to_bytes()).to_owned());
            events.push(if what.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
                Event::Written(name)
            } else if what.contains(ReadFlags::OPEN) {
                Event::Opened(name)
            } else {
                Event::Gone(name)
            });
        }
        for number in gone {
            if let Some(path) = self.paths.remove(&number) {
                self.numbers.remove(&path);
                // A folder that was moved is another one's by its path.
                let _ = inotify::remove_watch(&self.inotify, number as i32);
            }
        }
        events
    }
}

#[cfg(test)]
mod tests;
