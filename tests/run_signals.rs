//! Signals of a job under `stallscope run`: each arrives once, as without us, and none ends `run` before its job.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use support::{Sandbox, signal, text};

#[test]
fn what_a_job_sends_to_its_process_group_reaches_it_once() {
    let sandbox = Sandbox::new("group");
    let script = "trap 'echo usr2' USR2; trap 'echo term' TERM; kill -USR2 0; kill -TERM 0; \
                  for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done; exit 3";
    // So that the group is the job's and ours, and not this test's.
    let output = sandbox.stallscope(&["run", "--", "sh", "-c", script]).process_group(0).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "usr2\nterm\n");
    assert!(sandbox.path("sh.stall").is_file());
}

#[test]
fn a_signal_that_only_run_gets_is_passed_on_whichever_it_is() {
    for name in ["USR1", "USR2", "ALRM", "XCPU"] {
        let sandbox = Sandbox::new(name);
        let script = format!("trap 'exit 5' {name}; echo ready; while true; do sleep 0.05; done");
        let mut child = sandbox
            .stallscope(&["run", "--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        signal(child.id(), name);
        assert_eq!(child.wait().unwrap().code(), Some(5), "{name}");
    }
}
