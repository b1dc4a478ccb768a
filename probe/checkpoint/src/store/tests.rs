//! What a link in the place of a checkpoint leads to.

use super::*;
use crate::files::Out;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A user who may write into the folder of checkpoints, and puts a link in the place of one before the nth operation.
#[derive(Debug)]
struct Swaps {
    dir: PathBuf,
    victim: PathBuf,
    before: AtomicUsize,
}

impl Swaps {
    fn on(&self) {
        if self.before.fetch_sub(1, Ordering::Relaxed) == 0 {
            std::fs::rename(&self.dir, self.dir.with_extension("aside")).expect("a folder");
            std::os::unix::fs::symlink(&self.victim, &self.dir).expect("a link");
        }
    }
}

impl Files for Swaps {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }
    fn create(&self, path: &Path, direct: bool) -> io::Result<Box<dyn Out>> {
        self.on();
        Disk.create(path, direct)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.on();
        Disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.on();
        Disk.link(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.on();
        Disk.sync_dir(path)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.on();
        Disk.remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.on();
        Disk.remove_dir(path)
    }
}

/// With `step-000000001` exchanged before the nth operation, whether `act` leaves what is the user's alone.
fn leaves_the_victim_alone(nth: usize, act: impl FnOnce(&Swaps, &Path)) {
    let root = tempfile::tempdir().expect("a folder");
    let (dir, victim) = (root.path().join("step-000000001"), root.path().join("victim"));
    for folder in [&dir, &victim] {
        std::fs::create_dir(folder).expect("a folder");
        for name in ["manifest.json", "thesis", "verified"] {
            std::fs::write(folder.join(name), "mine").expect("a file");
        }
    }
    let swaps = Swaps { dir: dir.clone(), victim: victim.clone(), before: AtomicUsize::new(nth) };
    act(&swaps, &dir);
    assert_eq!(std::fs::read_dir(&victim).expect("a folder").count(), 3, "before operation {nth}");
    for name in ["manifest.json", "thesis", "verified"] {
        assert_eq!(std::fs::read_to_string(victim.join(name)).ok().as_deref(), Some("mine"), "{name}");
    }
}

#[test]
fn a_link_that_comes_in_a_checkpoints_place_leads_nowhere() {
    for nth in 0..6 {
        leaves_the_victim_alone(nth, |files, dir| drop(remove(files, dir)));
        leaves_the_victim_alone(nth, |files, dir| drop(put(files, dir, "manifest.json", b"theirs")));
        leaves_the_victim_alone(nth, |files, dir| {
            drop(files.link(&dir.join("thesis"), &dir.join("copy")));
            drop(write_small(files, &dir.join("user-0.bin"), b"theirs"));
        });
    }
}
