//! The job's folders, in which the kernel tells of each file that is opened or written to (inotify), whether its pages were in
//! memory or not.

use crate::locked::{FUSE, keeps, open_without_links};
use crate::plan::Name;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, CWD, Dir, FileType, OFlags, fstatfs, statat};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that are watched at most, each of which takes a kilobyte of the kernel's.
const MOST: usize = 1 << 14;
/// Folders beside each other in which the job had files open, after which all beside them are watched: a folder for each class.
const BESIDE: usize = 3;
/// Different files of a folder that the job was seen to have open, after which it is watched: one alone may be a table of labels,
/// if it is smaller than a data set.
const FILES: usize = 2;
const DATA_SET_BYTES: i64 = 64 << 20;
/// Folders of which such files are remembered.
const MOST_LOOKED_AT: usize = 4096;
/// Events that are taken at once.
const EVENTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Folders {
    inotify: OwnedFd,
    /// Leads to this process's descriptors by their numbers.
    descriptors: PathBuf,
    paths: HashMap<u32, PathBuf>,
    numbers: HashMap<PathBuf, u32>,
    /// Files seen open in folders that are not watched yet.
    open: HashMap<PathBuf, Vec<OsString>>,
    /// Of folders that hold folders: those in which files were seen open.
    around: HashMap<PathBuf, Vec<PathBuf>>,
    /// Those whose folders were looked at.
    looked_around: HashSet<PathBuf>,
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
    pub(crate) fn new(descriptors: &str, most: usize, unseen: Vec<PathBuf>) -> Result<Folders, Errno> {
        Ok(Folders {
            inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
            descriptors: PathBuf::from(descriptors),
            paths: HashMap::new(),
            numbers: HashMap::new(),
            open: HashMap::new(),
            around: HashMap::new(),
            looked_around: HashSet::new(),
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

    /// The job has this file open, to read it.
    pub(crate) fn has_open(&mut self, file: &Path) {
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return };
        if self.numbers.contains_key(folder) {
            return;
        }
        if self.unseen.iter().any(|unseen| folder.starts_with(unseen)) {
            self.skipped.insert(FUSE);
            return;
        }
        if self.open.len() >= MOST_LOOKED_AT {
            self.open.clear();
            self.around.clear();
        }
        let names = self.open.entry(folder.to_owned()).or_default();
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        let is_large = || {
            let found = statat(CWD, file, AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|found| found.st_size >= DATA_SET_BYTES)
        };
        let is_the_jobs = names.len() >= FILES || is_large();
        if is_the_jobs {
            self.open.remove(folder);
            self.watch(folder);
        }
        if let Some(around) = folder.parent().filter(|around| around.parent().is_some()) {
            let beside = self.around.entry(around.to_owned()).or_default();
            if !beside.iter().any(|known| known == folder) {
                beside.push(folder.to_owned());
                if beside.len() == BESIDE {
                    self.watch_all(around);
                }
            }
        }
    }

    /// The folders of a folder.
    fn watch_all(&mut self, around: &Path) {
        if self.looked_around.len() >= MOST_LOOKED_AT {
            self.looked_around.clear();
        }
        if !self.looked_around.insert(around.to_owned()) {
            return;
        }
        let Ok(opened) = open_without_links(around, OFlags::RDONLY | OFlags::DIRECTORY) else { return };
        let Ok(entries) = Dir::read_from(&opened) else { return };
        for entry in entries.filter_map(Result::ok) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if entry.file_type() == FileType::Directory && name != "." && name != ".." {
                self.watch(&around.join(name));
            }
        }
    }

    fn watch(&mut self, folder: &Path) {
        if self.numbers.contains_key(folder) {
            return;
        }
        let Ok(opened) = open_without_links(folder, OFlags::PATH | OFlags::DIRECTORY) else { return };
        let Ok(kind) = fstatfs(&opened).map(|found| found.f_type) else { return };
        if let Err(which) = keeps(kind) {
            self.skipped.insert(which);
            return;
        }
        if self.paths.len() >= self.most {
            self.is_limited = true;
            self.refuse(folder);
            return;
        }
        match self.add(&opened) {
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
    fn add(&self, opened: &OwnedFd) -> Result<u32, Errno> {
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
        let opened = self.descriptors.join(opened.as_raw_fd().to_string());
        inotify::add_watch(&self.inotify, opened, wanted).map(|number| number as u32)
    }

    /// Folders that are others by their paths now, as after one above them was replaced, of which the kernel says nothing. What is
    /// there now is watched instead.
    pub(crate) fn replaced(&mut self, folders: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut replaced = Vec::new();
        for number in folders {
            let Some(path) = self.paths.get(&number).cloned() else { continue };
            let opened = open_without_links(&path, OFlags::PATH | OFlags::DIRECTORY);
            let now = opened.as_ref().ok().map(|opened| self.add(opened));
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
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::fs::{self, File};
    use std::io::Write;

    fn watching(folder: &Path) -> Folders {
        let mut folders = Folders::new("/proc/self/fd", MOST, Vec::new()).unwrap();
        for name in ["a", "b"] {
            fs::write(folder.join(name), name).unwrap();
            folders.has_open(&folder.join(name));
        }
        assert_eq!((folders.count(), folders.events()), (1, Vec::new()));
        folders
    }

    fn of(folders: &Folders, folder: &Path, name: &str) -> Name {
        (folders.numbers[folder], name.into())
    }

    #[test]
    fn what_happens_to_files_of_a_folder_is_seen() {
        let Some(dir) = folder() else { return };
        let folder = fs::canonicalize(dir.path()).unwrap();
        let mut folders = watching(&folder);
        let (a, b) = (of(&folders, &folder, "a"), of(&folders, &folder, "b"));
        assert_eq!(folders.path(&a), Some(folder.join("a")));
        drop(File::open(folder.join("a")).unwrap());
        assert_eq!(folders.events(), [Event::Opened(a.clone())]);
        File::options().append(true).open(folder.join("b")).unwrap().write_all(b"more").unwrap();
        let seen = folders.events();
        assert!(seen.contains(&Event::Written(b.clone())), "{seen:?}");
        fs::rename(folder.join("a"), folder.join("b")).unwrap();
        assert_eq!(folders.events(), [Event::Gone(a), Event::Gone(b.clone())]);
        fs::remove_file(folder.join("b")).unwrap();
        assert_eq!(folders.events(), [Event::Gone(b)]);
        fs::create_dir(folder.join("within")).unwrap();
        assert!(folders.events().is_empty());
        fs::remove_dir_all(&folder).unwrap();
        assert!(folders.events().iter().any(|event| matches!(event, Event::FolderGone(_))));
        assert_eq!(folders.count(), 0);
    }

    #[test]
    fn a_folder_that_was_replaced_from_above_is_another_one() {
        let Some(dir) = folder() else { return };
        let root = fs::canonicalize(dir.path()).unwrap();
        let class = root.join("train/class");
        fs::create_dir_all(&class).unwrap();
        let mut folders = watching(&class);
        let before = folders.numbers[&class];
        assert!(folders.replaced(folders.all()).is_empty());
        fs::rename(root.join("train"), root.join("old")).unwrap();
        fs::create_dir_all(&class).unwrap();
        assert_eq!(folders.replaced([before, 12_345]), [before]);
        let now = folders.numbers[&class];
        assert!(now != before && folders.path(&(now, "a".into())) == Some(class.join("a")));
        fs::remove_dir_all(root.join("train")).unwrap();
        assert_eq!((folders.replaced([now]), folders.count()), (vec![now], 0));
    }

    #[test]
    fn one_large_file_is_a_data_set() {
        let Some(dir) = folder() else { return };
        let root = fs::canonicalize(dir.path()).unwrap();
        File::create(root.join("train.tar")).unwrap().set_len(DATA_SET_BYTES as u64).unwrap();
        let mut folders = Folders::new("/proc/self/fd", MOST, Vec::new()).unwrap();
        folders.has_open(&root.join("train.tar"));
        assert_eq!(folders.count(), 1);
    }

    #[test]
    fn no_folder_of_another_file_system_is_watched() {
        let mut folders = Folders::new("/proc/self/fd", MOST, Vec::new()).unwrap();
        ["x", "y"].iter().for_each(|name| folders.has_open(&Path::new("/proc").join(name)));
        assert_eq!((folders.count(), folders.skipped.len(), folders.limit()), (0, 1, None));
    }

    #[test]
    fn folders_beyond_what_may_be_watched_are_counted_once() {
        let Some(dir) = folder() else { return };
        let root = fs::canonicalize(dir.path()).unwrap();
        (0..5).for_each(|class| fs::create_dir(root.join(class.to_string())).unwrap());
        let mut folders = Folders::new("/proc/self/fd", 3, Vec::new()).unwrap();
        (0..10).for_each(|at| folders.has_open(&root.join(format!("{}/x{}", at % 5, at / 5))));
        assert_eq!(folders.count(), 3);
        assert!(folders.limit().is_some_and(|limit| limit.starts_with("2 folders are not watched: 3 are")));
    }

    #[test]
    fn a_folder_in_which_one_file_alone_is_open_is_not_watched() {
        let Some(dir) = folder() else { return };
        let mut folders = Folders::new("/proc/self/fd", MOST, Vec::new()).unwrap();
        (0..5).for_each(|_| folders.has_open(&dir.path().join("train.log")));
        assert_eq!(folders.count(), 0);
    }

    #[test]
    fn of_a_folder_for_each_class_all_are_watched_after_some() {
        let Some(dir) = folder() else { return };
        let root = fs::canonicalize(dir.path()).unwrap();
        (0..20).for_each(|class| fs::create_dir(root.join(class.to_string())).unwrap());
        std::os::unix::fs::symlink("/usr", root.join("link")).unwrap();
        let mut folders = Folders::new("/proc/self/fd", MOST, Vec::new()).unwrap();
        (0..3).for_each(|class| folders.has_open(&root.join(class.to_string()).join("picture")));
        assert_eq!(folders.count(), 20);
    }

    #[test]
    fn a_folder_behind_a_link_is_not_watched() {
        let Some(dir) = folder() else { return };
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        let mut folders = Folders::new("/proc/self/fd", MOST, Vec::new()).unwrap();
        ["x", "y"].iter().for_each(|name| folders.has_open(&root.join("link").join(name)));
        assert_eq!(folders.count(), 0);
    }
}
