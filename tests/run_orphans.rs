//! `run` as the first process of a container.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, text};
use std::process::{Command, Output};

/// Of a job that leaves processes behind, which end: its exit code says whether all of them are gone within a minute.
const JOB: &str = "\
for i in $(seq 30); do (sleep 0.1 &); done
for i in $(seq 1200); do
    cat /proc/[0-9]*/comm 2>/dev/null | grep -qx sleep || exit 7
    read -t 0.05 nothing <>pipe
done
exit 9";

fn as_first_process(sandbox: &Sandbox, job: &str) -> Option<Output> {
    let mut alone = Command::new("unshare");
    alone.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    if !alone.arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: unshare --pid takes root");
        return None;
    }
    let run = sandbox.stallscope(&["run", "--", "bash", "-c", job]);
    let mut alone = Command::new("unshare");
    alone
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(run.get_program())
        .args(run.get_args());
    alone.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Some(alone.current_dir(sandbox.path(".")).output().unwrap())
}

#[test]
fn what_a_job_leaves_behind_is_waited_for_by_the_first_process_of_a_container() {
    let sandbox = Sandbox::new("orphans");
    assert!(Command::new("mkfifo").arg(sandbox.path("pipe")).status().unwrap().success());
    let Some(output) = as_first_process(&sandbox, JOB) else { return };
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
}

/// Orphans end all the time, and the job at any moment between them.
#[test]
fn the_jobs_exit_code_is_not_taken_for_an_orphans() {
    let sandbox = Sandbox::new("orphans-code");
    for code in [0, 3, 77] {
        let job = format!("for i in $(seq 200); do (true &); done; exit {code}");
        let Some(output) = as_first_process(&sandbox, &job) else { return };
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
}
