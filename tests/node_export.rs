//! What the node's service does reaches a receiver of OpenTelemetry, as that knows it, also one that is away for a while.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use support::node::PYTHON;
use support::policy::{IDLE, is_tuned, service};
use support::{Killed, Sandbox, privileged, python, text, wait_until};

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
