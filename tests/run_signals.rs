//! Signals of a job under `stallscope run`: each arrives once, as without us, and none ends `run` before its job.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Killed, Sandbox, python, signal, text, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};

/// Names each signal that arrives, and the last one whose turn it is.
const COUNTING: &str = "
import os, signal, time
for name in ('TERM', 'USR1', 'USR2', 'PWR'):
    signal.signal(signal.Signals['SIG' + name], lambda number, _, name=name: os.write(1, (name + '\\n').encode()))
os.write(1, b'ready\\n')
while True:
    time.sleep(0.01)
";
const ROUNDS: usize = 40;

struct Counting {
    run: Killed,
    heard: std::io::Lines<BufReader<ChildStdout>>,
}

impl Counting {
    /// In a process group of its own, with `run` and what that has in it.
    fn start(sandbox: &Sandbox) -> Counting {
        let mut run = sandbox.stallscope(&["run", "--no-kernel", "--", &python(), "-c", COUNTING]);
        let mut run = run.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let heard = BufReader::new(run.stdout.take().unwrap()).lines();
        let mut counting = Counting { run: Killed(run), heard };
        assert_eq!(counting.next(), "ready");
        // `run` has begun to pass signals on.
        assert!(counting.arrived().is_empty());
        counting
    }

    fn next(&mut self) -> String {
        self.heard.next().unwrap().unwrap()
    }

    /// What arrives before a SIGPWR does that is sent to `run` alone, and a second one once the first is there: of two signals that `run` gets within
    /// microseconds it may hear in either order. Python calls its handler last.
    fn arrived(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..2 {
            signal(self.run.0.id(), "PWR");
            all.extend(std::iter::from_fn(|| Some(self.next()).filter(|name| name != "PWR")));
        }
        all
    }

    /// The same of what does arrive. A thread of `run` may have been kept from its CPU while it took the signal before, of which another
    /// thread has passed on nothing by then; that one is passed on later in its place.
    fn arrived_at_last(&mut self) -> Vec<String> {
        let all = (0..1000).map(|_| self.arrived()).find(|all| !all.is_empty());
        all.unwrap_or_default()
    }

    /// The number of a group, to `kill`, is a negative one.
    fn signal_group(&self, name: &str) {
        let group = format!("-{}", self.run.0.id());
        assert!(Command::new("kill").args([&format!("-{name}"), "--", &group]).status().unwrap().success());
    }

    /// `run`'s own children, the oldest first: two witnesses and the job.
    fn children(&self) -> Vec<u32> {
        let run = self.run.0.id();
        let pids = std::fs::read_to_string(format!("/proc/{run}/task/{run}/children")).unwrap();
        pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

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

impl Drop for Counting {
    fn drop(&mut self) {
        self.signal_group("KILL");
    }
}

#[test]
fn what_anybody_sends_to_the_group_reaches_the_job_once_and_what_run_alone_gets_as_well() {
    let sandbox = Sandbox::new("both");
    let mut job = Counting::start(&sandbox);
    for round in 0..ROUNDS {
        for name in ["TERM", "USR1", "USR2"] {
            job.signal_group(name);
            assert_eq!(job.arrived(), [name], "round {round}, to the group");
            signal(job.run.0.id(), name);
            assert_eq!(job.arrived_at_last(), [name], "round {round}, to `run` alone");
        }
    }
    assert!(job.arrived().is_empty(), "nothing comes twice");
}

#[test]
fn what_goes_to_our_processes_by_their_name_reaches_the_job() {
    let sandbox = Sandbox::new("named");
    let mut job = Counting::start(&sandbox);
    let ours = [&[job.run.0.id()], &job.children()[..2]].concat();
    for round in 0..ROUNDS {
        // As `pkill -f` and `pidof` have them.
        let order: Vec<u32> =
            if round % 2 == 0 { ours.clone() } else { ours.iter().rev().copied().collect() };
        let order: Vec<String> = order.iter().map(u32::to_string).collect();
        assert!(Command::new("kill").arg("-TERM").args(order).status().unwrap().success());
        assert_eq!(job.arrived(), ["TERM"], "round {round}");
    }
}

#[test]
fn a_witness_that_is_gone_or_stopped_costs_no_signal() {
    for name in ["KILL", "STOP"] {
        let sandbox = Sandbox::new(name);
        let mut job = Counting::start(&sandbox);
        job.children()[..2].iter().for_each(|witness| signal(*witness, name));
        for _ in 0..3 {
            signal(job.run.0.id(), "TERM");
            assert_eq!(job.arrived(), ["TERM"], "{name}");
        }
    }
}

#[test]
fn nothing_is_left_of_what_a_signal_ended() {
    let sandbox = Sandbox::new("left");
    let mut job = Counting::start(&sandbox);
    let children = job.children();
    signal(job.run.0.id(), "KILL");
    job.run.0.wait().unwrap();
    // Their numbers may stay: nobody here waits for them.
    let is_there =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| !command.is_empty());
    wait_until("the witnesses end with `run`", || !children[..2].iter().any(is_there));
}

/// Seen: a job that ended with 0, or 7, ended with 1 under a parent that ignores SIGCHLD, as some supervisors do.
#[test]
fn how_a_job_ends_is_known_under_a_parent_that_ignores_its_children() {
    let sandbox = Sandbox::new("ignored-ends");
    let ends = "import signal, sys; ignores = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN; sys.exit(7 if ignores else 1)";
    let run = sandbox.stallscope(&["run", "--no-kernel", "--", &python(), "-c", ends]);
    let ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let mut parent = Command::new(python());
    parent.args(["-c", ignore]).arg(run.get_program()).args(run.get_args());
    parent.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = parent.current_dir(run.get_current_dir().unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
}
