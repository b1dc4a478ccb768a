//! What the node's service does reaches a receiver of OpenTelemetry, as that knows it, also one that is away for a while.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::http::{get, get_with};
use crate::support::node::OTTO;
use crate::support::node::PYTHON;
use crate::support::policy::{IDLE, is_tuned, printed, service, started};
use crate::support::{Killed, Sandbox, privileged, python, signal, text, wait_until};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const OF_NOBODY: &str =
    "[[jobs.rule]]\nmatch = { user = \"nobody\" }\nmode = \"act\"\ncache = { max = \"64MiB\" }\n";

/// As OpenTelemetry's own messages read them: what these do not know is an error.
const READ: &str = "
import sys
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
for line in sys.stdin:
    path, _, document = line.partition(' ')
    Parse(document, {'/v1/logs': ExportLogsServiceRequest, '/v1/metrics': ExportMetricsServiceRequest}[path]())
";

type Received = Arc<Mutex<Vec<(String, Value)>>>;

/// Takes what is posted, and answers that it did.
fn receive(listener: TcpListener) -> Received {
    let received = Received::default();
    let of_thread = Arc::clone(&received);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let (mut request, mut line, mut length) = (String::new(), String::new(), 0);
            lines.read_line(&mut request).unwrap();
            while lines.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body).unwrap();
            let path = request.split(' ').nth(1).unwrap().to_owned();
            of_thread.lock().unwrap().push((path, serde_json::from_slice(&body).unwrap()));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        }
    });
    received
}

fn limits(received: &Received) -> Vec<f64> {
    let all = received.lock().unwrap();
    let mut found = Vec::new();
    for (_, document) in all.iter().filter(|(path, _)| path == "/v1/metrics") {
        let metrics =
            document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap().clone();
        for metric in metrics.iter().filter(|metric| metric["name"] == "stallscope.job.cache.limit") {
            let points = metric["gauge"]["dataPoints"].as_array().unwrap();
            found.extend(points.iter().map(|point| point["asDouble"].as_f64().unwrap()));
        }
    }
    found
}

fn events(received: &Received) -> Vec<String> {
    let all = received.lock().unwrap();
    let logs = all.iter().filter(|(path, _)| path == "/v1/logs");
    logs.flat_map(|(_, document)| {
        let records = document["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap();
        records
            .iter()
            .map(|record| record["body"]["stringValue"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn jobs_and_decisions_reach_a_receiver_that_comes_late() {
    if !privileged("jobs_and_decisions_reach_a_receiver_that_comes_late") {
        return;
    }
    let sandbox = Sandbox::new("node-export");
    let _launcher = service(&sandbox, OF_NOBODY);
    // Nobody listens there yet.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let mut export = sandbox.stallscope(&["node", "export", "--otlp", &url, "--every", "1s"]);
    let printed = File::create(sandbox.path("export.err")).unwrap();
    let mut export = Killed(export.stdout(Stdio::null()).stderr(printed).spawn().unwrap());
    let printed = || std::fs::read_to_string(sandbox.path("export.err")).unwrap();
    wait_until("it says that the receiver is not there", || printed().contains("cannot be reached"));

    let words = ["run", "--no-kernel", "--name", "plain", "--", PYTHON, "-c", IDLE];
    let mut run = sandbox.stallscope_as_nobody(&words);
    let _run = Killed(run.stderr(Stdio::null()).spawn().unwrap());
    wait_until("its session begins", || is_tuned(&sandbox, "plain"));
    let received = receive(TcpListener::bind(address).unwrap());
    wait_until("its limit arrives", || limits(&received).contains(&f64::from(64 << 20)));
    wait_until("what was decided before the receiver came arrives", || {
        events(&received).iter().any(|body| body.contains("a session begins by rule 1: act"))
    });
    let begins = || events(&received).iter().filter(|body| body.contains("a session begins")).count();
    let pushed = received.lock().unwrap().len();
    wait_until("more is pushed", || received.lock().unwrap().len() > pushed + 1);
    assert_eq!(begins(), 1, "a line arrives once");
    assert!(export.0.try_wait().unwrap().is_none());
    let lines: Vec<String> = printed().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("takes what it is sent again"), "{lines:?}");

    let mut reader = Command::new(python());
    reader.args(["-c", READ]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut reader = reader.spawn().unwrap();
    let mut input = reader.stdin.take().unwrap();
    for (path, document) in received.lock().unwrap().iter() {
        writeln!(input, "{path} {document}").unwrap();
    }
    drop(input);
    let read = reader.wait_with_output().unwrap();
    assert!(read.status.success(), "{}", text(&read.stderr));
}

/// The process that this launcher's service has started to export.
fn exporter(launcher: u32) -> Option<u32> {
    started(launcher, "node-service").first().and_then(|service| started(*service, "export").first().copied())
}

/// A port that nobody has.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn what_the_file_names_gets_what_happens_from_a_process_without_privilege() {
    if !privileged("what_the_file_names_gets_what_happens_from_a_process_without_privilege") {
        return;
    }
    let sandbox = Sandbox::new("node-export-file");
    let receiver = free();
    // Somebody else has the address for Prometheus.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let shown = taken.local_addr().unwrap();
    let export = format!("{OF_NOBODY}[export]\notlp = \"http://{receiver}\"\nprometheus = \"{shown}\"\n");
    let launcher = service(&sandbox, &export);
    let words = ["run", "--no-kernel", "--name", "plain", "--", PYTHON, "-c", IDLE];
    let mut run = sandbox.stallscope_as_nobody(&words);
    let mut run = Killed(run.stderr(Stdio::null()).spawn().unwrap());
    let lines_with = |what: &str| printed(&sandbox).matches(what).count();
    wait_until("it says that the receiver is not there", || lines_with("cannot be reached") == 1);
    wait_until("it says that the address is taken", || lines_with("cannot serve metrics at") == 1);
    wait_until("the job is tuned all the same", || is_tuned(&sandbox, "plain"));

    let received = receive(TcpListener::bind(receiver).unwrap());
    drop(taken);
    let begins =
        || events(&received).iter().filter(|body| body.contains("a session begins by rule 1: act")).count();
    wait_until("what was decided before the receiver came arrives", || begins() == 1);
    wait_until("Prometheus may ask", || {
        TcpStream::connect(shown).is_ok() && get(shown, "/metrics").status == 200
    });
    let limit = "stallscope_node_job_cache_limit_bytes{job=\"plain\",user=\"nobody\"} 67108864\n";
    wait_until("Prometheus reads its limit", || get(shown, "/metrics").body.contains(limit));
    assert_eq!(
        (lines_with("cannot be reached"), lines_with("cannot serve metrics at")),
        (1, 1),
        "{}",
        printed(&sandbox)
    );

    // It has the service's user, and nothing of what that has open but the log.
    let first = exporter(launcher.0.id()).expect("a process of its own");
    let status = std::fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    let ids = format!("{OTTO}\t{OTTO}\t{OTTO}\t{OTTO}");
    for (field, value) in
        [("Uid:", ids.as_str()), ("Gid:", &ids), ("CapPrm:", "0000000000000000"), ("NoNewPrivs:", "1")]
    {
        assert!(status.contains(&format!("{field}\t{value}\n")), "{field} {status}");
    }
    let open =
        |number: u32| std::fs::read_link(format!("/proc/{first}/fd/{number}")).unwrap().display().to_string();
    assert!(open(0).starts_with("socket:") && open(1) == "/dev/null" && open(2).ends_with("service.printed"));
    let leads = std::fs::read_dir(format!("/proc/{first}/fd")).unwrap().flatten();
    let files: Vec<String> = leads
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string()))
        .filter(|target| {
            target.starts_with('/') && target != "/dev/null" && !target.ends_with("service.printed")
        })
        .collect();
    assert_eq!(files, Vec::<String>::new());

    // Killed, it is started again, and what happened meanwhile arrives, and nothing twice.
    let pushes = || received.lock().unwrap().iter().filter(|(path, _)| path == "/v1/metrics").count();
    let before = pushes();
    wait_until("it has heard that its lines arrived", || pushes() > before + 1);
    signal(first, "KILL");
    assert!(sandbox.run(&["node", "pause", "plain"]).status.success());
    wait_until("another is started", || exporter(launcher.0.id()).is_some_and(|pid| pid != first));
    wait_until("the pause arrives", || events(&received).iter().any(|body| body.starts_with("pause")));
    assert_eq!((begins(), lines_with("[export]: it ended, signal: 9")), (1, 1), "{}", printed(&sandbox));
    assert!(run.0.try_wait().unwrap().is_none());

    // The file without [export], and with it again.
    let heard = || lines_with("was read again and is in force");
    std::fs::write(sandbox.path("policy.toml"), OF_NOBODY).unwrap();
    signal(launcher.0.id(), "HUP");
    wait_until("nothing is exported", || heard() == 1 && exporter(launcher.0.id()).is_none());
    // What may ask is then what has the token, a file of the service's user.
    let token = sandbox.path("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&token, Some(OTTO), Some(OTTO)).unwrap();
    let with_token = format!("{export}prometheus_token = \"{}\"\n", token.display());
    std::fs::write(sandbox.path("policy.toml"), &with_token).unwrap();
    signal(launcher.0.id(), "HUP");
    wait_until("it is exported again", || exporter(launcher.0.id()).is_some());
    wait_until("it is shown again", || TcpStream::connect(shown).is_ok());
    let shows = |header: &str| get_with(shown, "GET", "/metrics", header).status;
    wait_until("what has the token may ask", || shows("Authorization: Bearer s3cret\r\n") == 200);
    assert_eq!((shows(""), shows("Authorization: Bearer s3cre\r\n")), (401, 401));
    let last = exporter(launcher.0.id()).unwrap();
    signal(launcher.0.id(), "KILL");
    wait_until("it ends with the service", || !std::path::Path::new(&format!("/proc/{last}")).exists());
    assert!(run.0.try_wait().unwrap().is_none());
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(run.0.wait().unwrap().success());
}

#[test]
fn a_unit_exports_what_the_file_says_and_follows_it() {
    if !privileged("a_unit_exports_what_the_file_says_and_follows_it") {
        return;
    }
    let sandbox = Sandbox::new("node-export-unit");
    let (shown, other) = (free(), free());
    let file = |address: SocketAddr| format!("{OF_NOBODY}[export]\nprometheus = \"{address}\"\n");
    std::fs::write(sandbox.path("export.toml"), file(shown)).unwrap();
    let _launcher = service(&sandbox, OF_NOBODY);
    let mut export = sandbox.stallscope(&["node", "export", "--config", "export.toml"]);
    let printed = File::create(sandbox.path("export.err")).unwrap();
    let mut export = Killed(export.stdout(Stdio::null()).stderr(printed).spawn().unwrap());
    let printed = || std::fs::read_to_string(sandbox.path("export.err")).unwrap();
    let answers =
        |address: SocketAddr| TcpStream::connect(address).is_ok() && get(address, "/metrics").status == 200;
    wait_until("it is served", || answers(shown));
    std::fs::write(sandbox.path("export.toml"), "[export]\nprometheus = 9\n").unwrap();
    signal(export.0.id(), "HUP");
    wait_until("a mistake is refused", || printed().contains("line 2, export.prometheus: "));
    assert!(answers(shown));
    std::fs::write(sandbox.path("export.toml"), file(other)).unwrap();
    signal(export.0.id(), "HUP");
    wait_until("it is served at the other address", || answers(other));
    assert!(TcpStream::connect(shown).is_err());
    assert!(export.0.try_wait().unwrap().is_none());
}

#[test]
fn a_receiver_that_cannot_be_is_an_error_in_a_sentence() {
    let sandbox = Sandbox::new("node-export-words");
    for (words, part) in [
        (["node", "export", "--otlp", "collector:4318"], "http://HOST:PORT"),
        (["node", "export", "--otlp", "https://collector"], "nothing is encrypted here"),
    ] {
        let output = sandbox.run(&words);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}
