//! What is removed where something else comes in a checkpoint's place.

use super::mark::VERIFIED;
use super::*;
use crate::files::{Folder, Out, put, write_small};
use crate::manifest::{Digest, Manifest, seal};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A user who may write into the folder of checkpoints, and puts something in the place of one before the nth operation.
#[derive(Debug)]
struct Swaps {
    dir: PathBuf,
    comes: Comes,
    before: AtomicUsize,
}

#[derive(Debug)]
enum Comes {
    Link(PathBuf),
    /// The folder itself.
    Folder(PathBuf),
}

impl Swaps {
    fn on(&self) {
        if self.before.fetch_sub(1, Ordering::Relaxed) == 0 {
            std::fs::rename(&self.dir, self.dir.with_extension("aside")).expect("a folder");
            match &self.comes {
                Comes::Link(victim) => std::os::unix::fs::symlink(victim, &self.dir).expect("a link"),
                Comes::Folder(victim) => std::fs::rename(victim, &self.dir).expect("a folder"),
            }
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
    fn remove_in(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        self.on();
        Disk.remove_in(folder, name)
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
    let swaps = Swaps { dir: dir.clone(), comes: Comes::Link(victim.clone()), before: AtomicUsize::new(nth) };
    act(&swaps, &dir);
    assert_eq!(std::fs::read_dir(&victim).expect("a folder").count(), 3, "before operation {nth}");
    for name in ["manifest.json", "thesis", "verified"] {
        assert_eq!(std::fs::read_to_string(victim.join(name)).ok().as_deref(), Some("mine"), "{name}");
    }
}

#[test]
fn a_link_that_comes_in_a_checkpoints_place_leads_nowhere() {
    for nth in 0..6 {
        leaves_the_victim_alone(nth, |files, dir| drop(remove(files, dir, &|_| true)));
        leaves_the_victim_alone(nth, |files, dir| drop(put(files, dir, "manifest.json", b"theirs")));
        leaves_the_victim_alone(nth, |files, dir| {
            drop(files.link(&dir.join("thesis"), &dir.join("copy")));
            drop(write_small(files, &dir.join("user-0.bin"), b"theirs"));
        });
    }
}

/// A folder with a sound manifest of the nth save, marked as read back whole.
fn committed(root: &Path, step: u64) -> PathBuf {
    let dir = root.join(names::folder(step, 1));
    std::fs::create_dir(&dir).expect("a folder");
    let (bytes, digest) = seal(&manifest(step));
    std::fs::write(dir.join(MANIFEST), bytes).expect("a file");
    std::fs::write(dir.join(VERIFIED), digest.hex()).expect("a file");
    std::fs::write(dir.join("weights"), "mine").expect("a file");
    dir
}

fn manifest(step: u64) -> Manifest {
    Manifest {
        save: names::random_id(),
        step,
        sequence: step,
        saved_wall_ns: step,
        tool: String::new(),
        parts: Vec::new(),
        image_bytes: 0,
        written_bytes: 0,
        reused_bytes: 0,
        run: None,
        metrics: BTreeMap::new(),
        retain: Retain::default(),
    }
}

#[test]
fn a_good_checkpoint_that_comes_in_an_old_ones_place_stays() {
    // Between the list and the removal, and before each operation of that.
    for before in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
        let root = tempfile::tempdir().expect("a folder");
        let (old, newest) = (committed(root.path(), 1), committed(root.path(), 2));
        let store = Store::open(root.path());
        let entries = store.list().expect("a list");
        let swaps =
            Swaps { dir: old, comes: Comes::Folder(newest), before: AtomicUsize::new(before.unwrap_or(0)) };
        if before.is_none() {
            swaps.on();
        }
        drop(store.collect_entries(&swaps, entries, 1, &HashSet::new(), false));
        let listed = store.list().expect("a list");
        let whole = |entry: &Entry| entry.manifest.as_ref().is_some_and(|manifest| manifest.sequence == 2);
        let found = listed.iter().find(|entry| whole(entry)).expect("the newest, by whatever name");
        assert_eq!(found.state, State::Verified, "before operation {before:?}");
        assert!(root.path().join(&found.name).join("weights").exists(), "before operation {before:?}");
    }
}

#[test]
fn a_good_checkpoint_that_comes_in_a_leftovers_place_stays() {
    let root = tempfile::tempdir().expect("a folder");
    let newest = committed(root.path(), 2);
    let left = root.path().join(names::folder(1, 1));
    std::fs::create_dir(&left).expect("a folder");
    std::fs::rename(&left, root.path().join("aside")).expect("a folder");
    std::fs::rename(newest, &left).expect("a folder");
    assert!(remove(&Disk, &left, &|manifest| manifest.is_none()).is_err());
    assert!(left.join(MANIFEST).exists() && left.join("weights").exists());
}

/// Checkpoints of which two are to go, and remains of a save.
fn with_old_ones(dir: &Path) {
    std::fs::create_dir(dir).expect("a folder");
    (1..=4).for_each(|step| drop(committed(dir, step)));
    let left = dir.join(names::folder(5, 1));
    std::fs::create_dir(&left).expect("a folder");
    std::fs::write(left.join("weights"), "mine").expect("a file");
}

/// The victim's manifests can be read, and so their numbers be forged in the folder that is to be collected.
fn forge(from: &Path, to: &Path) {
    for step in 1..=4 {
        let (from, to) = (from.join(names::folder(step, 1)), to.join(names::folder(step, 1)));
        for name in [MANIFEST, VERIFIED] {
            std::fs::copy(from.join(name), to.join(name)).expect("a file");
        }
    }
}

#[test]
fn a_folder_of_checkpoints_that_comes_in_anothers_place_is_not_collected() {
    // Before the first and the last of the operations that remove the first one, the second one and what was left.
    for nth in [0, 4, 5, 9, 10, 12] {
        let root = tempfile::tempdir().expect("a folder");
        let (dir, victim) = (root.path().join("theirs"), root.path().join("victim"));
        with_old_ones(&dir);
        with_old_ones(&victim);
        forge(&victim, &dir);
        let comes = Comes::Link(victim.clone());
        let swaps = Swaps { dir: dir.clone(), comes, before: AtomicUsize::new(nth) };
        let collected = Store::open(&dir).collect_with(&swaps, 2, false).expect("a collection");
        assert_eq!((collected.removed.len(), collected.leftovers.len()), (2, 1), "before operation {nth}");
        assert_eq!(std::fs::read_dir(dir.with_extension("aside")).expect("a folder").count(), 3);
        assert_eq!(std::fs::read_dir(&victim).expect("a folder").count(), 5, "before operation {nth}");
        for step in 1..=5 {
            assert!(victim.join(names::folder(step, 1)).join("weights").exists(), "before operation {nth}");
        }
    }
}

#[test]
fn a_collection_that_fails_names_the_folder_as_it_was_named() {
    let root = tempfile::tempdir().expect("a folder");
    let old = committed(root.path(), 1);
    committed(root.path(), 2);
    // No save makes a folder in a checkpoint.
    std::fs::create_dir(old.join("within")).expect("a folder");
    let error = Store::open(root.path()).collect(1, false).expect_err("there is a folder in it");
    assert!(error.to_string().contains(&*old.to_string_lossy()), "{error}");
}

/// By their text 33,000 links to one of 7 KB were within the bound, and took `ckpt gc` 6 GB.
#[test]
fn metrics_of_few_bytes_count_as_what_they_take_in_memory() {
    let root = tempfile::tempdir().expect("a folder");
    let metrics = (0..1000).map(|number| (format!("{number:x}"), 0.0)).collect();
    let manifest = Manifest { metrics, ..manifest(1) };
    let dir = root.path().join(names::folder(1, 1));
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join(MANIFEST), seal(&manifest).0).expect("a file");
    let (store, mut left) = (Store::open(root.path()), Left { held_bytes: 10 * 104_000, ..Left::ALL });
    let states: Vec<_> = (0..20).map(|_| store.state(&names::folder(1, 1), &mut left)).collect();
    let listed = states.iter().filter(|(_, manifest)| manifest.is_some()).count();
    assert!((9..=10).contains(&listed), "{listed}");
    assert!(
        matches!(&states[19].0, State::Bad(why) if why.contains("move some of its checkpoints elsewhere"))
    );
}

#[test]
fn a_list_has_no_text_of_a_manifest_that_is_long() {
    let root = tempfile::tempdir().expect("a folder");
    let long = || "x".repeat(1 << 20);
    let dir = root.path().join(names::folder(1, 1));
    std::fs::create_dir(&dir).expect("a folder");
    for (manifest, is_fine) in [
        (Manifest { tool: long(), ..manifest(1) }, false),
        (Manifest { save: long(), ..manifest(1) }, false),
        (Manifest { run: Some(long()), ..manifest(1) }, false),
        (Manifest { parts: vec![Digest::of(b"part"); 10_000], ..manifest(1) }, true),
    ] {
        std::fs::write(dir.join(MANIFEST), seal(&manifest).0).expect("a file");
        let mut left = Left::ALL;
        let (state, listed) = Store::open(root.path()).state(&names::folder(1, 1), &mut left);
        assert_eq!(listed.as_ref().map(Listed::world), is_fine.then_some(10_000), "{state:?}");
        if let State::Bad(why) = state {
            assert!(why.len() < 2000, "{} bytes", why.len());
        }
        assert!(left.held_bytes > (64 << 20) - 1000, "{left:?}");
    }
}

/// A folder of other manifests is not read for one whose name is known: `ckpt verify` read all of them for each.
#[test]
fn a_checkpoint_by_its_name_is_opened_without_a_list() {
    let root = tempfile::tempdir().expect("a folder");
    committed(root.path(), 1);
    let opened = Store::open(root.path()).checkpoint(&names::folder(1, 1));
    assert!(opened.is_err_and(|error| error.to_string().contains("names no rank")));
    let missing = Store::open(root.path()).checkpoint(&names::folder(2, 1)).map(|_| ());
    assert!(missing.is_err_and(|error| error.to_string().contains("there is step-000000001")));
}

#[test]
fn another_users_link_leads_to_no_checkpoints_that_are_collected() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: another_users_link_leads_to_no_checkpoints_that_are_collected takes root");
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let (dir, link) = (root.path().join("theirs"), root.path().join("link"));
    with_old_ones(&dir);
    std::os::unix::fs::symlink(&dir, &link).expect("a link");
    std::os::unix::fs::lchown(&link, Some(65_001), None).expect("another user's");
    let error = Store::open(&link).collect(1, false).expect_err("it is another user's link").to_string();
    assert!(error.contains("another user's link leads there"), "{error}");
    assert_eq!(std::fs::read_dir(&dir).expect("a folder").count(), 5);
}

/// 60,000 links to one folder, 2 MB, had taken `ckpt ls` 1.4 GB; and by such a link root was shown a file of root's.
#[test]
fn of_what_was_set_aside_some_is_named_and_no_link_is_followed() {
    let root = tempfile::tempdir().expect("a folder");
    let aside = root.path().join(QUARANTINE);
    let bad = aside.join("step-000000001");
    std::fs::create_dir_all(&bad).expect("a folder");
    std::fs::write(bad.join("reason.txt"), [0xff; 4096]).expect("a file");
    let link = |name: &str| std::os::unix::fs::symlink(&bad, aside.join(name)).expect("a link");
    link("step-000000002");
    let store = Store::open(root.path());
    let named = store.quarantined().named;
    let reasons: Vec<(usize, &str)> =
        named.iter().map(|(_, reason)| (reason.chars().count(), &**reason)).collect();
    assert_eq!(reasons[0].0, MOST_REASON + 1);
    assert_eq!(reasons[1].1, "no reason is noted");
    (3..=30).for_each(|step| link(&format!("step-{step:09}")));
    let found = store.quarantined();
    assert_eq!((found.named.len(), found.others), (10, 20));
}

#[test]
fn a_folder_of_more_names_than_can_be_listed_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let make = |step| std::fs::write(root.path().join(names::folder(step, 1)), "").expect("a file");
    (1..=MOST_ENTRIES as u64).for_each(make);
    let store = Store::open(root.path());
    assert_eq!(store.list().expect("a list").len(), MOST_ENTRIES);
    make(MOST_ENTRIES as u64 + 1);
    let error = store.list().expect_err("one is too many").to_string();
    assert!(error.contains("move some of them elsewhere"), "{error}");
}

/// A bad one's sentence quotes what is in it, and was not counted.
#[test]
fn sentences_of_a_list_are_cut() {
    let root = tempfile::tempdir().expect("a folder");
    let dir = root.path().join(names::folder(1, 1));
    std::fs::create_dir(&dir).expect("a folder");
    let content = format!(r#"{{"save":"a","step":"{}"}}"#, r"\u0001".repeat(10_000));
    let digest = Digest::of(content.as_bytes()).hex();
    let text = format!("{{\"format\":1,\"blake3\":\"{digest}\",\"content\":{content}}}\n");
    std::fs::write(dir.join(MANIFEST), text).expect("a file");
    let listed = Store::open(root.path()).list().expect("a list");
    assert!(
        matches!(&listed[0].state, State::Bad(why) if why.chars().count() <= MOST_REASON + 1),
        "{listed:?}"
    );
}

/// For each that was set aside all that were left had been listed anew: 2,000 took minutes, and no signal ended it.
#[test]
fn looking_for_the_newest_ends_after_many_bad_ones_or_when_it_is_asked_to() {
    let root = tempfile::tempdir().expect("a folder");
    let some = MOST_PASSED as u64 + 20;
    // They name no rank.
    (1..=some).for_each(|step| drop(committed(root.path(), step)));
    let store = Store::open(root.path());
    let asked = std::cell::Cell::new(0);
    let twice = || asked.replace(asked.get() + 1) < 2;
    let error = store.newest_verified(&|_, _, _| {}, &twice).expect_err("it was to end").to_string();
    assert!(error.contains("interrupted"), "{error}");
    assert_eq!(store.quarantined().named.len(), 2);
    let latest = || std::fs::read_to_string(root.path().join(LATEST)).expect("a file");
    assert_eq!(latest().trim(), names::folder(some - 2, 1));
    let error = store.newest_verified(&|_, _, _| {}, &|| true).expect_err("they are many").to_string();
    assert!(error.contains("the 100 newest") && error.contains("names no rank"), "{error}");
    assert_eq!(latest().trim(), names::folder(18, 1));
    let newest = store.newest_verified(&|_, _, _| {}, &|| true).expect("it comes to an end");
    assert!(newest.checkpoint.is_none() && newest.passed.len() == 18);
}
