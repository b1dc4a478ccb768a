//! The node's jobs and its audit for OpenTelemetry: documents of OTLP 1 in JSON, as `/v1/metrics` and `/v1/logs` take them.

use crate::clean_json;
use serde_json::{Value, json};
use stallscope_model::{Act, Estimate};
use stallscope_wire::{NodeEvent, NodeJob, NodeState};

/// Severities of OpenTelemetry's data model for logs.
const INFO: (u32, &str) = (9, "INFO");
const WARN: (u32, &str) = (13, "WARN");

/// What the node's service does with the jobs of this moment, as gauges, one point for each job.
pub fn metrics(state: &NodeState, host: &str, now_wall_ns: u64) -> String {
    let whole = [point(now_wall_ns, Vec::new(), f64::from(u8::from(state.paused.is_some())))];
    let mut metrics =
        vec![gauge("stallscope.node.paused", "1", "1 while nothing is changed on the node", whole)];
    let mut of_jobs = |name: &str, unit: &str, description: &str, value: fn(&NodeJob) -> f64| {
        let finite = state.jobs.iter().filter(|job| value(job).is_finite());
        let points: Vec<Value> = finite.map(|job| point(now_wall_ns, of_job(job), value(job))).collect();
        if !points.is_empty() {
            metrics.push(gauge(name, unit, description, points));
        }
    };
    of_jobs("stallscope.job.cache.limit", "By", "Most that the job's caches may be raised to", |job| {
        job.cache_bytes as f64
    });
    of_jobs("stallscope.job.saved", "s", "Time that proven changes have saved", |job| job.saved_s);
    of_jobs(
        "stallscope.job.speedup",
        "1",
        "Share by which samples a second are more with these in force",
        |job| job.faster,
    );
    of_jobs(
        "stallscope.job.frozen",
        "1",
        "1 while nothing is tried, for changes that had to be undone",
        |job| f64::from(u8::from(job.frozen.is_some())),
    );
    of_jobs("stallscope.job.paused", "1", "1 while nothing is changed in the job", |job| {
        f64::from(u8::from(job.paused.is_some()))
    });
    let scope = json!({ "scope": scope(), "metrics": metrics });
    document(&json!({ "resourceMetrics": [{ "resource": resource(host), "scopeMetrics": [scope] }] }))
}

/// Lines of the node's audit, as log records that are events: `eventName` is `stallscope.` and the act.
pub fn logs(events: &[NodeEvent], host: &str, now_wall_ns: u64) -> String {
    let records: Vec<Value> = events.iter().map(|event| record(event, now_wall_ns)).collect();
    let scope = json!({ "scope": scope(), "logRecords": records });
    document(&json!({ "resourceLogs": [{ "resource": resource(host), "scopeLogs": [scope] }] }))
}

fn document(value: &Value) -> String {
    clean_json(&value.to_string())
}

fn resource(host: &str) -> Value {
    json!({ "attributes": [text("service.name", "stallscope"), text("host.name", host)] })
}

fn scope() -> Value {
    json!({ "name": "stallscope", "version": env!("CARGO_PKG_VERSION") })
}

fn gauge(name: &str, unit: &str, description: &str, points: impl Into<Vec<Value>>) -> Value {
    json!({ "name": name, "unit": unit, "description": description, "gauge": { "dataPoints": points.into() } })
}

fn point(now_wall_ns: u64, attributes: Vec<Value>, value: f64) -> Value {
    // 64 bits are text in JSON of protobuf.
    json!({ "timeUnixNano": now_wall_ns.to_string(), "attributes": attributes, "asDouble": value })
}

fn of_job(job: &NodeJob) -> Vec<Value> {
    let mut attributes = vec![
        text("stallscope.job", &job.name),
        number("process.pid", job.pid.into()),
        text("user.name", &job.user),
        text("stallscope.mode", &job.mode),
    ];
    if let Some(rule) = job.rule {
        attributes.push(number("stallscope.rule", rule.into()));
    }
    if !job.place.is_empty() {
        attributes.push(text("stallscope.place", &job.place));
    }
    attributes
}

fn record(event: &NodeEvent, now_wall_ns: u64) -> Value {
    let is_bad = [Act::Undo.name(), Act::Freeze.name(), "lost"].contains(&event.act.as_str());
    let (severity, name) = if is_bad { WARN } else { INFO };
    let mut attributes = vec![text("stallscope.act", &event.act), text("stallscope.by", &event.by)];
    if event.pid > 0 || !event.job.is_empty() {
        attributes.extend([
            text("stallscope.job", &event.job),
            number("process.pid", event.pid.into()),
            text("user.name", &event.user),
        ]);
    }
    if !event.knob.is_empty() {
        attributes.push(text("stallscope.knob", &event.knob));
    }
    let rank = event.rank.map(u64::from);
    for (key, value) in
        [("stallscope.rank", rank), ("stallscope.from", event.from), ("stallscope.to", event.to)]
    {
        attributes.extend(value.map(|value| number(key, value)));
    }
    for (key, estimate) in
        [("stallscope.predicted", event.predicted), ("stallscope.measured", event.measured)]
    {
        let value = estimate.map(|Estimate { value, .. }| value).filter(|value| value.is_finite());
        attributes.extend(value.map(|value| json!({ "key": key, "value": { "doubleValue": value } })));
    }
    json!({
        "timeUnixNano": event.wall_ns.to_string(),
        "observedTimeUnixNano": now_wall_ns.to_string(),
        "severityNumber": severity,
        "severityText": name,
        "eventName": format!("stallscope.{}", event.act),
        "body": { "stringValue": sentence(event) },
        "attributes": attributes,
    })
}

/// What was done, and why: "keep workers 1 -> 4: …".
fn sentence(event: &NodeEvent) -> String {
    let mut words = event.act.clone();
    if !event.knob.is_empty() {
        words.push_str(&format!(" {}", event.knob));
    }
    if let (Some(from), Some(to)) = (event.from, event.to) {
        words.push_str(&format!(" {from} -> {to}"));
    }
    let reasons: Vec<&str> = [&event.saw, &event.why]
        .into_iter()
        .map(String::as_str)
        .filter(|reason| !reason.is_empty())
        .collect();
    if !reasons.is_empty() {
        words.push_str(&format!(": {}", reasons.join("; ")));
    }
    words
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    // A signed number of 64 bits, which is text in JSON of protobuf.
    json!({ "key": key, "value": { "intValue": i64::try_from(value).unwrap_or(i64::MAX).to_string() } })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use proptest::prelude::*;

    fn job() -> NodeJob {
        NodeJob {
            name: "train".into(),
            pid: 41_277,
            user: "mira".into(),
            mode: "act".into(),
            rule: Some(1),
            cache_bytes: 16 << 30,
            saved_s: 12.5,
            faster: f64::NAN,
            ..NodeJob::default()
        }
    }

    #[test]
    fn a_job_has_a_point_in_each_figure_that_is_known() {
        let state = NodeState { paused: None, jobs: vec![job()] };
        let document: Value = serde_json::from_str(&metrics(&state, "node-7", 5)).unwrap();
        let found = &document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        let names: Vec<&str> =
            found.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        let known = ["node.paused", "job.cache.limit", "job.saved", "job.frozen", "job.paused"];
        assert_eq!(names, known.map(|name| format!("stallscope.{name}")));
        let limit = &found[1]["gauge"]["dataPoints"][0];
        assert_eq!(limit["asDouble"], (16_u64 << 30) as f64);
        assert_eq!(limit["timeUnixNano"], "5");
        assert_eq!(limit["attributes"][1], json!({ "key": "process.pid", "value": { "intValue": "41277" } }));
    }

    #[test]
    fn a_line_of_the_audit_is_an_event() {
        let event = NodeEvent {
            wall_ns: 7,
            job: "train".into(),
            pid: 3,
            user: "mira".into(),
            act: Act::Undo.name().into(),
            by: "controller".into(),
            knob: "workers".into(),
            from: Some(4),
            to: Some(1),
            saw: "no gain".into(),
            why: "not proven".into(),
            ..NodeEvent::default()
        };
        let document: Value = serde_json::from_str(&logs(&[event], "node-7", 9)).unwrap();
        let record = &document["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["body"]["stringValue"], "undo workers 4 -> 1: no gain; not proven");
        assert_eq!(
            (&record["eventName"], &record["severityText"]),
            (&json!("stallscope.undo"), &json!("WARN"))
        );
        assert_eq!((&record["timeUnixNano"], &record["observedTimeUnixNano"]), (&json!("7"), &json!("9")));
    }

    proptest! {
        #[test]
        fn any_name_comes_back_from_the_document(name in "\\PC*|[\\x00-\\x1f\u{202e}\u{2028}]*") {
            let state = NodeState { paused: None, jobs: vec![NodeJob { name: name.clone(), ..job() }] };
            let document: Value = serde_json::from_str(&metrics(&state, "node-7", 5)).unwrap();
            let point = &document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][1]["gauge"]["dataPoints"][0];
            prop_assert_eq!(&point["attributes"][0]["value"]["stringValue"], &json!(name));
        }
    }
}
