//! `stallscope simulate`: what a cache would save, without training.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Killed, Sandbox, text, wait_until};
use std::io::Read;
use std::process::{Command, Stdio};

#[test]
fn a_made_up_job_has_a_line_for_each_sampler_and_policy() {
    let sandbox = Sandbox::new("simulate");
    let words = ["simulate", "--samples", "2000", "--sampling", "plain,reuse", "--cache", "20%"];
    let done = sandbox.run(&words);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let table = text(&done.stdout);
    assert_eq!(table.lines().count(), 1 + 2 * 3, "{table}");
    assert!(table.contains("plain · minio"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("plain · min ") && line.contains("20%")), "{table}");
}

#[test]
fn substitution_has_lines_of_its_own_where_the_loader_offers_it() {
    let sandbox = Sandbox::new("simulate-substitute");
    let words = ["simulate", "--samples", "2000", "--sampling", "plain,importance", "--policy", "min"];
    let done = sandbox.run(&[&words[..], &["--cache", "20%", "--substitute", "10%"]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let table = text(&done.stdout);
    assert_eq!(table.lines().count(), 1 + 3, "{table}");
    assert!(table.contains("importance + substitution 10% · min"), "{table}");
    let none = sandbox.run(&["simulate", "--sampling", "plain", "--substitute", "10%"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("name one of them in --sampling"), "{}", text(&none.stderr));
    std::fs::write(sandbox.path("uses.csv"), "epoch,id,bytes,score\n0,1,1000,1\n").unwrap();
    let wrong = sandbox.run(&["simulate", "uses.csv", "--substitute", "10%"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("cannot be used with"), "{}", text(&wrong.stderr));
}

#[test]
fn packages_save_requests_of_a_made_up_job_and_are_none_of_a_trace() {
    let sandbox = Sandbox::new("simulate-packages");
    let words = ["simulate", "--samples", "4000", "--sampling", "iis", "--cache", "20%", "--format", "csv"];
    let done =
        sandbox.run(&[&words[..], &["--policy", "icache,icache-packed,icache-packed-published"]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let rows = text(&done.stdout);
    let requests = |policy: &str| -> u64 {
        let row = rows.lines().find(|row| row.starts_with(&format!("iis,{policy},"))).unwrap();
        row.split(',').nth(13).unwrap().parse().unwrap()
    };
    assert_eq!(rows.lines().next().unwrap().split(',').nth(13), Some("requests"));
    assert!(requests("icache-packed") < requests("icache"), "{rows}");
    assert!(requests("icache") < requests("icache-packed-published"), "{rows}");
    std::fs::write(sandbox.path("uses.csv"), "epoch,id,bytes,score\n0,1,1000,1\n").unwrap();
    let refused = sandbox.run(&["simulate", "uses.csv", "--policy", "icache-packed"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("is for a synthetic job"), "{}", text(&refused.stderr));
}

#[test]
fn a_recorded_trace_is_replayed_and_drawn() {
    let sandbox = Sandbox::new("simulate-trace");
    let uses: String = (0..3)
        .flat_map(|epoch| (0..50).map(move |n| format!("{epoch},{},1000,1\n", (n * 7 + epoch * 3) % 50)))
        .collect();
    std::fs::write(sandbox.path("uses.csv"), format!("epoch,id,bytes,score\n{uses}")).unwrap();
    let done = sandbox.run(&[
        "simulate",
        "uses.csv",
        "--policy",
        "minio,min",
        "--cache",
        "20%,40%",
        "--format",
        "csv",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let rows = text(&done.stdout);
    assert!(rows.lines().any(|row| row.starts_with("trace,minio,0.4,0.400000,")), "{rows}");
    let drawn = sandbox.run(&["simulate", "uses.csv", "--format", "svg", "-o", "hits.svg"]);
    assert_eq!(drawn.status.code(), Some(0), "{}", text(&drawn.stderr));
    assert!(std::fs::read_to_string(sandbox.path("hits.svg")).unwrap().starts_with("<svg "));
}

#[test]
fn what_is_no_trace_or_no_size_is_named() {
    let sandbox = Sandbox::new("simulate-wrong");
    std::fs::write(sandbox.path("broken.csv"), "epoch,id,bytes,score\n0,seven,1,1\n").unwrap();
    let broken = sandbox.run(&["simulate", "broken.csv"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stderr).contains("broken.csv: line 2 of the trace"), "{}", text(&broken.stderr));
    let missing = sandbox.run(&["simulate", "none.csv"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("cannot open none.csv"), "{}", text(&missing.stderr));
    let size = sandbox.run(&["simulate", "--cache", "120%"]);
    assert_eq!(size.status.code(), Some(2));
    assert!(text(&size.stderr).contains("from 0% to 100%"), "{}", text(&size.stderr));
}

/// To open a watchdog arms it, and a foreign trace may be a link to one.
#[test]
fn a_device_is_not_opened() {
    let sandbox = Sandbox::new("simulate-device");
    std::os::unix::fs::symlink("/dev/zero", sandbox.path("trace.csv")).unwrap();
    let refused = sandbox.run(&["simulate", "trace.csv"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("it is a device"), "{}", text(&refused.stderr));
}

#[test]
fn a_pipe_with_a_name_is_not_waited_for_and_one_of_a_shell_is_read() {
    let sandbox = Sandbox::new("simulate-pipe");
    let pipe = sandbox.path("pipe.csv");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Who opens it for both holds it open, and never writes.
    let _holder = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut simulate =
        Killed(sandbox.stallscope(&["simulate", "pipe.csv"]).stderr(Stdio::piped()).spawn().unwrap());
    wait_until("it has ended", || simulate.0.try_wait().unwrap().is_some());
    let mut printed = String::new();
    simulate.0.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(printed.contains("is a pipe"), "{printed}");
    std::fs::write(sandbox.path("trace.csv"), "epoch,id,bytes,score\n0,0,1,1\n1,0,1,1\n").unwrap();
    let trace = std::fs::File::open(sandbox.path("trace.csv")).unwrap();
    let mut cat = Command::new("cat").stdin(trace).stdout(Stdio::piped()).spawn().unwrap();
    let piped = cat.stdout.take().unwrap();
    let read = sandbox.stallscope(&["simulate", "/dev/stdin"]).stdin(piped).output().unwrap();
    assert!(read.status.success(), "{}", text(&read.stderr));
    assert!(cat.wait().unwrap().success());
}
