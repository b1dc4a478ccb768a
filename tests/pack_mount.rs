//! `stallscope pack mount`: packs as folders, read by programs that know nothing of packs.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::packs::{can_mount, is_done, is_listed, packed};
use crate::support::{Killed, Sandbox, signal, text, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const EIO: i32 = 5;
const ENOTCONN: i32 = 107;

/// What a file is besides its bytes.
type Facts = (u64, i64, i64);

/// All below, by path: folders without anything, files with facts and bytes.
fn tree(root: &Path) -> BTreeMap<PathBuf, Option<(Facts, Vec<u8>)>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let (name, facts) = (path.strip_prefix(root).unwrap().to_owned(), path.metadata().unwrap());
            if facts.is_dir() {
                found.insert(name, None);
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.insert(name, Some(((facts.size(), facts.mtime(), facts.mtime_nsec()), bytes)));
            }
        }
    }
    found
}

/// `pack mount` in the background; unmounted at the end, however the test ends.
struct Mounted<'a> {
    sandbox: &'a Sandbox,
    server: Killed,
}

impl Mounted<'_> {
    fn at(sandbox: &Sandbox) -> Mounted<'_> {
        let errors = fs::File::create(sandbox.path("mount.errors")).unwrap();
        let mut command = sandbox.stallscope(&["pack", "mount", "set.pack", "at"]);
        let server = Killed(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
        wait_until("it is mounted", || is_listed(&sandbox.path("at")));
        Mounted { sandbox, server }
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.sandbox.path("mount.errors")).unwrap()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_listed(&self.sandbox.path("at")) {
            self.sandbox.run(&["pack", "unmount", "at"]);
        }
    }
}

/// Flips a bit of this file, wherever in the pack it lies.
fn spoil(sandbox: &Sandbox, file: &str, at: usize) {
    let content = fs::read(sandbox.path("set").join(file)).unwrap();
    for path in fs::read_dir(sandbox.path("set.pack")).unwrap().map(|entry| entry.unwrap().path()) {
        let chunk = fs::read(&path).unwrap();
        if path.extension().is_some_and(|kind| kind == "chunk")
            && let Some(begin) = chunk.windows(content.len()).position(|window| window == content)
        {
            let spoilt = [chunk[begin + at] ^ 4];
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .write_at(&spoilt, (begin + at) as u64)
                .unwrap();
            return;
        }
    }
    panic!("{file} is in no chunk");
}

#[test]
fn a_mounted_pack_is_the_folder_that_was_packed() {
    if !can_mount("a_mounted_pack_is_the_folder_that_was_packed") {
        return;
    }
    let sandbox = packed("mount");
    let (source, at) = (sandbox.path("set"), sandbox.path("at"));
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut mounted = Mounted::at(&sandbox);
        assert_eq!(tree(&at), tree(&source));
        // In pieces, from anywhere, and again from memory.
        let (file, whole) =
            (fs::File::open(at.join("large")).unwrap(), fs::read(source.join("large")).unwrap());
        for begin in [4_999_000, 0, 1, 2_500_000, whole.len(), 6_000_000] {
            let mut piece = vec![0; 70_000];
            let read = file.read_at(&mut piece, begin as u64).unwrap();
            let end = (begin + piece.len()).min(whole.len());
            let expected = whole.get(begin..end).unwrap_or_default();
            assert!(read <= expected.len() && (read > 0) != expected.is_empty(), "{begin}: {read}");
            assert_eq!(piece[..read], expected[..read], "from {begin}");
        }
        drop(file);
        for (path, error) in [("cat/gone", 2), ("large/x", 20)] {
            assert_eq!(fs::metadata(at.join(path)).unwrap_err().raw_os_error(), Some(error), "{path}");
        }
        assert_eq!(fs::write(at.join("cat/new"), "").unwrap_err().raw_os_error(), Some(30));
        assert_eq!(fs::remove_file(at.join("large")).unwrap_err().raw_os_error(), Some(30));
        numbers.push(["", "cat", "dog/deep", "large"].map(|name| at.join(name).metadata().unwrap().ino()));

        let again = sandbox.run(&["pack", "mount", "set.pack", "at"]);
        assert_eq!(again.status.code(), Some(1));
        assert!(text(&again.stderr).contains("mounted on at already"), "{}", text(&again.stderr));
        is_done(&sandbox.run(&["pack", "unmount", "at"]));
        assert!(mounted.server.0.wait().unwrap().success());
        assert!(!is_listed(&at));
    }
    assert_eq!(numbers[0], numbers[1], "numbers of files are the same each time");
}

#[test]
fn a_file_that_is_open_is_read_to_its_end_when_the_mount_ends() {
    if !can_mount("a_file_that_is_open_is_read_to_its_end_when_the_mount_ends") {
        return;
    }
    let sandbox = packed("mount-end");
    let mut mounted = Mounted::at(&sandbox);
    let mut file = fs::File::open(sandbox.path("at/large")).unwrap();
    signal(mounted.server.0.id(), "INT");
    wait_until("it is not mounted", || !is_listed(&sandbox.path("at")));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == fs::read(sandbox.path("set/large")).unwrap());
    assert!(mounted.server.0.try_wait().unwrap().is_none(), "it serves who has a file open");
    drop(file);
    assert!(mounted.server.0.wait().unwrap().success());
}

#[test]
fn a_mount_whose_server_was_killed_gives_errors_and_can_be_removed() {
    if !can_mount("a_mount_whose_server_was_killed_gives_errors_and_can_be_removed") {
        return;
    }
    let sandbox = packed("mount-killed");
    let mut mounted = Mounted::at(&sandbox);
    mounted.server.0.kill().unwrap();
    mounted.server.0.wait().unwrap();
    let error = fs::read(sandbox.path("at/large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ENOTCONN), "{error}");
    let again = sandbox.run(&["pack", "mount", "set.pack", "at"]);
    assert!(text(&again.stderr).contains("pack unmount at"), "{}", text(&again.stderr));
    is_done(&sandbox.run(&["pack", "unmount", "at"]));
    assert!(!is_listed(&sandbox.path("at")));
}

#[test]
fn a_damaged_file_is_an_error_and_the_others_are_read() {
    if !can_mount("a_damaged_file_is_an_error_and_the_others_are_read") {
        return;
    }
    let sandbox = packed("mount-damaged");
    spoil(&sandbox, "cat/0010.bin", 17);
    // Behind what the first read asks for.
    spoil(&sandbox, "large", 4_900_000);
    let mounted = Mounted::at(&sandbox);
    for bad in ["cat/0010.bin", "large"] {
        let mut first = [0; 10];
        let file = fs::File::open(sandbox.path("at").join(bad)).unwrap();
        let error = file.read_at(&mut first, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EIO), "{bad}: {error}");
        let line = format!("stallscope: {bad} cannot be read: ");
        let errors = mounted.errors();
        let line =
            errors.lines().find(|shown| shown.starts_with(&line)).unwrap_or_else(|| panic!("{errors}"));
        assert!(line.contains(".chunk is damaged"), "{line}");
    }
    for number in (0..60).filter(|number| *number != 10) {
        let name = format!("{}/{number:04}.bin", ["cat", "dog/deep"][number % 2]);
        let read = fs::read(sandbox.path("at").join(&name)).unwrap();
        assert!(read == fs::read(sandbox.path("set").join(&name)).unwrap(), "{name}");
    }
}

#[test]
fn what_cannot_be_mounted_has_a_sentence() {
    let sandbox = packed("mount-wrong");
    let full = sandbox.path("set").display().to_string();
    for (words, sentence) in [
        (["set.pack", "gone"], "there is no folder gone; make it first: mkdir -p gone"),
        (["set.pack", "set/large"], "is no folder"),
        (["set.pack", &full], "is not empty"),
        (["set", "at"], "is no pack"),
        (["gone.pack", "at"], "is no folder, and so no pack"),
    ] {
        let output = sandbox.run(&[&["pack", "mount"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(sentence) && errors.lines().count() == 1, "{words:?}: {errors}");
    }
    for folder in ["at", "gone", "/"] {
        let output = sandbox.run(&["pack", "unmount", folder]);
        assert_eq!(output.status.code(), Some(1), "{folder}");
        assert!(text(&output.stderr).contains("no pack is mounted on"), "{}", text(&output.stderr));
    }
}

/// Another user who may put a link on the way of root's command could have any pack's mount ended, or any empty folder covered.
#[test]
fn another_users_link_leads_to_no_mount() {
    if !can_mount("another_users_link_leads_to_no_mount") {
        return;
    }
    let sandbox = packed("mount-link");
    let (link, empty) = (sandbox.path("link"), sandbox.path("empty"));
    std::os::unix::fs::symlink("empty", &link).unwrap();
    fs::create_dir(&empty).unwrap();
    std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
    let refused = sandbox.run(&["pack", "mount", "set.pack", "link"]);
    assert!(text(&refused.stderr).contains("another user's link leads to link"), "{}", text(&refused.stderr));
    assert!(!is_listed(&empty));
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("at", &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
    let mut mounted = Mounted::at(&sandbox);
    let refused = sandbox.run(&["pack", "unmount", "link"]);
    assert!(text(&refused.stderr).contains("another user's link leads to link"), "{}", text(&refused.stderr));
    assert!(is_listed(&sandbox.path("at")));
    // Root's own.
    std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
    is_done(&sandbox.run(&["pack", "unmount", "link"]));
    assert!(mounted.server.0.wait().unwrap().success());
}

#[test]
fn a_server_ends_its_own_mount_wherever_its_path_leads_by_then() {
    if !can_mount("a_server_ends_its_own_mount_wherever_its_path_leads_by_then") {
        return;
    }
    let sandbox = packed("mount-moved");
    fs::create_dir_all(sandbox.path("theirs/at")).unwrap();
    let mounted = Mounted::at(&sandbox);
    let mut command = sandbox.stallscope(&["pack", "mount", "set.pack", "theirs/at"]);
    let mut moved = Killed(command.stderr(Stdio::null()).spawn().unwrap());
    wait_until("it is mounted", || is_listed(&sandbox.path("theirs/at")));
    fs::rename(sandbox.path("theirs"), sandbox.path("away")).unwrap();
    std::os::unix::fs::symlink(sandbox.path(""), sandbox.path("theirs")).unwrap();
    signal(moved.0.id(), "INT");
    wait_until("it is not mounted", || !is_listed(&sandbox.path("away/at")));
    assert!(moved.0.wait().unwrap().success());
    assert!(is_listed(&sandbox.path("at")), "the other pack's");
    drop(mounted);
}
