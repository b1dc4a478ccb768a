//! What the node's collector may still do while it serves, and how it serves with less than it asks for.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::node::{MIB, MIRA, Node, OTTO, PYTHON, has, proceed, read};
use crate::support::skipped::skipped;
use crate::support::{Killed, Sandbox, http, job, privileged, text, wait_until};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Fields of /proc/PID/status of each thread of a process.
fn threads(pid: u32) -> Vec<impl Fn(&str) -> String> {
    let field = |status: String| {
        move |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
        }
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| field(std::fs::read_to_string(task.unwrap().path().join("status")).unwrap())).collect()
}

/// The programs that hook system calls, as far as they are attached.
fn hooked(address: SocketAddr) -> bool {
    let figures = http::get(address, "/metrics").body;
    let of = |program| figures.contains(&format!("stallscope_node_program_on{{program=\"{program}\"}} 1"));
    assert_eq!(of("sys_enter"), of("sys_exit"), "{figures}");
    of("sys_enter")
}

#[test]
fn the_collector_keeps_nothing_that_serving_does_not_take() {
    if !privileged("the_collector_keeps_nothing_that_serving_does_not_take") {
        return;
    }
    let (node, address) = Node::with_metrics("confined", &["--syscalls-for-everyone"]);
    let pid = node.collector.0.id();
    let asked_by =
        |name: &str| http::get_with(address, "GET", "/metrics", &format!("Host: {name}\r\n")).status;
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(asked_by("evil.example"), 421);
    assert_ne!(asked_by(own.trim()), 421);
    // Kernels before 5.19 ask for one at each use of a map.
    let printed = std::fs::read_to_string(node.sandbox.path("collect.printed")).unwrap();
    let none = "0000000000000000";
    let kept = if printed.contains("capabilities: CAP_BPF;") { "0000008000000000" } else { none };
    for status in threads(pid) {
        for (field, kept) in [
            ("Uid", "65534"),
            ("Groups", ""),
            ("CapEff", kept),
            ("CapPrm", kept),
            ("CapInh", none),
            ("CapBnd", kept),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(status(field), kept, "{field} of {}", status("Name"));
        }
    }
    let tried = Command::new(PYTHON).args([&job("tried.py"), &pid.to_string()]).output().unwrap();
    assert!(tried.status.success(), "{}", text(&tried.stderr));
    let tried: Value = serde_json::from_slice(&tried.stdout).unwrap();
    for (what, answer) in tried.as_object().unwrap() {
        let expected = match what.as_str() {
            "reads /proc" => "done",
            // By Landlock, all others by seccomp.
            "reads /etc" | "removes" => "EACCES",
            // It may ask; only what it asks makes no sense.
            "goes through a map" => "EINVAL",
            _ => "EPERM",
        };
        assert_eq!(answer, expected, "{what}: {tried}");
    }

    // It serves on as if nothing had been taken.
    node.file("mira.bin", MIRA);
    node.file("otto.bin", OTTO);
    let begin = |uid, file: &str| {
        let script =
            format!("read go; dd if={file} of=/dev/null bs=64k iflag=direct; touch {file}.read; read end");
        Killed(node.shell(uid, &script).stdin(Stdio::piped()).spawn().unwrap())
    };
    let (mut mira, mut otto) = (begin(MIRA, "mira.bin"), begin(OTTO, "otto.bin"));
    let of_mira = node.spy("mira", MIRA, mira.0.id());
    assert!(!hooked(address));
    let of_otto = node.spy_with_syscalls("otto", OTTO, otto.0.id());
    wait_until("system calls are hooked", || hooked(address));
    proceed(&mut mira.0);
    proceed(&mut otto.0);
    let are_read =
        || ["mira", "otto"].iter().all(|who| node.sandbox.path(&format!("{who}.bin.read")).exists());
    wait_until("both files are read", are_read);
    for (spy, own_file) in [(&of_mira, "mira.bin"), (&of_otto, "otto.bin")] {
        spy.until("each is given their own", |seen| read(seen) > 7 * MIB && has(seen, own_file));
    }
    // A round, and one in which files are resolved, for what is not to come.
    std::thread::sleep(Duration::from_secs(2));
    let (of_mira, of_otto) = (of_mira.ends(), of_otto.ends());
    for (own, own_file, other_file) in [(of_mira, "mira.bin", "otto.bin"), (of_otto, "otto.bin", "mira.bin")]
    {
        assert!(read(&own) > 7 * MIB && has(&own, own_file) && !has(&own, other_file), "{own}");
    }
    wait_until("system calls are hooked no more", || !hooked(address));

    let doctor = node.sandbox.run(&["doctor", "--json"]);
    let checks: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let confinement = checks.iter().find(|check| check["name"] == "confinement").unwrap();
    assert_eq!(confinement["ok"], true, "{confinement}");
}

/// Starts the collector as `command` has it, takes evidence of a job of `uid` from it, and gives what it printed.
fn served(sandbox: &Sandbox, command: &mut Command, uid: u32) -> String {
    served_while(sandbox, command, uid, || ())
}

/// The same; `then` is called before the collector is ended.
fn served_while(sandbox: &Sandbox, command: &mut Command, uid: u32, then: impl FnOnce()) -> String {
    let folder = sandbox.path("job");
    if !folder.exists() {
        std::fs::create_dir(&folder).unwrap();
    }
    chown(&folder, Some(uid), Some(uid)).unwrap();
    let printed = sandbox.path("printed");
    let stderr = std::fs::File::create(&printed).unwrap();
    let mut collector = Killed(command.stderr(stderr).spawn().unwrap());
    wait_until("the collector listens or ends", || {
        let serves = std::fs::read_to_string(&printed).unwrap().contains("confined (");
        serves || collector.0.try_wait().unwrap().is_some()
    });
    let printed = std::fs::read_to_string(printed).unwrap();
    assert!(printed.contains("confined ("), "{printed}");
    let recording = folder.join("job.stall");
    let _ = std::fs::remove_file(&recording);
    let mut run = sandbox.stallscope(&["run", "--no-shim", "-q", "-o"]);
    let job = "until [ -e job.stall ]; do sleep 0.05; done";
    run.arg(&recording).args(["--", "sh", "-c", job]).uid(uid).gid(uid).current_dir(&folder);
    let output = run.env("STALLSCOPE_RUNTIME_DIR", folder.join("run")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(sandbox.report(&recording.display().to_string())["kernel"], "on", "{printed}");
    then();
    printed
}

fn collect(sandbox: &Sandbox) -> [String; 3] {
    ["collect".into(), "--socket".into(), sandbox.kernel_socket().display().to_string()]
}

/// `with`, a tool of util-linux and its options, before the collector.
fn before(sandbox: &Sandbox, with: &[&str]) -> Command {
    let mut command = Command::new(with[0]);
    command.args(&with[1..]).arg(sandbox.open_copy()).args(collect(sandbox)).current_dir(sandbox.path(""));
    command
}

fn as_user<'a>(capabilities: &'a str, bounds: &'a str) -> [&'a str; 12] {
    let user = "4300";
    [
        "setpriv",
        "--reuid",
        user,
        "--regid",
        user,
        "--clear-groups",
        "--inh-caps",
        capabilities,
        "--ambient-caps",
        capabilities,
        "--bounding-set",
        bounds,
    ]
}

#[test]
fn a_user_with_two_capabilities_serves_all_others_and_a_missing_one_is_named() {
    if !privileged("a_user_with_two_capabilities_serves_all_others_and_a_missing_one_is_named") {
        return;
    }
    let sandbox = Sandbox::new("two-capabilities");
    sandbox.open_to_all();
    let two = as_user("+bpf,+perfmon", "-all,+bpf,+perfmon");
    let printed = served(&sandbox, &mut before(&sandbox, &two), MIRA);
    assert!(printed.contains("confined (user: 4300; capabilities: none;"), "{printed}");
    assert!(!printed.contains("not confined"), "{printed}");
    for (held, missing) in [("+bpf", "CAP_PERFMON is missing"), ("+perfmon", "CAP_BPF is missing")] {
        let output = before(&sandbox, &as_user(held, "-all,+bpf,+perfmon")).output().unwrap();
        let printed = text(&output.stderr);
        assert_eq!((output.status.code(), printed.lines().count()), (Some(1), 1), "{printed}");
        assert!(printed.contains(missing), "{printed}");
    }
}

#[test]
fn as_root_it_takes_no_other_capability_and_says_what_it_keeps_without_one() {
    if !privileged("as_root_it_takes_no_other_capability_and_says_what_it_keeps_without_one") {
        return;
    }
    let sandbox = Sandbox::new("root-without");
    sandbox.open_to_all();
    for (bounds, missing_of_it) in [
        ("-all,+bpf,+perfmon,+setuid,+setgid", ""),
        ("-all,+bpf,+perfmon,+setgid", "not confined by user: it stays root: CAP_SETUID is missing"),
        ("-all,+bpf,+perfmon,+setuid", "not confined by user: it stays root: CAP_SETGID is missing"),
    ] {
        let printed = served(&sandbox, &mut before(&sandbox, &["setpriv", "--bounding-set", bounds]), MIRA);
        assert!(printed.contains("capabilities: none;"), "{printed}");
        assert_eq!(printed.contains("not confined"), !missing_of_it.is_empty(), "{printed}");
        assert!(printed.contains(missing_of_it), "{printed}");
    }
}

#[test]
fn where_proc_hides_processes_it_keeps_the_one_capability_that_shows_them() {
    if !privileged("where_proc_hides_processes_it_keeps_the_one_capability_that_shows_them") {
        return;
    }
    let sandbox = Sandbox::new("hidepid");
    sandbox.open_to_all();
    let mount =
        ["unshare", "--mount", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$0\" \"$@\""];
    let printed = served(&sandbox, &mut before(&sandbox, &mount), MIRA);
    assert!(printed.contains("capabilities: CAP_SYS_PTRACE;"), "{printed}");
    assert!(printed.contains("not confined by Landlock: /proc is mounted with hidepid"), "{printed}");
    let without = ["setpriv", "--bounding-set", "-sys_ptrace"];
    let mut command = before(&sandbox, &[&mount[..], &without].concat());
    let printed = sandbox.path("printed");
    let _collector = Killed(command.stderr(std::fs::File::create(&printed).unwrap()).spawn().unwrap());
    let printed = || std::fs::read_to_string(&printed).unwrap();
    wait_until("it serves", || printed().contains("confined ("));
    assert!(printed().contains("CAP_SYS_PTRACE is missing to see other users' jobs"), "{}", printed());
}

#[test]
fn what_the_kernel_lacks_is_named_and_the_rest_holds() {
    if !privileged("what_the_kernel_lacks_is_named_and_the_rest_holds") {
        return;
    }
    let sandbox = Sandbox::new("lacking");
    sandbox.open_to_all();
    let lacking = job("lacking.py");
    for (call, name, lacks) in
        [("444", "Landlock", "this kernel has none"), ("317", "seccomp", "not implemented")]
    {
        let printed = served(&sandbox, &mut before(&sandbox, &[PYTHON, &lacking, call]), MIRA);
        assert!(
            printed.contains(&format!("not confined by {name}: ")) && printed.contains(lacks),
            "{printed}"
        );
        assert_eq!(printed.matches("not confined").count(), 1, "{printed}");
    }
}

#[test]
fn with_file_capabilities_it_serves_and_a_run_brings_its_own_evidence() {
    if !privileged("with_file_capabilities_it_serves_and_a_run_brings_its_own_evidence") {
        return;
    }
    let sandbox = Sandbox::new("file-capabilities");
    sandbox.open_to_all();
    let program = sandbox.open_copy();
    let given = Command::new("setcap").arg("cap_bpf,cap_perfmon+ep").arg(&program).status();
    if !given.is_ok_and(|status| status.success()) {
        skipped(format_args!("a program can be given no capabilities here"));
        return;
    }
    let user = ["setpriv", "--reuid", "4300", "--regid", "4300", "--clear-groups"];
    let folder = sandbox.path("own");
    std::fs::create_dir(&folder).unwrap();
    chown(&folder, Some(4300), Some(4300)).unwrap();
    // Programs are loaded before the recording is begun: a job that ends sooner is not seen.
    let job = "until [ -e own.stall ]; do sleep 0.05; done";
    let run = |program: &Path| -> Output {
        let mut run = Command::new(user[0]);
        run.args(&user[1..]).arg(program).args([
            "run",
            "--no-shim",
            "-o",
            "own.stall",
            "--",
            "sh",
            "-c",
            job,
        ]);
        run.current_dir(&folder).env("STALLSCOPE_RUNTIME_DIR", folder.join("run")).env("TMPDIR", "/tmp");
        run.env("STALLSCOPE_KERNEL_SOCKET", sandbox.kernel_socket()).output().unwrap()
    };
    let output = run(&program);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(sandbox.report("own/own.stall")["kernel"], "on", "{}", text(&output.stderr));
    // What the loader does to the environment of such a program it does to the job's.
    assert!(
        text(&output.stderr).contains("start jobs with a copy that has none"),
        "{}",
        text(&output.stderr)
    );
    served(&sandbox, &mut before(&sandbox, &user), MIRA);
}

#[test]
fn systemd_hands_over_the_socket_and_hears_that_the_collector_lives() {
    if !privileged("systemd_hands_over_the_socket_and_hears_that_the_collector_lives") {
        return;
    }
    let sandbox = Sandbox::new("systemd");
    sandbox.open_to_all();
    let listener = std::os::unix::net::UnixListener::bind(sandbox.kernel_socket()).unwrap();
    std::fs::set_permissions(sandbox.kernel_socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let heard = UnixDatagram::bind(sandbox.path("notify")).unwrap();
    std::fs::set_permissions(sandbox.path("notify"), std::fs::Permissions::from_mode(0o666)).unwrap();
    heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let next = || {
        let mut line = [0; 1024];
        let length = heard.recv(&mut line).unwrap();
        text(&line[..length])
    };
    // The number of the process is its own to know.
    let script = "LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 </dev/null";
    let mut command = before(
        &sandbox,
        &[&as_user("+bpf,+perfmon", "-all,+bpf,+perfmon")[..], &["sh", "-c", script]].concat(),
    );
    command
        .env("LISTEN_FDS", "1")
        .env("NOTIFY_SOCKET", sandbox.path("notify"))
        .env("WATCHDOG_USEC", "300000");
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let printed = served_while(&sandbox, &mut command, MIRA, || {
        let first = next();
        assert!(first.starts_with("READY=1\nSTATUS=confined ("), "{first}");
        assert_eq!((next(), next()), ("WATCHDOG=1\n".into(), "WATCHDOG=1\n".into()));
    });
    assert!(printed.contains("systemd's socket") && !printed.contains("not confined"), "{printed}");
}

#[test]
fn the_units_exposure_is_below_two() {
    for unit in ["stallscope-collect", "stallscope-node", "stallscope-node-export"] {
        let unit = format!("{}/contrib/systemd/{unit}.service", env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("systemd-analyze").args(["security", "--offline=true", &unit]).output();
        let Ok(output) = output else {
            skipped(format_args!("the_units_exposure_is_below_two needs systemd-analyze"));
            return;
        };
        let printed = text(&output.stdout);
        let exposure: Option<f32> = printed.lines().find_map(|line| {
            line.split_once("Overall exposure level for")?.1.split(' ').find_map(|word| word.parse().ok())
        });
        if exposure.is_none() && !output.status.success() {
            skipped(format_args!("this systemd-analyze judges no unit offline: {}", text(&output.stderr)));
            return;
        }
        assert!(exposure.is_some_and(|exposure| exposure < 2.0), "{printed}");
    }
}

#[test]
fn units_that_serve_metrics_tell_one_users_clients_from_anothers() {
    for unit in ["stallscope-collect", "stallscope-node-export"] {
        let path = format!("{}/contrib/systemd/{unit}.service", env!("CARGO_MANIFEST_DIR"));
        let unit = std::fs::read_to_string(path).unwrap();
        let families = unit.lines().find(|line| line.starts_with("RestrictAddressFamilies=")).unwrap();
        // Else the kernel says of no connection whose it is (sock_diag(7)), and all have the share of one address.
        assert!(families.split(['=', ' ']).any(|family| family == "AF_NETLINK"), "{families}");
    }
}
