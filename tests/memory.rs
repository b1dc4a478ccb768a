//! What survives untouched survives tuned: real jobs whose workers grow, in a real memory cgroup.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::memory::MemoryGroup;
use crate::support::{Killed, Sandbox, job, python, text, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

const LIMIT_BYTES: u64 = 1000 << 20;

/// A job in a group that has enough memory for the workers of its script.
struct Growing {
    group: MemoryGroup,
    sandbox: Sandbox,
    run: Killed,
}

impl Growing {
    /// `None` where no group can be made.
    fn new(name: &str, words: &[&str]) -> Option<Growing> {
        let group = MemoryGroup::new(name, LIMIT_BYTES)?;
        let sandbox = Sandbox::new(name);
        let (python, script) = (python(), job("growing.py"));
        let mut all =
            vec!["run", "--no-kernel", "--name", "growing", "--tune", "act", "--", &python, &script];
        all.extend_from_slice(words);
        let mut command = group.around(&sandbox.stallscope(&all));
        let output = |name: &str| File::create(sandbox.path(name)).unwrap();
        command.stdin(Stdio::null()).stdout(output("job.out")).stderr(output("job.err"));
        let run = Killed(command.spawn().unwrap());
        Some(Growing { group, sandbox, run })
    }

    fn acts(&self, of: &str) -> Vec<String> {
        let output = self.sandbox.run(&["audit", of, "--json"]);
        let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) else { return Vec::new() };
        let acts = document["audit"].as_array().unwrap();
        acts.iter().map(|line| line["act"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a change was kept, and no longer than so many seconds: a busy machine proves nothing, perhaps.
    fn keeps_within(&self, seconds: u64) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) {
            if self.acts("growing").iter().any(|act| act == "keep") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        false
    }

    /// The job's end, and that nobody was killed; what the controller did.
    fn survives(&mut self) -> Vec<String> {
        let code = self.run.0.wait().unwrap().code();
        let printed = fs::read_to_string(self.sandbox.path("job.out")).unwrap();
        let audit = text(&self.sandbox.run(&["audit", "growing.stall"]).stdout);
        assert_eq!((code, self.group.killed()), (Some(0), 0), "{printed}\n{audit}");
        assert!(printed.ends_with(" 0 epochs of them wrong\n"), "{printed}");
        self.acts("growing.stall")
    }
}

#[test]
fn a_job_whose_workers_grow_is_not_killed_for_those_that_were_added() {
    // At once, each worker to 300 MiB; and in two leaps of 150 MiB in the workers of each epoch, which are new ones.
    let early = Growing::new("early", &["early", "--seconds", "60"]);
    let leaps =
        ["stepwise", "--speed", "15", "--workers", "2", "--anew", "--samples", "6000", "--seconds", "110"];
    let stepwise = Growing::new("stepwise", &leaps);
    let late = Growing::new("late", &["late", "--speed", "60", "--most", "350", "--seconds", "400"]);
    let (Some(mut early), Some(mut stepwise), Some(mut late)) = (early, stepwise, late) else { return };
    let kept = late.keeps_within(120);
    fs::write(late.sandbox.path("grow"), "").unwrap();
    if kept {
        // Two such workers have not enough, and a busy machine takes long to make them grow.
        wait_until("it is given back", || late.acts("growing").iter().any(|act| act == "undo"));
    } else {
        std::thread::sleep(Duration::from_secs(15));
    }
    fs::write(late.sandbox.path("stop"), "").unwrap();
    let acts = late.survives();
    assert!(!kept || acts.iter().any(|act| act == "undo"), "{acts:?}");
    early.survives();
    stepwise.survives();
}
