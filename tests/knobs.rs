//! `stallscope knobs`: what can be turned in a running job, by whom, and what outlives a collector.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{self, Killed, Sandbox, job, python, signal, text, wait_until};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Somebody who is neither the job's owner nor root.
/// A number is enough: nobody has to be called so.
const STRANGER: u32 = 1001;

/// A job with knobs under `stallscope run`, that ends with its test.
struct Job {
    sandbox: Sandbox,
    run: Killed,
}

impl Job {
    fn start(name: &str, script: &str, manner: &[&str]) -> Job {
        let sandbox = Sandbox::new(name);
        let folder = sandbox.path("").display().to_string();
        let (python, script) = (python(), job(script));
        let mut words =
            vec!["run", "--quiet", "--no-kernel", "--name", name, "--", &python, &script, &folder];
        words.extend(manner);
        let run = sandbox.stallscope(&words).stdout(Stdio::piped()).spawn().unwrap();
        Job { sandbox, run: Killed(run) }
    }

    /// As the other, that applies, refuses or ignores what it is asked.
    fn turned(name: &str, manner: &str) -> Job {
        let job = Job::start(name, "turned.py", &[manner]);
        wait_until("its knobs", || job.knobs().len() == 3);
        job
    }

    fn name(&self) -> String {
        self.sandbox.path("").file_name().unwrap().to_string_lossy().rsplit('-').next().unwrap().to_owned()
    }

    fn tell(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let name = self.name();
        let words: Vec<&str> = ["knobs", &name].iter().chain(words).copied().collect();
        let output = self.sandbox.run(&words);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn knobs(&self) -> Vec<Value> {
        let (_, out, _) = self.tell(&["--json"]);
        serde_json::from_str(&out).unwrap_or_default()
    }

    fn knob(&self, name: &str) -> Value {
        let knobs = self.knobs();
        knobs.into_iter().find(|knob| knob["name"] == name && knob["loader"] == 0).expect("the knob")
    }

    /// What the job itself says was put in force, in order.
    fn values(&self) -> String {
        std::fs::read_to_string(self.sandbox.path("values")).unwrap()
    }

    /// Lets the job end; gives what it printed.
    fn end(mut self) -> String {
        std::fs::write(self.sandbox.path("stop"), "").unwrap();
        let status = self.run.0.wait().unwrap();
        assert!(status.success(), "{status}");
        std::io::read_to_string(self.run.0.stdout.take().unwrap()).unwrap()
    }

    fn recording(&self) -> PathBuf {
        self.sandbox.path(&format!("{}.stall", self.name()))
    }
}

#[test]
fn a_knob_is_shown_turned_and_remembered() {
    let job = Job::turned("turning", "applies");
    let (code, out, _) = job.tell(&[]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("RANK  LOADER  KNOB"), "{out}");
    assert!(out.contains("4 batches") && out.contains("1 to 64"), "{out}");
    assert!(out.contains("The loader has no workers."), "{out}");
    let (code, out, err) = job.tell(&["set", "prefetch=32", "workers=6"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("32 batches") && out.contains("applied"), "{out}");
    let knob = job.knob("prefetch");
    for (field, value) in [("value", 32), ("requested", 32), ("initial", 4)] {
        assert_eq!(knob[field], value, "{knob}");
    }
    assert_eq!(knob["state"], "applied");
    assert_ne!(knob["set_by"], "");
    assert_eq!(job.values(), "prefetch 32\nworkers 6\n");
    let (sandbox, recording) = (job.sandbox.path(""), job.recording());
    let keep = std::env::temp_dir().join(format!("ss-{}-kept.stall", std::process::id()));
    std::fs::write(sandbox.join("stop"), "").unwrap();
    let mut job = job;
    assert!(job.run.0.wait().unwrap().success());
    // As recorded: the last values, and nothing to set.
    std::fs::copy(&recording, &keep).unwrap();
    let keep = keep.display().to_string();
    let output = job.sandbox.run(&["knobs", &keep]);
    assert!(text(&output.stdout).contains("32 batches"), "{}", text(&output.stdout));
    let output = job.sandbox.run(&["knobs", &keep, "set", "prefetch=3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is a recording"), "{}", text(&output.stderr));
    std::fs::remove_file(keep).unwrap();
}

#[test]
fn what_cannot_be_is_one_sentence_and_changes_nothing() {
    let job = Job::turned("bounds", "applies");
    for (words, sentence) in [
        (&["set", "prefetch=500"][..], "takes 1 to 64 batches"),
        (&["set", "prefetch=8", "workers=99"], "takes 1 to 8 workers"),
        (&["set", "depth=5"], "there is no knob depth; this job has prefetch and workers"),
        (&["set", "prefetch=5", "--loader", "7"], "it is there in loader 0"),
        (&["set", "prefetch=5", "--rank", "3"], "it is there in rank 0"),
        (&["set", "workers=2", "--loader", "1"], "cannot be turned here: The loader has no workers."),
    ] {
        let (code, out, err) = job.tell(words);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{words:?}: {err}");
        assert!(err.contains(sentence) && err.lines().count() == 1, "{words:?}: {err}");
    }
    for words in
        [&["set"][..], &["set", "prefetch"], &["set", "prefetch=many"], &["set", "prefetch=1", "--rank", "x"]]
    {
        assert_eq!(job.tell(words).0, Some(2), "{words:?}");
    }
    assert_eq!(job.values(), "");
    let (code, _, err) = job.tell(&["--help"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    job.end();
}

#[test]
fn a_rank_can_be_turned_alone() {
    let sandbox = Sandbox::new("ranks");
    let folder = sandbox.path("").display().to_string();
    let rank =
        |rank: u32| format!("RANK={rank} WORLD_SIZE=2 {} {} {folder} applies", python(), job("turned.py"));
    let both = format!("{} & {}; wait", rank(1), rank(0));
    let words = ["run", "--quiet", "--no-kernel", "--name", "ranks", "--", "sh", "-c", &both];
    let run = Killed(sandbox.stallscope(&words).stdout(Stdio::piped()).spawn().unwrap());
    let job = Job { sandbox, run };
    wait_until("both ranks' knobs", || job.knobs().len() == 6);
    assert_eq!(job.tell(&["set", "prefetch=16"]).0, Some(0));
    assert_eq!(job.tell(&["set", "workers=5", "--rank", "1"]).0, Some(0));
    assert_eq!(job.values(), "prefetch 16\n");
    assert_eq!(std::fs::read_to_string(job.sandbox.path("values1")).unwrap(), "prefetch 16\nworkers 5\n");
    job.end();
}

#[test]
fn a_job_that_refuses_says_why_and_the_others_are_applied() {
    let job = Job::turned("refusing", "refuses");
    let (code, out, err) = job.tell(&["set", "prefetch=16", "workers=5"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(err.contains("rank 0, loader 0 refused workers=5: There is no memory for more."), "{err}");
    assert_eq!(
        (job.knob("workers")["value"].as_u64(), job.knob("prefetch")["value"].as_u64()),
        (Some(2), Some(16))
    );
    assert_eq!(job.knob("workers")["state"], "refused");
    assert_eq!(job.end(), "16 2\n");
}

#[test]
fn a_job_that_does_not_look_leaves_the_request_pending() {
    let job = Job::turned("ignoring", "ignores");
    let (code, out, err) = job.tell(&["set", "prefetch=16"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("pending") && out.contains("it looks at each batch"), "{out}");
    assert_eq!(job.knob("prefetch")["value"], 4);
    job.end();
}

#[test]
fn two_who_set_at_once_both_get_answers_and_one_value_is_in_force() {
    let job = Job::turned("crowd", "applies");
    std::thread::scope(|scope| {
        for of in 0..4 {
            let job = &job;
            scope.spawn(move || {
                for n in 0..5 {
                    let setting = format!("prefetch={}", 1 + of * 10 + n);
                    let (code, out, err) = job.tell(&["set", &setting]);
                    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
                }
            });
        }
    });
    wait_until("the last request is answered", || job.knob("prefetch")["state"] == "applied");
    let knob = job.knob("prefetch");
    assert_eq!(knob["value"], knob["requested"]);
    let last = job.values().lines().last().unwrap().to_owned();
    assert_eq!(last, format!("prefetch {}", knob["value"]));
    job.end();
}

#[test]
fn a_killed_collector_leaves_values_in_force_and_the_next_one_takes_its_place() {
    let mut job = Job::turned("orphan", "applies");
    assert_eq!(job.tell(&["set", "prefetch=32"]).0, Some(0));
    let collector = job.run.0.id();
    let children = std::fs::read_to_string(format!("/proc/{collector}/task/{collector}/children")).unwrap();
    // What counts signals is older than the job.
    let pid = children.split_whitespace().last().unwrap().to_owned();
    signal(collector, "KILL");
    job.run.0.wait().unwrap();
    let (code, _, err) = job.tell(&[]);
    assert_eq!(code, Some(1));
    assert!(err.contains(&format!("`stallscope attach {pid}` takes its place")), "{err}");
    // By name, as by pid; and another one after that, whether the second was killed as well or went its way.
    let name = job.name();
    let rounds = [(name.as_str(), "KILL"), (pid.as_str(), "INT"), (name.as_str(), "INT")];
    for (round, (who, end)) in rounds.into_iter().enumerate() {
        let attached = job.sandbox.stallscope(&["attach", who, "--quiet"]).spawn().unwrap();
        let mut attached = Killed(attached);
        wait_until("page and knobs are back", || job.knobs().len() == 3);
        let knob = job.knob("prefetch");
        let last = 32 + round as u64;
        assert_eq!((knob["value"].as_u64(), knob["requested"].as_u64()), (Some(last), Some(last)), "{knob}");
        assert_eq!((&knob["state"], &knob["set_by"]), (&"applied".into(), &"an earlier collector".into()));
        let values = job.values();
        assert!(values.ends_with(&format!("prefetch {last}\n")), "nothing jumped: {values}");
        let (code, out, err) = job.tell(&["set", &format!("prefetch={}", last + 1)]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        assert_eq!(job.knob("prefetch")["value"], last + 1);
        signal(attached.0.id(), end);
        attached.0.wait().unwrap();
    }
    assert_eq!(job.values(), "prefetch 32\nprefetch 33\nprefetch 34\nprefetch 35\n");
    std::fs::write(job.sandbox.path("stop"), "").unwrap();
    // Its number may stay: nobody here waits for it.
    let command = format!("/proc/{pid}/cmdline");
    wait_until("the job is over", || std::fs::read(&command).unwrap_or_default().is_empty());
}

#[test]
fn what_is_asked_by_hand_is_recorded_before_the_job_hears_of_it() {
    let job = Job::turned("checked", "checks");
    for value in 5..25 {
        let (code, out, err) = job.tell(&["set", &format!("prefetch={value}")]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    }
    assert_eq!(job.values().lines().count(), 20);
    let unrecorded = std::fs::read_to_string(job.sandbox.path("unrecorded")).unwrap_or_default();
    assert_eq!(unrecorded, "");
    job.end();
}

#[test]
fn a_shim_that_lies_is_shown_as_far_as_it_goes_and_harms_nobody() {
    let job = Job::start("forged", "forged.py", &[]);
    wait_until("it has sent its lies", || job.sandbox.path("ready").exists());
    wait_until("its knobs", || job.knobs().iter().any(|knob| knob["rank"] == 100));
    let (code, out, _) = job.tell(&[]);
    assert_eq!(code, Some(0));
    assert!(!out.contains('\x1b') && !out.contains('\x07'), "{out}");
    let knobs = job.knobs();
    assert!(knobs.len() <= 512, "{}", knobs.len());
    // Where the page is one, it can be asked, and nobody answers; where it is none, nothing can be turned.
    let (code, out, err) = job.tell(&["set", "depth=5", "--rank", "0", "--loader", "0"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("pending"), "{out}");
    let (code, _, err) = job.tell(&["set", "depth=5", "--rank", "3"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot be turned"), "{err}");
    assert_eq!(job.end(), "cut off 0\n");
}

#[test]
fn a_pool_shrinks_and_grows_when_its_bytes_are_turned_and_no_sample_is_lost() {
    let mib = |count: u64| (count << 20).to_string();
    let job = Job::start("resized", "resized.py", &[&mib(16)]);
    // Budget, what the pool has, and hits, by epoch; the data set has 8,192,000 bytes in 1,000 samples.
    let epochs = || -> Vec<[u64; 3]> {
        let pool = std::fs::read_to_string(job.sandbox.path("pool")).unwrap_or_default();
        // The last line may be under way.
        let whole = pool.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let figures = |line: &str| line.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<u64>>();
        whole.lines().map(|line| figures(line).try_into().unwrap()).collect()
    };
    let later = |what: &str, is_so: &dyn Fn([u64; 3]) -> bool| {
        wait_until(what, || epochs().last().is_some_and(|epoch| is_so(*epoch)));
    };
    let turn = |bytes: u64| {
        let (code, out, err) = job.tell(&["set", &format!("cache.bytes={bytes}")]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    };
    later("all of it is kept, and found", &|[budget, kept, hits]| {
        (budget, hits) == (16 << 20, 1000) && (8_000_000..=16 << 20).contains(&kept)
    });
    turn(2 << 20);
    later("the pool has shrunk, and finds what is left", &|[budget, kept, hits]| {
        budget == 2 << 20 && kept <= 2 << 20 && (100..500).contains(&hits)
    });
    turn(6 << 20);
    later("the pool has grown, and finds more", &|[budget, kept, hits]| {
        budget == 6 << 20 && ((4 << 20)..=6 << 20).contains(&kept) && (500..1000).contains(&hits)
    });
    assert_eq!(job.knob("cache.bytes")["value"], 6 << 20);
    // The job checks in each epoch that every sample came once.
    job.end();
}

#[test]
fn nobody_but_owner_and_root_turns_knobs() {
    if !support::privileged("nobody_but_owner_and_root_turns_knobs") {
        return;
    }
    let job = Job::turned("owner", "applies");
    // Even where the folder lets everybody in.
    let open = ["", "run", "run/jobs"].map(|name| job.sandbox.path(name));
    let jobs = std::fs::read_dir(&open[2]).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    for folder in open.iter().chain(&jobs) {
        assert!(Command::new("chmod").arg("a+rx").arg(folder).status().unwrap().success());
    }
    let socket = jobs[0].join("sock");
    assert!(Command::new("chmod").arg("a+rwx").arg(&socket).status().unwrap().success());
    // A viewer in a few lines, because who is not the owner does not even find the job by its name.
    let ask = format!(
        "import json, socket\n\
         s = socket.socket(socket.AF_UNIX); s.connect({socket:?})\n\
         for line in [{{'stallscope': 1, 'role': 'viewer'}}, {{'set': [{{'knob': 'prefetch', 'value': 9}}]}},\n\
         {{'tune': {{'mode': 'act', 'budgets': {{}}}}}}]:\n\
         \x20   s.sendall(json.dumps(line).encode() + b'\\n')\n\
         f = s.makefile(); print(f.readline(), f.readline())\n"
    );
    let asked = |uid: u32| {
        let output = Command::new("/usr/bin/python3").args(["-c", &ask]).uid(uid).gid(uid).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    let answer = asked(STRANGER);
    assert_eq!(answer.matches("the knobs of owner are for root").count(), 2, "{answer}");
    assert_eq!(job.knob("prefetch")["value"], 4);
    let answer = asked(0);
    assert!(answer.contains("\"value\":9"), "{answer}");
    job.end();
}
