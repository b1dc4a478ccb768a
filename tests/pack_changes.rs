//! `stallscope pack append`, `delete` and `purge`, whole and killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Folders `set` and `more` with files of two classes, and the pack of the first.
fn packed(name: &str, files: usize, bytes: usize) -> Sandbox {
    let sandbox = Sandbox::new(name);
    for number in 0..files * 3 / 2 {
        let folder = if number < files { "set" } else { "more" };
        let class = sandbox.path(folder).join(["cat", "dog"][number % 2]);
        fs::create_dir_all(&class).unwrap();
        let content: Vec<u8> = (0..bytes + number).map(|at| (at * 7 + number) as u8).collect();
        fs::write(class.join(format!("{number:04}.jpg")), content).unwrap();
    }
    is_done(&sandbox.run(&["pack", "set", "-o", "set.pack"]));
    sandbox
}

fn is_done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

fn listed(sandbox: &Sandbox) -> Vec<String> {
    let output = sandbox.run(&["pack", "ls", "set.pack"]);
    is_done(&output);
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn files_are_added_taken_out_and_their_bytes_given_back() {
    let sandbox = packed("pack-changes", 60, 200_000);
    let appended = sandbox.run(&["pack", "append", "set.pack", "more"]);
    is_done(&appended);
    assert!(text(&appended.stdout).starts_with("30 files packed, "), "{}", text(&appended.stdout));
    assert_eq!(listed(&sandbox).len(), 90);
    let again = sandbox.run(&["pack", "append", "set.pack", "more"]);
    assert!(
        text(&again.stdout).contains("0 files packed")
            && text(&again.stdout).contains("30 were there already")
    );

    let going: Vec<String> =
        (0..40).map(|number| format!("{}/{number:04}.jpg", ["cat", "dog"][number % 2])).collect();
    let mut words = vec!["pack", "delete", "set.pack", "bird"];
    words.extend(going.iter().map(String::as_str));
    let deleted = sandbox.run(&words);
    assert_eq!(deleted.status.code(), Some(1));
    assert!(text(&deleted.stderr).contains("bird is not in set.pack"), "{}", text(&deleted.stderr));
    assert!(
        text(&deleted.stdout).starts_with("40 files of 8.0 MB deleted; the pack has 50"),
        "{}",
        text(&deleted.stdout)
    );
    assert!(listed(&sandbox).iter().all(|name| !going.contains(name)));
    let stat = |field: &str| -> u64 {
        let output = sandbox.run(&["pack", "stat", "set.pack", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()[field].as_u64().unwrap()
    };
    assert!(stat("unused_bytes") > 8_000_000);
    let shown = sandbox.run(&["pack", "stat", "set.pack"]);
    assert!(
        text(&shown.stdout).contains("unused    8.0 MB of deleted and changed files"),
        "{}",
        text(&shown.stdout)
    );

    let purged = sandbox.run(&["pack", "purge", "set.pack", "--live", "100"]);
    is_done(&purged);
    assert!(text(&purged.stdout).trim_end().ends_with("8.0 MB given back"), "{}", text(&purged.stdout));
    assert_eq!((stat("unused_bytes"), stat("newer_chunks"), listed(&sandbox).len()), (0, 0, 50));
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    is_done(&sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]));
    let same = |name: &str, from: &str| {
        fs::read(sandbox.path("out").join(name)).unwrap() == fs::read(sandbox.path(from).join(name)).unwrap()
    };
    assert!(same("cat/0050.jpg", "set") && same("dog/0089.jpg", "more"));
    let refused = sandbox.run(&["pack", "delete", "set.pack", "cat"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("nothing was deleted: cat would be left without a file"));
    assert_eq!(sandbox.run(&["pack", "delete", "set.pack"]).status.code(), Some(2));
    assert_eq!(sandbox.run(&["pack", "purge", "set.pack", "--live", "101"]).status.code(), Some(2));
}

/// Runs the program again and again, killed later and later until once it is not. After each the pack shows one of two states.
fn is_killed_at_any_moment(sandbox: &Sandbox, words: &[&str], after: &[String]) -> usize {
    let before = listed(sandbox);
    let (mut killed, mut wait) = (0, Duration::from_millis(1));
    loop {
        let mut child =
            sandbox.stallscope(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(wait);
        wait = wait * 6 / 5;
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let now = listed(sandbox);
        assert!(now == before || now == after, "{words:?}: {} files", now.len());
        let verified = sandbox.run(&["pack", "verify", "set.pack", "--json"]);
        let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
        for fault in verified["faults"].as_array().unwrap() {
            assert!(fault["what"].as_str().unwrap().contains("interrupted"), "{fault:?}");
        }
        if output.status.success() {
            assert_eq!(now, after);
            return killed;
        }
        assert_eq!(output.status.code(), None, "{}", text(&output.stderr));
        killed += 1;
    }
}

#[test]
fn a_change_that_is_killed_at_any_moment_is_whole_or_none() {
    let sandbox = packed("pack-changes-kill", 200, 60_000);
    let all = listed(&sandbox);
    let more: Vec<String> =
        (200..300).map(|number| format!("{}/{number:04}.jpg", ["cat", "dog"][number % 2])).collect();
    let mut grown = [all, more].concat();
    grown.sort();
    let mut killed = is_killed_at_any_moment(&sandbox, &["pack", "append", "set.pack", "more"], &grown);
    let is_going = |name: &String| name.ends_with("3.jpg") || name.as_str() < "cat/0150.jpg";
    let (going, left): (Vec<String>, Vec<String>) = grown.into_iter().partition(is_going);
    let mut words = vec!["pack", "delete", "set.pack"];
    words.extend(going.iter().map(String::as_str));
    killed += is_killed_at_any_moment(&sandbox, &words, &left);
    killed += is_killed_at_any_moment(&sandbox, &["pack", "purge", "set.pack", "--live", "100"], &left);
    killed += is_killed_at_any_moment(&sandbox, &["pack", "rebuild", "set.pack"], &left);
    assert!(killed > 0, "none was killed");
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    is_done(&sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]));
    for name in left {
        let folder = if name[4..8] < *"0200" { "set" } else { "more" };
        assert_eq!(
            fs::read(sandbox.path("out").join(&name)).unwrap(),
            fs::read(sandbox.path(folder).join(&name)).unwrap()
        );
    }
}

#[test]
fn plain_python_leaves_out_what_was_deleted() {
    let sandbox = packed("pack-changes-python", 20, 300);
    is_done(&sandbox.run(&["pack", "delete", "set.pack", "cat/0004.jpg", "dog/0019.jpg"]));
    fs::remove_file(sandbox.path("set.pack/snapshot")).unwrap();
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/read_pack.py");
    let run = |words: &[&str]| {
        Command::new("python3").arg(&reader).args(words).current_dir(sandbox.path("")).output().unwrap()
    };
    let listed = run(&["set.pack"]);
    is_done(&listed);
    let names = text(&listed.stdout);
    assert_eq!(names.lines().count(), 18);
    assert!(
        !names.contains("cat/0004") && !names.contains("dog/0019") && names.contains("cat/0006.jpg\t306\t0")
    );
    is_done(&run(&["set.pack", "out"]));
    assert!(!sandbox.path("out/cat/0004.jpg").exists() && sandbox.path("out/cat/0006.jpg").exists());
    let path = sandbox.path("set.pack/deleted");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let refused = run(&["set.pack"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("its marks have another checksum"), "{}", text(&refused.stderr));
}
