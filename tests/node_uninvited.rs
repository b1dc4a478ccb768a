//! Jobs that nobody launched with `run`: where the node's policy says so they are measured and tuned all the same, and whatever
//! becomes of the service, they compute what they would have without it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::policy::{node_log, service, sessions, started, torch_alone};
use crate::support::{self, Killed, Sandbox, privileged, signal, wait_until};
use serde_json::Value;
use std::fs::File;
use std::process::{Command, Stdio};

const POLICY: &str =
    "[[jobs.rule]]\nmatch = { user = \"nobody\" }\nmode = \"act\"\nwithout_run = true\ncores = \"all\"\n";

/// `sums.py` as nobody, in an environment with the package, started by nothing of ours.
fn plain(sandbox: &Sandbox, seed: u32, more: &[&str]) -> Command {
    let seed = seed.to_string();
    torch_alone(sandbox, "sums.py", &[&["--seed", &seed], more].concat())
}

/// The node's jobs as root sees them, by pid.
fn job(sandbox: &Sandbox, pid: u32) -> Option<Value> {
    let node: Value = serde_json::from_slice(&sandbox.run(&["node", "--json"]).stdout).ok()?;
    node["jobs"].as_array()?.iter().find(|job| job["pid"] == pid).cloned()
}

fn is_tuned(sandbox: &Sandbox, pid: u32) -> bool {
    job(sandbox, pid).is_some_and(|job| job["state"] == "tuned")
}

fn printed(sandbox: &Sandbox, name: &str) -> Vec<String> {
    std::fs::read_to_string(sandbox.path(name)).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn four_jobs_that_nobody_started_with_run_are_tuned_and_compute_what_they_would_have() {
    if !privileged("four_jobs_that_nobody_started_with_run_are_tuned_and_compute_what_they_would_have") {
        return;
    }
    let sandbox = Sandbox::new("uninvited");
    let launcher = service(&sandbox, POLICY);
    let start = |seed: u32| {
        let mut job = plain(&sandbox, seed, &[]);
        job.stdout(File::create(sandbox.path(&format!("{seed}.out"))).unwrap());
        job.stderr(File::create(sandbox.path(&format!("{seed}.err"))).unwrap());
        Killed(job.spawn().unwrap())
    };
    let mut jobs = [1, 2, 3, 4].map(start);
    let pids = jobs.each_ref().map(|job| job.0.id());
    for pid in pids {
        wait_until("each has a session", || is_tuned(&sandbox, pid));
    }
    let log = node_log(&sandbox);
    for pid in pids {
        let why = |part: &str| {
            log.iter().any(|line| line["pid"] == pid && line["why"].as_str().unwrap().contains(part))
        };
        assert!(
            why("its shim came by itself, by rule 1") && why("a session begins by rule 1: act"),
            "{log:?}"
        );
    }
    // As their jobs' user, and with nothing that this user does not have.
    let is_of_one = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        support::text(&words).split('\0').any(|word| pids.iter().any(|job| word == job.to_string()))
    };
    // Others of this machine's jobs may have been found, too.
    let mut collectors = started(launcher.0.id(), "node-collect");
    collectors.retain(is_of_one);
    assert_eq!(collectors.len(), 4);
    for pid in &collectors {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for field in [
            "Uid:\t65534\t65534\t65534\t65534",
            "Gid:\t65534\t65534\t65534\t65534",
            "Groups:\t",
            "NoNewPrivs:\t1",
        ] {
            assert!(status.lines().any(|line| line.trim_end() == field.trim_end()), "{field}: {status}");
        }
        for field in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
            assert!(status.contains(&format!("{field}\t0000000000000000\n")), "{field} {status}");
        }
        let files = std::fs::metadata(format!("/proc/{pid}/environ")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&files), 0, "its user may look into it");
        assert!(std::fs::read(format!("/proc/{pid}/environ")).unwrap().is_empty());
    }
    wait_until("something is tried", || node_log(&sandbox).iter().any(|line| line["act"] == "request"));

    // One job's collector is killed, and the job gets another.
    signal(collectors[0], "KILL");
    wait_until("its job has another", || {
        let mut now = started(launcher.0.id(), "node-collect");
        now.retain(is_of_one);
        now.len() == 4 && !now.contains(&collectors[0])
    });
    for pid in pids {
        wait_until("each has a session again", || is_tuned(&sandbox, pid));
    }

    // Killed in the middle of it: no job notices, and a successor finds all of them again.
    signal(launcher.0.id(), "KILL");
    drop(launcher);
    for job in &mut jobs {
        assert!(job.0.try_wait().unwrap().is_none(), "a job has ended");
    }
    let epochs = |seed: usize| printed(&sandbox, &format!("{seed}.out")).len();
    let before: Vec<usize> = (1..=4).map(epochs).collect();
    wait_until("they train on without a service", || (1..=4).all(|seed| epochs(seed) > before[seed - 1]));
    let launcher = service(&sandbox, POLICY);
    for pid in pids {
        wait_until("each has a session again", || is_tuned(&sandbox, pid));
    }
    std::fs::write(sandbox.path("stop"), "").unwrap();
    for job in &mut jobs {
        assert_eq!(job.0.wait().unwrap().code(), Some(0));
    }
    wait_until("no session is left", || sessions(launcher.0.id()).is_empty());
    wait_until("they are forgotten", || pids.iter().all(|pid| job(&sandbox, *pid).is_none()));

    for seed in 1..=4 {
        let (name, with) = (format!("{seed}.out"), printed(&sandbox, &format!("{seed}.out")));
        assert_eq!(printed(&sandbox, &format!("{seed}.err")), Vec::<String>::new());
        let epochs = with.len().to_string();
        let mut alone = plain(&sandbox, seed, &["--wait-ms", "0", "--epochs", &epochs]);
        alone.env("STALLSCOPE_SHIM", "off").stderr(Stdio::null());
        std::fs::remove_file(sandbox.path("stop")).ok();
        let alone = support::text(&alone.output().unwrap().stdout);
        assert_eq!(with, alone.lines().collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(node_log(&sandbox).iter().filter(|line| line["act"] == "lost").count(), 0);
}

#[test]
fn a_job_whose_shim_may_not_come_is_left_alone_and_one_that_runs_is_let_go() {
    if !privileged("a_job_whose_shim_may_not_come_is_left_alone_and_one_that_runs_is_let_go") {
        return;
    }
    let sandbox = Sandbox::new("let-go");
    let launcher = service(&sandbox, POLICY);
    let start = |seed: u32, label: &str| {
        let mut job = plain(&sandbox, seed, &[]);
        job.env("STALLSCOPE_LABEL", label)
            .stdout(File::create(sandbox.path(&format!("{seed}.out"))).unwrap());
        Killed(job.stderr(Stdio::null()).spawn().unwrap())
    };
    let (mut refused, mut observed, mut tuned) = (start(1, "off"), start(2, "observe"), start(3, ""));
    wait_until("it is tuned", || is_tuned(&sandbox, tuned.0.id()));
    wait_until("it is watched alone", || {
        job(&sandbox, observed.0.id())
            .is_some_and(|job| job["state"] == "left alone" && job["mode"] == "observe")
    });
    wait_until("it trains", || !printed(&sandbox, "1.out").is_empty());
    assert_eq!(job(&sandbox, refused.0.id()), None);
    std::fs::write(sandbox.path("policy.toml"), POLICY.replace("without_run = true", "")).unwrap();
    signal(launcher.0.id(), "HUP");
    wait_until("they are let go", || {
        [&observed, &tuned].iter().all(|one| job(&sandbox, one.0.id()).is_none())
    });
    let epochs = |seed: usize| printed(&sandbox, &format!("{seed}.out")).len();
    let before: Vec<usize> = (1..=3).map(epochs).collect();
    wait_until("all train on", || (1..=3).all(|seed| epochs(seed) > before[seed - 1] + 1));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    for job in [&mut refused, &mut observed, &mut tuned] {
        assert_eq!(job.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_job_without_the_package_is_found_and_observed_by_the_kernel_alone() {
    if !privileged("a_job_without_the_package_is_found_and_observed_by_the_kernel_alone") {
        return;
    }
    let sandbox = Sandbox::new("found");
    sandbox.open_to_all();
    let socket = sandbox.kernel_socket().display().to_string();
    let collect = sandbox.stallscope(&["collect", "--socket", &socket]).stderr(Stdio::null()).spawn();
    let _collector = Killed(collect.unwrap());
    wait_until("the collector listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let launcher = service(&sandbox, POLICY);
    let mut job_alone = plain(&sandbox, 1, &[]);
    // As where the package is in no folder of Python's.
    job_alone.env("PYTHONNOUSERSITE", "1").stderr(Stdio::null());
    job_alone.stdout(File::create(sandbox.path("1.out")).unwrap());
    let mut running = Killed(job_alone.spawn().unwrap());
    let pid = running.0.id();
    wait_until("it is found", || job(&sandbox, pid).is_some());
    let shown = job(&sandbox, pid).unwrap();
    assert_eq!(
        (&shown["name"], &shown["user"], &shown["mode"]),
        (&"sums".into(), &"nobody".into(), &"act".into())
    );
    let state =
        || job(&sandbox, pid).map_or_else(String::new, |job| job["state"].as_str().unwrap().to_owned());
    wait_until("it is observed", || state().starts_with("observed by the kernel alone"));
    assert!(sessions(launcher.0.id()).is_empty());
    let report = || {
        let words = ["report", "sums", "--format", "json"];
        let output = sandbox.stallscope_as_nobody(&words).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    wait_until("its steps are seen", || {
        let report = report();
        let phases = report["phases"].as_array().into_iter().flatten();
        phases.filter(|phase| phase["phase"] == "training").any(|phase| phase["steps"].as_u64() > Some(20))
    });
    let seen = report();
    assert_eq!((&seen["kernel"], &seen["shim"]), (&"on".into(), &"off".into()));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    wait_until("it is forgotten", || job(&sandbox, pid).is_none());
    let log = node_log(&sandbox);
    let why = "it was found, and is observed by the kernel, by rule 1";
    assert!(
        log.iter().any(|line| line["pid"] == pid && line["why"].as_str().unwrap().contains(why)),
        "{log:?}"
    );
}
