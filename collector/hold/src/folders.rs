//! The job's folders, in which the kernel tells of each file that is opened or written to (inotify), whether its pages were in
//! memory or not.

use crate::locked::open_without_links;
use crate::plan::Name;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that are watched at most, each of which takes a kilobyte of the kernel's.
const MOST: usize = 1 << 14;
/// Folders beside each other in which the job had files open, after which all beside them are watched: a folder for each class.
const BESIDE: usize = 3;
/// Different files of a folder that the job was seen to have open, after which it is watched: one alone may be a log.
const FILES: usize = 2;
/// Folders of which such files are remembered.
const MOST_LOOKED_AT: usize = 4096;
/// Events that are taken at once.
const EVENTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Folders {
    inotify: OwnedFd,
    paths: HashMap<u32, PathBuf>,
    numbers: HashMap<PathBuf, u32>,
    /// Files seen open in folders that are not watched yet.
    open: HashMap<PathBuf, Vec<OsString>>,
    /// Of folders that hold folders: those in which files were seen open.
    around: HashMap<PathBuf, Vec<PathBuf>>,
    /// Folders that could not be watched as the kernel's limit is reached.
    pub(crate) refused: u64,
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

impl Folders {
    pub(crate) fn new() -> Result<Folders, Errno> {
        Ok(Folders {
            inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
            paths: HashMap::new(),
            numbers: HashMap::new(),
            open: HashMap::new(),
            around: HashMap::new(),
            refused: 0,
        })
    }

    /// Folders that are watched.
    pub(crate) fn count(&self) -> usize {
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
        if self.open.len() >= MOST_LOOKED_AT {
            self.open.clear();
            self.around.clear();
        }
        let names = self.open.entry(folder.to_owned()).or_default();
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        let is_the_jobs = names.len() >= FILES;
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
        if self.paths.len() >= MOST {
            self.refused += 1;
            return;
        }
        let Ok(opened) = open_without_links(folder, OFlags::PATH | OFlags::DIRECTORY) else { return };
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
        // By the folder that was opened, wherever the path leads by now.
        match inotify::add_watch(&self.inotify, format!("/proc/self/fd/{}", opened.as_raw_fd()), wanted) {
            Ok(number) => {
                self.paths.insert(number as u32, folder.to_owned());
                self.numbers.insert(folder.to_owned(), number as u32);
            }
            Err(_) => self.refused += 1,
        }
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
    use std::fs::{self, File};
    use std::io::Write;

    fn watching(folder: &Path) -> Folders {
        let mut folders = Folders::new().unwrap();
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
        let dir = tempfile::tempdir().unwrap();
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
    fn a_folder_in_which_one_file_alone_is_open_is_not_watched() {
        let dir = tempfile::tempdir().unwrap();
        let mut folders = Folders::new().unwrap();
        (0..5).for_each(|_| folders.has_open(&dir.path().join("train.log")));
        assert_eq!(folders.count(), 0);
    }

    #[test]
    fn of_a_folder_for_each_class_all_are_watched_after_some() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        (0..20).for_each(|class| fs::create_dir(root.join(class.to_string())).unwrap());
        std::os::unix::fs::symlink("/usr", root.join("link")).unwrap();
        let mut folders = Folders::new().unwrap();
        (0..3).for_each(|class| folders.has_open(&root.join(class.to_string()).join("picture")));
        assert_eq!(folders.count(), 20);
    }

    #[test]
    fn a_folder_behind_a_link_is_not_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        let mut folders = Folders::new().unwrap();
        ["x", "y"].iter().for_each(|name| folders.has_open(&root.join("link").join(name)));
        assert_eq!(folders.count(), 0);
    }
}
