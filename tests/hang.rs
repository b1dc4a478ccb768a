//! A job that gets no batch any more: what it waits for is named while it hangs, once, and where in Python.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::node::{MIRA, PYTHON};
use crate::support::{Killed, Sandbox, job, privileged, python, text, wait_until};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_hang_is_named_with_its_worker_and_file_and_the_job_goes_on() {
    let sandbox = Sandbox::new("hang");
    let pipe = sandbox.path("storage");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let words = [
        "run",
        "--no-kernel",
        "--name",
        "hangs",
        "--",
        &python(),
        &job("hanging.py"),
        pipe.to_str().unwrap(),
    ];
    let mut command = sandbox.stallscope(&words);
    let output = |name: &str| File::create(sandbox.path(name)).unwrap();
    command.stdin(Stdio::null()).stdout(output("job.out")).stderr(output("job.err"));
    let mut run = Killed(command.spawn().unwrap());
    let printed = || fs::read_to_string(sandbox.path("job.err")).unwrap();
    let sentence = format!("is blocked in openat of {}", pipe.display());
    let begun = Instant::now();
    while !printed().contains(&sentence) {
        assert!(begun.elapsed() < Duration::from_secs(300), "{}", printed());
        std::thread::sleep(Duration::from_millis(500));
    }
    let all = printed();
    let line = all.lines().find(|line| line.contains(&sentence)).unwrap();
    assert!(line.contains("rank 0 has got no batch for ") && line.contains(": worker 1 (pid "), "{line}");
    let is_in = "is in hanging.py:16 Hangs.__getitem__, fetch.py:";
    while !printed().contains(is_in) {
        assert!(begun.elapsed() < Duration::from_secs(300), "{}", printed());
        std::thread::sleep(Duration::from_millis(100));
    }
    let all = printed();
    let line = all.lines().find(|line| line.contains(is_in)).unwrap();
    assert!(line.starts_with("stallscope: rank 0: worker 1 (pid "), "{line}");
    let finding = |of: &str| {
        let found = sandbox.report(of)["diagnoses"].as_array().unwrap().clone();
        found.into_iter().find(|one| one["name"] == "hang")
    };
    // It is what everybody sees who looks at the job.
    let seen = finding("hangs").unwrap();
    assert!(seen["evidence"].as_str().unwrap().contains(&sentence), "{seen}");
    // Within a second of that line.
    wait_until("the finding has the stack", || finding("hangs").unwrap()["stack"].is_array());
    let seen = finding("hangs").unwrap();
    assert!(seen["evidence"].as_str().unwrap().contains(is_in), "{seen}");
    let stack = seen["stack"].as_array().unwrap();
    assert_eq!((&stack[0]["file"], &stack[0]["line"]), (&job("hanging.py").into(), &16.into()));
    assert_eq!(stack.last().unwrap()["function"], "_worker_loop", "{seen}");
    let redacted = text(&sandbox.run(&["report", "hangs", "--redact", "--format", "json"]).stdout);
    assert!(redacted.contains("Hangs.__getitem__") && !redacted.contains("hanging.py"), "{redacted}");
    let screen = String::from_utf8(sandbox.run(&["report", "hangs"]).stdout).unwrap();
    assert!(screen.contains("DataLoader(timeout=SECONDS)"), "{screen}");
    assert!(seen["advice"].as_str().unwrap().contains("DataLoader(timeout="), "{seen}");

    fs::write(&pipe, b"").unwrap();
    let code = run.0.wait().unwrap().code();
    let sum: u32 = (0..256).sum();
    assert_eq!(fs::read_to_string(sandbox.path("job.out")).unwrap(), format!("sum {sum}\n"));
    assert_eq!(code, Some(0));
    let all = printed();
    let notes = |text: &str| {
        all.lines().filter(|line| line.starts_with("stallscope: ") && line.contains(text)).count()
    };
    assert_eq!((notes("has got no batch for"), notes("then its training went on")), (1, 1), "{all}");
    let past = finding("hangs.stall").unwrap();
    assert!(past["finding"].as_str().unwrap().ends_with("then its training went on"), "{past}");
}

/// Whose value says who may read a process.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Stays in a function; with a word, as a process that its user may not look into (PR_SET_DUMPABLE).
const SLEEPS: &str = r#"
import ctypes, sys, time

def load_sample():
    open("is-there", "w").close()
    while True:
        time.sleep(1000)

if len(sys.argv) > 1:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
load_sample()
"#;

struct Sleeps {
    sandbox: Sandbox,
    job: Killed,
}

impl Sleeps {
    fn new(name: &str, uid: u32, words: &[&str]) -> Sleeps {
        let sandbox = Sandbox::new(name);
        sandbox.open_to_all();
        fs::write(sandbox.path("sleeps.py"), SLEEPS).unwrap();
        let mut command = Command::new(PYTHON);
        command.arg("sleeps.py").args(words).current_dir(sandbox.path("")).uid(uid).gid(uid);
        let job = Killed(command.stdin(Stdio::null()).spawn().unwrap());
        wait_until("it is in its function", || sandbox.path("is-there").exists());
        Sleeps { sandbox, job }
    }

    fn start_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.job.0.id())).unwrap();
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
    }

    /// What a session of root starts to read the stack of a process that should be `uid`'s.
    fn read(&self, start_ticks: u64, uid: u32) -> Output {
        let numbers =
            [u64::from(self.job.0.id()), start_ticks, u64::from(uid)].map(|number| number.to_string());
        self.sandbox.run(&["read-python-stack", &numbers[0], &numbers[1], &numbers[2]])
    }

    /// Nothing, and no word about it.
    fn is_refused(&self, start_ticks: u64, uid: u32) {
        let output = self.read(start_ticks, uid);
        let all = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(all, (Some(1), String::new(), String::new()));
    }
}

#[test]
fn for_root_the_stack_is_read_by_a_process_of_the_jobs_user() {
    if !privileged("for_root_the_stack_is_read_by_a_process_of_the_jobs_user") {
        return;
    }
    let job = Sleeps::new("stack", MIRA, &[]);
    let output = job.read(job.start_ticks(), MIRA);
    if !output.status.success() && fs::read_to_string(YAMA).is_ok_and(|scope| scope.trim() != "0") {
        // Then nobody reads what they have not launched.
        return;
    }
    let frames: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let functions: Vec<_> = frames.as_array().unwrap().iter().map(|frame| &frame["function"]).collect();
    assert_eq!(functions, ["load_sample", "<module>"], "{frames}");
    assert!(frames[0]["file"].as_str().unwrap().ends_with("sleeps.py"), "{frames}");
    job.is_refused(job.start_ticks() + 1, MIRA);
    job.is_refused(job.start_ticks(), MIRA + 1);
}

#[test]
fn what_its_user_may_not_look_into_and_what_is_roots_is_not_read() {
    if !privileged("what_its_user_may_not_look_into_and_what_is_roots_is_not_read") {
        return;
    }
    let closed = Sleeps::new("stack-closed", MIRA, &["closed"]);
    closed.is_refused(closed.start_ticks(), MIRA);
    // Root could read this one, and not as its user.
    let roots = Sleeps::new("stack-root", 0, &[]);
    roots.is_refused(roots.start_ticks(), 0);
}
