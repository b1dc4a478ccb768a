//! The node's memory for caches: who is granted how much of it, and that it is given back.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::node::PYTHON;
use crate::support::policy::{node_job, node_log, service, sessions, with_torch};
use crate::support::{Killed, Sandbox, privileged, signal, wait_until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

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
    let words =
        ["--workers", "0", "--cache", "4MiB", "--samples", "1000", "--wait-ms", "4", "--step-ms", "2"];
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
