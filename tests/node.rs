//! The node's service: jobs of others are tuned as the node's policy says, as their own users, and survive whatever happens to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::node::{OTTO, PYTHON};
use crate::support::policy::{IDLE, is_tuned, node_job, node_log, printed, service, sessions, with_torch};
use crate::support::{Killed, Sandbox, privileged, signal, text, wait_until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Whom the sandbox's jobs belong to; the service hears them as another user.
const NOBODY: &str = "65534";

fn audit_in(output: &[u8]) -> Vec<Value> {
    let document: Value = serde_json::from_slice(output).unwrap_or_default();
    document["audit"].as_array().cloned().unwrap_or_default()
}

/// How often a controller of the node's rule `rule` began.
fn begun_by(audit: &[Value], rule: u32) -> usize {
    let by = format!("rule {rule} of the node, as ");
    let begins = |line: &&Value| line["act"] == "mode" && line["by"].as_str().unwrap().starts_with(&by);
    audit.iter().filter(begins).count()
}

fn field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

const OF_NOBODY: &str =
    "[[jobs.rule]]\nmatch = { user = \"nobody\" }\nmode = \"act\"\ncache = { max = \"64MiB\" }\n";

#[test]
fn a_job_of_another_user_is_tuned_as_the_policy_says_and_by_a_process_of_that_user() {
    if !privileged("a_job_of_another_user_is_tuned_as_the_policy_says_and_by_a_process_of_that_user") {
        return;
    }
    let sandbox = Sandbox::new("policy");
    let launcher = service(&sandbox, OF_NOBODY);
    let start = |name: &str, label: &str| {
        let words = ["run", "--no-kernel", "--name", name, "--", PYTHON, "-c", IDLE];
        let mut run = sandbox.stallscope_as_nobody(&words);
        run.env("STALLSCOPE_LABEL", label).stderr(Stdio::null());
        Killed(run.spawn().unwrap())
    };
    let audit = |name: &str| {
        audit_in(&sandbox.stallscope_as_nobody(&["audit", name, "--json"]).output().unwrap().stdout)
    };
    let (mut plain, mut lowered) = (start("plain", ""), start("lowered", "observe"));
    wait_until("its controller is in the audit", || begun_by(&audit("plain"), 1) == 1);
    wait_until("it is shown", || is_tuned(&sandbox, "plain"));
    // A service that has just begun waits for those that an earlier one had granted memory.
    wait_until("it may have what its rule allows", || {
        node_job(&sandbox, "plain").unwrap()["cache_bytes"] == 64 << 20
    });
    let shown = node_job(&sandbox, "plain").unwrap();
    assert_eq!((&shown["mode"], &shown["rule"]), (&"act".into(), &1.into()));

    // What the session and the part that hears users may do, and the launcher.
    let running = sessions(launcher.0.id());
    assert_eq!(running.len(), 1, "the other job is left alone");
    let four = |user: &str| [user; 4].join(" ");
    for id in ["Uid:", "Gid:"] {
        assert_eq!(field(running[0], id), four(NOBODY), "{id}");
    }
    for (name, value) in [
        ("Groups:", ""),
        ("CapPrm:", "0000000000000000"),
        ("CapEff:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
    ] {
        assert_eq!(field(running[0], name), value, "{name}");
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", running[0])).unwrap();
    let open: Vec<String> =
        open.map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap().display().to_string()).collect();
    let ours = ["policy.toml", "service.printed", "/etc/passwd"];
    let none_of_ours = |name: &String| !ours.iter().any(|one| name.contains(one));
    assert!(open.iter().all(none_of_ours), "{open:?}");
    let environment = std::fs::read(format!("/proc/{}/environ", running[0])).unwrap();
    assert_eq!(text(&environment), "");
    // Without memory it ends before what serves all users.
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", running[0])).unwrap();
    assert_eq!(score.trim(), "500");
    // Nor does it keep that waiting, however busy its job has it be.
    let nice = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after_name: Vec<i64> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        // The 19th of all, of which the state is no number.
        after_name[15]
    };
    assert_eq!(nice(running[0]), (nice(launcher.0.id()) + 10).min(19));
    // A closed terminal of the launcher is no signal to it.
    assert_eq!(field(running[0], "NSpgid:"), running[0].to_string());
    // Its user may not look into it, and have it do something else where the service's limits are in force and not their own.
    let files = std::fs::metadata(format!("/proc/{}/environ", running[0])).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&files), 0);
    // CAP_SETGID and CAP_SETUID.
    assert_eq!(field(launcher.0.id(), "CapEff:"), "00000000000000c0");
    assert_eq!(field(launcher.0.id(), "CapBnd:"), "00000000000000c0");
    let children = format!("/proc/{0}/task/{0}/children", launcher.0.id());
    let children = std::fs::read_to_string(children).unwrap();
    let hears: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(field(hears, "Uid:"), four(&OTTO.to_string()));
    for name in ["CapPrm:", "CapBnd:"] {
        assert_eq!(field(hears, name), "0000000000000000", "{name}");
    }

    // A label lowers, and others see nothing of it.
    assert_eq!(node_job(&sandbox, "lowered").unwrap()["state"], "left alone");
    assert_eq!(audit("lowered"), Vec::<Value>::new());
    let others = sandbox.open_copy();
    let mut others = Command::new(others);
    others
        .args(["node", "--json"])
        .env("STALLSCOPE_KERNEL_SOCKET", sandbox.kernel_socket())
        .uid(OTTO)
        .gid(OTTO);
    let seen: Value = serde_json::from_slice(&others.output().unwrap().stdout).unwrap();
    assert_eq!(seen["jobs"], Value::Array(vec![]));

    // Its owner may end it, and then it stays ended.
    signal(running[0], "TERM");
    wait_until("it is not tuned any more", || {
        node_job(&sandbox, "plain").unwrap()["state"].as_str().unwrap().contains("its user ended the session")
    });
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(plain.0.wait().unwrap().success() && lowered.0.wait().unwrap().success());
    wait_until("they are forgotten", || node_job(&sandbox, "plain").is_none());
}

#[test]
fn what_is_proven_stays_when_session_launcher_or_service_die_and_a_successor_goes_on() {
    if !privileged("what_is_proven_stays_when_session_launcher_or_service_die_and_a_successor_goes_on") {
        return;
    }
    let sandbox = Sandbox::new("survives");
    let policy = "[[jobs.rule]]\nmode = \"act\"\ncores = \"all\"\n";
    let launcher = service(&sandbox, policy);
    let mut run = with_torch(&sandbox, "slow", "slow.py", &[]);
    run.stdout(File::create(sandbox.path("job.out")).unwrap()).stderr(Stdio::null());
    let mut run = Killed(run.spawn().unwrap());
    let audit =
        || audit_in(&sandbox.stallscope_as_nobody(&["audit", "slow", "--json"]).output().unwrap().stdout);
    let is_kept = |line: &Value| line["act"] == "keep" && line["knob"] == "workers";
    wait_until("more workers are proven to help", || audit().iter().any(is_kept));
    let workers = || {
        let output = sandbox.stallscope_as_nobody(&["knobs", "slow", "--json"]).output().unwrap();
        let knobs: Value = serde_json::from_slice(&output.stdout).ok()?;
        let knob = knobs.as_array()?.iter().find(|knob| knob["name"] == "workers")?.clone();
        Some((knob["value"].as_u64()?, knob["initial"].as_u64()?))
    };
    // What it gained is shown, and the node's audit has the decision with its outcome.
    let saved_s = || node_job(&sandbox, "slow").and_then(|job| job["saved_s"].as_f64()).unwrap_or(0.0);
    wait_until("it has saved time", || saved_s() > 0.0);
    let log = node_log(&sandbox);
    let kept = log.iter().find(|line| line["act"] == "keep" && line["knob"] == "workers").unwrap();
    assert_eq!((&kept["job"], &kept["user"]), (&"slow".into(), &"nobody".into()));
    assert!(kept["measured"]["value"].as_f64() > Some(0.0) && kept["predicted"].is_object(), "{kept}");
    // Its session alone is killed, and another goes on.
    let killed = sessions(launcher.0.id())[0];
    signal(killed, "KILL");
    wait_until("the session has ended", || !sessions(launcher.0.id()).contains(&killed));
    assert!(workers().is_some_and(|(now, own)| now > own), "{:?}", workers());
    wait_until("another has begun", || !sessions(launcher.0.id()).is_empty() && is_tuned(&sandbox, "slow"));
    assert!(workers().is_some_and(|(now, own)| now > own), "{:?}", workers());
    // All that is left of it ends: first by the launcher's death, then by that of the part that hears users.
    let ended = |audit: &[Value]| {
        audit.iter().filter(|line| line["why"].as_str().unwrap().contains("stopped")).count()
    };
    signal(launcher.0.id(), "KILL");
    wait_until("the session has ended", || sessions_of_anyone(&sandbox).is_empty());
    assert!(workers().is_some_and(|(now, own)| now > own), "{:?}", workers());
    drop(launcher);
    let launcher = service(&sandbox, policy);
    wait_until("a successor has begun", || begun_by(&audit(), 1) >= 2 && is_tuned(&sandbox, "slow"));
    wait_until("what was saved is not forgotten", || saved_s() > 0.0);
    let children = format!("/proc/{0}/task/{0}/children", launcher.0.id());
    let hears = std::fs::read_to_string(children).unwrap();
    signal(hears.split_whitespace().next().unwrap().parse().unwrap(), "KILL");
    wait_until("the session has ended", || sessions_of_anyone(&sandbox).is_empty());
    drop(launcher);
    assert!(workers().is_some_and(|(now, own)| now > own), "{:?}, {}", workers(), ended(&audit()));
    let _launcher = service(&sandbox, policy);
    wait_until("another successor has begun", || is_tuned(&sandbox, "slow"));
    assert!(sandbox.run(&["node", "pause"]).status.success());
    wait_until("the session has ended", || sessions_of_anyone(&sandbox).is_empty());
    assert!(workers().is_some_and(|(now, own)| now > own), "{:?}", workers());
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    let printed = std::fs::read_to_string(sandbox.path("job.out")).unwrap();
    assert!(printed.ends_with(" 0 of them wrong\n"), "{printed}");
}

/// Sessions that still run for a job of this sandbox, whatever their parent is.
fn sessions_of_anyone(sandbox: &Sandbox) -> Vec<u32> {
    let exe = std::fs::canonicalize(env!("CARGO_BIN_EXE_stallscope")).unwrap();
    let jobs = node_jobs_in(sandbox);
    let is_one = |pid: &u32| {
        let words = text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|found| found == exe)
            && jobs.iter().any(|job| words.contains(&format!("node-session\0{job}\0")))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

/// Pids of this sandbox's jobs.
fn node_jobs_in(sandbox: &Sandbox) -> Vec<u64> {
    let folders = std::fs::read_dir(sandbox.path("run/jobs")).into_iter().flatten().flatten();
    let cards = folders.filter_map(|folder| std::fs::read(folder.path().join("job.json")).ok());
    cards.filter_map(|card| serde_json::from_slice::<Value>(&card).ok()?["pid"].as_u64()).collect()
}

#[test]
fn a_broken_policy_is_refused_and_leaves_the_old_in_force() {
    let sandbox = Sandbox::new("broken");
    std::fs::write(sandbox.path("policy.toml"), "[node]\nmemory = \"8GiB\"\n").unwrap();
    for words in [
        &["collect", "--check", "--config", "policy.toml"][..],
        &["collect", "--config", "policy.toml", "--socket", "kernel.sock", "--state", "state"],
        &["node-service", "--config", "policy.toml", "--socket", "node.sock", "--state", "state"],
    ] {
        let output = sandbox.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let why = text(&output.stderr);
        assert!(why.contains("line 2") && why.contains("unknown field `memory`"), "{why}");
    }
    std::fs::write(sandbox.path("policy.toml"), OF_NOBODY).unwrap();
    let output = sandbox.run(&["collect", "--check", "--config", "policy.toml"]);
    assert_eq!(
        text(&output.stdout),
        "1. user nobody: act, caches up to 64 MiB\nevery other job: observe\nno memory is reserved\n"
    );
    assert_eq!(sandbox.run(&["collect", "--check"]).status.code(), Some(2));
    let output = sandbox.run(&["node"]);
    assert!(text(&output.stderr).contains("no service of this node listens at"), "{}", text(&output.stderr));

    if !privileged("a_broken_policy_is_refused_and_leaves_the_old_in_force, its second half") {
        return;
    }
    let launcher = service(&sandbox, OF_NOBODY);
    let second = sandbox.run(&[
        "node-service",
        "--config",
        "policy.toml",
        "--socket",
        "node.sock",
        "--state",
        "state",
    ]);
    assert!(text(&second.stderr).contains("one a node is enough"), "{}", text(&second.stderr));
    let words = ["run", "--no-kernel", "--name", "plain", "--", PYTHON, "-c", IDLE];
    let mut run = Killed(sandbox.stallscope_as_nobody(&words).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it is tuned", || is_tuned(&sandbox, "plain"));
    std::fs::write(sandbox.path("policy.toml"), "[jobs]\nrule = 3\n").unwrap();
    signal(launcher.0.id(), "HUP");
    wait_until("it says why", || printed(&sandbox).contains("that was read before stays in force"));
    assert!(printed(&sandbox).contains("line 2, jobs.rule: "), "{}", printed(&sandbox));
    assert!(is_tuned(&sandbox, "plain"));
    std::fs::write(sandbox.path("policy.toml"), "").unwrap();
    signal(launcher.0.id(), "HUP");
    wait_until("it is left alone", || {
        node_job(&sandbox, "plain")
            .is_some_and(|job| job["state"] == "left alone" && job["mode"] == "observe")
    });
    wait_until("no session is left", || sessions(launcher.0.id()).is_empty());
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(run.0.wait().unwrap().success());
}

#[test]
fn a_pause_ends_all_sessions_outlasts_the_service_and_is_in_the_nodes_audit() {
    if !privileged("a_pause_ends_all_sessions_outlasts_the_service_and_is_in_the_nodes_audit") {
        return;
    }
    let sandbox = Sandbox::new("paused");
    let launcher = service(&sandbox, OF_NOBODY);
    let words = ["run", "--no-kernel", "--name", "plain", "--", PYTHON, "-c", IDLE];
    let mut run = Killed(sandbox.stallscope_as_nobody(&words).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it is tuned", || is_tuned(&sandbox, "plain"));
    let as_nobody = |words: &[&str]| sandbox.stallscope_as_nobody(words).output().unwrap();
    let state = || node_job(&sandbox, "plain").unwrap()["state"].as_str().unwrap().to_owned();

    // The node is root's.
    let refused = as_nobody(&["node", "pause"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("name a job of yours"), "{}", text(&refused.stderr));
    let done = sandbox.run(&["node", "pause"]);
    assert!(done.status.success() && text(&done.stderr).contains("the node is paused"), "{done:?}");
    wait_until("no session is left", || sessions(launcher.0.id()).is_empty());
    assert_eq!(state(), "paused by root; what is in force stays");
    // Neither a new policy nor a new service begins one.
    signal(launcher.0.id(), "HUP");
    wait_until("it was read again", || printed(&sandbox).contains("was read again and is in force"));
    drop(launcher);
    let launcher = service(&sandbox, OF_NOBODY);
    wait_until("the job has called again", || node_job(&sandbox, "plain").is_some_and(|job| job["pid"] != 0));
    assert_eq!(state(), "paused by root; what is in force stays");
    assert!(sessions(launcher.0.id()).is_empty());
    assert!(printed(&sandbox).contains("the node is paused by root"));
    assert!(sandbox.run(&["node", "resume"]).status.success());
    wait_until("it is tuned again", || is_tuned(&sandbox, "plain"));

    // The job is its owner's.
    assert!(as_nobody(&["node", "pause", "plain"]).status.success());
    wait_until("its session has ended", || sessions(launcher.0.id()).is_empty());
    assert_eq!(state(), "paused by nobody; what is in force stays");
    assert!(as_nobody(&["node", "resume", "plain"]).status.success());
    wait_until("it is tuned once more", || is_tuned(&sandbox, "plain"));

    let log = node_log(&sandbox);
    let turned: Vec<(&str, &str)> = log
        .iter()
        .filter(|line| line["act"] == "pause" || line["act"] == "resume")
        .map(|line| (line["by"].as_str().unwrap(), line["job"].as_str().unwrap()))
        .collect();
    assert_eq!(turned, [("root", ""), ("root", ""), ("nobody", "plain"), ("nobody", "plain")]);
    let shown = sandbox.run(&["node", "log"]);
    assert!(text(&shown.stdout).contains("pause the node: by root"), "{}", text(&shown.stdout));
    // Nobody else reads what is written there but by the service.
    let kept = std::fs::metadata(sandbox.path("state/audit.0.jsonl")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&kept.permissions()) & 0o777, 0o600);
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(run.0.wait().unwrap().success());
}

#[test]
fn the_nodes_collector_starts_the_service_which_ends_with_it() {
    if !privileged("the_nodes_collector_starts_the_service_which_ends_with_it") {
        return;
    }
    let sandbox = Sandbox::new("beside");
    sandbox.open_to_all();
    std::fs::write(sandbox.path("policy.toml"), OF_NOBODY).unwrap();
    let socket = sandbox.kernel_socket().display().to_string();
    let state = sandbox.path("state").display().to_string();
    let words = ["collect", "--config", "policy.toml", "--socket", &socket, "--state", &state];
    let stderr = File::create(sandbox.path("service.printed")).unwrap();
    let collector = Killed(sandbox.stallscope(&words).stderr(stderr).spawn().unwrap());
    wait_until("both serve", || {
        let printed = printed(&sandbox);
        printed.contains("serving kernel evidence at") && printed.contains("serving this node's policy at")
    });
    // The collector, confined by now, passes it on.
    signal(collector.0.id(), "HUP");
    wait_until("it was read again", || printed(&sandbox).contains("was read again and is in force"));
    assert!(sandbox.run(&["node"]).status.success());
    signal(collector.0.id(), "KILL");
    wait_until("the service has ended", || !sandbox.run(&["node"]).status.success());
}

/// A job's collector that has one further line of its audit each time that it is asked.
fn never_stops_answering(socket: &std::path::Path) -> std::sync::mpsc::Receiver<()> {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let (asked, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = 0;
        for question in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
            let answer = match question {
                tune if tune.contains("\"tune\"") => serde_json::json!({"tuning": {"from": 0}}),
                // Who it is.
                other if !other.contains("\"audit\"") => continue,
                _ => {
                    let line = stallscope_model::AuditEvent { line: lines, ..Default::default() };
                    lines += 1;
                    let _ = asked.send(());
                    serde_json::json!({"audit": [line]})
                }
            };
            if (&stream).write_all(format!("{answer}\n").as_bytes()).is_err() {
                return;
            }
        }
    });
    heard
}

#[test]
fn a_session_ends_though_its_jobs_collector_never_stops_answering() {
    if !privileged("a_session_ends_though_its_jobs_collector_never_stops_answering") {
        return;
    }
    let sandbox = Sandbox::new("node-endless");
    let socket = sandbox.path("socket");
    let asked = never_stops_answering(&socket);
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let user = ["--reuid", "4747", "--regid", "4747", "--clear-groups", "sleep", "infinity"];
    let job = Killed(Command::new("setpriv").args(user).env("STALLSCOPE_SOCKET", &socket).spawn().unwrap());
    let pid = job.0.id();
    wait_until("it is that user's", || {
        std::fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"sleep\n")
    });
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let ticks = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap();
    let words = ["node-session", &pid.to_string(), ticks, "act", "1", "0", "4747", "4747", "0", "idle"];
    let mut session = Killed(sandbox.stallscope(&words).stdin(Stdio::piped()).spawn().unwrap());
    for _ in 0..100 {
        asked.recv().unwrap();
    }
    drop(session.0.stdin.take());
    wait_until("it ends", || session.0.try_wait().unwrap().is_some());
}
