//! Starts the real binary on real jobs, each in a folder and with a runtime folder of its own.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub struct Sandbox {
    dir: PathBuf,
}

impl Sandbox {
    pub fn new(name: &str) -> Sandbox {
        let dir = std::env::temp_dir().join(format!("ss-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("run")).expect("a folder in the temporary folder");
        Sandbox { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `stallscope` with these words, in this sandbox.
    pub fn stallscope(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stallscope"));
        command
            .args(words)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .env("STALLSCOPE_RUNTIME_DIR", self.dir.join("run"))
            .env("STALLSCOPE_PYTHON", package())
            .env_remove("SLURM_JOB_ID");
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.stallscope(words).output().expect("the binary starts")
    }

    /// The summary of a recording, as `report --format json` prints it.
    pub fn report(&self, recording: &str) -> serde_json::Value {
        let output = self.run(&["report", recording, "--format", "json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn job(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs").join(name).display().to_string()
}

/// The Python with torch that `make test` sets up.
pub fn python() -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    assert!(python.exists(), "no {}: run `make test`, which sets it up", python.display());
    python.display().to_string()
}

fn package() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python");
    assert!(package.join("stallscope").exists(), "no {}: run `make test`, which stages it", package.display());
    package
}

/// Whether this process may load kernel programs; says so loudly when not.
pub fn privileged(test: &str) -> bool {
    let root = text(&Command::new("id").arg("-u").output().expect("id").stdout).trim() == "0";
    if !root {
        eprintln!("SKIPPED {test}: needs root for kernel evidence");
    }
    root
}
