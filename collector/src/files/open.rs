//! Whole paths, from the descriptors of processes that have the files open. Links and numbers alone are read,
//! which ask no file system: one that hangs must not take the collector with it.

use super::{is_cut, name, printable};
use crate::procfs;
use stallscope_abi::files::{FileKey, FileWait};
use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How often a file is looked for; of one that is open for a moment only, its last parts have to do.
pub(super) const LOOKS: u8 = 5;

/// Processes looked at a time, and descriptors of each.
const PROCESSES: usize = 8;
const DESCRIPTORS: usize = 200;

/// The paths of those of `files` that the process which waited for them last still has open.
pub(super) fn paths(files: &[(FileKey, FileWait)]) -> HashMap<FileKey, String> {
    let processes: BTreeSet<u32> = files.iter().map(|(_, wait)| wait.tgid).collect();
    let mut found = HashMap::new();
    for pid in processes.into_iter().take(PROCESSES) {
        let wanted: Vec<&(FileKey, FileWait)> = files.iter().filter(|(_, wait)| wait.tgid == pid).collect();
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten().take(DESCRIPTORS) {
            let Ok(path) = std::fs::read_link(descriptor.path()) else { continue };
            let Some((key, _)) = wanted.iter().find(|(_, wait)| may_be(&path, wait)) else { continue };
            let number = descriptor.file_name();
            let info = procfs::text(pid, &format!("fdinfo/{}", number.display()));
            if info.is_some_and(|info| is_of(&info, key)) {
                found.insert(*key, printable(path.as_os_str().as_bytes()));
            }
        }
    }
    found
}

/// Whether the path ends with the names that the kernel side gave.
fn may_be(path: &Path, wait: &FileWait) -> bool {
    let Some(last) = path.file_name().filter(|_| path.is_absolute()) else { return false };
    let (last, given) = (last.as_bytes(), name(&wait.name));
    !given.is_empty() && if is_cut(&wait.name) { last.starts_with(given) } else { last == given }
}

/// Whether `/proc/PID/fdinfo/FD` tells of this file: one line each begins with `mnt_id:` and `ino:`.
fn is_of(info: &str, key: &FileKey) -> bool {
    let field = |field: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        value.trim().parse::<u64>().ok()
    };
    field("mnt_id") == Some(key.mount.into()) && field("ino") == Some(key.inode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn an_open_file_gives_its_path_away() {
        let dir = std::env::temp_dir().join(format!("ss-open-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("shard 00.tar");
        let file = std::fs::File::create(&path).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap();
        let field = |name: &str| -> u64 {
            info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        let key = FileKey { mount: field("mnt_id:") as u32, inode: field("ino:"), ..FileKey::default() };
        let mut wait = FileWait { tgid: std::process::id(), ..FileWait::default() };
        wait.name[..12].copy_from_slice(b"shard 00.tar");
        let other = (FileKey { inode: key.inode + 1, ..key }, wait);
        let found = paths(&[(key, wait)]);
        assert_eq!(found[&key], path.display().to_string());
        assert!(paths(&[other]).is_empty(), "another file of that name is another file");
        drop(file);
        assert!(paths(&[(key, wait)]).is_empty(), "it was closed");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn cut_names_are_beginnings() {
        let mut wait = FileWait::default();
        wait.name[..63].copy_from_slice(&[b'a'; 63]);
        assert!(may_be(Path::new(&format!("/x/{}", "a".repeat(80))), &wait));
        assert!(!may_be(Path::new("/x/aaa"), &wait));
        assert!(!may_be(Path::new("pipe:[7]"), &wait));
    }
}
