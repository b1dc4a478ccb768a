use super::*;
use crate::testing::{KeptLocked, ends, folder};
use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

fn folders(most: usize) -> Folders {
    Folders::new(Onwards::new("/proc/self/fd", false).unwrap(), most, Vec::new()).unwrap()
}

fn watching(folder: &Path) -> Folders {
    let mut folders = self::folders(MOST);
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
    File::create(root.join("train.tar")).unwrap().set_len(DATA_SET_BYTES).unwrap();
    let mut folders = self::folders(MOST);
    folders.has_open(&root.join("train.tar"));
    assert_eq!(folders.count(), 1);
}

#[test]
fn no_folder_of_another_file_system_is_watched() {
    let mut folders = self::folders(MOST);
    ["x", "y"].iter().for_each(|name| folders.has_open(&Path::new("/proc").join(name)));
    assert_eq!((folders.count(), folders.skipped.len(), folders.limit()), (0, 1, None));
}

#[test]
fn folders_beyond_what_may_be_watched_are_counted_once() {
    let Some(dir) = folder() else { return };
    let root = fs::canonicalize(dir.path()).unwrap();
    (0..5).for_each(|class| fs::create_dir(root.join(class.to_string())).unwrap());
    let mut folders = self::folders(3);
    (0..10).for_each(|at| folders.has_open(&root.join(format!("{}/x{}", at % 5, at / 5))));
    assert_eq!(folders.count(), 3);
    assert!(folders.limit().is_some_and(|limit| limit.starts_with("2 folders are not watched: 3 are")));
}

#[test]
fn a_folder_in_which_one_file_alone_is_open_is_not_watched() {
    let Some(dir) = folder() else { return };
    let mut folders = self::folders(MOST);
    (0..5).for_each(|_| folders.has_open(&dir.path().join("train.log")));
    assert_eq!(folders.count(), 0);
}

#[test]
fn of_a_folder_for_each_class_all_are_watched_after_some() {
    let Some(dir) = folder() else { return };
    let root = fs::canonicalize(dir.path()).unwrap();
    (0..20).for_each(|class| fs::create_dir(root.join(class.to_string())).unwrap());
    std::os::unix::fs::symlink("/usr", root.join("link")).unwrap();
    let mut folders = self::folders(MOST);
    (0..3).for_each(|class| folders.has_open(&root.join(class.to_string()).join("picture")));
    for _ in 0..500 {
        folders.watch_beside();
        if folders.count() == 20 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} are watched", folders.count());
}

#[test]
fn a_folder_that_its_user_keeps_locked_is_neither_listed_nor_looked_into_by_this_process() {
    let Some(dir) = folder() else { return };
    let root = fs::canonicalize(dir.path()).unwrap();
    let mut folders = self::folders(MOST);
    (0..20).for_each(|class| fs::create_dir(root.join(class.to_string())).unwrap());
    let Some(_kept) = KeptLocked::new(&root) else { return };
    let count = ends(move || {
        (0..4).for_each(|class| folders.has_open(&root.join(format!("{class}/a"))));
        (0..4).for_each(|class| folders.has_open(&root.join(format!("{class}/b"))));
        folders.watch_beside();
        folders.replaced(folders.all());
        folders.count()
    });
    assert_eq!(count, Some(4));
}

#[test]
fn a_folder_of_which_nothing_is_known_now_stays_watched_and_is_asked_for_again() {
    let Some(dir) = folder() else { return };
    let root = fs::canonicalize(dir.path()).unwrap();
    let (class, moved) = (root.join("train/class"), root.join("moved"));
    fs::create_dir_all(&class).unwrap();
    let mut folders = watching(&class);
    let number = folders.numbers[&class];
    fs::rename(root.join("train"), &moved).unwrap();
    // As by one whose names are out of the kernel's cache.
    assert!(folders.replaced([number]).is_empty());
    assert_eq!((folders.count(), folders.take_unknown()), (1, BTreeSet::from([number])));
    assert!(fs::metadata(&class).is_err());
    assert_eq!((folders.replaced([number]), folders.count()), (vec![number], 0));
}

/// Which only a job's user makes.
#[test]
fn folders_that_come_and_go_without_end_take_no_memory_without_end() {
    let mut folders = self::folders(MOST);
    for at in 0..MOST_LOOKED_AT + 100 {
        let around = PathBuf::from(format!("/nowhere/{at}"));
        (0..5).for_each(|beside| folders.has_open(&around.join(format!("{beside}/a"))));
        (0..5).for_each(|beside| folders.has_open(&around.join(format!("{beside}/b"))));
    }
    (0..100).for_each(|at| folders.has_open(&Path::new("/none").join(format!("{at}/a"))));
    let beside = folders.around.values().map(Vec::len).max();
    assert!(folders.around.len() <= MOST_LOOKED_AT && folders.open.len() <= MOST_LOOKED_AT);
    assert!(folders.looked_around.len() <= MOST_LOOKED_AT && beside <= Some(BESIDE));
}

#[test]
fn a_folder_behind_a_link_is_not_watched() {
    let Some(dir) = folder() else { return };
    let root = fs::canonicalize(dir.path()).unwrap();
    fs::create_dir(root.join("real")).unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
    let mut folders = self::folders(MOST);
    ["x", "y"].iter().for_each(|name| folders.has_open(&root.join("link").join(name)));
    assert_eq!(folders.count(), 0);
}
