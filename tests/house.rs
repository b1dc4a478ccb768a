//! Who may know whom (docs/architecture.md): arrows point one way, so that a reader can stop at a crate's edge.

use cargo_metadata::MetadataCommand;
use std::collections::BTreeMap;

#[test]
fn crates_know_only_whom_they_may() {
    let may_know: BTreeMap<&str, &[&str]> = [
        ("abi", &[][..]),
        ("model", &[]),
        ("units", &[]),
        ("ledger", &["abi", "model", "units"]),
        ("control", &["model", "units"]),
        ("wire", &["model"]),
        ("store", &["model"]),
        ("ebpf", &["abi", "model"]),
        ("ring", &["abi", "model"]),
        ("cache", &[]),
        ("checkpoint", &[]),
        ("python", &["abi", "model", "ring", "cache", "checkpoint"]),
        ("collector", &["abi", "model", "ledger", "control", "wire", "store", "ebpf", "ring"]),
        ("look", &["model", "units"]),
        ("reports", &["model", "ledger", "wire", "store", "look", "units"]),
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

/// Words that docs/glossary.md has other ones for, in the folders that are free of them.
#[test]
fn retired_words_stay_retired() {
    const WORDS: [&str; 9] =
        ["bead", "beads", "crew", "recruit", "sounding", "stretch", "stretches", "wish", "wishes"];
    /// Retired as well in the folders that have been gone through word by word.
    const FURTHER_WORDS: [&str; 7] = ["manyeth", "room", "said", "told", "unsaid", "whoever", "wished"];
    const FREE: [(&str, bool); 30] = [
        ("bench", true),
        ("src", true),
        ("collector/src", true),
        ("collector/control/src", true),
        ("collector/ledger/src", true),
        // Recordings have a field `told_ns`.
        ("collector/model/src", false),
        ("collector/store/src", true),
        ("collector/units/src", true),
        ("collector/wire/src", true),
        ("demo", true),
        ("ebpf/abi/src", true),
        ("contrib", true),
        ("ebpf/examples", true),
        ("ebpf/programs", true),
        ("ebpf/src", true),
        ("ebpf/tests", true),
        ("examples", true),
        ("fuzz", true),
        ("collector/store/tests", true),
        ("reports/tests", true),
        ("probe/cache/src", true),
        ("probe/checkpoint/src", true),
        ("probe/python/src", true),
        ("probe/python/stallscope", true),
        ("probe/ring/src", true),
        ("reports/look/src", true),
        ("reports/src", true),
        ("scripts", true),
        ("truth", true),
        ("tui/src", true),
    ];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> = FREE.iter().map(|(folder, further)| (root.join(folder), *further)).collect();
    let mut files = 0;
    while let Some((folder, further)) = folders.pop() {
        for entry in folder.read_dir().expect("a folder of the house").map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push((entry, further));
                continue;
            }
            if !entry
                .extension()
                .is_some_and(|kind| ["rs", "py", "sh", "js", "css", "c", "h"].iter().any(|one| kind == *one))
            {
                continue;
            }
            // A sampler's saved state has a key of that name.
            let text = std::fs::read_to_string(&entry).expect("source is text").replace("\"told\"", "");
            let mut words = text.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_ascii_lowercase);
            let found = words.find(|word| {
                WORDS.contains(&word.as_str()) || further && FURTHER_WORDS.contains(&word.as_str())
            });
            assert_eq!(found, None, "{}: docs/glossary.md has another word", entry.display());
            files += 1;
        }
    }
    assert!(files > 40, "{files} files were read");
}
