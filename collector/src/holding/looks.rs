//! Which files the job's processes have open, by what the kernel shows of them. The holder cannot look by itself: the kernel shows
//! what root has open to root with privileges alone, and what lies in a container only from outside.
//!
//! A look is a moment. Of a job that waits for its files, one of them is open at most moments; of one that does not, a cache
//! would bring nothing.

use super::kept::Kept;
use crate::procfs::Opened;
use rustix::fs::Dir;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Processes of a job that are known, and how many of them one look is at, in turn.
const MOST_PROCESSES: usize = 1024;
const PROCESSES_A_LOOK: usize = 64;
/// Descriptors that one look asks about, which the session waits for: a job may have as many open as it likes, and the next look goes on.
const FILES_A_LOOK: usize = 512;
/// Looks between two walks over the job's processes.
const LOOKS_A_WALK: u32 = 4;
/// Files that are remembered as shown.
const MOST_SHOWN: usize = 8192;
/// A longer path cannot be opened at once.
const LONGEST_PATH: usize = 4095;
/// What is the system's, and no data set.
const SYSTEM: [&str; 10] =
    ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/run"];

#[derive(Debug)]
pub(super) struct Looks {
    root: u32,
    /// Whose processes are looked into: what of another user's is below the job, as a set-uid program, shows nothing to this one.
    uid: u32,
    looks: u32,
    processes: Vec<u32>,
    /// The next of them, and of its descriptors the first that is to be looked at.
    at: usize,
    from: usize,
    shown: HashSet<OsString>,
    kept: Kept,
}

impl Looks {
    pub(super) fn new(root: u32, uid: u32) -> Looks {
        let shown = HashSet::new();
        Looks { root, uid, looks: 0, processes: Vec::new(), at: 0, from: 0, shown, kept: Kept::default() }
    }

    /// Files open now that were not shown yet.
    pub(super) fn next(&mut self) -> Vec<OsString> {
        if self.looks.is_multiple_of(LOOKS_A_WALK) {
            self.processes = tree(self.root);
            self.kept.are_left(&self.processes);
        }
        self.looks = self.looks.wrapping_add(1);
        let (mut found, mut left) = (Vec::new(), FILES_A_LOOK);
        for _ in 0..self.processes.len().min(PROCESSES_A_LOOK) {
            self.at %= self.processes.len();
            let before = left;
            found.extend(self.open_files(self.processes[self.at], &mut left));
            if left == 0 {
                self.from += before;
                break;
            }
            (self.at, self.from) = (self.at + 1, 0);
        }
        found
    }

    /// Files that stay open and are read again, from time to time.
    pub(super) fn read_again(&mut self) -> Vec<OsString> {
        self.kept.read_again(self.looks)
    }

    pub(super) fn was_shown(&mut self, file: OsString) {
        if self.shown.len() >= MOST_SHOWN {
            self.shown.clear();
        }
        self.shown.insert(file);
    }

    /// Files that a process of this user has open to read them by way of the page cache, but for those that were shown. It is asked about
    /// as many of its descriptors as are `left`, behind those that were looked at.
    fn open_files(&mut self, pid: u32, left: &mut usize) -> Vec<OsString> {
        let uid = self.uid;
        let Some(process) = Opened::of(pid, uid).filter(|process| process.is_open_to(uid)) else {
            return Vec::new();
        };
        if let Some(read_bytes) = process.text("io").as_deref().and_then(read_bytes) {
            self.kept.has_read(pid, read_bytes);
        }
        let folder = process.open("fd").and_then(|folder| Dir::new(folder).ok());
        let numbers = folder.into_iter().flatten().filter_map(Result::ok).skip(self.from).take(*left);
        let mut found = Vec::new();
        for entry in numbers {
            *left -= 1;
            let Ok(number) = entry.file_name().to_str() else { continue };
            let link = format!("fd/{number}");
            let Some(path) = process.link(&link).filter(|path| is_data(path)) else { continue };
            let is_read = || process.text(&link.replacen("fd", "fdinfo", 1)).is_some_and(|text| reads(&text));
            let bytes = || is_read().then(|| process.plain_bytes(&link)).flatten();
            let is_new = !self.shown.contains(&path) && bytes().is_some();
            self.kept.sees(self.looks, (pid, number.into()), &path, bytes);
            if is_new {
                found.push(path);
            }
        }
        found
    }
}

/// Process `root` and all below it.
fn tree(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut seen: HashSet<u32> = tree.iter().copied().collect();
    let mut at = 0;
    while at < tree.len() && tree.len() < MOST_PROCESSES {
        for task in fs::read_dir(format!("/proc/{}/task", tree[at])).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            tree.extend(children.filter(|pid| seen.insert(*pid)));
        }
        at += 1;
    }
    tree.truncate(MOST_PROCESSES);
    tree
}

/// Of a process's figures, what it had brought in from storage.
fn read_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// Sockets and pipes have no path, and a line has no end of line within.
fn is_data(path: &OsStr) -> bool {
    let is_path = path.as_bytes().starts_with(b"/") && path.len() <= LONGEST_PATH;
    let is_system = SYSTEM.iter().any(|system| Path::new(path).starts_with(system));
    is_path && !is_system && !path.as_bytes().contains(&b'\n')
}

/// Only to read, and not past the page cache.
fn reads(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    let other = libc::O_ACCMODE | libc::O_DIRECT | libc::O_PATH | libc::O_DIRECTORY;
    flags.is_some_and(|flags| flags & other == libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::{Command, Stdio};

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn what_is_open_for_reading_is_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (read, written) = (root.join("read"), root.join("written"));
        let _written = File::create(&written).unwrap();
        fs::write(&read, "x").unwrap();
        let _read = File::open(&read).unwrap();
        let _folder = File::open(&root).unwrap();
        let of = |uid| Looks::new(0, uid).open_files(std::process::id(), &mut { FILES_A_LOOK });
        let found = of(own_uid());
        let has = |path: &Path| found.iter().any(|file| file == path.as_os_str());
        assert!(has(&read) && !has(&written) && !has(&root), "{found:?}");
        assert!(of(own_uid() + 1).is_empty(), "another user's");
        for most in [0, 3] {
            let mut left = most;
            let found = Looks::new(0, own_uid()).open_files(std::process::id(), &mut left);
            assert!(found.len() <= most && left == 0);
        }
    }

    #[test]
    fn a_file_is_shown_once_and_again_where_it_was_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("read");
        fs::write(&path, "x").unwrap();
        let _read = File::open(&path).unwrap();
        let mut looks = Looks::new(std::process::id(), own_uid());
        let has = |found: &[OsString]| found.iter().any(|file| file == path.as_os_str());
        assert!(has(&looks.next()) && has(&looks.next()));
        looks.was_shown(path.clone().into_os_string());
        assert!(!has(&looks.next()));
    }

    #[test]
    fn a_job_with_many_open_files_is_looked_through_in_several_looks() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let paths: Vec<_> = (0..FILES_A_LOOK + 40).map(|number| root.join(number.to_string())).collect();
        paths.iter().for_each(|path| fs::write(path, "x").unwrap());
        let _open: Vec<File> = paths.iter().map(|path| File::open(path).unwrap()).collect();
        let mut looks = Looks::new(std::process::id(), own_uid());
        let mut seen = HashSet::new();
        for _ in 0..6 {
            let found = looks.next();
            assert!(found.len() <= FILES_A_LOOK);
            for file in found {
                assert!(!looks.shown.contains(&file), "{file:?} is shown twice");
                looks.was_shown(file.clone());
                seen.insert(file);
            }
        }
        assert!(paths.iter().all(|path| seen.contains(path.as_os_str())));
    }

    #[test]
    fn the_children_of_any_of_a_processs_threads_are_below_it() {
        let child = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (mut one, mut other) = (child(), std::thread::spawn(child).join().unwrap());
        let tree = tree(std::process::id());
        assert!(tree.contains(&one.id()) && tree.contains(&other.id()), "{tree:?}");
        for child in [&mut one, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn flags_and_paths_tell_which_files_are_data() {
        assert!(reads("pos:\t0\nflags:\t0100000\nmnt_id:\t9\n") && reads("flags:\t02100000\n"));
        for other in
            ["flags:\t0100001", "flags:\t0100002", "flags:\t0140000", "flags:\t012100000", "flags:\tx", ""]
        {
            assert!(!reads(other), "{other}");
        }
        assert!(is_data("/data/a".as_ref()) && is_data("/username/a".as_ref()));
        let long = format!("/{}", "a".repeat(LONGEST_PATH));
        for other in ["/usr/lib/a", "socket:[7]", "/data/a\n/data/b", &long] {
            assert!(!is_data(other.as_ref()), "{other}");
        }
    }
}
