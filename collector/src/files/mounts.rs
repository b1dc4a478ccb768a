//! The mounts that processes see, by number: `/proc/PID/mountinfo`.
//!
//! A mount's number says which of several mounts of one file system was used (bind mounts, btrfs subvolumes); no
//! two mounts have the same at a time, whatever mount namespace they are in. Where it is not to be found, the
//! device still tells the file system: the kernel gives the one of the whole, as mountinfo does, which overlay and
//! btrfs hide from `stat`.

use crate::procfs;
use stallscope_abi::files::FileKey;
use std::collections::HashMap;

/// How often a number is looked for.
const LOOKS: u8 = 3;

/// Of a mountinfo that is read. A node of many containers has some thousand lines.
const MOST_BYTES: u64 = 4 << 20;

/// Of what was read of all processes. They may make mounts without end, each of which has another number.
const MOST_KEPT_BYTES: usize = 32 << 20;
/// Numbers and processes that were looked for.
const MOST_LOOKS: usize = 65_536;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u32,
    pub(super) device: (u32, u32),
    /// The folder of the file system that is mounted.
    pub(super) root: String,
    pub(super) point: String,
    pub(super) fs_type: String,
}

impl Mount {
    fn bytes(&self) -> usize {
        size_of::<Mount>() + self.root.len() + self.point.len() + self.fs_type.len()
    }
}

#[derive(Debug, Default)]
pub(super) struct Mounts {
    by_id: HashMap<u32, Mount>,
    /// Reads for a number and a process.
    looks: HashMap<(u32, u32), u8>,
}

impl Mounts {
    /// Looks among the mounts of process `pid` for the one of `key`, unless it is known. Those of this process stand
    /// in where `pid` is gone or can't be looked at.
    pub(super) fn learn(&mut self, key: &FileKey, pid: u32) {
        if key.dev == 0 || self.exactly(key).is_some() {
            return;
        }
        if self.looks.len() >= MOST_LOOKS {
            self.looks.clear();
        }
        let looks = self.looks.entry((key.mount, pid)).or_default();
        if *looks == LOOKS {
            return;
        }
        *looks += 1;
        let mounts_of = |pid| procfs::beginning(pid, "mountinfo", MOST_BYTES);
        let table = mounts_of(pid).filter(|table| !table.is_empty());
        let Some(table) = table.or_else(|| mounts_of(std::process::id())) else { return };
        self.take(&table);
    }

    fn take(&mut self, table: &[u8]) {
        let held: usize = self.by_id.values().map(Mount::bytes).sum();
        if held + table.len() > MOST_KEPT_BYTES {
            self.by_id.clear();
        }
        self.by_id
            .extend(table.split(|byte| *byte == b'\n').filter_map(parse).map(|mount| (mount.id, mount)));
    }

    /// The mount that was used, and none that stands in for it.
    pub(super) fn exactly(&self, key: &FileKey) -> Option<&Mount> {
        self.by_id.get(&key.mount).filter(|mount| mount.device == key.device())
    }

    pub(super) fn find(&self, key: &FileKey) -> Option<&Mount> {
        let of_device = || {
            let same = self.by_id.values().filter(|mount| mount.device == key.device());
            // The whole file system rather than a folder of it.
            same.min_by_key(|mount| (mount.root.len(), mount.point.len(), mount.id))
        };
        if key.dev == 0 { None } else { self.exactly(key).or_else(of_device) }
    }
}

/// Type and mount point of the file system that a process has a descriptor's file open on. Asks no file system: one that
/// hangs does not hold this up.
pub(crate) fn mounted_at(process: &procfs::Opened, descriptor: u64) -> Option<(String, String)> {
    let info = process.text(&format!("fdinfo/{descriptor}"))?;
    let id: u32 = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
    let table = process.beginning("mountinfo", MOST_BYTES)?;
    let mount = table.split(|byte| *byte == b'\n').filter_map(parse).find(|mount| mount.id == id)?;
    Some((mount.fs_type, mount.point))
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda rw`: see proc_pid_mountinfo(5).
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let _parent = fields.next()?;
    let mut device = fields.next()?.split(|byte| *byte == b':');
    let device = (number(device.next()?)?, number(device.next()?)?);
    let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
    fields.find(|field| *field == b"-")?;
    Some(Mount { id, device, root, point, fs_type: unescaped(fields.next()?) })
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Blanks and backslashes are written as three octal digits: `\040`.
fn unescaped(field: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let value =
            digits.map(|digits| digits.iter().fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0')));
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    super::printable(&bytes)
}

#[cfg(fuzzing)]
pub(crate) fn read_any(table: &[u8]) {
    for mount in table.split(|byte| *byte == b'\n').filter_map(parse) {
        assert!(!mount.point.chars().any(char::is_control));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "\
21 28 0:20 / /proc rw,nosuid shared:12 - proc proc rw
28 0 0:31 / / rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/a:/b
36 28 8:17 / /data rw,noatime - ext4 /dev/sdb1 rw
37 28 8:17 /sets/imagenet /mnt/image\\040net\\134x ro - ext4 /dev/sdb1 rw
40 28 0:45 /@home /home rw - btrfs /dev/sdc rw,subvol=/@home
41 28 0:45 /@data /pool rw - btrfs /dev/sdc rw,subvol=/@data
50 28 0:60 / /slow ro propagate_from:3 - fuse.slowfs slowfs rw
";

    fn mounts() -> Mounts {
        let mounts = TABLE.lines().map(|line| parse(line.as_bytes()).unwrap());
        Mounts { by_id: mounts.map(|mount| (mount.id, mount)).collect(), ..Mounts::default() }
    }

    fn point(mount: u32, (major, minor): (u32, u32)) -> Option<String> {
        let key = FileKey { mount, dev: major << 20 | minor, ..FileKey::default() };
        mounts().find(&key).map(|mount| mount.point.clone())
    }

    #[test]
    fn the_mount_that_was_used_is_found() {
        assert_eq!(point(36, (8, 17)).unwrap(), "/data");
        assert_eq!(point(37, (8, 17)).unwrap(), "/mnt/image net\\x");
        assert_eq!(point(41, (0, 45)).unwrap(), "/pool");
        assert_eq!(point(28, (0, 31)).unwrap(), "/");
        assert_eq!(mounts().by_id[&50].fs_type, "fuse.slowfs");
    }

    #[test]
    fn of_mounts_without_end_some_are_kept() {
        let mut mounts = Mounts::default();
        let name = "n".repeat(4000);
        for id in 0..20_000 {
            let line = format!("{} 28 8:17 /{name} /data rw,noatime - ext4 /dev/sdb1 rw\n", id);
            mounts.take(line.as_bytes());
        }
        assert!(mounts.by_id.values().map(Mount::bytes).sum::<usize>() <= MOST_KEPT_BYTES);
        let key = FileKey { mount: 19_999, dev: 8 << 20 | 17, ..FileKey::default() };
        assert_eq!(mounts.exactly(&key).unwrap().point, "/data", "the last are");
    }

    #[test]
    fn else_the_device_tells_the_file_system() {
        // Another mount namespace's, or a number that was given out again.
        assert_eq!(point(999, (8, 17)).unwrap(), "/data");
        assert_eq!(point(21, (8, 17)).unwrap(), "/data");
        assert_eq!(point(36, (9, 9)), None);
        assert_eq!(point(0, (0, 0)), None);
    }

    #[test]
    fn the_own_mounts_can_be_read() {
        use std::os::unix::fs::MetadataExt;
        let proc = std::fs::metadata("/proc").unwrap().dev();
        let dev = rustix::fs::major(proc) << 20 | rustix::fs::minor(proc);
        let key = FileKey { dev, mount: u32::MAX, ..FileKey::default() };
        let mut mounts = Mounts::default();
        mounts.learn(&key, std::process::id());
        assert_eq!(mounts.find(&key).unwrap().fs_type, "proc");
    }

    proptest! {
        #[test]
        fn foreign_lines_never_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
            let _ = unescaped(&line);
        }

        #[test]
        fn escapes_are_undone(name in "[a-z \\\\\t\n]{0,20}") {
            let escaped: String = name
                .chars()
                .map(|c| if c.is_ascii_lowercase() { c.to_string() } else { format!("\\{:03o}", c as u32) })
                .collect();
            prop_assert_eq!(unescaped(escaped.as_bytes()), super::super::printable(name.as_bytes()));
        }
    }
}
