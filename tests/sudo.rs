//! Root by way of sudo: the job runs as the user who called it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::process::Command;
use support::{Sandbox, job, privileged, text};

/// As in tests/jobs/directory.c.
const UID: u32 = 4242;

#[test]
fn a_user_of_a_directory_service_keeps_home_name_and_groups() {
    if !privileged("a_user_of_a_directory_service_keeps_home_name_and_groups") {
        return;
    }
    let sandbox = Sandbox::new("sudo");
    let module = sandbox.path("libnss_directory.so.2");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&module).arg(job("directory.c")).status();
    assert!(compiled.unwrap().success());
    let sources = sandbox.path("nsswitch.conf");
    std::fs::write(&sources, "passwd: files directory\ngroup: files directory\n").unwrap();
    for dir in [sandbox.path(""), sandbox.path("run")] {
        std::os::unix::fs::chown(dir, Some(UID), Some(UID)).unwrap();
    }
    let stallscope = sandbox.stallscope(&["run", "-o", "job.stall", "--", "sh", "-c"]);
    // In a mount namespace of its own, so that nobody else meets this source.
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/nsswitch.conf && exec \"$@\""])
        .arg(&sources)
        .arg(stallscope.get_program())
        .args(stallscope.get_args())
        .arg("echo home $HOME, name $USER $LOGNAME, uid $(id -u), groups $(id -G)")
        .current_dir(sandbox.path(""))
        .envs(stallscope.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("LD_LIBRARY_PATH", sandbox.path(""))
        .envs([("SUDO_UID", "4242"), ("SUDO_GID", "4242"), ("SUDO_USER", "mira")]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout).trim(),
        "home /net/home/mira, name mira mira, uid 4242, groups 4242 4300 4301"
    );
    assert_eq!(sandbox.report("job.stall")["job"]["user"], "mira");
}
