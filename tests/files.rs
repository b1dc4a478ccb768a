//! Which files a job waited for, as its report tells it: the job's own and nobody else's.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::{Killed, Sandbox, privileged, text, wait_until};
use std::path::Path;
use std::process::{Command, Stdio};

/// Reads a file past the page cache, again and again.
const READ: &str = "until [ -e stop ]; do dd if=\"$0\" of=/dev/null bs=64k iflag=direct 2>&1; done";

fn make(path: &Path) {
    std::fs::write(path, vec![7; 8 << 20]).unwrap();
    assert!(Command::new("sync").arg(path).status().unwrap().success());
}

fn names(report: &serde_json::Value) -> Vec<String> {
    let files = report["files"].as_array().into_iter().flatten();
    files.map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn two_users_of_one_collector_each_see_their_own_files() {
    if !privileged("two_users_of_one_collector_each_see_their_own_files") {
        return;
    }
    let sandbox = Sandbox::new("files");
    let socket = sandbox.kernel_socket();
    let collect =
        sandbox.stallscope(&["collect", "--socket", &socket.display().to_string()]).spawn().unwrap();
    let _node = Killed(collect);
    wait_until("the collector listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    for name in ["of-root.bin", "of-nobody.bin"] {
        make(&sandbox.path(name));
    }
    let words = |recording, file| ["run", "--no-shim", "-o", recording, "--", "sh", "-c", READ, file];
    let mut jobs = [
        sandbox.stallscope(&words("root.stall", "of-root.bin")),
        sandbox.stallscope_as_nobody(&words("nobody.stall", "of-nobody.bin")),
    ];
    let jobs =
        jobs.each_mut().map(|job| Killed(job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
    for (own, recording) in [("of-root.bin", "root.stall"), ("of-nobody.bin", "nobody.stall")] {
        wait_until("each has their own file", || {
            let output = sandbox.run(&["report", recording, "--format", "json"]);
            let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
            names(&report).iter().any(|name| name.ends_with(own))
        });
    }
    // Some rounds more, for what is not to come.
    std::thread::sleep(std::time::Duration::from_secs(2));
    std::fs::write(sandbox.path("stop"), "").unwrap();
    for mut job in jobs {
        assert!(job.0.wait().unwrap().success());
    }
    for (own, others, recording) in
        [("of-root.bin", "of-nobody.bin", "root.stall"), ("of-nobody.bin", "of-root.bin", "nobody.stall")]
    {
        let report = sandbox.report(recording);
        let names = names(&report);
        assert!(names.iter().any(|name| name.ends_with(own)), "{report}");
        assert!(!names.iter().any(|name| name.ends_with(others)), "{report}");
        let mounts = report["mounts"].as_array().unwrap();
        assert!(mounts.iter().any(|mount| mount["wait_ns"].as_u64() > Some(0)), "{report}");
        let screen = text(&sandbox.run(&["report", recording]).stdout);
        assert!(screen.contains("\nFiles  ") && screen.contains(own), "{screen}");
    }
}
