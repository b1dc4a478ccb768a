//! Checkpoints and evaluation of a job as a user meets them: one account, and everything counted once.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, causes_ns, job, python, text};

#[test]
fn every_place_tells_the_same_of_checkpoints_and_each_phase_has_its_own() {
    let sandbox = Sandbox::new("saving");
    let output = sandbox.run(&["run", "--", &python(), &job("saving.py"), "saved"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = sandbox.report("saving.stall");
    let rank = &run["ranks"][0];
    let saved = &rank["checkpoints"];
    // Twice in the loop, between the epochs, after training; and one in a thread.
    assert_eq!((&saved["count"], &saved["files"]), (&5.into(), &7.into()), "{saved}");
    let mut blocked_ns = 0;
    for phase in rank["phases"].as_array().unwrap() {
        assert_eq!(causes_ns(phase), phase["wall_ns"].as_u64().unwrap());
        let name = phase["phase"].as_str().unwrap();
        let ns = phase["snapshot_ns"].as_u64().unwrap() + phase["persist_ns"].as_u64().unwrap();
        if ["training", "between", "after"].contains(&name) {
            assert!(ns > 0, "no checkpoint in {phase}");
            assert_eq!(saved["blocked_in_ns"][name].as_u64(), Some(ns));
            blocked_ns += ns;
        }
        // 10 batches an epoch and 3 of the evaluation, two times over.
        let steps = phase["steps"].as_u64().unwrap();
        match name {
            "training" => assert_eq!(steps, 20),
            "evaluation" => assert_eq!(steps, 6),
            _ => {}
        }
    }
    assert_eq!(saved["blocked_ns"].as_u64(), Some(blocked_ns));
    let screen = text(&sandbox.run(&["report", "saving.stall"]).stdout);
    assert!(screen.contains("after training"), "{screen}");
    assert!(screen.contains("5 of ") && screen.contains(" in 7 files; the job stood still for"), "{screen}");
}

#[test]
fn saves_that_fail_are_on_the_exit_screen_and_in_every_report() {
    let sandbox = Sandbox::new("failing");
    let output = sandbox.run(&["run", "-o", "f.stall", "--", &python(), &job("failing_saves.py"), "saved"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert_eq!(printed.matches("could not be saved").count(), 2, "{printed}");
    assert!(printed.contains("trained to the end"), "{printed}");
    let screen = text(&output.stderr);
    assert!(screen.contains("Checkpoints  2 saves failed, see what the job printed; "), "{screen}");
    let run = sandbox.report("f.stall");
    assert_eq!(run["ranks"][0]["checkpoints"]["failed"], 2);
    let metrics = text(&sandbox.run(&["report", "f.stall", "--format", "openmetrics"]).stdout);
    let failures = metrics.lines().find(|line| line.starts_with("stallscope_checkpoint_failures_total{"));
    assert!(failures.is_some_and(|line| line.ends_with(" 2")), "{metrics}");
}
