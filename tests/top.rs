//! `stallscope top` in a terminal, on real jobs and recordings.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::pty::Pty;
use crate::support::{Killed, Sandbox, job, privileged, python, signal, text, wait_until};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// A running job; 600 epochs are minutes.
fn running(sandbox: &Sandbox, epochs: &str) -> Killed {
    let words =
        ["run", "--no-kernel", "--name", "lively", "--", &python(), &job("train.py"), "--epochs", epochs];
    let mut command = sandbox.stallscope(&words);
    let run = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let jobs = || std::fs::read_dir(sandbox.path("run/jobs")).into_iter().flatten().flatten();
    wait_until("the job's card", || jobs().any(|job| job.path().join("job.json").exists()));
    run
}

/// A recording of a short job.
fn recorded(sandbox: &Sandbox) {
    let output = sandbox.run(&["run", "--no-kernel", "--name", "short", "--", &python(), &job("train.py")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_job_is_watched_live_until_it_ends() {
    let sandbox = Sandbox::new("top");
    // A folder of the job's name is no recording of it.
    std::fs::create_dir(sandbox.path("lively")).unwrap();
    let mut run = running(&sandbox, "600");

    let mut top = Pty::start(sandbox.stallscope(&["top", "lively"]), 80, 24);
    top.wait_for(&["lively", "live", "Ledger", "Ranks", "compute"]);
    top.press("6");
    top.wait_for(&["Diagnoses"]);
    top.press("7");
    top.wait_for(&["Evidence", "collector"]);
    top.press("4");
    top.wait_for(&["prefetch", "the script", "no controller runs"]);
    top.press("tworker=3\r");
    top.wait_for(&["there is no knob worker"]);
    top.press("tworkers=3\r");
    top.wait_for(&["in force: workers=3"]);
    top.press("5");
    top.wait_for(&["applied", "workers 2 → 3"]);
    top.press("?");
    top.wait_for(&["KEYS", "next-view"]);
    top.press("2 ");
    top.wait_for(&["⏸"]);
    top.press(" ");
    top.wait_for(&["live"]);
    top.resize(20, 5);
    top.wait_for(&["stallscope needs"]);
    top.resize(200, 60);
    top.wait_for(&["Files and mounts", "needs kernel evidence"]);
    top.press(":job");
    // The last line is drawn last, in place of the keys.
    top.wait_for(&["one job: its time by cause", ":job"]);
    // Escape and a key at once would be Alt and that key.
    top.press("\x1b");
    top.wait_for(&["Space pause"]);
    top.press("1");
    top.wait_for(&["JOB", "VERDICT", "lively"]);

    top.press("\r");
    top.wait_for(&["Ledger"]);
    signal(run.0.id(), "TERM");
    run.0.wait().unwrap();
    top.wait_for(&["ended with 143"]);
    wait_until("one plain file is left", || !sandbox.path("lively.stall-wal").exists());
    top.press("q");
    let status = top.ends_and_restores();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_killed_collector_and_a_removed_recording_are_named() {
    let sandbox = Sandbox::new("topkill");
    let mut run = running(&sandbox, "600");
    let mut top = Pty::start(sandbox.stallscope(&["top", "lively.stall"]), 80, 24);
    top.wait_for(&["lively", "live"]);
    signal(run.0.id(), "KILL");
    run.0.wait().unwrap();
    top.wait_for(&["its collector was killed"]);
    for file in ["lively.stall", "lively.stall-wal", "lively.stall-shm"] {
        let _ = std::fs::remove_file(sandbox.path(file));
    }
    top.wait_for(&["lost", "not read any more"]);
    top.press("q");
    assert_eq!(top.ends_and_restores().code(), Some(0));
}

#[test]
fn an_attached_job_is_listed_and_watched() {
    if !privileged("an_attached_job_is_listed_and_watched") {
        return;
    }
    let sandbox = Sandbox::new("topattach");
    let job =
        Command::new(python()).args([&job("train.py"), "--epochs", "600"]).stdout(Stdio::null()).spawn();
    let job = Killed(job.unwrap());
    let mut attach = sandbox.stallscope(&["attach", "--quiet", &job.0.id().to_string()]);
    let _attach = Killed(attach.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut top = Pty::start(sandbox.stallscope(&["top"]), 80, 24);
    top.wait_for(&["train", "running"]);
    top.press("\r");
    top.wait_for(&["attached to", "Ledger"]);
    top.press("q");
    assert_eq!(top.ends_and_restores().code(), Some(0));
}

#[test]
fn a_recording_is_replayed() {
    let sandbox = Sandbox::new("replay");
    recorded(&sandbox);
    let mut top = Pty::start(sandbox.stallscope(&["top", "short.stall"]), 80, 24);
    top.wait_for(&["short", "finished after", "end 0:00"]);
    top.press("0");
    top.wait_for(&["⏸ 0:00:00"]);
    top.press("<< ");
    top.wait_for(&["▶ 0.25x"]);
    top.press(">>>>>>");
    top.wait_for(&["end 0:00"]);
    top.press("w");
    top.wait_for(&["step"]);
    top.press("q");
    assert_eq!(top.ends_and_restores().code(), Some(0));
}

#[test]
fn the_terminal_is_given_back_on_signals() {
    let sandbox = Sandbox::new("topsig");
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3)] {
        let mut top = Pty::start(sandbox.stallscope(&["top"]), 80, 24);
        top.wait_for(&["No job runs here", "stallscope run -- python train.py"]);
        signal(top.pid(), name);
        let status = top.ends_and_restores();
        assert_eq!(status.code(), Some(128 + number), "{name}: {:?}", status.signal());
    }
}

#[test]
fn without_colours_or_utf8_neither_is_used() {
    let sandbox = Sandbox::new("topplain");
    recorded(&sandbox);
    let mut command = sandbox.stallscope(&["--color", "never", "top", "short.stall"]);
    command.env("LC_ALL", "C");
    let mut top = Pty::start(command, 80, 24);
    top.wait_for(&["short", "Ledger"]);
    assert!(top.text().is_ascii(), "{}", top.text());
    assert!(!top.has_colour());
    top.press("q");
    assert_eq!(top.ends_and_restores().code(), Some(0));
}

#[test]
fn what_cannot_be_shown_is_refused_in_one_sentence() {
    let sandbox = Sandbox::new("topnot");
    let output = sandbox.run(&["top"]);
    assert_eq!(output.status.code(), Some(2), "no terminal");
    assert!(text(&output.stderr).contains("top needs a terminal"), "{}", text(&output.stderr));

    std::fs::write(sandbox.path("foreign.stall"), "not a recording").unwrap();
    for (run, sentence) in [
        ("foreign.stall", "foreign.stall is not a stallscope recording"),
        ("gone.stall", "gone.stall cannot be read"),
        ("nobody", "no running job is called nobody"),
    ] {
        let mut top = Pty::start(sandbox.stallscope(&["top", run]), 80, 24);
        top.wait_for(&[sentence]);
        assert_eq!(top.ends_and_restores().code(), Some(1));
    }
}
