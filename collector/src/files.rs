//! Which files and mounts the job waits for: the kernel side's numbers in, names and sums out.

mod mounts;
mod open;

pub(crate) use mounts::mounted_at;
#[cfg(fuzzing)]
pub(crate) use mounts::read_any;
use mounts::{Mount, Mounts};
use stallscope_abi::files::{self, FileKey};
use stallscope_abi::kernel::Plain;
use stallscope_model::{FileWait, MountWait};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Files in a summary.
const SHOWN: usize = 50;

/// Files kept; the shortest waits go when there are twice as many. Their mounts know of them.
const KEPT: usize = 1000;

/// Mounts that are kept: four times as many as the kernel side has.
const MOUNTS: usize = 4096;

/// Where a file is that no mount is known of.
const NOWHERE: &str = "unknown";

#[derive(Debug, Default)]
pub(crate) struct Files {
    files: HashMap<FileKey, File>,
    mounts: HashMap<FileKey, Sum>,
    table: Mounts,
}

/// A sum that the kernel side may begin anew.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    before: files::MountWait,
    now: files::MountWait,
}

#[derive(Debug)]
struct File {
    sum: Sum,
    last: files::FileWait,
    /// The whole path, where a process was caught with the file open.
    path: Option<String>,
    /// How often that was tried.
    looks: u8,
}

impl Sum {
    fn is(&mut self, now: files::MountWait) {
        if now.waits < self.now.waits {
            self.restart();
        }
        self.now = now;
    }

    fn restart(&mut self) {
        self.before = self.total();
        self.now = files::MountWait::default();
    }

    fn total(&self) -> files::MountWait {
        files::MountWait {
            wait_ns: self.before.wait_ns.saturating_add(self.now.wait_ns),
            waits: self.before.waits.saturating_add(self.now.waits),
        }
    }
}

impl Files {
    /// A frame about a file.
    pub(crate) fn file(&mut self, payload: &[u8]) {
        let Some((key, last)) = parse::<files::FileWait>(payload) else { return };
        let file = self.files.entry(key).or_insert(File { sum: Sum::default(), last, path: None, looks: 0 });
        file.sum.is(files::MountWait { wait_ns: last.wait_ns, waits: last.waits });
        file.last = last;
        if self.files.len() > 2 * KEPT {
            let mut waits: Vec<u64> = self.files.values().map(|file| file.sum.total().wait_ns).collect();
            let (_, least, _) = waits.select_nth_unstable_by_key(KEPT, |wait_ns| Reverse(*wait_ns));
            let least = *least;
            self.files.retain(|_, file| file.sum.total().wait_ns > least);
        }
    }

    /// A frame about a mount.
    pub(crate) fn mount(&mut self, payload: &[u8]) {
        if let Some((key, now)) = parse::<files::MountWait>(payload)
            && (self.mounts.len() < MOUNTS || self.mounts.contains_key(&key))
        {
            self.mounts.entry(key).or_default().is(now);
        }
    }

    /// The kernel side begins its sums anew.
    pub(crate) fn restart(&mut self) {
        self.files.values_mut().for_each(|file| file.sum.restart());
        self.mounts.values_mut().for_each(Sum::restart);
    }

    /// Once a second: finds out, while the job's processes live, what their numbers stand for.
    pub(crate) fn look(&mut self) {
        for key in self.mounts.keys() {
            self.table.learn(key, key.root);
        }
        let longest: Vec<(FileKey, files::FileWait, bool)> = self
            .longest()
            .into_iter()
            .map(|(key, file)| (key, file.last, file.path.is_none() && file.looks < open::LOOKS))
            .collect();
        for (key, wait, _) in &longest {
            // In a mount namespace of its own, as in a container that the job starts.
            self.table.learn(key, wait.tgid);
        }
        let unnamed: Vec<(FileKey, files::FileWait)> = longest
            .into_iter()
            .filter(|(_, wait, looked_for)| *looked_for && !is_complete(wait))
            .map(|(key, wait, _)| (key, wait))
            .collect();
        let found = open::paths(&unnamed);
        for (key, _) in unnamed {
            if let Some(file) = self.files.get_mut(&key) {
                file.looks += 1;
                file.path = found.get(&key).cloned();
            }
        }
    }

    /// Those in a summary, longest wait first.
    fn longest(&self) -> Vec<(FileKey, &File)> {
        let mut files: Vec<(FileKey, &File)> = self.files.iter().map(|(key, file)| (*key, file)).collect();
        files.sort_unstable_by_key(|(key, file)| (Reverse(file.sum.total().wait_ns), *key));
        files.truncate(SHOWN);
        files
    }

    /// The files waited for longest, longest first. One file of several process trees is one.
    pub(crate) fn waits(&self) -> Vec<FileWait> {
        let mut together: HashMap<(String, u32, u64), FileWait> = HashMap::new();
        for (key, file) in self.longest() {
            let mount = self.table.find(&key);
            let point = mount.map_or_else(|| unknown(&key), |mount| mount.point.clone());
            let mut last = file.last;
            // Whole within its own mount, which is not the one that stands in for it.
            last.whole &= u32::from(self.table.exactly(&key).is_some());
            let wait = together.entry((point.clone(), key.dev, key.inode)).or_insert_with(|| FileWait {
                path: file.path.clone().unwrap_or_else(|| path(&key, &last, mount)),
                mount: point,
                ..FileWait::default()
            });
            let sum = file.sum.total();
            wait.wait_ns = wait.wait_ns.saturating_add(sum.wait_ns);
            wait.waits = wait.waits.saturating_add(sum.waits);
        }
        let mut waits: Vec<FileWait> = together.into_values().collect();
        waits.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.path.cmp(&b.path)));
        waits
    }

    /// How long the job waited for each device so far.
    pub(crate) fn device_waits_ns(&self) -> BTreeMap<u32, u64> {
        let mut waits: BTreeMap<u32, u64> = BTreeMap::new();
        for (key, sum) in self.mounts.iter().filter(|(key, _)| key.device() != (0, 0)) {
            let wait_ns = waits.entry(key.dev).or_default();
            *wait_ns = wait_ns.saturating_add(sum.total().wait_ns);
        }
        waits
    }

    /// All mounts, longest wait first.
    pub(crate) fn mount_waits(&self) -> Vec<MountWait> {
        let mut together: HashMap<(String, String), files::MountWait> = HashMap::new();
        for (key, sum) in &self.mounts {
            let name = match self.table.find(key) {
                Some(mount) => (mount.point.clone(), mount.fs_type.clone()),
                None => (unknown(key), String::new()),
            };
            let (all, sum) = (together.entry(name).or_default(), sum.total());
            all.wait_ns = all.wait_ns.saturating_add(sum.wait_ns);
            all.waits = all.waits.saturating_add(sum.waits);
        }
        let named = together.into_iter().map(|((mount, fs_type), sum)| MountWait {
            mount,
            fs_type,
            wait_ns: sum.wait_ns,
            waits: sum.waits,
        });
        let mut waits: Vec<MountWait> = named.collect();
        waits.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.mount.cmp(&b.mount)));
        waits
    }
}

fn parse<T: Plain>(payload: &[u8]) -> Option<(FileKey, T)> {
    files::parse(payload)
}

/// What a mount is called that none of the job's mount namespaces has: one of the kernel's own, or one that is
/// gone.
fn unknown(key: &FileKey) -> String {
    match key.device() {
        (0, 0) => NOWHERE.to_owned(),
        (major, minor) => format!("device {major}:{minor}"),
    }
}

/// A file's path, of which the kernel side gave the last two parts.
fn path(key: &FileKey, wait: &files::FileWait, mount: Option<&Mount>) -> String {
    let parts: Vec<String> =
        [text(&wait.parent), text(&wait.name)].into_iter().filter(|part| !part.is_empty()).collect();
    match mount {
        None if parts.is_empty() => format!("inode {}", key.inode),
        Some(mount) if parts.is_empty() => mount.point.clone(),
        Some(mount) if wait.whole == 1 => {
            format!("{}/{}", mount.point.trim_end_matches('/'), parts.join("/"))
        }
        Some(mount) => format!("{}/…/{}", mount.point.trim_end_matches('/'), parts.join("/")),
        None => format!("…/{}", parts.join("/")),
    }
}

/// Whether [`path`] leaves nothing out.
fn is_complete(wait: &files::FileWait) -> bool {
    wait.whole == 1 && !is_cut(&wait.name) && !is_cut(&wait.parent)
}

/// The bytes up to the 0 that ends them.
fn name(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Whether it fills its place, so that there may be more of it.
fn is_cut(bytes: &[u8]) -> bool {
    name(bytes).len() + 1 >= bytes.len()
}

/// A name cut to fit, as text.
fn text(bytes: &[u8]) -> String {
    let more = if is_cut(bytes) { "…" } else { "" };
    printable(name(bytes)) + more
}

/// Foreign bytes as text in which nothing moves a cursor.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|char| if char.is_control() { '\u{fffd}' } else { char })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_abi::kernel::bytes_of;

    fn key(inode: u64) -> FileKey {
        FileKey { root: std::process::id(), mount: 0, dev: 0, uid: 0, inode }
    }

    fn wait(name: &str, wait_ns: u64, waits: u64) -> files::FileWait {
        let mut wait = files::FileWait { wait_ns, waits, ..files::FileWait::default() };
        wait.name[..name.len()].copy_from_slice(name.as_bytes());
        wait.parent[..5].copy_from_slice(b"train");
        wait
    }

    fn frame<T: Plain>(key: &FileKey, wait: &T) -> Vec<u8> {
        [bytes_of(key), bytes_of(wait)].concat()
    }

    #[test]
    fn sums_go_on_where_the_kernel_begins_anew() {
        let mut files = Files::default();
        for now in [wait("a", 10, 2), wait("a", 30, 5), wait("a", 4, 1)] {
            files.file(&frame(&key(1), &now));
        }
        assert_eq!((files.waits()[0].wait_ns, files.waits()[0].waits), (34, 6));
        files.restart();
        files.file(&frame(&key(1), &wait("a", 100, 50)));
        assert_eq!((files.waits()[0].wait_ns, files.waits()[0].waits), (134, 56));
    }

    #[test]
    fn the_longest_waits_are_kept_of_many_files() {
        let mut files = Files::default();
        for inode in 1..10_000 {
            files.file(&frame(&key(inode), &wait("x", inode % 4000, 1)));
        }
        assert!(files.files.len() <= 2 * KEPT);
        let waits = files.waits();
        assert_eq!(waits.len(), SHOWN);
        assert_eq!(waits[0].wait_ns, 3999);
        assert!(waits.is_sorted_by(|a, b| a.wait_ns >= b.wait_ns));
    }

    #[test]
    fn of_mounts_without_end_some_are_kept() {
        let mut files = Files::default();
        for mount in 0..20_000 {
            let key = FileKey { mount, ..key(1) };
            files.mount(&frame(&key, &files::MountWait { wait_ns: 5, waits: 1 }));
        }
        assert_eq!(files.mounts.len(), MOUNTS);
    }

    #[test]
    fn a_path_says_what_it_leaves_out() {
        let mount = Mount { point: "/data".into(), ..Mount::default() };
        let named = |wait: &files::FileWait| path(&key(9), wait, Some(&mount));
        let mut one = wait("img.jpg", 1, 1);
        assert_eq!(named(&one), "/data/…/train/img.jpg");
        assert_eq!(path(&key(9), &one, None), "…/train/img.jpg");
        one.whole = 1;
        assert_eq!(named(&one), "/data/train/img.jpg");
        let root = Mount { point: "/".into(), ..Mount::default() };
        assert_eq!(path(&key(9), &one, Some(&root)), "/train/img.jpg");
        let none = files::FileWait::default();
        assert_eq!(named(&none), "/data");
        assert_eq!(path(&key(9), &none, None), "inode 9");
        let long = wait(&"n".repeat(files::NAME_BYTES - 1), 1, 1);
        assert!(named(&long).ends_with("nn…"));
    }

    #[test]
    fn names_are_foreign() {
        let mut one = wait("", 1, 1);
        one.name[..6].copy_from_slice(b"a\x1b[2J\xff");
        assert_eq!(path(&key(9), &one, None), "…/train/a\u{fffd}[2J\u{fffd}");
        let mut files = Files::default();
        files.file(b"short");
        files.mount(b"");
        assert!(files.waits().is_empty() && files.mount_waits().is_empty());
    }

    #[test]
    fn a_mount_that_is_not_to_be_found_is_named_by_its_device() {
        let mut files = Files::default();
        let nowhere = FileKey { root: u32::MAX, ..FileKey::default() };
        let device = FileKey { dev: 8 << 20 | 17, mount: u32::MAX, ..nowhere };
        files.mount(&frame(&nowhere, &files::MountWait { wait_ns: 5, waits: 1 }));
        files.mount(&frame(&device, &files::MountWait { wait_ns: 7, waits: 1 }));
        files.look();
        let mounts: Vec<String> = files.mount_waits().into_iter().map(|wait| wait.mount).collect();
        assert_eq!(mounts, ["device 8:17", "unknown"]);
    }
}
