#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

const RUN: [u8; 16] = [7; 16];
const PACKAGE_BYTES: u64 = 1000;

fn settings(folder: &Path) -> Settings {
    Settings { folder: folder.join("packages"), run: RUN, package_bytes: PACKAGE_BYTES, limit: Some(1 << 20) }
}

fn opened(folder: &Path) -> Packages {
    Packages::open(settings(folder)).unwrap()
}

/// The one run that is there.
fn run_folder(folder: &Path) -> PathBuf {
    let mut runs = fs::read_dir(folder.join("packages")).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    assert!(runs.next().is_none());
    run
}

fn samples(package: Option<Package>) -> Vec<(u32, u64, Vec<u8>)> {
    let owned = |record: Record<'_>| (record.id, record.tag, record.bytes.to_vec());
    package.unwrap().records().map(owned).collect()
}

fn bytes_of(run: [u8; 16], number: u64, all: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = header(run, number).to_vec();
    for (id, tag, sample) in all {
        bytes.extend(record::head(*id, *tag, sample));
        bytes.extend(sample);
    }
    bytes
}

fn in_package(bytes: &[u8]) -> Vec<(u32, u64, Vec<u8>)> {
    samples(Some(Package { bytes: bytes.to_vec(), run: RUN, number: 3 }))
}

#[test]
fn a_package_brings_what_was_added_to_it_and_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (opened(folder.path()), Packages::join(settings(folder.path())).unwrap());
    assert_eq!(one.add(5, 1, 10, b"one").unwrap(), (HEADER_BYTES + 20 + 3) as u64);
    assert_eq!(other.add(5, 2, 20, b"").unwrap(), 20);
    one.add(6, 3, 30, b"three").unwrap();
    let brought = other.take(5).unwrap();
    assert_eq!(brought.as_ref().map(Package::bytes), Some(HEADER_BYTES + 43));
    assert_eq!(samples(brought), [(1, 10, b"one".to_vec()), (2, 20, Vec::new())]);
    assert!(one.take(5).unwrap().is_none() && other.take(4).unwrap().is_none());
    one.add(5, 4, 40, b"later").unwrap();
    assert_eq!(samples(one.take(5).unwrap()), [(4, 40, b"later".to_vec())]);
}

#[test]
fn neither_a_package_nor_all_of_them_outgrow_their_limit() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 3 * PACKAGE_BYTES + 1;
    let packages = Packages::open(Settings { limit: Some(limit), ..settings(folder.path()) }).unwrap();
    assert_eq!(packages.add(0, 0, 0, &[0; PACKAGE_BYTES as usize]).unwrap(), 0, "larger than a package");
    let written: u64 =
        (0..100).map(|sample| packages.add(u64::from(sample) % 5, sample, 0, &[1; 100]).unwrap()).sum();
    let files: Vec<_> = fs::read_dir(run_folder(folder.path()))
        .unwrap()
        .map(|file| file.unwrap())
        .filter(|file| file.file_name() != "lock")
        .map(|file| file.metadata().unwrap().len())
        .collect();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|bytes| (900..=PACKAGE_BYTES).contains(bytes)), "{files:?}");
    assert_eq!(files.iter().sum::<u64>(), written);
    packages.sweep(1).unwrap();
    assert!(packages.take(0).unwrap().is_none() && packages.take(1).unwrap().is_some());
}

#[test]
fn without_a_limit_a_tenth_of_the_file_system_stays_free() {
    let folder = tempfile::tempdir().unwrap();
    let all = |package_bytes| Settings { package_bytes, limit: None, ..settings(folder.path()) };
    assert_eq!(Packages::open(all(u64::MAX / 2)).unwrap().add(0, 0, 0, b"one").unwrap(), 0);
}

#[test]
fn a_run_goes_with_the_last_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (opened(folder.path()), opened(folder.path()));
    one.add(1, 1, 1, b"one").unwrap();
    assert_eq!((one.settle(7).unwrap(), other.settle(8).unwrap()), (Some(7), Some(7)));
    one.close();
    assert_eq!(samples(other.take(1).unwrap()).len(), 1);
    other.add(2, 2, 2, b"two").unwrap();
    other.close();
    assert!(fs::read_dir(folder.path().join("packages")).unwrap().next().is_none());
    assert!(other.add(3, 3, 3, b"three").is_err() && other.take(3).unwrap().is_none());
    assert!(Packages::join(settings(folder.path())).is_err());
}

#[test]
fn what_killed_processes_left_goes_as_the_next_run_begins() {
    let folder = tempfile::tempdir().unwrap();
    for run in [[1; 16], [2; 16], RUN] {
        let killed = Packages::open(Settings { run, ..settings(folder.path()) }).unwrap();
        killed.add(9, 1, 1, b"of another day").unwrap();
        killed.settle(3).unwrap();
    }
    let packages = opened(folder.path());
    run_folder(folder.path());
    assert!(packages.take(9).unwrap().is_none());
    assert_eq!(packages.settle(8).unwrap(), Some(8));
    fs::create_dir(folder.path().join("packages/of the user")).unwrap();
    packages.close();
    assert!(folder.path().join("packages/of the user").exists());
}

#[test]
fn a_folder_that_others_may_write_to_is_refused_and_no_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let packages = opened(folder.path());
    fs::write(folder.path().join("secret"), "").unwrap();
    symlink(folder.path().join("secret"), run_folder(folder.path()).join("1.package")).unwrap();
    assert!(packages.add(1, 1, 1, b"one").is_err() && packages.take(1).is_err());
    assert_eq!(fs::read(folder.path().join("secret")).unwrap(), b"");
    drop(packages);
    fs::set_permissions(folder.path().join("packages"), fs::Permissions::from_mode(0o777)).unwrap();
    let why = Packages::open(settings(folder.path())).unwrap_err().to_string();
    assert!(why.contains("other users may write to it"), "{why}");
}

#[test]
fn a_folder_that_is_gone_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let packages = opened(folder.path());
    packages.add(1, 1, 1, b"one").unwrap();
    fs::remove_dir_all(folder.path().join("packages")).unwrap();
    assert_eq!(packages.add(1, 1, 1, b"one").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(packages.take(1).unwrap().is_none());
    packages.close();
}

fn some() -> impl Strategy<Value = Vec<(u32, u64, Vec<u8>)>> {
    prop::collection::vec((any::<u32>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..6)
}

proptest! {
    #[test]
    fn what_is_cut_ends_a_package(all in some(), part in 0.0f64..1.0) {
        let bytes = bytes_of(RUN, 3, &all);
        prop_assert_eq!(&in_package(&bytes), &all);
        let found = in_package(&bytes[..(part * bytes.len() as f64) as usize]);
        prop_assert!(found.len() <= all.len());
        prop_assert_eq!(&found[..], &all[..found.len()]);
    }

    #[test]
    fn what_is_damaged_is_in_no_package(all in some(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut bytes = bytes_of(RUN, 3, &all);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let found = in_package(&bytes);
        prop_assert!(found.iter().all(|sample| all.contains(sample)), "{:?}", found);
        prop_assert!(found.len() < all.len() || all.is_empty());
    }

    #[test]
    fn anothers_package_has_nothing(all in some(), run: [u8; 16], number: u64) {
        if (run, number) != (RUN, 3) {
            prop_assert!(in_package(&bytes_of(run, number, &all)).is_empty());
        }
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        in_package(&bytes);
        in_package(&[&header(RUN, 3)[..], &bytes].concat());
    }
}
