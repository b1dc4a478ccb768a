//! `stallscope pack` on folders as users have them, whole, killed and spoilt.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Sandbox, text};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A folder `set` with so many files of two classes, of so many bytes.
fn set(name: &str, files: usize, bytes: usize) -> Sandbox {
    let sandbox = Sandbox::new(name);
    for number in 0..files {
        let class = sandbox.path(["set/cat", "set/dog"][number % 2]);
        fs::create_dir_all(&class).unwrap();
        let content: Vec<u8> = (0..bytes + number).map(|at| (at * 7 + number) as u8).collect();
        fs::write(class.join(format!("{number:04}.jpg")), content).unwrap();
    }
    sandbox
}

fn is_done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

fn packed(sandbox: &Sandbox) {
    is_done(&sandbox.run(&["pack", "set", "-o", "set.pack"]));
}

fn chunks(sandbox: &Sandbox) -> Vec<PathBuf> {
    let files = fs::read_dir(sandbox.path("set.pack")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|kind| kind == "chunk")).collect();
    files.sort();
    files
}

/// Relative path and bytes of all files below.
fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => found.push((path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_folder_is_packed_listed_and_extracted_and_stays_as_it_is() {
    let sandbox = set("pack", 90, 100_000);
    let before = tree(&sandbox.path("set"));
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    is_done(&output);
    assert!(text(&output.stdout).starts_with("90 files packed, 9.0 MB"), "{}", text(&output.stdout));
    assert!(text(&output.stdout).trim_end().ends_with("; the pack has 3 chunks"), "{}", text(&output.stdout));
    assert_eq!(tree(&sandbox.path("set")), before);
    assert!(chunks(&sandbox)[..2].iter().all(|path| path.metadata().unwrap().len() >= 4 << 20));

    let listed = sandbox.run(&["pack", "ls", "set.pack"]);
    let names: Vec<String> = text(&listed.stdout).lines().map(str::to_owned).collect();
    assert_eq!((names.len(), names[0].as_str(), names[89].as_str()), (90, "cat/0000.jpg", "dog/0089.jpg"));
    let long = sandbox.run(&["pack", "ls", "-l", "set.pack", "dog/0001.jpg", "cat/"]);
    let long = text(&long.stdout);
    assert_eq!(long.lines().count(), 46);
    assert_eq!(
        long.lines().last().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["100001", "1", "dog/0001.jpg"]
    );
    let missing = sandbox.run(&["pack", "ls", "set.pack", "bird"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("bird is not in set.pack"));

    let output = sandbox.run(&["pack", "stat", "set.pack", "--json"]);
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&stat["files"], &stat["chunks"], &stat["classes"]["dog"]),
        (&90.into(), &3.into(), &45.into())
    );
    assert!(
        text(&sandbox.run(&["pack", "stat", "set.pack"]).stdout).contains("classes   2, of 45 to 45 files")
    );

    is_done(&sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]));
    assert_eq!(tree(&sandbox.path("out")), before);
    let again = sandbox.run(&["pack", "extract", "set.pack", "-o", "out", "cat/0000.jpg"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("File exists"), "{}", text(&again.stderr));

    let again = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    is_done(&again);
    assert!(
        text(&again.stdout).contains("0 files packed")
            && text(&again.stdout).contains("90 were there already")
    );
}

#[test]
fn a_packer_that_is_killed_at_any_moment_goes_on_and_its_pack_is_right() {
    let sandbox = set("pack-kill", 300, 60_000);
    let (mut killed, mut after) = (0, Duration::from_millis(2));
    loop {
        let mut child = sandbox.stallscope(&["pack", "set", "-o", "set.pack"]);
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        // Longer and longer: on a machine of any speed some are killed in the midst, and the last one is not.
        std::thread::sleep(after);
        after = after * 5 / 4;
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if sandbox.path("set.pack").is_dir() && !chunks(&sandbox).is_empty() {
            // Whatever was written to its end is whole.
            let verified = sandbox.run(&["pack", "verify", "set.pack", "--json"]);
            let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
            let faults = verified["faults"].as_array().unwrap();
            let is_unfinished = |fault: &Value| {
                fault["file"] == "snapshot"
                    || fault["what"].as_str().unwrap().starts_with("the snapshot does not have")
            };
            assert!(faults.iter().all(is_unfinished), "{faults:?}");
        }
        if output.status.success() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 0, "none was killed");
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    is_done(&sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]));
    assert_eq!(tree(&sandbox.path("out")), tree(&sandbox.path("set")));
}

#[test]
fn what_cannot_be_packed_has_a_sentence_and_the_rest_is_packed() {
    let sandbox = set("pack-odd", 3, 10);
    fs::write(sandbox.path("set").join(OsStr::from_bytes(b"cat/\xff\x1b[2J.jpg")), b"odd").unwrap();
    std::os::unix::fs::symlink("gone", sandbox.path("set/cat/link")).unwrap();
    let output = sandbox.run(&["pack", "set", "-o", "set.pack"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("set/cat/link is not packed: this link leads nowhere"), "{errors}");
    assert!(errors.contains("1 sentence above"), "{errors}");
    assert!(text(&output.stdout).contains("4 files packed"));
    let listed = sandbox.run(&["pack", "ls", "-0", "set.pack", "cat"]);
    let names: Vec<&[u8]> = listed.stdout.split(|byte| *byte == 0).collect();
    assert_eq!(names, [&b"cat/0000.jpg"[..], b"cat/0002.jpg", b"cat/\xff\x1b[2J.jpg", b""]);
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
    for (words, sentence) in [
        (&["pack", "gone", "-o", "x.pack"][..], "cannot open gone"),
        (&["pack", "set", "-o", "set/x.pack"], "a source is never written to"),
        (&["pack", "ls", "set"], "is no pack: it has neither a snapshot nor chunks"),
        (&["pack", "rebuild", "set"], "has no chunks"),
    ] {
        let output = sandbox.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text(&output.stderr).contains(sentence), "{words:?}: {}", text(&output.stderr));
    }
    for words in [&["pack"][..], &["pack", "set"], &["pack", "set", "-o", "y.pack", "--chunk-size", "1MiB"]] {
        assert_eq!(sandbox.run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn faults_are_listed_and_the_snapshot_is_made_again() {
    let sandbox = set("pack-faults", 90, 100_000);
    packed(&sandbox);
    let path = chunks(&sandbox)[1].clone();
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[1000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let output = sandbox.run(&["pack", "verify", "set.pack"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("does not hold what was packed\n3 chunks, 89 files of "),
        "{}",
        text(&output.stdout)
    );
    let extracted = sandbox.run(&["pack", "extract", "set.pack", "-o", "out"]);
    assert_eq!(extracted.status.code(), Some(1));
    assert_eq!(tree(&sandbox.path("out")).len(), 89);

    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let output = sandbox.run(&["pack", "rebuild", "set.pack"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("1 of 3 chunks cannot be read, and nothing was changed"));
    fs::write(&path, &whole).unwrap();
    let snapshot = sandbox.path("set.pack/snapshot");
    let before = fs::read(&snapshot).unwrap();
    fs::remove_file(&snapshot).unwrap();
    let lost = sandbox.run(&["pack", "ls", "set.pack"]);
    assert!(text(&lost.stderr).contains("stallscope pack rebuild"), "{}", text(&lost.stderr));
    is_done(&sandbox.run(&["pack", "rebuild", "set.pack"]));
    assert_eq!(fs::read(&snapshot).unwrap(), before);
    is_done(&sandbox.run(&["pack", "verify", "set.pack"]));
}

#[test]
fn plain_python_reads_a_pack_without_its_snapshot() {
    let sandbox = set("pack-python", 20, 300);
    fs::write(sandbox.path("set").join(OsStr::from_bytes(b"cat/\xff")), b"").unwrap();
    packed(&sandbox);
    let mut changed = fs::read(sandbox.path("set/dog/0001.jpg")).unwrap();
    changed.extend(b"more");
    fs::write(sandbox.path("set/dog/0001.jpg"), changed).unwrap();
    packed(&sandbox);
    fs::remove_file(sandbox.path("set.pack/snapshot")).unwrap();
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/read_pack.py");
    let run = |words: &[&str]| {
        Command::new("python3").arg(&reader).args(words).current_dir(sandbox.path("")).output().unwrap()
    };
    let listed = run(&["set.pack"]);
    is_done(&listed);
    let lines: Vec<&[u8]> = listed.stdout.split(|byte| *byte == b'\n').collect();
    assert_eq!(
        (lines.len(), lines[0], lines[10]),
        (22, &b"cat/0000.jpg\t300\t0"[..], &b"cat/\xff\t0\t0"[..])
    );
    is_done(&run(&["set.pack", "out"]));
    assert_eq!(tree(&sandbox.path("out")), tree(&sandbox.path("set")));
    let path = &chunks(&sandbox)[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[70] ^= 8;
    fs::write(path, bytes).unwrap();
    let refused = run(&["set.pack"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("does not hold what was packed"), "{}", text(&refused.stderr));
}
