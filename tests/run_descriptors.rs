//! Descriptors that a job is given: nobody has them beside it because of us.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, text};
use std::process::Command;

#[test]
fn the_other_end_of_a_pipe_sees_that_the_job_has_closed_it() {
    let sandbox = Sandbox::new("closed");
    let run = sandbox.stallscope(&["run", "--", "sh", "-c"]);
    // The job closes it and goes on, until the other end has seen that, or for a minute.
    let job = "exec 9>&-; for i in $(seq 1200); do [ -e seen ] && exit 0; sleep 0.05; done; touch unseen";
    let words: Vec<_> = run.get_args().map(|word| word.to_str().unwrap()).collect();
    let program = run.get_program().to_str().unwrap();
    let pipeline =
        format!("(exec {program} {} '{job}' 9>&1 >/dev/null 2>&1) | (cat; touch seen)", words.join(" "));
    let mut shell = Command::new("sh");
    shell.args(["-c", &pipeline]).current_dir(sandbox.path("."));
    shell.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(sandbox.path("seen").exists() && !sandbox.path("unseen").exists());
}
