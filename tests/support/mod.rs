//! Starts the real binary on real jobs, each in a folder and with a runtime folder of its own.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

pub(crate) mod http;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod packs;
pub(crate) mod policy;
pub(crate) mod pty;
pub(crate) mod skipped;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

pub(crate) struct Sandbox {
    dir: PathBuf,
}

impl Sandbox {
    pub(crate) fn new(name: &str) -> Sandbox {
        let dir = std::env::temp_dir().join(format!("ss-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("run")).expect("a folder in the temporary folder");
        Sandbox { dir }
    }

    pub(crate) fn kernel_socket(&self) -> PathBuf {
        self.dir.join("kernel.sock")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Every user may make files in it.
    pub(crate) fn open_to_all(&self) {
        std::fs::set_permissions(&self.dir, std::fs::Permissions::from_mode(0o777)).expect("root may do so");
    }

    /// The program where every user reaches it.
    pub(crate) fn open_copy(&self) -> PathBuf {
        let copy = self.path("stallscope");
        if !copy.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_stallscope"), &copy).expect("a copy in the sandbox");
        }
        copy
    }

    /// `stallscope` with these words, in this sandbox.
    pub(crate) fn stallscope(&self, words: &[&str]) -> Command {
        let words = words.iter().map(OsString::from);
        self.command(env!("CARGO_BIN_EXE_stallscope").into(), words.collect())
    }

    fn command(&self, program: OsString, words: Vec<OsString>) -> Command {
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .env("STALLSCOPE_RUNTIME_DIR", self.dir.join("run"))
            .env("STALLSCOPE_PYTHON", package())
            // No test depends on what else runs on this machine.
            .env("STALLSCOPE_KERNEL_SOCKET", self.kernel_socket())
            .env_remove("SLURM_JOB_ID");
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.stallscope(words).output().expect("the binary starts")
    }

    /// Starts `stallscope` with these words and waits until it says where its metrics are.
    pub(crate) fn serving(&self, words: &[&str]) -> (Killed, SocketAddr) {
        self.served_by(self.stallscope(words))
    }

    pub(crate) fn served_by(&self, mut command: Command) -> (Killed, SocketAddr) {
        let verb = command.get_args().next().expect("a verb").to_string_lossy().into_owned();
        let printed = self.path(&format!("{verb}.printed"));
        let stderr = std::fs::File::create(&printed).unwrap();
        let child = Killed(command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap());
        let address = || {
            let printed = std::fs::read_to_string(&printed).unwrap();
            printed.split_once("metrics at http://")?.1.split_once("/metrics\n")?.0.parse().ok()
        };
        wait_until("it says where its metrics are", || address().is_some());
        (child, address().unwrap())
    }

    /// The same as the user nobody, to whom this sandbox then belongs. Who cannot reach the checkout, perhaps:
    /// program, package and jobs are copied here.
    pub(crate) fn stallscope_as_nobody(&self, words: &[&str]) -> Command {
        for dir in [self.dir.clone(), self.dir.join("run")] {
            std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).expect("root may give folders away");
        }
        let (binary, python) = (self.dir.join("stallscope"), self.dir.join("python"));
        if !python.exists() {
            std::fs::create_dir(&python).unwrap();
            let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs");
            for (from, to) in [
                (PathBuf::from(env!("CARGO_BIN_EXE_stallscope")), binary.clone()),
                (package().join("stallscope"), python.clone()),
                (jobs, self.dir.join("jobs")),
            ] {
                copy(&from, &to);
            }
        }
        let words = words.iter().map(OsString::from);
        let mut command = self.command(binary.into_os_string(), words.collect());
        command.uid(NOBODY).gid(NOBODY).env("HOME", &self.dir).env("STALLSCOPE_PYTHON", python);
        command
    }

    /// The summary of a recording, as `report --format json` prints it.
    pub(crate) fn report(&self, recording: &str) -> serde_json::Value {
        let output = self.run(&["report", recording, "--format", "json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

/// A file, or a folder and what is in it. Not what Python compiled: other tests write and rename that at this moment.
fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    let to = if to.is_dir() { to.join(from.file_name().unwrap()) } else { to.to_path_buf() };
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_name() != "__pycache__" {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    }
}

/// All causes of a phase of a JSON report together.
pub(crate) fn causes_ns(phase: &serde_json::Value) -> u64 {
    let columns = stallscope_model::Cause::ALL.map(|cause| format!("{}_ns", cause.name()));
    columns.iter().map(|column| phase[column].as_u64().expect("a column a cause")).sum()
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A job lives on when its collector is killed, and would take a CPU from the tests that follow.
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_ours =
                std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.dir));
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw).filter(|_| is_ours) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Polls until `ready` holds; the limit only ends a test that would hang.
pub(crate) fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(200), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// A process that does not outlive its test, however that ends.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn job(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs").join(name).display().to_string()
}

/// The Python with torch that `make test` sets up.
pub(crate) fn python() -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    assert!(python.exists(), "no {}: run `make test`, which sets it up", python.display());
    python.display().to_string()
}

fn package() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python");
    assert!(
        package.join("stallscope").exists(),
        "no {}: run `make test`, which stages it",
        package.display()
    );
    package
}

/// Whether this process may load kernel programs; the test is counted as skipped when not.
pub(crate) fn privileged(test: &str) -> bool {
    let root = text(&Command::new("id").arg("-u").output().expect("id").stdout).trim() == "0";
    if !root {
        skipped::skipped(format_args!("{test} needs root for kernel evidence"));
    }
    root
}
