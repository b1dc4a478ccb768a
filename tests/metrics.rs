//! `--metrics`: what is served, to whom, and what hostile clients can do about it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::http::{get, get_with};
use crate::support::{Killed, Sandbox, job, privileged, python, text, wait_until};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::time::Duration;

/// Samples by name and labels.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(s, v)| (s.to_owned(), v.parse().unwrap()))
        .collect()
}

/// A job that ends with exit code 7 once `stop` is there.
const UNTIL_STOPPED: &str = "while [ ! -e stop ]; do sleep 0.05; done; exit 7";

fn stopped(sandbox: &Sandbox, job: &mut Child) -> Option<i32> {
    std::fs::write(sandbox.path("stop"), "").unwrap();
    job.wait().unwrap().code()
}

#[test]
fn figures_are_served_while_the_job_runs_and_counters_only_grow() {
    let sandbox = Sandbox::new("served");
    let (_run, address) = sandbox.serving(&[
        "run",
        "--name",
        "mine",
        "--metrics",
        "0",
        "--",
        &python(),
        &job("train.py"),
        "--epochs",
        "1000",
        "--save",
        "x.pt",
    ]);
    assert!(address.ip().is_loopback(), "a port alone is for this machine");
    let steps = "stallscope_steps_total{job=\"mine\",rank=\"0\",phase=\"training\"}";
    let page = || get(address, "/metrics").body;
    wait_until("there are figures", || get(address, "/metrics").status == 200);
    wait_until("steps are served", || samples(&page()).get(steps).is_some_and(|steps| *steps > 40.0));
    let before = samples(&page());
    wait_until("more steps are served", || samples(&page())[steps] > before[steps]);
    let after = samples(&page());
    for (name, value) in before.iter().filter(|(name, _)| name.contains("_total")) {
        assert!(
            after.get(name).is_some_and(|later| later >= value),
            "{name} fell from {value} to {:?}",
            after.get(name)
        );
    }
    let checkpoints = after["stallscope_checkpoints_total{job=\"mine\",rank=\"0\"}"];
    assert!(checkpoints >= 1.0, "{checkpoints}");

    let answer =
        get_with(address, "GET", "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(answer.body.ends_with("# EOF\n"));
    let head = get_with(address, "HEAD", "/metrics", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(get(address, "/").status, 404);
    assert_eq!(get_with(address, "POST", "/metrics", "").status, 405);
    assert_eq!(get_with(address, "GET", "/metrics", "Accept: image/png\r\n").status, 406);
}

#[test]
fn an_address_that_cannot_be_had_is_one_sentence_and_no_job() {
    let sandbox = Sandbox::new("taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (address, why) in [(address.as_str(), "in use"), ("192.0.2.1:9400", "not available")] {
        let output = sandbox.run(&["run", "--metrics", address, "--", "touch", "started"]);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        assert!(printed.contains(address) && printed.contains(why), "{printed}");
        assert!(!sandbox.path("started").exists(), "the job was started");
    }
    let output = sandbox.run(&["run", "--metrics", "everywhere", "--", "touch", "started"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("0.0.0.0:9400"), "{}", text(&output.stderr));
}

/// Writes to `stream` without end; how much until the other side had enough.
fn pour(mut stream: TcpStream, what: &[u8]) -> usize {
    let mut poured = 0;
    while let Ok(written) = stream.write(what) {
        poured += written;
    }
    poured
}

#[test]
fn hostile_clients_disturb_neither_the_job_nor_its_collector() {
    let sandbox = Sandbox::new("hostile");
    let (mut run, address) =
        sandbox.serving(&["run", "--name", "calm", "--metrics", "0", "--", "sh", "-c", UNTIL_STOPPED]);
    let connect = || TcpStream::connect(address).unwrap();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", run.0.id())).unwrap().count();
    wait_until("its collector is at work", || {
        sandbox.run(&["report", "calm", "--format", "json"]).status.success()
            && sandbox.path("calm.stall").exists()
    });
    let at_rest = descriptors();

    // They say nothing, half of a request, or one byte and then no more.
    let silent: Vec<TcpStream> = (0..32)
        .map(|number| {
            let mut stream = connect();
            stream.write_all([&b""[..], b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"G"][number % 3]).unwrap();
            stream
        })
        .collect();
    let endless: Vec<_> = [&b"X-More: and more\r\n"[..], &[b'a'; 4096], &[0; 4096], b"\xff\xfe\r\n\r\n"]
        .into_iter()
        .map(|what| {
            let mut stream = connect();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            std::thread::spawn(move || pour(stream, what))
        })
        .collect();
    // Many at once, most of whom nobody will ever answer.
    let crowd: Vec<_> = (0..200)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(5)).ok())
        .collect();
    assert!(descriptors() <= at_rest + 20, "{} descriptors, {at_rest} at rest", descriptors());
    // The collector answers others meanwhile.
    let report = sandbox.run(&["report", "calm", "--format", "json"]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    drop(crowd);
    for mut stream in silent {
        let mut printed = Vec::new();
        // A reset is as good an end as any; what counts is that there is one.
        let _ = stream.read_to_end(&mut printed);
        assert!(printed.is_empty() || printed.starts_with(b"HTTP/1.1 4"), "{}", text(&printed));
    }
    for endless in endless {
        assert!(endless.join().unwrap() < 64 << 20, "it was listened to for long");
    }
    assert_eq!(get(address, "/metrics").status, 200, "an honest client is served again");
    wait_until("all of them are let go", || descriptors() <= at_rest);
    assert_eq!(stopped(&sandbox, &mut run.0), Some(7), "the job ends as it would");
}

#[test]
fn tasks_of_one_slurm_step_are_served_together() {
    let sandbox = Sandbox::new("slurmmetrics");
    let task = |words: &[&str]| {
        let mut command = sandbox.stallscope(words);
        command.env("SLURM_JOB_ID", "7").env("SLURM_STEP_ID", "0");
        command
    };
    let (mut first, address) =
        sandbox.served_by(task(&["run", "--metrics", "0", "--", "sh", "-c", UNTIL_STOPPED]));
    wait_until("there are figures", || get(address, "/metrics").status == 200);
    let second =
        task(&["run", "--metrics", &address.to_string(), "--", "sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(second.status.code(), Some(3), "its address is the first one's: {}", text(&second.stderr));
    assert!(text(&second.stderr).contains("measured together"), "{}", text(&second.stderr));
    assert_eq!(get(address, "/metrics").status, 200);
    assert_eq!(stopped(&sandbox, &mut first.0), Some(7));
}

#[test]
fn a_node_serves_itself_and_nobodys_job() {
    if !privileged("a_node_serves_itself_and_nobodys_job") {
        return;
    }
    let sandbox = Sandbox::new("nodemetrics");
    let socket = sandbox.kernel_socket().display().to_string();
    let (_node, of_node) = sandbox.serving(&["collect", "--socket", &socket, "--metrics", "0"]);
    let page = || get(of_node, "/metrics").body;
    wait_until("there are figures", || get(of_node, "/metrics").status == 200);
    let figure = |name: &str| samples(&page()).get(name).copied();
    assert_eq!(figure("stallscope_node_trees"), Some(0.0));
    assert_eq!(figure("stallscope_node_program_on{program=\"sched_switch\"}"), Some(0.0));
    let mut sleeper = Killed(Command::new("sleep").arg("300").spawn().unwrap());
    let (mut attached, of_job) = sandbox.serving(&[
        "attach",
        &sleeper.0.id().to_string(),
        "--metrics",
        "127.0.0.1:0",
        "-o",
        "a.stall",
    ]);
    wait_until("its tree is counted", || figure("stallscope_node_trees") == Some(1.0));
    wait_until("the programs are on", || {
        figure("stallscope_node_program_on{program=\"sched_switch\"}") == Some(1.0)
    });
    assert!(!page().contains("job="), "{}", page());
    assert!(figure("stallscope_collector_cpu_seconds_total").unwrap() > 0.0);
    wait_until("there are the job's", || get(of_job, "/metrics").status == 200);
    let own = get(of_job, "/metrics").body;
    assert_eq!(
        samples(&own).get("stallscope_evidence_on{job=\"sleep\",source=\"kernel\"}"),
        Some(&1.0),
        "{own}"
    );
    sleeper.0.kill().unwrap();
    assert!(attached.0.wait().unwrap().success());
    wait_until("it is gone", || figure("stallscope_node_trees") == Some(0.0));
    wait_until("the programs are off", || {
        figure("stallscope_node_program_on{program=\"sched_switch\"}") == Some(0.0)
    });
}

#[test]
fn with_a_token_figures_are_for_who_shows_it() {
    let sandbox = Sandbox::new("token");
    let token = sandbox.path("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let words =
        ["run", "--no-kernel", "--metrics", "0", "--metrics-token", "token", "--", "sh", "-c", UNTIL_STOPPED];
    let (mut run, address) = sandbox.serving(&words);
    for (shown, status) in
        [("", 401), ("Authorization: Bearer s3cre\r\n", 401), ("Authorization: Bearer s3cret\r\n", 200)]
    {
        let answer = get_with(address, "GET", "/metrics", shown);
        // Before the first second is over there may be no figures yet.
        assert!(
            answer.status == status || status == 200 && answer.status == 503,
            "{shown}: {}",
            answer.status
        );
    }
    assert_eq!(stopped(&sandbox, &mut run.0), Some(7));
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = sandbox.run(&["run", "--metrics", "0", "--metrics-token", "token", "--", "true"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("every user may read the token"), "{}", text(&refused.stderr));
}
