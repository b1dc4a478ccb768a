//! The node's service: jobs of others are tuned as the node's policy says, as their own users, and survive whatever happens to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use support::node::{OTTO, PYTHON};
use support::{Killed, Sandbox, privileged, python, signal, text, wait_until};

/// Whom the sandbox's jobs belong to; the service hears them as another user.
const NOBODY: &str = "65534";

const IDLE: &str = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.05)\n";

/// A service with this policy, which reports into the file `service.printed`.
fn service(sandbox: &Sandbox, policy: &str) -> Killed {
    std::fs::write(sandbox.path("policy.toml"), policy).unwrap();
    let socket = sandbox.path("node.sock").display().to_string();
    let printed = File::options().create(true).append(true).open(sandbox.path("service.printed")).unwrap();
    let (user, state) = (OTTO.to_string(), sandbox.path("state").display().to_string());
    let words =
        ["node-service", "--config", "policy.toml", "--user", &user, "--socket", &socket, "--state", &state];
    let inner = sandbox.stallscope(&words);
    // Its starter has a file open that is none of the users'.
    let mut starter = Command::new("sh");
    starter.args(["-c", "exec \"$0\" \"$@\" 9</etc/passwd"]).arg(inner.get_program()).args(inner.get_args());
    starter.current_dir(inner.get_current_dir().unwrap()).stdin(Stdio::null()).stderr(printed);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    let service = Killed(starter.spawn().unwrap());
    wait_until("the service listens", || sandbox.run(&["node"]).status.success());
    service
}

fn printed(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path("service.printed")).unwrap()
}

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

/// The node's jobs as root sees them, by name.
fn node_job(sandbox: &Sandbox, name: &str) -> Option<Value> {
    let node: Value = serde_json::from_slice(&sandbox.run(&["node", "--json"]).stdout).ok()?;
    node["jobs"].as_array()?.iter().find(|job| job["name"] == name).cloned()
}

fn is_tuned(sandbox: &Sandbox, name: &str) -> bool {
    node_job(sandbox, name).is_some_and(|job| job["state"] == "tuned")
}

/// Processes of `stallscope node-session` that the launcher has now.
fn sessions(launcher: u32) -> Vec<u32> {
    let children =
        std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
    let is_session = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| text(&words).contains("node-session"))
    };
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is_session).collect()
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
fn what_is_proven_stays_when_launcher_or_service_die_and_a_successor_goes_on() {
    if !privileged("what_is_proven_stays_when_launcher_or_service_die_and_a_successor_goes_on") {
        return;
    }
    let sandbox = Sandbox::new("survives");
    let policy = "[[jobs.rule]]\nmode = \"act\"\n";
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
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    let printed = std::fs::read_to_string(sandbox.path("job.out")).unwrap();
    assert!(printed.ends_with(" 0 of them wrong\n"), "{printed}");
}

/// `stallscope run` of one of tests/jobs as nobody, who may not reach the Python with torch but by another way to it.
fn with_torch(sandbox: &Sandbox, name: &str, script: &str, arguments: &[&str]) -> Command {
    let python = python();
    let base = std::fs::canonicalize(&python).unwrap();
    let prefix = base.ancestors().nth(2).unwrap();
    let there = sandbox.path("base");
    std::fs::create_dir(&there).unwrap();
    let asked = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))";
    let packages = text(&Command::new(&python).args(["-c", asked]).output().unwrap().stdout);
    let seen_there = there.join(base.strip_prefix(prefix).unwrap()).display().to_string();
    let script = sandbox.path("jobs").join(script).display().to_string();
    let words = [&["run", "--no-kernel", "--name", name, "--", &seen_there, &script], arguments].concat();
    let inner = sandbox.stallscope_as_nobody(&words);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg("mount --bind \"$0\" \"$1\" && shift && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"")
        .args([prefix, &there])
        .arg(inner.get_program())
        .args(inner.get_args())
        .current_dir(sandbox.path(""))
        .stdin(Stdio::null())
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("PYTHONPATH", packages.trim());
    command
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
    let second =
        sandbox.run(&["node-service", "--config", "policy.toml", "--socket", "node.sock", "--state", "state"]);
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

/// The node's audit as root reads it.
fn node_log(sandbox: &Sandbox) -> Vec<Value> {
    let printed = sandbox.run(&["node", "log", "--json"]).stdout;
    text(&printed).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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

#[test]
fn memory_goes_where_it_saves_most_and_a_liar_gets_no_more_than_its_rule() {
    if !privileged("memory_goes_where_it_saves_most_and_a_liar_gets_no_more_than_its_rule") {
        return;
    }
    const MIB: u64 = 1 << 20;
    let sandbox = Sandbox::new("shares");
    // 96 MiB for all caches.
    let reserve = stallscope_collector::node_memory_bytes() / MIB - 96;
    let left = stallscope_collector::node_memory_bytes() - reserve * MIB;
    let policy = format!(
        "[node]\nmemory_reserve = \"{reserve}MiB\"\n[[jobs.rule]]\nmode = \"act\"\n\
         cache = {{ max = \"64MiB\", min = \"16MiB\" }}\n"
    );
    let _launcher = service(&sandbox, &policy);
    let start = |name: &str, saved: &str, kind: &str| {
        // What makes the sandbox nobody's.
        let _ = sandbox.stallscope_as_nobody(&[]);
        let mut job = Command::new(PYTHON);
        job.arg(sandbox.path("jobs/asking.py"))
            .args([name, saved, kind])
            .env("STALLSCOPE_KERNEL_SOCKET", sandbox.kernel_socket())
            .current_dir(sandbox.path(""))
            .uid(65534)
            .gid(65534)
            .stdin(Stdio::null());
        Killed(job.spawn().unwrap())
    };
    let granted = |name: &str| node_job(&sandbox, name).map_or(0, |job| job["cache_bytes"].as_u64().unwrap());
    let heard = |name: &str, bytes: u64| {
        let grants = std::fs::read_to_string(sandbox.path(&format!("{name}.granted"))).unwrap_or_default();
        grants.lines().last().is_some_and(|last| last == bytes.to_string())
    };
    let sum = || ["poor", "rich", "liar"].map(granted).iter().sum::<u64>();
    let _poor = start("poor", "0.05", "honest");
    wait_until("alone it has what its rule allows", || heard("poor", 64 * MIB));
    let rich = start("rich", "0.5", "honest");
    wait_until("the other saves more with it", || heard("rich", 64 * MIB) && heard("poor", left - 64 * MIB));
    assert!(sum() <= left, "{}", sum());
    let liar = start("liar", "1e300", "liar");
    wait_until("it is there", || node_job(&sandbox, "liar").is_some_and(|job| job["pid"] != 0));
    wait_until("it has what is left to it at least", || granted("liar") >= 16 * MIB);
    for name in ["poor", "rich", "liar"] {
        assert!((16 * MIB..=64 * MIB).contains(&granted(name)), "{name}: {}", granted(name));
    }
    assert!(sum() <= left, "{}", sum());
    // What a job had that was killed is others' again.
    signal(liar.0.id(), "KILL");
    signal(rich.0.id(), "KILL");
    wait_until("it has all that its rule allows", || heard("poor", 64 * MIB));
    assert_eq!(sum(), 64 * MIB);
}

#[test]
fn a_running_job_gives_back_what_it_is_no_longer_granted() {
    if !privileged("a_running_job_gives_back_what_it_is_no_longer_granted") {
        return;
    }
    let sandbox = Sandbox::new("less");
    let policy = |most: &str| format!("[[jobs.rule]]\nmode = \"act\"\ncache = {{ max = \"{most}\" }}\n");
    let launcher = service(&sandbox, &policy("64MiB"));
    let words = ["--workers", "0", "--cache", "4MiB", "--samples", "1000", "--wait-ms", "4", "--step-ms", "2"];
    let mut run = with_torch(&sandbox, "cached", "slow.py", &words);
    run.stdout(File::create(sandbox.path("job.out")).unwrap()).stderr(Stdio::null());
    let mut run = Killed(run.spawn().unwrap());
    let cache = || {
        let output = sandbox.stallscope_as_nobody(&["knobs", "cached", "--json"]).output().unwrap();
        let knobs: Value = serde_json::from_slice(&output.stdout).ok()?;
        knobs.as_array()?.iter().find(|knob| knob["name"] == "cache.bytes")?["value"].as_u64()
    };
    wait_until("its cache is larger", || cache().is_some_and(|bytes| bytes > 10 << 20));
    let before = sessions(launcher.0.id());
    std::fs::write(sandbox.path("policy.toml"), policy("8MiB")).unwrap();
    signal(launcher.0.id(), "HUP");
    wait_until("it has given back", || cache().is_some_and(|bytes| bytes <= 8 << 20));
    assert!(cache().is_some_and(|bytes| bytes >= 4 << 20), "what the script had set stays");
    assert_eq!(sessions(launcher.0.id()), before, "the same session");
    wait_until("the audit has it", || {
        node_log(&sandbox).iter().any(|line| line["act"] == "undo" && line["knob"] == "cache.bytes")
    });
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    let printed = std::fs::read_to_string(sandbox.path("job.out")).unwrap();
    assert!(printed.ends_with(" 0 of them wrong\n"), "{printed}");
}
