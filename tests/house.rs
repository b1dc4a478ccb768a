//! Who may know whom (docs/architecture.md): arrows point one way, so that a reader can stop at a crate's edge.

use cargo_metadata::MetadataCommand;
use std::collections::BTreeMap;

#[test]
fn crates_know_only_whom_they_may() {
    let may_know: BTreeMap<&str, &[&str]> = [
        ("abi", &[][..]),
        ("model", &[]),
        ("units", &[]),
        ("folder", &[]),
        ("hold", &["model"]),
        ("ledger", &["abi", "model", "units"]),
        ("control", &["model", "units"]),
        ("wire", &["model"]),
        ("store", &["model", "folder"]),
        ("ebpf", &["abi", "model"]),
        ("ring", &["abi", "model"]),
        ("cache", &["folder"]),
        ("checkpoint", &["folder"]),
        ("decode", &[]),
        ("pack", &["folder"]),
        ("remote", &["pack"]),
        ("mount", &["folder", "pack"]),
        ("python", &["abi", "model", "units", "ring", "cache", "checkpoint", "decode", "pack", "remote"]),
        (
            "collector",
            &[
                "abi", "model", "units", "folder", "hold", "ledger", "control", "wire", "store", "ebpf",
                "ring",
            ],
        ),
        ("look", &["model", "units"]),
        ("reports", &["model", "ledger", "wire", "store", "look", "units", "folder"]),
        ("tui", &["model", "ledger", "wire", "store", "look", "units"]),
    ]
    .into();
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata runs in a checkout");
    let mut seen = 0;
    for package in metadata.workspace_packages() {
        let Some(name) = package.name.strip_prefix("stallscope-") else { continue };
        let allowed =
            may_know.get(name).unwrap_or_else(|| panic!("crate {name} has no place in the house yet"));
        for dependency in &package.dependencies {
            let Some(known) = dependency.name.strip_prefix("stallscope") else { continue };
            let known = known.trim_start_matches('-');
            assert!(allowed.contains(&known), "{name} may not know {known}");
        }
        seen += 1;
    }
    assert_eq!(seen, may_know.len(), "a crate of the table is gone");
}

/// Words that docs/glossary.md has other ones for.
#[test]
fn retired_words_stay_retired() {
    const WORDS: &str = "bead beads crew manyeth recruit room said sounding stretch stretches told unsaid whoever wish wished wishes";
    const FOLDERS: &str =
        "bench collector contrib demo ebpf examples fuzz probe reports scripts src tests truth tui";
    const KINDS: [&str; 7] = ["rs", "py", "sh", "js", "css", "c", "h"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut folders: Vec<_> = FOLDERS.split(' ').map(|folder| root.join(folder)).collect();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder of the house").map(|entry| entry.unwrap().path()) {
            let is_source = entry.extension().is_some_and(|kind| KINDS.iter().any(|one| kind == *one));
            if entry.is_dir() {
                folders.push(entry);
            } else if is_source && entry != root.join("tests/house.rs") {
                // Keys of what was saved before.
                let text = std::fs::read_to_string(&entry).expect("source is text");
                let text = text.replace("\"told\"", "").replace("\"told_ns\"", "");
                let mut found = text.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_ascii_lowercase);
                let found = found.find(|word| words.contains(&word.as_str()));
                assert_eq!(found, None, "{}: docs/glossary.md has another word", entry.display());
                files += 1;
            }
        }
    }
    assert!(files > 700, "{files} files were read");
}

/// `thread::spawn` panics where no thread can be made, as one user may have as many processes as there can be: what a program does then it
/// says where it begins one.
#[test]
fn threads_are_begun_where_there_may_be_none() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> =
        "collector probe reports src tui".split(' ').map(|folder| root.join(folder)).collect();
    let of_tests = ["tests", "examples", "tests.rs", "testing.rs", "model.rs"];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder of the house").map(|entry| entry.unwrap()) {
            let (path, name) = (entry.path(), entry.file_name());
            if of_tests.iter().any(|one| name == *one) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(&path).expect("source is text");
                let program = text.split("\nmod tests {").next().unwrap_or_default();
                assert!(!program.contains("thread::spawn("), "{}: use thread::Builder", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 400, "{files} files");
}
