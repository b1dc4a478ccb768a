//! Root by way of sudo: the job runs as the user who called it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::node::{Node, OTTO, PYTHON};
use crate::support::{Killed, Sandbox, job, privileged, text, wait_until};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

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

/// The user's home is asked of where users are listed, as the environment's is root's.
#[test]
fn a_caller_whose_places_for_jobs_somebody_else_took_has_one_at_home() {
    if !privileged("a_caller_whose_places_for_jobs_somebody_else_took_has_one_at_home") {
        return;
    }
    let sandbox = Sandbox::new("squatted");
    let (users, home) = (sandbox.path("passwd"), sandbox.path("home"));
    let listed = std::fs::read_to_string("/etc/passwd").unwrap();
    std::fs::write(&users, format!("{listed}anna:x:4949:4949::{}:/bin/sh\n", home.display())).unwrap();
    std::fs::create_dir(&home).unwrap();
    for dir in [sandbox.path(""), home.clone()] {
        std::os::unix::fs::chown(dir, Some(4949), Some(4949)).unwrap();
    }
    let taken = ["/tmp/stallscope-4949", "/var/tmp/stallscope-4949"];
    for place in taken {
        let _ = std::fs::create_dir(place);
        std::os::unix::fs::chown(place, Some(OTTO), Some(OTTO)).unwrap();
    }
    let stallscope =
        sandbox.stallscope(&["run", "-o", "job.stall", "--", "sh", "-c", "echo $STALLSCOPE_SOCKET"]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/passwd && exec \"$@\""])
        .arg(&users)
        .arg(stallscope.get_program())
        .args(stallscope.get_args())
        .current_dir(sandbox.path(""))
        .envs(stallscope.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env_remove("STALLSCOPE_RUNTIME_DIR")
        .envs([("SUDO_UID", "4949"), ("SUDO_GID", "4949"), ("SUDO_USER", "anna")]);
    let output = command.output().unwrap();
    taken.iter().for_each(|place| std::fs::remove_dir(place).unwrap());
    let socket = text(&output.stdout);
    let jobs = home.join(".cache/stallscope/jobs");
    assert!(Path::new(socket.trim()).starts_with(&jobs), "{socket} {}", text(&output.stderr));
}

/// `stallscope` as root by way of sudo, called by the user in their folder.
fn with_sudo(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = sandbox.stallscope(arguments);
    command.envs([("SUDO_UID", "4242"), ("SUDO_GID", "4242"), ("SUDO_USER", "mira")]);
    command
}

/// Asks the session beside which it runs for the process argv[1], and lets that begin.
const ASKS_FOR_ANOTHER: &str = r#"
import json, os, socket, sys, time
session = socket.socket(socket.AF_UNIX)
session.connect(os.environ["STALLSCOPE_SOCKET"])
hello = {"stallscope": 1, "role": "run", "pid": int(sys.argv[1])}
session.sendall(json.dumps(hello).encode() + b"\n")
session.recv(4096)
open("go", "w").close()
while not os.path.exists("otto-has-read"):
    time.sleep(0.05)
time.sleep(2)
"#;

#[test]
fn a_job_beside_roots_session_is_given_no_other_users_process() {
    if !privileged("a_job_beside_roots_session_is_given_no_other_users_process") {
        return;
    }
    let node = Node::start("joins-sudo");
    let sandbox = &node.sandbox;
    node.file("otto.bin", OTTO);
    std::os::unix::fs::chown(sandbox.path("run"), Some(UID), Some(UID)).unwrap();
    let script = "until [ -e go ]; do sleep 0.05; done; dd if=otto.bin of=/dev/null bs=64k iflag=direct; \
        touch otto-has-read; sleep 1000";
    let otto = Killed(node.shell(OTTO, script).process_group(0).spawn().unwrap());
    let pid = otto.0.id().to_string();
    let words = ["run", "-o", "job.stall", "--", PYTHON, "-c", ASKS_FOR_ANOTHER, &pid];
    let output = with_sudo(sandbox, &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = sandbox.report("job.stall");
    assert_eq!(report["kernel"], "on", "{output:?}");
    assert!(!report.to_string().contains("otto.bin"), "{report}");
    let group = format!("-{pid}");
    assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
}

/// The recording is the caller's, who may not look into a set-uid program.
#[test]
fn what_set_uid_programs_of_the_job_read_is_not_in_the_callers_recording() {
    if !privileged("what_set_uid_programs_of_the_job_read_is_not_in_the_callers_recording") {
        return;
    }
    // There is a recording when a session has loaded the programs, where it does so itself.
    let script = "until [ -e job.stall ]; do sleep 0.05; done; until [ -e stop ]; do dd if=own.bin of=/dev/null bs=64k iflag=direct; \
        ./reader if=secret.bin of=/dev/null bs=64k iflag=direct; sleep 0.1; done";
    // By the node's collector, and by a thread of its own.
    for node in [Some(Node::start("sudo-set-uid")), None] {
        let alone = Sandbox::new("sudo-set-uid-alone");
        let sandbox = node.as_ref().map_or(&alone, |node| &node.sandbox);
        for (name, owner) in [("own.bin", UID), ("secret.bin", 0)] {
            let path = sandbox.path(name);
            std::fs::write(&path, vec![7; 8 << 20]).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        }
        let reader = sandbox.path("reader");
        std::fs::copy("/usr/bin/dd", &reader).unwrap();
        std::fs::set_permissions(&reader, std::fs::Permissions::from_mode(0o4755)).unwrap();
        for folder in ["", "run"] {
            std::os::unix::fs::chown(sandbox.path(folder), Some(UID), Some(UID)).unwrap();
        }
        let words = ["run", "-o", "job.stall", "--", "sh", "-c", script];
        let printed = sandbox.path("run.printed");
        let stderr = std::fs::File::create(&printed).unwrap();
        let mut run = Killed(with_sudo(sandbox, &words).stderr(stderr).spawn().unwrap());
        wait_until("the caller's own file is in the recording", || {
            let output = sandbox.run(&["report", "job.stall", "--format", "json"]);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            report["files"].to_string().contains("own.bin")
        });
        // Some rounds more, for what is not to come.
        std::thread::sleep(std::time::Duration::from_secs(2));
        std::fs::write(sandbox.path("stop"), "").unwrap();
        assert!(run.0.wait().unwrap().success());
        let printed = std::fs::read_to_string(printed).unwrap();
        assert!(!printed.contains("ermission denied"), "it has read: {printed}");
        let report = sandbox.report("job.stall");
        assert_eq!(report["kernel"], "on", "{printed}");
        // The job's command names both.
        let files = report["files"].to_string();
        assert!(files.contains("own.bin") && !files.contains("secret.bin"), "{files}");
    }
}

#[test]
fn doctor_runs_nothing_of_the_callers_with_privilege() {
    if !privileged("doctor_runs_nothing_of_the_callers_with_privilege") {
        return;
    }
    let sandbox = Sandbox::new("doctor-sudo");
    let (imported, called) = (sandbox.path("imported"), sandbox.path("called"));
    std::fs::write(sandbox.path("importlib.py"), format!("open({imported:?}, 'w')\n")).unwrap();
    sandbox.stallscope(&["doctor"]).output().unwrap();
    with_sudo(&sandbox, &["doctor"]).output().unwrap();
    assert!(!imported.exists(), "a module of the current folder was imported");

    std::fs::create_dir(sandbox.path("bin")).unwrap();
    let python = sandbox.path("bin/python3");
    std::fs::write(&python, format!("#!/bin/sh\nid -u >> {}\n", called.display())).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    for path in [sandbox.path(""), sandbox.path("run")] {
        std::os::unix::fs::chown(path, Some(UID), Some(UID)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", sandbox.path("bin").display());
    with_sudo(&sandbox, &["doctor"]).env("PATH", path).output().unwrap();
    assert_eq!(std::fs::read_to_string(called).unwrap_or_default(), "4242\n");
}

#[test]
fn a_socket_in_the_callers_folder_is_the_callers() {
    if !privileged("a_socket_in_the_callers_folder_is_the_callers") {
        return;
    }
    let sandbox = Sandbox::new("socket-sudo");
    let folder = sandbox.path("theirs");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
    let socket = folder.join("kernel.sock");
    let shown = socket.display().to_string();

    let victim = sandbox.path("victim");
    std::fs::write(&victim, "").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&victim, &socket).unwrap();
    let refused = with_sudo(&sandbox, &["collect", "--socket", &shown]).output().unwrap();
    assert!(text(&refused.stderr).contains("is there and is no socket"), "{}", text(&refused.stderr));
    assert_eq!(std::fs::metadata(&victim).unwrap().mode() & 0o777, 0o600);
    std::fs::remove_file(&socket).unwrap();

    let arguments = ["collect", "--until-idle", "--socket", &shown];
    let mut collector = sandbox.stallscope(&arguments).stderr(Stdio::null()).spawn().unwrap();
    let called = |path: &Path| std::os::unix::net::UnixStream::connect(path).ok();
    let mut caller = None;
    wait_until("the collector listens", || {
        caller = called(&socket);
        caller.is_some()
    });
    let made = std::fs::symlink_metadata(&socket).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (UID, 0o666));
    drop(caller.take());
    assert!(collector.wait().unwrap().success());
    assert!(!socket.exists());

    // Also where it ends in another way: who removes it is another process.
    let mut collector = sandbox.stallscope(&arguments).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the collector listens again", || {
        caller = called(&socket);
        caller.is_some()
    });
    let mut caller = caller.unwrap();
    let hello = format!(
        "{{\"stallscope\":1,\"role\":\"kernel\",\"watch\":{},\"syscalls\":false}}\n",
        std::process::id()
    );
    caller.write_all(hello.as_bytes()).unwrap();
    caller.read_exact(&mut [0; 1]).unwrap();
    collector.kill().unwrap();
    collector.wait().unwrap();
    wait_until("the socket is gone", || !socket.exists());
}
