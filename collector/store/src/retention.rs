//! How long a folder's recordings are kept: the oldest go first, and what is being written stays.

use crate::alive::is_written;
use crate::files::beside;
use crate::place::{follow, recordings_in};
use crate::spot::itself;
use stallscope_folder::Folder;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Files of a recording beside the database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What a folder may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Since a recording's last change.
    pub keep: Duration,
    /// Of all recordings together, those that are being written included.
    pub most_bytes: u64,
}

/// Recordings that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    pub recordings: u64,
    pub bytes: u64,
}

#[derive(Debug)]
struct Kept {
    name: OsString,
    changed: SystemTime,
    bytes: u64,
}

impl Retention {
    /// Removes recordings of this user's in `folder` that are older than they may be, and then the oldest until the rest take no more
    /// than they may. A recording that somebody writes stays, and so does one that cannot be removed.
    ///
    /// # Errors
    /// The folder cannot be listed, or another user's link leads there.
    pub fn apply(&self, folder: &Path, now: SystemTime) -> io::Result<Dropped> {
        self.apply_in(&Folder::open(folder)?, now)
    }

    /// By the folder's descriptor: who owns a folder around it could put a link in its place between the look and the removal.
    fn apply_in(&self, folder: &Folder, now: SystemTime) -> io::Result<Dropped> {
        let mut dropped = Dropped::default();
        let mut total_bytes = 0;
        let mut kept = Vec::new();
        for path in recordings_in(&itself(folder))? {
            let Some(((changed, bytes), name)) = facts(&path).zip(path.file_name()) else { continue };
            total_bytes += bytes;
            if !is_under_way(&path) {
                kept.push(Kept { name: name.to_owned(), changed, bytes });
            }
        }
        kept.sort_by(|one, other| (one.changed, &one.name).cmp(&(other.changed, &other.name)));
        for Kept { name, changed, bytes } in kept {
            // A clock that was set back makes none of them old.
            let is_old = now.duration_since(changed).is_ok_and(|age| age > self.keep);
            if !is_old && total_bytes <= self.most_bytes {
                continue;
            }
            if remove(folder, &name).is_ok() {
                total_bytes -= bytes;
                dropped.recordings += 1;
                dropped.bytes += bytes;
            }
        }
        Ok(dropped)
    }
}

/// When it was last changed, and what it takes on disk; `None` for what is no recording of this user's.
fn facts(path: &Path) -> Option<(SystemTime, u64)> {
    let own = rustix::process::geteuid().as_raw();
    let of = |path: &Path| fs::symlink_metadata(path).ok().filter(|file| file.is_file() && file.uid() == own);
    let database = of(path)?;
    let (mut changed, mut bytes) = (database.modified().ok()?, database.blocks() * 512);
    for file in BESIDE.iter().filter_map(|suffix| of(&beside(path, suffix))) {
        changed = changed.max(file.modified().ok()?);
        bytes += file.blocks() * 512;
    }
    Some((changed, bytes))
}

fn is_under_way(path: &Path) -> bool {
    is_written(path) || follow(path).is_some_and(|elsewhere| is_written(&elsewhere.live))
}

/// What lies beside it goes first: a log without its database would be in the way of the next recording of that name.
fn remove(folder: &Folder, name: &OsStr) -> io::Result<()> {
    for suffix in BESIDE {
        match folder.remove(beside(Path::new(name), suffix).as_os_str()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    folder.remove(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::alive::Alive;
    use crate::{Options, Recorder};
    use proptest::prelude::*;
    use stallscope_model::{JobFacts, RunSummary};
    use std::os::unix::fs::symlink;

    const DAY: Duration = Duration::from_secs(86_400);
    const PAGE: u64 = 4096;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A file of `pages`, last changed `age` before `now`.
    fn put(folder: &Path, name: &str, pages: u64, now: SystemTime, age: Duration) {
        let path = folder.join(name);
        fs::write(&path, vec![1; (pages * PAGE) as usize]).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        file.set_modified(now - age).unwrap();
    }

    #[test]
    fn old_ones_go_with_all_that_is_beside_them() {
        let (folder, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        for (name, days) in [
            ("old.stall", 15),
            ("old.stall-wal", 15),
            ("old.stall-shm", 15),
            ("new.stall", 13),
            ("notes.txt", 99),
        ] {
            put(folder.path(), name, 1, now, DAY * days);
        }
        // Its database is old, and its log is not.
        put(folder.path(), "going-on.stall", 1, now, DAY * 15);
        put(folder.path(), "going-on.stall-wal", 1, now, DAY);
        symlink("notes.txt", folder.path().join("link.stall")).unwrap();
        let retention = Retention { keep: DAY * 14, most_bytes: u64::MAX };
        let dropped = retention.apply(folder.path(), now).unwrap();
        assert_eq!(dropped, Dropped { recordings: 1, bytes: 3 * PAGE });
        assert_eq!(
            names(folder.path()),
            ["going-on.stall", "going-on.stall-wal", "link.stall", "new.stall", "notes.txt"]
        );
        assert_eq!(retention.apply(folder.path(), now - DAY * 400).unwrap(), Dropped::default());
    }

    #[test]
    fn the_oldest_go_until_the_rest_take_no_more_than_they_may() {
        let (folder, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        for (name, days) in [("b.stall", 4), ("c.stall", 3), ("a.stall", 2), ("d.stall", 1)] {
            put(folder.path(), name, 2, now, DAY * days);
        }
        let retention = Retention { keep: DAY * 14, most_bytes: 5 * PAGE };
        let dropped = retention.apply(folder.path(), now).unwrap();
        assert_eq!(dropped, Dropped { recordings: 2, bytes: 4 * PAGE });
        assert_eq!(names(folder.path()), ["a.stall", "d.stall"]);
    }

    #[test]
    fn a_folder_that_comes_in_its_place_keeps_what_it_has() {
        let (around, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let at = |name: &str| around.path().join(name);
        for folder in ["recordings", "victim"] {
            fs::create_dir(at(folder)).unwrap();
            put(&at(folder), "old.stall", 1, now, DAY);
        }
        let retention = Retention { keep: Duration::ZERO, most_bytes: 0 };
        let folder = Folder::open(&at("recordings")).unwrap();
        fs::rename(at("recordings"), at("aside")).unwrap();
        symlink("victim", at("recordings")).unwrap();
        assert_eq!(retention.apply_in(&folder, now).unwrap().recordings, 1);
        assert_eq!((names(&at("aside")).len(), names(&at("victim"))), (0, vec!["old.stall".to_owned()]));
    }

    #[test]
    fn another_users_link_leads_to_no_recordings() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: another_users_link_leads_to_no_recordings takes root");
            return;
        }
        let (around, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let (victim, link) = (around.path().join("victim"), around.path().join("recordings"));
        fs::create_dir(&victim).unwrap();
        put(&victim, "old.stall", 1, now, DAY);
        symlink("victim", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65_001), None).unwrap();
        let error = Retention { keep: Duration::ZERO, most_bytes: 0 }.apply(&link, now).unwrap_err();
        assert!(error.to_string().contains("another user's link"), "{error}");
        assert_eq!(names(&victim), ["old.stall"]);
    }

    #[test]
    fn one_that_is_being_written_stays_and_counts() {
        let (folder, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let recorder =
            Recorder::create(&folder.path().join("live.stall"), &JobFacts::default(), Options::default());
        put(folder.path(), "done.stall", 1, now, DAY);
        let retention = Retention { keep: Duration::ZERO, most_bytes: 0 };
        let dropped = retention.apply(folder.path(), now + DAY).unwrap();
        assert_eq!(dropped, Dropped { recordings: 1, bytes: PAGE });
        let finished = recorder.finish(&RunSummary::default());
        assert_eq!((finished.path, finished.losses.len()), (Some(folder.path().join("live.stall")), 0));
        // Its writer is gone.
        assert_eq!(retention.apply(folder.path(), now + DAY).unwrap().recordings, 1);
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn one_that_is_written_elsewhere_stays() {
        let (folder, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let live = folder.path().join("spool");
        fs::create_dir(&live).unwrap();
        let live = live.join("live.stall");
        fs::write(&live, "").unwrap();
        fs::write(beside(&live, "-wal"), "").unwrap();
        let alive = Alive::claim(&live).unwrap();
        let target = folder.path().join("target.stall");
        fs::write(&target, "").unwrap();
        crate::place::point(&target, &live).unwrap();
        let retention = Retention { keep: Duration::ZERO, most_bytes: 0 };
        assert_eq!(retention.apply(folder.path(), now + DAY).unwrap(), Dropped::default());
        drop(alive);
        assert_eq!(retention.apply(folder.path(), now + DAY).unwrap().recordings, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// What stays are the newest, they take no more than they may, and nothing went that could have stayed.
        #[test]
        fn no_more_goes_than_has_to(
            files in proptest::collection::vec((1_u64..5, 0_u32..40), 0..12), most_pages in 0_u64..30,
        ) {
            let (folder, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
            let aged = |nth: usize, days: u32| DAY * days + Duration::from_secs(nth as u64);
            for (nth, (pages, days)) in files.iter().enumerate() {
                put(folder.path(), &format!("{nth}.stall"), *pages, now, aged(nth, *days));
            }
            let keep = DAY * 20;
            let dropped = Retention { keep, most_bytes: most_pages * PAGE }.apply(folder.path(), now).unwrap();
            let mut by_age: Vec<(Duration, u64, usize)> =
                files.iter().enumerate().map(|(nth, (pages, days))| (aged(nth, *days), *pages, nth)).collect();
            by_age.sort();
            let mut pages_left = 0;
            let mut expected: Vec<String> = by_age
                .iter()
                .take_while(|(age, pages, _)| {
                    pages_left += pages;
                    *age <= keep && pages_left <= most_pages
                })
                .map(|(_, _, nth)| format!("{nth}.stall"))
                .collect();
            expected.sort();
            prop_assert_eq!(&names(folder.path()), &expected);
            prop_assert_eq!(dropped.recordings as usize, files.len() - expected.len());
        }
    }
}
