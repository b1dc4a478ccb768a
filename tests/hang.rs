//! A job that gets no batch any more: what it waits for is named while it hangs, once.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Killed, Sandbox, job, python};

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
    let finding = |of: &str| {
        let found = sandbox.report(of)["diagnoses"].as_array().unwrap().clone();
        found.into_iter().find(|one| one["name"] == "hang")
    };
    // It is what everybody sees who looks at the job.
    let seen = finding("hangs").unwrap();
    assert!(seen["evidence"].as_str().unwrap().contains(&sentence), "{seen}");
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
