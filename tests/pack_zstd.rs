//! `stallscope pack --zstd`: what every program reads of a compressed pack is what was packed.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::packs::{can_mount, is_done, is_listed, noise};
use crate::support::skipped::skipped;
use crate::support::{Killed, Sandbox, text, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder with texts of many sizes, of which the largest is read in many requests, and with noise.
fn set(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    for folder in ["set/text", "set/noise", "at"] {
        fs::create_dir_all(sandbox.path(folder)).unwrap();
    }
    for number in 0..30_usize {
        let line = format!("line {number} of a text that repeats itself; ");
        fs::write(sandbox.path("set/text").join(format!("{number:02}")), line.repeat(number * number))
            .unwrap();
        fs::write(sandbox.path("set/noise").join(format!("{number:02}")), noise(number as u64, 900 * number))
            .unwrap();
    }
    let lines: String = (0..300_000).map(|number| format!("line {number} of many\n")).collect();
    fs::write(sandbox.path("set/text/large"), lines).unwrap();
    sandbox
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    drop(found.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap()))
                }
            }
        }
    }
    found
}

fn stat(sandbox: &Sandbox) -> Value {
    serde_json::from_slice(&sandbox.run(&["pack", "stat", "set.pack", "--json"]).stdout).unwrap()
}

#[test]
fn all_verbs_read_a_compressed_pack() {
    let sandbox = set("pack-zstd");
    let before = tree(&sandbox.path("set"));
    let output = sandbox.run(&["pack", "set", "-o", "set.pack", "--zstd"]);
    is_done(&output);
    assert!(text(&output.stdout).contains("; 29 compressed, which saves "), "{}", text(&output.stdout));
    let (bytes, facts) = (before.values().map(Vec::len).sum::<usize>(), stat(&sandbox));
    assert_eq!((&facts["files"], &facts["bytes"]), (&61.into(), &bytes.into()));
    assert_eq!((&facts["compressed_files"], &facts["unused_bytes"]), (&29.into(), &0.into()));
    let saved = facts["saved_bytes"].as_u64().unwrap();
    assert!(facts["chunk_bytes"].as_u64().unwrap() < bytes as u64 - saved + 20_000, "{facts}");
    let shown = sandbox.run(&["pack", "stat", "set.pack"]);
    assert!(
        text(&shown.stdout).contains("zstd      29 files compressed, which saves "),
        "{}",
        text(&shown.stdout)
    );
    // Sizes are those of the files.
    let long = sandbox.run(&["pack", "ls", "-l", "set.pack", "text/large"]);
    let large = before[Path::new("text/large")].len().to_string();
    assert_eq!(text(&long.stdout).split_whitespace().next(), Some(&*large));
    let verified = sandbox.run(&["pack", "verify", "set.pack"]);
    is_done(&verified);
    assert!(text(&verified.stdout).contains("61 files of "), "{}", text(&verified.stdout));
    is_done(&sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]));
    assert!(tree(&sandbox.path("out")) == before);

    fs::create_dir_all(sandbox.path("more/text")).unwrap();
    fs::write(sandbox.path("more/text/new"), "new, and again; ".repeat(100)).unwrap();
    is_done(&sandbox.run(&["pack", "append", "set.pack", "more", "--zstd=19"]));
    is_done(&sandbox.run(&["pack", "delete", "set.pack", "text/large", "noise/29"]));
    is_done(&sandbox.run(&["pack", "purge", "set.pack", "--live", "100"]));
    assert_eq!((&stat(&sandbox)["compressed_files"], &stat(&sandbox)["files"]), (&29.into(), &60.into()));
    is_done(&sandbox.run(&["pack", "rebuild", "set.pack"]));
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    // What is there already stays as it is.
    let again = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    assert!(
        text(&again.stdout).contains("; 59 were there already"),
        "{}{}",
        text(&again.stdout),
        text(&again.stderr)
    );
    for level in ["0", "20", "fast"] {
        let refused = sandbox.run(&["pack", "set", "-o", "set.pack", &format!("--zstd={level}")]);
        assert_eq!(refused.status.code(), Some(2), "{level}");
    }
}

#[test]
fn a_compressed_pack_is_mounted_as_what_was_packed() {
    if !can_mount("a_compressed_pack_is_mounted_as_what_was_packed") {
        return;
    }
    let sandbox = set("mount-zstd");
    is_done(&sandbox.run(&["pack", "set", "-o", "set.pack", "--zstd=1"]));
    let errors = fs::File::create(sandbox.path("mount.errors")).unwrap();
    let mut command = sandbox.stallscope(&["pack", "mount", "set.pack", "at"]);
    let mut server = Killed(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
    wait_until("it is mounted", || is_listed(&sandbox.path("at")));
    let before = tree(&sandbox.path("set"));
    let found = tree(&sandbox.path("at"));
    let (file, whole) =
        (fs::File::open(sandbox.path("at/text/large")).unwrap(), &before[Path::new("text/large")]);
    assert_eq!(file.metadata().unwrap().len(), whole.len() as u64);
    let mut piece = vec![0; 100_000];
    for begin in [whole.len() - 100_000, 0, 1_234_567] {
        file.read_exact_at(&mut piece, begin as u64).unwrap();
        assert!(piece == whole[begin..begin + piece.len()], "from {begin}");
    }
    drop(file);
    is_done(&sandbox.run(&["pack", "unmount", "at"]));
    assert!(server.0.wait().unwrap().success());
    assert!(found == before, "{}", fs::read_to_string(sandbox.path("mount.errors")).unwrap());
}

fn python(sandbox: &Sandbox, words: &[&str]) -> Output {
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/read_pack.py");
    Command::new("python3").arg(&reader).args(words).current_dir(sandbox.path("")).output().unwrap()
}

#[test]
fn plain_python_reads_a_compressed_pack_or_says_what_that_takes() {
    let sandbox = set("pack-zstd-python");
    // The checksum is computed in Python.
    fs::remove_file(sandbox.path("set/text/large")).unwrap();
    is_done(&sandbox.run(&["pack", "set", "-o", "set.pack", "--zstd"]));
    let can = "import sys, importlib.util as u; sys.exit(sys.version_info < (3, 14) and not u.find_spec('zstandard'))";
    if !Command::new("python3").args(["-c", can]).status().unwrap().success() {
        let refused = python(&sandbox, &["set.pack", "out"]);
        assert_eq!(refused.status.code(), Some(1));
        let sentence =
            "read_pack.py: this pack is compressed, which takes Python 3.14 or the package zstandard\n";
        assert_eq!(text(&refused.stderr), sentence);
        return skipped("the rest needs Python 3.14, or the package zstandard");
    }
    is_done(&python(&sandbox, &["set.pack", "out"]));
    assert!(tree(&sandbox.path("out")) == tree(&sandbox.path("set")));
}
