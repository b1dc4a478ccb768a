//! `stallscope tune --act` on real jobs: what helps is kept and reported, what is not proven is undone, whichever process dies.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Killed, Sandbox, job, privileged, python, signal, text, wait_until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A job under `stallscope run`, as its user sees it.
struct Running {
    sandbox: Sandbox,
    run: Killed,
}

impl Running {
    /// One whose data comes slowly unless `words` say otherwise.
    fn new(name: &str, run: &[&str], words: &[&str]) -> Running {
        let sandbox = Sandbox::new(name);
        let (python, script) = (python(), job("slow.py"));
        let mut all = vec!["run", "--no-kernel", "--name", "slow"];
        all.extend_from_slice(run);
        all.extend_from_slice(&["--", &python, &script]);
        all.extend_from_slice(words);
        let out = File::create(sandbox.path("job.out")).unwrap();
        let err = File::create(sandbox.path("job.err")).unwrap();
        let run = sandbox.stallscope(&all).stdout(out).stderr(err).spawn().unwrap();
        let job = Running { sandbox, run: Killed(run) };
        let knob = if words.contains(&"--cache") { "cache.bytes" } else { "workers" };
        wait_until("the job's knobs", || job.knob(knob).is_some());
        job
    }

    /// Value and the script's own of a knob; `None` while it is not there.
    fn knob(&self, name: &str) -> Option<(u64, u64)> {
        let output = self.sandbox.run(&["knobs", "slow", "--json"]);
        let knobs: Value = serde_json::from_slice(&output.stdout).ok()?;
        let knob = knobs.as_array()?.iter().find(|knob| knob["name"] == name)?;
        Some((knob["value"].as_u64()?, knob["initial"].as_u64()?))
    }

    fn is_as_in_the_script(&self) -> bool {
        ["workers", "prefetch"].iter().all(|name| self.knob(name).is_some_and(|(now, own)| now == own))
    }

    /// `stallscope tune slow --act` with these words, in the background.
    fn tune(&self, nth: u32, words: &[&str]) -> Tuning {
        let (out, err) = (format!("tune{nth}.out"), format!("tune{nth}.err"));
        let mut all = vec!["tune", "slow", "--act"];
        all.extend_from_slice(words);
        let mut command = self.sandbox.stallscope(&all);
        command.stdout(File::create(self.sandbox.path(&out)).unwrap());
        command.stderr(File::create(self.sandbox.path(&err)).unwrap());
        let paths = [self.sandbox.path(&out), self.sandbox.path(&err)];
        Tuning { tune: Killed(command.spawn().unwrap()), paths }
    }

    fn audit(&self) -> Vec<Value> {
        audit(&self.sandbox, "slow")
    }

    /// Lets the job end by itself, and gives its exit code and what it printed.
    fn end(&mut self) -> (Option<i32>, String) {
        std::fs::write(self.sandbox.path("stop"), "").unwrap();
        let code = self.run.0.wait().unwrap().code();
        (code, std::fs::read_to_string(self.sandbox.path("job.out")).unwrap())
    }

    /// The same, and every sample came exactly once.
    fn ends_well(&mut self) {
        let (code, printed) = self.end();
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.ends_with(" 0 of them wrong\n"), "{printed}");
    }
}

struct Tuning {
    tune: Killed,
    paths: [PathBuf; 2],
}

impl Tuning {
    fn printed(&self) -> [String; 2] {
        self.paths.clone().map(|path| std::fs::read_to_string(path).unwrap())
    }

    fn wait_for(&self, act: &str) {
        let (begun, act) = (Instant::now(), format!("  {act} "));
        while !self.printed()[0].contains(&act) {
            // A busy machine takes its time to prove something; this only ends a test that would hang.
            assert!(begun.elapsed() < Duration::from_secs(240), "no {act} in {:?}", self.printed());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&mut self, name: &str) -> Option<i32> {
        signal(self.tune.0.id(), name);
        self.tune.0.wait().unwrap().code()
    }
}

/// The audit of a job or a recording.
fn audit(sandbox: &Sandbox, of: &str) -> Vec<Value> {
    let output = sandbox.run(&["audit", of, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["audit"].as_array().unwrap().clone()
}

fn acts(audit: &[Value]) -> Vec<&str> {
    audit.iter().map(|line| line["act"].as_str().unwrap()).collect()
}

/// The reason that the last line of this kind gives.
fn why<'a>(audit: &'a [Value], act: &str) -> &'a str {
    let line = audit.iter().rev().find(|line| line["act"] == act);
    line.unwrap_or_else(|| panic!("no {act} in {audit:#?}"))["why"].as_str().unwrap()
}

#[test]
fn what_helps_is_kept_and_reported() {
    let mut job = Running::new("keep", &[], &[]);
    let followed = job.sandbox.path("followed");
    let mut follow = job.sandbox.stallscope(&["audit", "slow", "--follow", "--json"]);
    let mut follow = Killed(follow.stdout(File::create(&followed).unwrap()).spawn().unwrap());
    let mut tuning = job.tune(1, &[]);
    tuning.wait_for("keep");
    assert_eq!(tuning.signal("INT"), Some(0));
    let [lines, end] = tuning.printed();
    assert!(end.contains("no longer tuning slow: ") && end.contains("workers "), "{end}");
    assert!(
        lines.lines().all(|line| line.starts_with(|c: char| c.is_ascii_digit())),
        "one line each:\n{lines}"
    );
    let (workers, own) = job.knob("workers").unwrap();
    assert!(workers > own, "{workers} workers, {own} before");
    job.ends_well();
    // The recording tells the same as the terminal did.
    let audit = audit(&job.sandbox, "slow.stall");
    let kept = audit.iter().find(|line| line["act"] == "keep").unwrap();
    assert!(kept["measured"]["low"].as_f64().unwrap() > 0.0, "{kept}");
    assert!(kept["predicted"]["value"].as_f64().unwrap() > 0.0, "{kept}");
    let numbers: Vec<u64> = audit.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..audit.len() as u64).collect::<Vec<_>>(), "only ever added to");
    // What the job took later than its user waited for is in the recording alone.
    let shown: Vec<&str> = lines.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert!(shown.contains(&"keep") && acts(&audit).starts_with(&shown), "{lines}\n{audit:#?}");
    // And so did each that followed it, until the job ended.
    assert_eq!(follow.0.wait().unwrap().code(), Some(0));
    let followed: Vec<Value> = std::fs::read_to_string(followed)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(followed, audit);
    let shown = job.sandbox.run(&["audit", "slow.stall"]);
    assert!(text(&shown.stdout).contains("keep     workers"), "{}", text(&shown.stdout));
}

#[test]
fn memory_that_is_granted_brings_a_first_cache_where_one_can_be() {
    let tune = ["--tune", "act", "--memory", "1GiB"];
    let mut job = Running::new("first", &tune, &["--files"]);
    wait_until("its cache", || job.knob("cache.bytes") == Some((4 << 20, 4 << 20)));
    job.ends_well();
    let mut job = Running::new("refused", &tune, &[]);
    wait_until("the refusal", || job.knob("cache.bytes") == Some((0, 0)));
    let knobs = job.sandbox.run(&["knobs", "slow"]);
    assert!(
        text(&knobs.stdout).contains("Nothing is kept of Slow in the job's cache: "),
        "{}",
        text(&knobs.stdout)
    );
    job.ends_well();
    let err = std::fs::read_to_string(job.sandbox.path("job.err")).unwrap();
    assert_eq!(err.matches("stallscope: Nothing is kept of Slow in the job's cache: ").count(), 1, "{err}");
}

#[test]
fn a_cache_that_is_too_small_grows_and_is_kept() {
    let words =
        ["--workers", "0", "--cache", "4MiB", "--samples", "1000", "--wait-ms", "4", "--step-ms", "2"];
    let mut job = Running::new("cache", &[], &words);
    let mut tuning = job.tune(1, &[]);
    tuning.wait_for("keep");
    assert_eq!(tuning.signal("INT"), Some(0));
    let [_, end] = tuning.printed();
    assert!(end.contains("cache.bytes 1") && end.contains("MiB (the script's: 4.0 MiB) stays"), "{end}");
    let (bytes, own) = job.knob("cache.bytes").unwrap();
    assert!(own == 4 << 20 && bytes >= 10 << 20, "{bytes}, {own} before");
    // Every sample of every epoch once.
    job.ends_well();
    let audit = audit(&job.sandbox, "slow.stall");
    let kept = audit.iter().find(|line| line["act"] == "keep").unwrap();
    assert!(kept["knob"] == "cache.bytes" && kept["measured"]["low"].as_f64().unwrap() > 0.02, "{kept}");
    assert_eq!(
        acts(&audit).iter().filter(|act| **act == "request").count(),
        1,
        "never emptied for a proof: {audit:#?}"
    );
}

#[test]
fn the_cache_of_an_importance_sampling_grows_and_is_kept() {
    let words = [
        "--workers",
        "0",
        "--cache",
        "4MiB",
        "--sampling",
        "importance",
        "--samples",
        "1000",
        "--wait-ms",
        "4",
        "--step-ms",
        "2",
    ];
    let mut job = Running::new("importance", &["--tune", "act", "--memory", "4GiB"], &words);
    let kept = || job.audit().into_iter().find(|line| line["act"] == "keep");
    wait_until("a proven gain", || kept().is_some());
    let kept = kept().unwrap();
    assert!(kept["knob"] == "cache.bytes" && kept["measured"]["low"].as_f64().unwrap() > 0.02, "{kept}");
    assert!(kept["predicted"]["value"].as_f64().unwrap() > 0.0, "{kept}");
    let (bytes, own) = job.knob("cache.bytes").unwrap();
    assert!(own == 4 << 20 && bytes > own, "{bytes}, {own} before");
    // What was drawn came, with its weight, before, at and after the turn.
    job.ends_well();
    let audit = audit(&job.sandbox, "slow.stall");
    let asked = audit.iter().take_while(|line| line["act"] != "keep").filter(|line| line["act"] == "request");
    assert_eq!(asked.count(), 1, "never emptied for a proof: {audit:#?}");
}

#[test]
fn checkpoints_that_come_too_often_are_made_rarer_and_that_is_kept() {
    let words = ["--wait-ms", "0.5", "--samples", "2000", "--save-every", "1s", "--seconds", "300"];
    let mut job = Running::new("checkpoints", &[], &words);
    let mut tuning = job.tune(1, &[]);
    tuning.wait_for("keep");
    assert_eq!(tuning.signal("INT"), Some(0));
    let [_, end] = tuning.printed();
    assert!(end.contains("ckpt.interval") && end.contains("stays"), "{end}");
    let (interval_s, own_s) = job.knob("ckpt.interval").unwrap();
    assert!(own_s == 1 && interval_s > 4, "{interval_s} s, {own_s} s before");
    job.ends_well();
    let audit = audit(&job.sandbox, "slow.stall");
    let kept = audit.iter().find(|line| line["act"] == "keep").unwrap();
    assert!(kept["knob"] == "ckpt.interval" && kept["measured"]["low"].as_f64().unwrap() > 0.02, "{kept}");
    assert!(kept["saw"].as_str().unwrap().contains("of training before and"), "{kept}");
}

#[test]
fn a_job_that_waits_for_nothing_is_left_alone() {
    let words = ["--wait-ms", "0.5", "--step-ms", "40", "--samples", "100000"];
    let mut job = Running::new("negative", &[], &words);
    let mut tuning = job.tune(1, &[]);
    tuning.wait_for("mode");
    let steps = || {
        let recording = stallscope_store::Recording::open(&job.sandbox.path("slow.stall")).unwrap();
        recording.last_step_id().unwrap()
    };
    // Long enough for a controller that would try something.
    let begun = steps();
    wait_until("400 steps under its eyes", || steps() > begun + 400);
    assert_eq!(tuning.signal("INT"), Some(0));
    assert!(!acts(&job.audit()).contains(&"keep"), "{:#?}", job.audit());
    wait_until("the script's own values", || job.is_as_in_the_script());
    let (code, _) = job.end();
    assert_eq!(code, Some(0));
}

#[test]
fn what_is_not_proven_is_undone_when_its_controller_ends() {
    let mut job = Running::new("undo", &[], &[]);
    let mut tuning = job.tune(1, &[]);
    tuning.wait_for("mode");
    let second = job.sandbox.run(&["tune", "slow", "--act"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("one controller at a time"), "{}", text(&second.stderr));

    tuning.wait_for("request");
    assert_eq!(tuning.signal("INT"), Some(0));
    assert!(why(&job.audit(), "undo").contains("stopped before"), "{:#?}", job.audit());
    wait_until("the script's own values", || job.is_as_in_the_script());

    let mut tuning = job.tune(2, &[]);
    tuning.wait_for("request");
    tuning.signal("KILL");
    wait_until("the script's own values again", || job.is_as_in_the_script());
    wait_until("it is reported", || acts(&job.audit()).iter().filter(|act| **act == "undo").count() == 2);
    job.ends_well();
}

#[test]
fn the_job_outlives_a_collector_killed_in_the_midst_of_a_change() {
    let mut job = Running::new("orphan", &["--tune", "act"], &["--seconds", "300"]);
    wait_until("a request", || acts(&job.audit()).contains(&"request"));
    wait_until("it is in force", || !job.is_as_in_the_script());
    signal(job.run.0.id(), "KILL");
    job.run.0.wait().unwrap();
    // What was asked of the job is in what is left of the recording.
    let audit_left = audit(&job.sandbox, "slow.stall");
    assert!(acts(&audit_left).contains(&"request"), "{audit_left:#?}");
    if privileged("the_job_outlives_a_collector_killed_in_the_midst_of_a_change, its second half") {
        let pid = stallscope_store::Recording::open(&job.sandbox.path("slow.stall"))
            .unwrap()
            .summary()
            .unwrap()
            .job
            .pid;
        let mut attach = job.sandbox.stallscope(&["attach", &pid.to_string(), "-o", "second"]);
        let attach = Killed(attach.stderr(Stdio::null()).spawn().unwrap());
        let reported = || {
            // A file that is just being made is no recording yet.
            let output = job.sandbox.run(&["audit", "second.stall", "--json"]);
            let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let audit = document["audit"].as_array().cloned().unwrap_or_default();
            audit.iter().any(|line| line["by"] == "an earlier collector" && line["knob"] == "workers")
        };
        wait_until("the next collector says what it found", reported);
        drop(attach);
    }
    std::fs::write(job.sandbox.path("stop"), "").unwrap();
    wait_until("the job's own end", || {
        std::fs::read_to_string(job.sandbox.path("job.out")).unwrap().ends_with(" 0 of them wrong\n")
    });
}

#[test]
fn a_job_that_dies_in_the_midst_of_a_probe_is_reported() {
    let mut job = Running::new("dies", &["--tune", "act"], &[]);
    wait_until("a request", || acts(&job.audit()).contains(&"request"));
    let summary =
        stallscope_store::Recording::open(&job.sandbox.path("slow.stall")).unwrap().summary().unwrap();
    signal(summary.job.pid, "KILL");
    assert_eq!(job.run.0.wait().unwrap().code(), Some(128 + 9));
    let audit = audit(&job.sandbox, "slow.stall");
    let reported =
        |line: &Value| line["why"].as_str().unwrap().contains("the job ended before the gain was proven");
    assert!(audit.iter().any(reported), "{audit:#?}");
}

#[test]
fn a_budget_below_what_is_used_lets_nothing_be_taken() {
    let mut job = Running::new("budget", &[], &[]);
    let mut tuning = job.tune(1, &["--memory", "1MB", "--json"]);
    wait_until("it says so", || tuning.printed()[0].contains("\"hold\""));
    let lines: Vec<Value> =
        tuning.printed()[0].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!acts(&lines).contains(&"request"), "{lines:#?}");
    assert_eq!(tuning.signal("TERM"), Some(0));
    assert!(job.is_as_in_the_script());
    job.ends_well();
}

#[test]
fn another_user_turns_nothing() {
    if !privileged("another_user_turns_nothing") {
        return;
    }
    let mut job = Running::new("stranger", &[], &[]);
    let jobs = job.sandbox.path("run/jobs");
    let folder = std::fs::read_dir(&jobs).unwrap().next().unwrap().unwrap().path();
    // As if the folders were open to everybody.
    let socket = folder.join("sock");
    for path in [job.sandbox.path("run"), jobs, folder, socket.clone()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let talk = r#"
import socket, sys
for request in ('{"set":[{"rank":null,"loader":null,"knob":"workers","value":3}]}',
                '{"tune":{"mode":"act","budgets":{"cores":null,"memory_bytes":null,"descriptors":null}}}', '"stop"'):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.sendall(b'{"stallscope":1,"role":"viewer"}\n' + request.encode() + b'\n')
    print(s.makefile().readline().strip())
"#;
    let mut stranger = Command::new("/usr/bin/python3");
    let output = stranger.args(["-c", talk]).arg(&socket).uid(65534).gid(65534).output().unwrap();
    let printed = text(&output.stdout);
    assert_eq!(
        printed.matches("the knobs of slow are for root").count(),
        3,
        "{printed}{}",
        text(&output.stderr)
    );
    assert!(job.is_as_in_the_script());
    assert_eq!(job.audit().len(), 0);
    job.ends_well();
}

#[test]
fn what_cannot_be_tuned_says_why() {
    let sandbox = Sandbox::new("cannot");
    let output = sandbox.run(&["tune", "no-such-job"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("no running job is called no-such-job"),
        "{}",
        text(&output.stderr)
    );
    assert!(sandbox.run(&["run", "--no-kernel", "--quiet", "--", "true"]).status.success());
    let output = sandbox.run(&["tune", "true.stall", "--act"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is a recording"), "{}", text(&output.stderr));
    let output = sandbox.run(&["tune", "true.stall"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("No advice"), "{}", text(&output.stdout));
    let output = sandbox.run(&["audit", "true.stall"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("no controller was at work"), "{}", text(&output.stderr));
    for wrong in [
        &["tune"][..],
        &["tune", "x", "--memory", "much"],
        &["run", "--tune", "always", "--", "true"],
        &["run", "--cores", "2", "--", "true"],
        &["run", "--tune", "act", "--no-shim", "--", "true"],
    ] {
        assert_eq!(sandbox.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_job_without_the_shim_says_that_it_cannot_be_turned() {
    let sandbox = Sandbox::new("noshim");
    let script = "while [ ! -e stop ]; do sleep 0.05; done";
    let mut run =
        sandbox.stallscope(&["run", "--no-kernel", "--no-shim", "--name", "bare", "--", "sh", "-c", script]);
    let mut run = Killed(run.stderr(Stdio::null()).spawn().unwrap());
    wait_until("the job", || sandbox.run(&["audit", "bare"]).status.success());
    let output = sandbox.run(&["tune", "bare", "--act"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot be turned"), "{}", text(&output.stderr));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(run.0.wait().unwrap().success());
}
