//! `stallscope attach`: a job that already runs, untouched.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{self, Killed, Sandbox, causes_ns, job, privileged, python, text, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

#[test]
fn a_process_that_is_not_there_is_one_sentence() {
    let sandbox = Sandbox::new("nopid");
    let output = sandbox.run(&["attach", "4194303"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "stallscope: there is no process 4194303; `stallscope ls` lists jobs\n");
    let output = sandbox.run(&["attach", "nosuchjob"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no running job is called nosuchjob"), "{}", text(&output.stderr));
    let output = sandbox.run(&["attach", "1", "--for", "soon"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn where_the_recording_lies_is_not_for_the_watched_process_to_say() {
    if !privileged("where_the_recording_lies_is_not_for_the_watched_process_to_say") {
        return;
    }
    let sandbox = Sandbox::new("attach-name");
    let chosen = sandbox.path("elsewhere/chosen");
    std::fs::create_dir(sandbox.path("elsewhere")).unwrap();
    let mut job = Command::new("sh");
    let job = Killed(job.args(["-c", "read end", "-m"]).arg(&chosen).stdin(Stdio::piped()).spawn().unwrap());
    let output = sandbox.run(&["attach", &job.0.id().to_string(), "--for", "1s"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let names =
        |folder| std::fs::read_dir(sandbox.path(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names("elsewhere").count(), 0);
    let is_it = |name: std::ffi::OsString| name.to_string_lossy().ends_with("_elsewhere_chosen.stall");
    assert!(names("").any(is_it), "{}", text(&output.stderr));
}

#[test]
fn a_loader_is_seen_without_touching_its_job() {
    if !privileged("a_loader_is_seen_without_touching_its_job") {
        return;
    }
    let sandbox = Sandbox::new("attach");
    let total = sandbox.path("total");
    let mut job = Command::new(python())
        .args([&job("train.py"), "--epochs", "2000", "--until", "stop"])
        .current_dir(sandbox.path(""))
        .stdout(std::fs::File::create(&total).unwrap())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", job.id());
    wait_until("its workers", || {
        std::fs::read_to_string(&children).is_ok_and(|pids| pids.split_whitespace().count() >= 2)
    });
    let printed = sandbox.path("attach.printed");
    let mut attach = sandbox.stallscope(&["attach", &job.id().to_string(), "-o", "a.stall"]);
    let mut attach = Killed(attach.stderr(std::fs::File::create(&printed).unwrap()).spawn().unwrap());
    wait_until("steps are seen", || {
        let output = sandbox.run(&["report", "a.stall", "--format", "json"]);
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let phases = run["phases"].as_array().into_iter().flatten();
        phases.filter(|phase| phase["phase"] == "training").any(|phase| phase["steps"].as_u64() > Some(20))
    });
    support::signal(attach.0.id(), "INT");
    assert!(attach.0.wait().unwrap().success());
    let printed = std::fs::read_to_string(printed).unwrap();
    let run = sandbox.report("a.stall");
    let phases = run["phases"].as_array().unwrap();
    let training =
        phases.iter().find(|phase| phase["phase"] == "training").expect("steps from the kernel alone");
    assert!(training["steps"].as_u64().unwrap() > 20, "{training}");
    assert_eq!(causes_ns(training), training["wall_ns"].as_u64().unwrap());
    assert_eq!(run["kernel"], "on");
    assert_eq!(run["shim"], "off");
    // The kernel alone does not see how many batches a worker makes: that is unknown, not none.
    let workers = run["ranks"][0]["workers"].as_array().unwrap();
    assert!(!workers.is_empty() && workers.iter().all(|load| load["batches"].is_null()), "{workers:?}");
    assert!(printed.contains("unknown"), "{printed}");
    let recording = stallscope_store::Recording::open(&sandbox.path("a.stall")).unwrap();
    assert!(!recording.step_details().unwrap().is_empty());
    // Without a shim a worker's number is its pid.
    let workers = recording.worker_periods().unwrap();
    assert!(!workers.is_empty() && workers.iter().all(|of| of.worker == of.load.pid), "{workers:?}");
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(job.wait().unwrap().success());
    assert!(std::fs::read_to_string(&total).unwrap().contains("total loss"));
}

#[test]
fn a_checkpoint_ends_with_its_file_in_place_and_not_with_the_start_of_the_next_workers() {
    if !privileged("a_checkpoint_ends_with_its_file_in_place_and_not_with_the_start_of_the_next_workers") {
        return;
    }
    let sandbox = Sandbox::new("attach-starting");
    let printed = sandbox.path("saved");
    let mut job = Command::new(python())
        .arg(job("starting.py"))
        .current_dir(sandbox.path(""))
        .stdout(std::fs::File::create(&printed).unwrap())
        .spawn()
        .unwrap();
    let saved = || -> Vec<u64> {
        std::fs::read_to_string(&printed).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    };
    wait_until("its first save", || !saved().is_empty());
    let mut attach = sandbox.stallscope(&["attach", &job.id().to_string(), "-o", "s.stall"]);
    let mut attach = Killed(attach.stderr(Stdio::null()).spawn().unwrap());
    let seen = || {
        let recording = stallscope_store::Recording::open(&sandbox.path("s.stall"));
        recording.and_then(|recording| recording.checkpoints()).unwrap_or_default()
    };
    wait_until("checkpoints are seen", || seen().len() >= 3);
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(job.wait().unwrap().success());
    assert!(attach.0.wait().unwrap().success());
    let saved = saved();
    for event in seen() {
        let next = saved.iter().find(|saved_ns| **saved_ns >= event.start_ns);
        assert!(next.is_some_and(|saved_ns| event.end_ns <= *saved_ns), "{event:?} of {saved:?}");
    }
}

#[test]
fn a_process_without_a_loader_gets_the_same_evidence_without_steps() {
    if !privileged("a_process_without_a_loader_gets_the_same_evidence_without_steps") {
        return;
    }
    let sandbox = Sandbox::new("other");
    let mut sleeper = Command::new("sleep").arg("300").spawn().unwrap();
    let mut attachment = sandbox
        .stallscope(&["attach", &sleeper.id().to_string(), "--for", "300s", "-o", "s.stall"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(attachment.stderr.take().unwrap());
    let mut line = String::new();
    printed.read_line(&mut line).unwrap();
    assert!(line.contains("watching sleep"), "{line}");
    // It ends before the time is over: so does the attachment.
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let mut rest = String::new();
    printed.read_to_string(&mut rest).unwrap();
    assert!(attachment.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("no training steps"), "{rest}");
}

#[test]
fn without_privilege_it_says_how_to_get_it() {
    if !privileged("without_privilege_it_says_how_to_get_it") {
        return;
    }
    let sandbox = Sandbox::new("unprivileged");
    let mut sleeper = Command::new("sleep").arg("300").spawn().unwrap();
    let output = sandbox.stallscope_as_nobody(&["attach", &sleeper.id().to_string()]).output().unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("sudo stallscope collect"), "{}", text(&output.stderr));
}

#[test]
fn ctrl_c_ends_the_attachment_and_not_the_job() {
    if !privileged("ctrl_c_ends_the_attachment_and_not_the_job") {
        return;
    }
    let sandbox = Sandbox::new("ctrlc");
    let mut sleeper = Command::new("sleep").arg("300").spawn().unwrap();
    let child = sandbox
        .stallscope(&["attach", &sleeper.id().to_string(), "-o", "c.stall"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the recording", || sandbox.path("c.stall").exists());
    support::signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(sleeper.try_wait().unwrap().is_none(), "the job goes on");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}
