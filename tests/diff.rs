//! `stallscope diff` as a gate: what it says and how it exits.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, text};
use madeup::{Shape, record};
use std::process::Output;

fn two_recordings(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    let a = Shape { seconds: 60, ..Shape::default() };
    record(&sandbox.path("a.stall"), &a);
    record(&sandbox.path("b.stall"), &Shape { fetch_ms: 60.0, seed: 2, ..a });
    sandbox
}

#[test]
fn a_gate_holds_or_says_what_failed() {
    let sandbox = two_recordings("diff-gate");
    let diff = |conditions: &[&str]| -> Output {
        let conditions = conditions.iter().flat_map(|condition| ["--fail-if", condition]);
        let words: Vec<&str> = ["diff", "a.stall", "b.stall"].into_iter().chain(conditions).collect();
        sandbox.run(&words)
    };
    let plain = diff(&[]);
    assert_eq!(plain.status.code(), Some(0), "{}", text(&plain.stderr));
    assert!(text(&plain.stdout).starts_with("a step takes "), "{}", text(&plain.stdout));
    assert_eq!(diff(&["fetch > 60%", "step_p50 < -5%"]).status.code(), Some(0));
    let failed = diff(&["fetch > 60%", "fetch > +5%", "samples_per_s < -5%"]);
    assert_eq!(failed.status.code(), Some(1));
    let printed = text(&failed.stderr);
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert!(printed.starts_with("stallscope: \"fetch > +5%\": fetch went from "), "{printed}");
    let wrong = diff(&["fetsch > 5%"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("there is no figure \"fetsch\""), "{}", text(&wrong.stderr));
}

#[test]
fn json_is_for_scripts_and_a_bad_file_is_named() {
    let sandbox = two_recordings("diff-json");
    let words = ["diff", "a.stall", "b.stall", "--format", "json", "--fail-if", "fetch > 10%"];
    let done = sandbox.run(&words);
    assert_eq!(done.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&json["schema"], &json["b"]["recording"]), (&1.into(), &"b.stall".into()));
    assert_eq!(json["failed"].as_array().unwrap().len(), 1);
    let missing = sandbox.run(&["diff", "a.stall", "c.stall"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("stallscope: c.stall cannot be read: "));
}
