//! A real Prometheus scrapes a job and its node as contrib/prometheus.yml says, every panel of the dashboard in
//! contrib/grafana has something to show, and the alerts are raised for what they are for.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::http::{encoded, get};
use crate::support::{self, Killed, Sandbox, job, privileged, python, text, wait_until};
use serde_json::Value;
use stallscope_model::Cause;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

const ALERTS: &str = "prometheus-alerts.yml";
const TEST: &str = "a_real_prometheus_scrapes_it_and_every_panel_has_data";

/// A program of Prometheus: Debian's, unpacked by `scripts/setup.sh test`, or one in PATH.
fn program(name: &str) -> Command {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/prometheus/usr/bin").join(name);
    Command::new(if unpacked.exists() { unpacked } else { name.into() })
}

/// Whether the tests that need Prometheus are skipped.
fn missing() -> bool {
    let missing = program("promtool").arg("--version").output().is_err();
    if missing {
        support::skipped::skipped("it needs prometheus and promtool; `scripts/setup.sh test` gets Debian's");
    }
    missing
}

fn contrib(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib").join(name)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&contrib("grafana/stallscope.json")).unwrap()
}

/// Panels with their queries.
fn panels(dashboard: &Value) -> Vec<(&str, Vec<&str>)> {
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    panels
        .map(|panel| {
            let targets = panel["targets"].as_array().unwrap();
            let queries = targets.iter().map(|target| target["expr"].as_str().unwrap()).collect();
            (panel["title"].as_str().unwrap(), queries)
        })
        .collect()
}

/// `promtool check metrics` with a page; it knows the older text format alone, where a counter's name has its suffix.
fn check(page: &str) {
    let older: String = page
        .lines()
        .filter(|line| !line.starts_with("# UNIT") && *line != "# EOF")
        .map(|line| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let suffix = |name: &str| {
                let is = |kind| page.contains(&format!("# TYPE {name} {kind}\n"));
                if is("counter") {
                    "_total"
                } else if is("info") {
                    "_info"
                } else {
                    ""
                }
            };
            match words.as_slice() {
                ["#", "TYPE", name, "info"] => format!("# TYPE {name}_info gauge\n"),
                ["#", what, name, rest] => format!("# {what} {name}{} {rest}\n", suffix(name)),
                _ => format!("{line}\n"),
            }
        })
        .collect();
    let mut promtool = program("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap();
    child.stdin.take().unwrap().write_all(older.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}{}\n{older}", text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stdout) + &text(&output.stderr), "", "{older}");
}

struct Prometheus {
    address: SocketAddr,
    _process: Killed,
}

impl Prometheus {
    fn start(sandbox: &Sandbox, config: &str) -> Prometheus {
        let path = sandbox.path("prometheus.yml");
        std::fs::write(&path, config).unwrap();
        std::fs::write(sandbox.path(ALERTS), contrib(ALERTS)).unwrap();
        let checked = program("promtool").args(["check", "config"]).arg(&path).output().unwrap();
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        // It cannot say which port it took, so one that is free just now.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = program("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", sandbox.path("tsdb").display()))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(sandbox.path(""))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(sandbox.path("prometheus.printed")).unwrap())
            .spawn()
            .unwrap();
        let prometheus = Prometheus { address, _process: Killed(process) };
        wait_until("Prometheus is ready", || {
            std::net::TcpStream::connect(address).is_ok() && get(address, "/-/ready").status == 200
        });
        prometheus
    }

    fn api(&self, path: &str) -> Value {
        let answer: Value = serde_json::from_str(&get(self.address, path).body).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// What a query gives now: the samples that are numbers.
    fn query(&self, query: &str) -> Vec<f64> {
        let data = self.api(&format!("/api/v1/query?query={}", encoded(query)));
        let results = data["result"].as_array().unwrap();
        let values =
            results.iter().map(|sample| sample["value"][1].as_str().unwrap().parse::<f64>().unwrap());
        values.filter(|value| !value.is_nan()).collect()
    }
}

#[test]
fn a_real_prometheus_scrapes_it_and_every_panel_has_data() {
    if missing() {
        return;
    }
    let sandbox = Sandbox::new("prometheus");
    let node = privileged(TEST).then(|| {
        let socket = sandbox.kernel_socket().display().to_string();
        sandbox.serving(&["collect", "--socket", &socket, "--metrics", "0"])
    });
    let (_run, of_job) = sandbox.serving(&[
        "run",
        "--name",
        "mine",
        "--metrics",
        "127.0.0.1:0",
        "--",
        &python(),
        &job("train.py"),
        "--epochs",
        "100000",
        "--save",
        "x.pt",
    ]);
    let of_node = node.as_ref().map_or(of_job, |(_, address)| *address);
    let config = contrib("prometheus.yml")
        .replace("127.0.0.1:9400", &of_job.to_string())
        .replace("127.0.0.1:9401", &of_node.to_string())
        .replace("scrape_interval: 5s", "scrape_interval: 1s")
        .replace("scrape_interval: 15s", "scrape_interval: 1s");
    let prometheus = Prometheus::start(&sandbox, &config);
    wait_until("both are up", || prometheus.query("up") == [1.0, 1.0]);
    check(&get(of_job, "/metrics").body);
    check(&get(of_node, "/metrics").body);

    let dashboard = dashboard();
    let variable = &dashboard["templating"]["list"][1];
    let metric = variable["query"]["query"].as_str().unwrap();
    let metric = metric.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(", job)")).unwrap();
    let jobs = || prometheus.api(&format!("/api/v1/label/job/values?match%5B%5D={metric}"));
    wait_until("the job can be chosen", || jobs() == serde_json::json!(["mine"]));
    let mut empty = Vec::new();
    for (title, queries) in panels(&dashboard) {
        for query in queries {
            let query = query.replace("$job", "mine").replace("$__rate_interval", "5s");
            assert!(!query.contains('$'), "{query}");
            // Nothing was lost, one hopes; without privilege there is no node; and the job has no cache.
            if title == "Losses" || node.is_none() && query.contains("node") || title.starts_with("Cache") {
                empty.push(prometheus.query(&query));
            } else {
                wait_until(&format!("{title}: {query}"), || !prometheus.query(&query).is_empty());
            }
        }
    }
    assert!(!empty.is_empty());
    // The causes of the job's time are all of it.
    let shares = panels(&dashboard).into_iter().find(|(title, _)| title.starts_with("Where")).unwrap().1[0];
    let shares = prometheus.query(&shares.replace("$job", "mine").replace("$__rate_interval", "5s"));
    assert_eq!(shares.len(), Cause::COUNT);
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{shares:?}");
}

/// The metrics that a file of Prometheus' names.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("stallscope_")).collect()
}

#[test]
fn alerts_are_raised_for_what_they_are_for() {
    if missing() {
        return;
    }
    let sandbox = Sandbox::new("alerts");
    let cases = include_str!("prometheus/alerts.yml");
    std::fs::write(sandbox.path(ALERTS), contrib(ALERTS)).unwrap();
    std::fs::write(sandbox.path("cases.yml"), cases).unwrap();
    let tested = program("promtool").args(["test", "rules"]).arg(sandbox.path("cases.yml")).output().unwrap();
    assert!(tested.status.success(), "{}{}", text(&tested.stdout), text(&tested.stderr));
    let rules = contrib(ALERTS);
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    for alert in alerts {
        let raised = format!("alertname: {alert}\n        exp_alerts:\n");
        assert!(cases.contains(&raised), "no case raises {alert}");
    }
    // A metric of another name is one that no alert is ever raised for.
    let documented =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")).unwrap();
    let unknown: Vec<_> = metrics_in(&rules).difference(&metrics_in(&documented)).copied().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_dashboard_has_the_colours_of_terminal_and_page() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let ledger = panels.iter().find(|panel| panel["title"] == "Where training time goes").unwrap();
    let overrides = ledger["fieldConfig"]["overrides"].as_array().unwrap();
    for cause in Cause::ALL {
        let (red, green, blue) = stallscope_reports::palette::rgb(cause);
        let own = overrides.iter().find(|o| o["matcher"]["options"] == cause.name()).unwrap();
        assert_eq!(
            own["properties"][0]["value"]["fixedColor"],
            format!("#{red:02x}{green:02x}{blue:02x}"),
            "{}",
            cause.name()
        );
    }
    let mut places: Vec<_> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    let count = places.len();
    places.sort();
    places.dedup();
    assert_eq!(places.len(), count, "two panels in one place");
}
