//! Who may know whom (docs/architecture.md): arrows point one way, so that a reader can stop at a crate's edge.

use cargo_metadata::MetadataCommand;
use std::collections::BTreeMap;

#[test]
fn crates_know_only_whom_they_may() {
    let may_know: BTreeMap<&str, &[&str]> = [
        ("abi", &[][..]),
        ("model", &[]),
        ("ledger", &["abi", "model"]),
        ("control", &["model"]),
        ("wire", &["model"]),
        ("store", &["model"]),
        ("ebpf", &["abi", "model"]),
        ("ring", &["abi", "model"]),
        ("cache", &[]),
        ("checkpoint", &[]),
        ("python", &["abi", "model", "ring", "cache", "checkpoint"]),
        ("collector", &["abi", "model", "ledger", "control", "wire", "store", "ebpf", "ring"]),
        ("look", &["model"]),
        ("reports", &["model", "ledger", "wire", "store", "look"]),
        ("tui", &["model", "ledger", "wire", "store", "look"]),
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
