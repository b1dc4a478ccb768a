//! Scripts in Python that read what was written here with other people's readers.

#![allow(dead_code, reason = "each user takes its part")]

#[path = "../../../tests/support/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The project's Python, if it has these modules; else says that the test was skipped.
pub(crate) fn with(modules: &[&str]) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join(".venv/bin/python");
    let imports: String = modules.iter().map(|module| format!("import {module}\n")).collect();
    let found = Command::new(&python).args(["-c", &imports]).output().is_ok_and(|done| done.status.success());
    if !found {
        skipped::skipped(format_args!(
            "{} has no {}; `scripts/setup.sh test` gets them",
            python.display(),
            modules.join(", ")
        ));
    }
    found.then_some(python)
}

/// What a script of this folder prints.
pub(crate) fn run(python: &Path, script: &str, arguments: &[&Path]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(script);
    let done = Command::new(python).arg(script).args(arguments).output().expect("Python starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    String::from_utf8(done.stdout).expect("it prints text")
}
