//! Each direct dependency has its reason (docs/dependencies.md), and what is delivered has its bill of materials.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use cargo_metadata::MetadataCommand;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Crates of others that a workspace's Cargo.toml files name.
fn named(manifest: &str) -> BTreeSet<String> {
    let metadata = MetadataCommand::new().manifest_path(root().join(manifest)).no_deps().exec().unwrap();
    let direct = metadata.packages.iter().flat_map(|package| &package.dependencies);
    direct.filter(|one| one.path.is_none()).map(|one| one.name.clone()).collect()
}

#[test]
fn each_dependency_has_its_reason() {
    let reported = std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let rows = reported.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| crate |"));
    let table: Vec<Vec<&str>> =
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert!(table.iter().all(|row| row.len() == 3 && row.iter().all(|cell| !cell.is_empty())), "{table:?}");
    let with_reason: BTreeSet<String> = table.iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(with_reason.len(), table.len(), "one row each");
    let named = &named("Cargo.toml") | &named("fuzz/Cargo.toml");
    let without: Vec<_> = named.difference(&with_reason).collect();
    let gone: Vec<_> = with_reason.difference(&named).collect();
    assert!(
        without.is_empty() && gone.is_empty(),
        "without a reason: {without:?}; not named any more: {gone:?}"
    );
}

#[test]
fn the_bill_of_materials_has_what_is_built_in_and_is_the_same_each_time() {
    let write = || {
        let output = Command::new("python3").arg(root().join("scripts/sbom.py")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let written = write();
    assert_eq!(written, write());
    let bill: Value = serde_json::from_slice(&written).unwrap();
    let components = bill["components"].as_array().unwrap();
    let component = |name: &str| components.iter().find(|one| one["name"] == name);
    for built_in in ["aya", "blake3", "pyo3", "rusqlite", "tokio"] {
        let found = component(built_in).unwrap_or_else(|| panic!("{built_in} is built in"));
        assert_eq!(found["hashes"][0]["content"].as_str().unwrap().len(), 64, "{found}");
        assert!(found["licenses"][0]["expression"].is_string(), "{found}");
    }
    assert_eq!(component("libsqlite3-sys").unwrap()["components"][0]["name"], "sqlite");
    assert_eq!(component("turbojpeg-sys").unwrap()["components"][0]["name"], "libjpeg-turbo");
    assert_eq!(component("zstd-sys").unwrap()["components"][0]["name"], "zstd");
    for of_tests in ["proptest", "insta", "vt100"] {
        assert!(component(of_tests).is_none(), "{of_tests} is not built in");
    }
    let known: BTreeSet<&str> = components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
    assert_eq!(known.len(), components.len());
    for one in bill["dependencies"].as_array().unwrap() {
        for needed in one["dependsOn"].as_array().unwrap() {
            assert!(known.contains(needed.as_str().unwrap()), "{needed} is needed and not listed");
        }
    }
}
