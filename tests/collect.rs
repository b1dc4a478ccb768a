//! The node's privileged collector and the jobs of users without privilege.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Killed, Sandbox, privileged, signal, text, wait_until};
use std::process::{Command, Stdio};

/// Who is nobody can't reach a Python in somebody's home, but Debian's.
const PYTHON: &str = "/usr/bin/python3";
const JOB: &str = "jobs/train.py";

/// Starts `stallscope collect` as root for this sandbox.
fn collector(sandbox: &Sandbox) -> Killed {
    let socket = sandbox.kernel_socket();
    let child = sandbox
        .stallscope(&["collect", "--socket", &socket.display().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the collector listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    Killed(child)
}

#[test]
fn a_user_without_privilege_gets_kernel_evidence_of_their_own_job() {
    if !privileged("a_user_without_privilege_gets_kernel_evidence_of_their_own_job") {
        return;
    }
    let sandbox = Sandbox::new("node");
    let _node = collector(&sandbox);
    let run = ["run", "-o", "mine.stall", "--", PYTHON, JOB];
    let output = sandbox.stallscope_as_nobody(&run).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = sandbox.report("mine.stall");
    assert_eq!(report["kernel"], "on", "{}", text(&output.stderr));
    assert_eq!(report["shim"], "on");
    assert_eq!(report["job"]["user"], "nobody");

    // What costs every process of the node is for the collector's operator to allow.
    let run = ["run", "--syscalls", "-o", "hooked.stall", "--", PYTHON, JOB];
    let output = sandbox.stallscope_as_nobody(&run).output().unwrap();
    let report = sandbox.report("hooked.stall");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(report["kernel"]["partial"].as_str().unwrap().contains("--syscalls-for-everyone"), "{report}");

    let roots = Killed(Command::new("sleep").arg("300").spawn().unwrap());
    let output = sandbox.stallscope_as_nobody(&["attach", &roots.0.id().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("belongs to another user"), "{}", text(&output.stderr));

    let second = sandbox.run(&["collect", "--socket", &sandbox.kernel_socket().display().to_string()]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("one a node is enough"), "{}", text(&second.stderr));
}

/// What removes the socket is a process of the folder's owner, who may look into it.
#[test]
fn what_removes_the_socket_at_the_end_holds_nothing_of_the_collectors() {
    if !privileged("what_removes_the_socket_at_the_end_holds_nothing_of_the_collectors") {
        return;
    }
    let sandbox = Sandbox::new("remover");
    let socket = sandbox.kernel_socket();
    let arguments = ["collect", "--until-idle", "--socket", &socket.display().to_string()];
    let node = Killed(sandbox.stallscope(&arguments).stderr(Stdio::null()).spawn().unwrap());
    let of = |process: u32, what: &str| format!("/proc/{process}/{what}");
    let read = |process: u32, what: &str| std::fs::read_to_string(of(process, what)).unwrap_or_default();
    let mut remover = 0;
    wait_until("the remover waits", || {
        let children = read(node.0.id(), &format!("task/{}/children", node.0.id()));
        remover = children.trim().parse().unwrap_or_default();
        // Each layer of what it gives away comes before it waits, the filter last.
        read(remover, "status").lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'))
    });
    assert!(read(node.0.id(), "maps").contains("bpf-map"), "the collector itself has them");
    let maps = read(remover, "maps");
    let shared: Vec<&str> =
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.ends_with('s'))).collect();
    assert!(maps.contains("[stack]") && shared.is_empty() && !maps.contains("bpf"), "{shared:?}");
    let mut open: Vec<String> = std::fs::read_dir(of(remover, "fd"))
        .unwrap()
        .map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap().display().to_string())
        .collect();
    open.sort();
    let folder = socket.parent().unwrap().canonicalize().unwrap().display().to_string();
    assert!(open.len() == 2 && open[0] == folder && open[1].starts_with("pipe:"), "{open:?}");
    signal(node.0.id(), "KILL");
    drop(node);
    wait_until("the socket is gone", || !socket.exists());
}

#[test]
fn a_collector_that_is_killed_and_restarted_is_reported_and_the_job_goes_on() {
    if !privileged("a_collector_that_is_killed_and_restarted_is_reported_and_the_job_goes_on") {
        return;
    }
    let sandbox = Sandbox::new("restart");
    let node = collector(&sandbox);
    let child = sandbox
        .stallscope_as_nobody(&[
            "run", "--name", "job", "--", PYTHON, JOB, "--epochs", "2000", "--until", "stop",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let kernel = || {
        let output = sandbox.stallscope_as_nobody(&["report", "job", "--format", "json"]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout)
            .map(|run| run["kernel"].to_string())
            .unwrap_or_default()
    };
    wait_until("kernel evidence", || kernel() == "\"on\"");
    drop(node);
    wait_until("the loss is reported", || kernel().contains("went away"));
    let _node = collector(&sandbox);
    wait_until("the return is reported", || kernel().contains("restarted"));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("total loss"));
}

#[test]
fn without_a_collector_the_shim_measures_alone_and_says_what_is_missing() {
    if !privileged("without_a_collector_the_shim_measures_alone_and_says_what_is_missing") {
        return;
    }
    let sandbox = Sandbox::new("alone");
    let run = ["run", "-o", "alone.stall", "--", PYTHON, JOB, "--exit", "3"];
    let output = sandbox.stallscope_as_nobody(&run).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("sudo stallscope collect"), "{}", text(&output.stderr));
    let report = sandbox.report("alone.stall");
    let training =
        &report["phases"].as_array().unwrap().iter().find(|p| p["phase"] == "training").unwrap()["steps"];
    assert_eq!(*training, 2 * 16);
}

#[test]
fn a_user_without_privilege_cannot_be_the_nodes_collector() {
    if !privileged("a_user_without_privilege_cannot_be_the_nodes_collector") {
        return;
    }
    let sandbox = Sandbox::new("notroot");
    let socket = sandbox.kernel_socket().display().to_string();
    let output = sandbox.stallscope_as_nobody(&["collect", "--socket", &socket]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).lines().count() == 1, "one sentence: {}", text(&output.stderr));
}

#[test]
fn doctor_tells_what_is_missing_by_its_exit_code() {
    if !privileged("doctor_tells_what_is_missing_by_its_exit_code") {
        return;
    }
    let sandbox = Sandbox::new("doctor");
    let output = sandbox.stallscope_as_nobody(&["doctor", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let kernel = check(&output.stdout, "kernel evidence");
    assert_eq!(kernel["ok"], false);
    assert!(kernel["remedy"].as_str().unwrap().contains("sudo stallscope collect"));
}

#[test]
fn doctor_runs_nothing_of_the_environments_as_root() {
    if !privileged("doctor_runs_nothing_of_the_environments_as_root") {
        return;
    }
    let sandbox = Sandbox::new("doctorenv");
    std::fs::write(sandbox.path("sitecustomize.py"), "open(__file__ + '.ran', 'w')\n").unwrap();
    let mut doctor = sandbox.stallscope(&["doctor"]);
    doctor.env("PYTHONPATH", sandbox.path("")).env_remove("SUDO_UID").output().unwrap();
    assert!(!sandbox.path("sitecustomize.py.ran").exists());
}

#[test]
fn doctor_finds_nothing_missing_where_a_run_has_kernel_evidence() {
    if !privileged("doctor_finds_nothing_missing_where_a_run_has_kernel_evidence") {
        return;
    }
    let sandbox = Sandbox::new("doctorworks");
    // Programs are loaded before the recording is begun: a job that ends sooner is not seen.
    let job = "until [ -e here.stall ]; do sleep 0.05; done";
    assert!(sandbox.run(&["run", "-o", "here.stall", "--", "sh", "-c", job]).status.success());
    assert_eq!(sandbox.report("here.stall")["kernel"], "on");
    let output = sandbox.run(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let programs = check(&output.stdout, "kernel programs");
    assert!(programs["detail"].as_str().unwrap().contains(" load"), "what was tried: {programs}");
}

#[test]
fn doctor_asks_no_privilege_of_who_is_served_by_the_nodes_collector() {
    if !privileged("doctor_asks_no_privilege_of_who_is_served_by_the_nodes_collector") {
        return;
    }
    let sandbox = Sandbox::new("doctorserved");
    let _node = collector(&sandbox);
    let output = sandbox.stallscope_as_nobody(&["doctor", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let privilege = check(&output.stdout, "privilege");
    assert_eq!((&privilege["ok"], &privilege["needed"]), (&false.into(), &false.into()));
    assert_eq!(privilege["remedy"], "");
}

fn check(doctor: &[u8], name: &str) -> serde_json::Value {
    let checks: Vec<serde_json::Value> = serde_json::from_slice(doctor).unwrap();
    checks.into_iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check of {name}"))
}

#[test]
fn ls_shows_jobs_and_recordings() {
    let sandbox = Sandbox::new("ls");
    assert!(sandbox.run(&["run", "--name", "done", "--", "true"]).status.success());
    let child = sandbox
        .stallscope(&["run", "--name", "alive", "--", "sleep", "300"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let list = || text(&sandbox.run(&["ls", "--json"]).stdout);
    wait_until("the job is listed", || list().contains("\"alive\""));
    let rows: serde_json::Value = serde_json::from_str(&list()).unwrap();
    let states: Vec<(String, String)> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["name"].as_str().unwrap().into(), row["state"].as_str().unwrap().into()))
        .collect();
    assert!(states.contains(&("alive".into(), "running".into())), "{states:?}");
    assert!(states.contains(&("done.stall".into(), "finished".into())), "{states:?}");
    signal(child.id(), "TERM");
    child.wait_with_output().unwrap();
}
