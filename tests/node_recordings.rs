//! Recordings of jobs that nobody launched with `run`: each user's in a folder of their own, kept as long as the node's policy says.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::policy::{node_log, service, torch_alone};
use crate::support::{Killed, Sandbox, privileged, text, wait_until};
use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

const NOBODY: u32 = 65534;
const RULE: &str = "[[jobs.rule]]\nmatch = { user = \"nobody\" }\nmode = \"observe\"\nwithout_run = true\n";

fn recorded_in(dir: &Path) -> String {
    format!("{RULE}[recordings]\ndir = \"{}\"\nkeep = \"14d\"\n", dir.display())
}

fn recordings(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    listed.filter(|path| path.extension().is_some_and(|of| of == "stall")).collect()
}

#[test]
fn a_job_that_nobody_started_with_run_is_recorded_for_its_user_alone_and_old_recordings_go() {
    if !privileged("a_job_that_nobody_started_with_run_is_recorded_for_its_user_alone_and_old_recordings_go")
    {
        return;
    }
    let sandbox = Sandbox::new("kept");
    let dir = sandbox.path("recordings");
    let _service = service(&sandbox, &recorded_in(&dir));
    let facts = fs::metadata(&dir).unwrap();
    assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (0, 0, 0o1771));

    // Of runs that were long ago.
    let folder = dir.join(NOBODY.to_string());
    DirBuilder::new().mode(0o700).create(&folder).unwrap();
    chown(&folder, Some(NOBODY), Some(0)).unwrap();
    let (old, foreign) = (folder.join("old.stall"), folder.join("foreign.stall"));
    for path in [&old, &foreign] {
        let file = File::create(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(15 * 86_400)).unwrap();
    }
    chown(&old, Some(NOBODY), None).unwrap();

    let mut job = torch_alone(&sandbox, "sums.py", &["--seed", "1"]);
    let mut job = Killed(job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("the old one goes, and nobody else's", || !old.exists() && foreign.exists());
    let its = || recordings(&folder).into_iter().find(|path| *path != foreign);
    wait_until("it is recorded", || its().is_some());
    let recording = its().unwrap();
    let facts = fs::metadata(&recording).unwrap();
    assert_eq!((facts.uid(), facts.mode() & 0o7777), (NOBODY, 0o600));
    wait_until("the node's audit says what was dropped", || {
        node_log(&sandbox).iter().any(|line| {
            line["act"] == "recordings"
                && line["why"].as_str().unwrap().contains("the oldest first: 1, which took")
        })
    });
    fs::write(sandbox.path("stop"), "").unwrap();
    assert_eq!(job.0.wait().unwrap().code(), Some(0));
    let recording = recording.display().to_string();
    wait_until("its recording is complete", || {
        let listed = sandbox.run(&["report", "--format", "json", &recording]);
        listed.status.success() && text(&listed.stdout).contains("\"finished\"")
    });
}

#[test]
fn a_folder_that_others_may_write_into_is_refused_in_a_sentence() {
    if !privileged("a_folder_that_others_may_write_into_is_refused_in_a_sentence") {
        return;
    }
    let sandbox = Sandbox::new("others-folder");
    let dir = sandbox.path("recordings");
    DirBuilder::new().create(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o1777)).unwrap();
    fs::write(sandbox.path("policy.toml"), recorded_in(&dir)).unwrap();
    let state = sandbox.path("state").display().to_string();
    let socket = sandbox.path("node.sock").display().to_string();
    let words = ["node-service", "--config", "policy.toml", "--socket", &socket, "--state", &state];
    let refused = sandbox.run(&words);
    assert_eq!(refused.status.code(), Some(1));
    let printed = text(&refused.stderr);
    assert!(printed.contains("recordings.dir, ") && printed.contains("with the mode 1771"), "{printed}");
}
