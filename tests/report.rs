//! `stallscope report`: one recording or several, every format, in the right place.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Killed, Sandbox, job, privileged, python, text, wait_until};
use std::path::Path;
use std::process::Command;
use std::process::Output;

/// A real job's recording, `train.stall`, in a folder of its own.
fn recorded(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    let output =
        sandbox.run(&["run", "-o", "train.stall", "--", &python(), &job("train.py"), "--epochs", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    sandbox
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(output: &Output, reason: &str) {
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(reason) && printed.lines().count() == 1, "{printed}");
}

#[test]
fn every_format_goes_where_people_look_for_it() {
    let sandbox = recorded("report-formats");
    let screen = succeeds(&sandbox.run(&["report", "train.stall"]));
    assert!(screen.contains("Recording  train.stall"), "{screen}");
    for (format, begins) in [("markdown", "**"), ("json", "{\n  \"schema\": 2,"), ("openmetrics", "# TYPE ")]
    {
        let page = succeeds(&sandbox.run(&["report", "train.stall", "--format", format]));
        assert!(page.starts_with(begins), "{page}");
    }
    for (format, made) in [
        ("html", "train.html"),
        ("perfetto", "train.perfetto-trace"),
        ("csv", "train-csv/steps.csv"),
        ("parquet", "train-parquet/steps.parquet"),
    ] {
        let output = sandbox.run(&["report", "train.stall", "--format", format]);
        assert_eq!(succeeds(&output), "");
        let place = made.split('/').next().unwrap();
        assert_eq!(text(&output.stderr), format!("stallscope: wrote {place}\n"));
        assert!(sandbox.path(made).metadata().unwrap().len() > 0, "{made}");
        // What nobody named is not replaced.
        let again = text(&sandbox.run(&["report", "train.stall", "--format", format]).stderr);
        assert!(again.contains("wrote train.2"), "{again}");
    }
}

#[test]
fn output_says_where_and_its_ending_what() {
    let sandbox = recorded("report-output");
    let report = |words: &[&str]| sandbox.run(&[&["report", "train.stall"], words].concat());
    for (file, begins) in [("a.html", "<!"), ("a.md", "**"), ("a.json", "{"), ("a.txt", "")] {
        succeeds(&report(&["-o", file]));
        assert!(std::fs::read_to_string(sandbox.path(file)).unwrap().starts_with(begins), "{file}");
    }
    assert_eq!(text(&report(&["-o", "a.html"]).stderr), "stallscope: replaced a.html\n");
    assert!(succeeds(&report(&["--format", "html", "-o", "-"])).starts_with("<!"));
    refused(&report(&["--format", "csv", "-o", "-"]), "name a folder");
    refused(&report(&["--format", "csv", "-o", "a.md"]), "a.md is a file");
    refused(&report(&["--format", "html", "-o", "train.stall"]), "is a recording");
    refused(&report(&["-o", "a.xlsx"]), "no format is known by the extension .xlsx: name one with --format");
    refused(&report(&["-o", "a.csv"]), "csv is a folder of tables: --format csv -o FOLDER");
    succeeds(&report(&["--format", "text", "-o", "a.log"]));
    refused(&report(&["--format", "html", "-o", "no/such/a.html"]), "a.html cannot be written");
    let left: Vec<String> = std::fs::read_dir(sandbox.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("part"))
        .collect();
    assert_eq!(left, [] as [&str; 0], "nothing half is left");
}

#[test]
fn what_is_redacted_is_in_no_format() {
    let sandbox = recorded("report-redact");
    let secrets = [
        python(),
        job("train.py"),
        text(&std::process::Command::new("uname").arg("-n").output().unwrap().stdout),
    ];
    let mut reported = String::new();
    for format in ["text", "markdown", "json", "openmetrics"] {
        reported += &succeeds(&sandbox.run(&["report", "train.stall", "--redact", "--format", format]));
    }
    for format in ["csv", "html"] {
        succeeds(&sandbox.run(&["report", "train.stall", "--redact", "--format", format, "-o", format]));
    }
    for entry in std::fs::read_dir(sandbox.path("csv")).unwrap() {
        reported += &std::fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    reported += &std::fs::read_to_string(sandbox.path("html")).unwrap();
    for secret in secrets {
        let secret = secret.trim();
        let whole_word = |at: usize| {
            let around = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            let (before, after) = (
                at.checked_sub(1).and_then(|at| reported.as_bytes().get(at)),
                reported.as_bytes().get(at + secret.len()),
            );
            !around(before) && !around(after)
        };
        assert!(!reported.match_indices(secret).any(|(at, _)| whole_word(at)), "{secret} is in it");
    }
}

#[test]
fn what_cannot_be_reported_is_refused_in_one_sentence() {
    let sandbox = recorded("report-refused");
    refused(&sandbox.run(&["report", "no.stall"]), "no.stall cannot be read");
    refused(&sandbox.run(&["report", "\u{1b}[2J.stall"]), "\\u{1b}[2J.stall cannot be read");
    refused(&sandbox.run(&["report", "nosuchjob"]), "no running job is called nosuchjob");
    std::fs::write(sandbox.path("x.stall"), "hello").unwrap();
    refused(
        &sandbox.run(&["report", "x.stall", "--format", "html"]),
        "x.stall is not a stallscope recording",
    );
    assert!(!sandbox.path("x.html").exists());
    refused(&sandbox.run(&["report", "train.stall", "train.stall"]), "rank 0 is in both");
    let output = sandbox.run(&["report", "train.stall", "--format", "word"]);
    assert_eq!(output.status.code(), Some(2));
    let whole = std::fs::read(sandbox.path("train.stall")).unwrap();
    std::fs::write(sandbox.path("half.stall"), &whole[..whole.len() / 2]).unwrap();
    refused(&sandbox.run(&["report", "half.stall"]), "half.stall");
}

#[test]
fn a_running_job_is_reported_by_its_name() {
    let sandbox = Sandbox::new("report-running");
    let script = "while [ ! -e stop ]; do sleep 0.05; done";
    let mut running = sandbox
        .stallscope(&["run", "--no-kernel", "--name", "live", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    wait_until("the job is listed", || succeeds(&sandbox.run(&["ls"])).contains("live"));
    wait_until("its recording can be read", || {
        let output = sandbox.run(&["report", "live", "--format", "json"]);
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        run["recordings"][0]["state"] == "running"
    });
    succeeds(&sandbox.run(&["report", "live", "-o", "live.html"]));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    assert!(running.wait().unwrap().success());
    assert!(Path::new(&sandbox.path("live.html")).exists());
}

/// Each of these had every command wait for ever that meets the recording, `ls` of the whole folder first.
#[test]
fn what_lies_beside_a_recording_hangs_nobody() {
    let sandbox = recorded("report-beside");
    for suffix in ["-wal", "-journal", "-shm"] {
        let pipe = sandbox.path(&format!("train.stall{suffix}"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let listed = succeeds(&sandbox.run(&["ls"]));
        assert!(listed.contains("unreadable"), "{listed}");
        for verb in ["report", "what-if", "audit"] {
            refused(&sandbox.run(&[verb, "train.stall"]), "move that away to read it");
        }
        refused(&sandbox.run(&["diff", "train.stall", "train.stall"]), "move that away to read it");
        std::fs::remove_file(pipe).unwrap();
    }
    succeeds(&sandbox.run(&["report", "train.stall"]));
}

#[test]
fn recordings_of_others_are_read_and_not_written_to() {
    if !privileged("recordings_of_others_are_read_and_not_written_to") {
        return;
    }
    let sandbox = Sandbox::new("report-others");
    let script = "while [ ! -e stop ]; do sleep 0.05; done";
    let running = sandbox
        .stallscope(&["run", "--no-kernel", "-o", "live.stall", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let running = Killed(running);
    let has_log = || std::fs::metadata(sandbox.path("live.stall-wal")).is_ok_and(|log| log.len() > 0);
    wait_until("its recording can be read, and has a log", || {
        sandbox.run(&["report", "live.stall", "--format", "json"]).status.success() && has_log()
    });
    drop(running);
    std::fs::write(sandbox.path("stop"), "").unwrap();
    // It is another user's now.
    let files = || {
        let mut files: Vec<(String, Vec<u8>)> = ["live.stall", "live.stall-wal"]
            .map(|name| (name.to_owned(), std::fs::read(sandbox.path(name)).unwrap_or_default()))
            .to_vec();
        files.retain(|(_, bytes)| !bytes.is_empty());
        files
    };
    for entry in std::fs::read_dir(sandbox.path(".")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("live.stall") {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
    }
    let before = files();
    assert_eq!(before.len(), 2);
    assert!(succeeds(&sandbox.run(&["ls"])).contains("killed"));
    assert!(succeeds(&sandbox.run(&["report", "live.stall"])).contains("live"));
    assert!(files() == before, "root has read it");
    succeeds(&sandbox.stallscope_as_nobody(&["report", "live.stall"]).output().unwrap());
    assert_eq!(files().len(), 1, "its owner's look makes one file of it");
}

/// A word of three bytes in the file takes a score and more in memory.
#[test]
fn lists_without_end_take_little_memory() {
    let sandbox = recorded("report-lists");
    let enlarge = r#"
import json, sqlite3, sys
connection = sqlite3.connect("train.stall")
(text,) = connection.execute("SELECT json FROM summary").fetchone()
summary = json.loads(text)
place, item, times = json.loads(sys.argv[1])
(summary["job"] if place == "command" else summary)[place] = "@"
text = json.dumps(summary).replace('"@"', "[" + ",".join([item] * times) + "]")
connection.execute("UPDATE summary SET json = ?", (text,))
connection.commit()
"#;
    let measure = r#"
import resource, subprocess, sys
print(subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"#;
    let measured = |words: &[&str]| -> (i32, u64) {
        let command = sandbox.stallscope(words);
        let mut outer = Command::new(python());
        outer.args(["-c", measure]).arg(command.get_program()).args(command.get_args());
        outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = outer.current_dir(sandbox.path(".")).output().unwrap();
        let printed = text(&output.stdout);
        let (code, kib) = printed.trim().split_once('\n').unwrap_or_else(|| panic!("{output:?}"));
        (code.parse().unwrap(), kib.parse().unwrap())
    };
    // About the most that is read, the most that a text may hold, and more.
    for (place, item, times, read) in [
        ("losses", r#"["x",0]"#, 1_000_000, true),
        ("probes", r#"["",true,""]"#, 2_500_000, false),
        ("command", r#""""#, 21_000_000, false),
    ] {
        let written = Command::new(python())
            .args(["-c", enlarge, &serde_json::json!([place, item, times]).to_string()])
            .current_dir(sandbox.path("."))
            .status();
        assert!(written.unwrap().success());
        for (words, code) in [
            (&["ls"] as &[&str], 0),
            (&["report", "train.stall"], i32::from(!read)),
            (&["report", "train.stall", "--format", "json"], i32::from(!read)),
        ] {
            let (ended, kib) = measured(words);
            assert_eq!(ended, code, "{words:?}: {times} {item} in {place}");
            assert!(kib < 256 << 10, "{words:?} took {kib} KiB for {times} {item} in {place}");
        }
    }
}
