//! Which files the job's processes have open, by what the kernel shows of them to their user.
//!
//! A look is a moment. Of a job that waits for its files, one of them is open at most moments; of one that does not, a cache
//! would bring nothing.

use rustix::fs::{AtFlags, CWD, FileType, statat};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Processes of a job that are looked at.
const MOST_PROCESSES: usize = 1024;
/// Files of one of them.
const MOST_FILES: usize = 4096;
/// What is the system's, and no data set.
const SYSTEM: [&str; 10] =
    ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/run"];

/// Process `root` and all below it.
pub(crate) fn tree(root: u32) -> Vec<u32> {
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

/// Files that a process has open to read them by way of the page cache.
pub(crate) fn open_files(pid: u32) -> Vec<PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().take(MOST_FILES);
    files
        .filter_map(|file| {
            let path = fs::read_link(file.path()).ok()?;
            let number = file.file_name();
            (is_data(&path) && is_read(pid, number.to_str()?) && is_plain(&path)).then_some(path)
        })
        .collect()
}

fn is_data(path: &Path) -> bool {
    // Sockets and pipes have none, and what was deleted has another one.
    path.is_absolute() && !SYSTEM.iter().any(|system| path.starts_with(system))
}

fn is_plain(path: &Path) -> bool {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
}

fn is_read(pid: u32, number: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).is_ok_and(|text| reads(&text))
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

    #[test]
    fn what_is_open_for_reading_is_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (read, written) = (root.join("read"), root.join("written"));
        let _written = File::create(&written).unwrap();
        fs::write(&read, "x").unwrap();
        let _read = File::open(&read).unwrap();
        let _folder = File::open(&root).unwrap();
        let found = open_files(std::process::id());
        assert!(found.contains(&read), "{found:?}");
        assert!(!found.contains(&written) && !found.contains(&root), "{found:?}");
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
    fn flags_tell_who_reads() {
        assert!(reads("pos:\t0\nflags:\t0100000\nmnt_id:\t9\n") && reads("flags:\t02100000\n"));
        for other in
            ["flags:\t0100001", "flags:\t0100002", "flags:\t0140000", "flags:\t012100000", "flags:\tx", ""]
        {
            assert!(!reads(other), "{other}");
        }
        assert!(is_data(Path::new("/data/a")) && is_data(Path::new("/username/a")));
        assert!(!is_data(Path::new("/usr/lib/a")) && !is_data(Path::new("socket:[7]")));
    }
}
