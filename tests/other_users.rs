//! What the node's collector gives away to a user: evidence of their own processes, and of nobody else's.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::support::node::{MIB, MIRA, Node, OTTO, PYTHON, has, proceed, read};
use crate::support::{self, Killed, Sandbox, privileged, wait_until};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn what_a_set_uid_program_does_is_not_for_who_started_it() {
    if !privileged("what_a_set_uid_program_does_is_not_for_who_started_it") {
        return;
    }
    let node = Node::start("set-uid");
    node.file("own.bin", MIRA);
    node.file("secret.bin", 0);
    let reader = node.sandbox.path("reader");
    std::fs::copy("/usr/bin/dd", &reader).unwrap();
    std::fs::set_permissions(&reader, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let script = "read go; dd if=own.bin of=/dev/null bs=64k iflag=direct; \
        ./reader if=secret.bin of=/dev/null bs=64k iflag=direct && touch read-it; read end";
    let mut shell = Killed(node.shell(MIRA, script).stdin(Stdio::piped()).spawn().unwrap());
    let (mira, root) = (node.spy("mira", MIRA, shell.0.id()), node.spy("root", 0, shell.0.id()));
    proceed(&mut shell.0);
    wait_until("the set-uid program has read", || node.sandbox.path("read-it").exists());
    mira.until("she is given her own", |seen| read(seen) > 7 * MIB && has(seen, "own.bin"));
    root.until("root is given all", |seen| {
        read(seen) > 15 * MIB && has(seen, "own.bin") && has(seen, "secret.bin")
    });
    // A round, and one in which files are resolved, for what is not to come.
    std::thread::sleep(Duration::from_secs(2));
    let (mira, root) = (mira.ends(), root.ends());
    assert!(read(&root) > 15 * MIB, "{root}");
    assert!(read(&mira) > 7 * MIB && read(&mira) < 9 * MIB, "its own, and no more: {mira}");
    assert!(has(&mira, "own.bin") && !has(&mira, "secret.bin"), "{mira}");
    assert!(has(&root, "own.bin") && has(&root, "secret.bin"), "{root}");
}

/// Gives a program CAP_DAC_READ_SEARCH, as setcap does.
const GIVE_CAPABILITY: &str = r#"
import os, struct, sys
os.setxattr(sys.argv[1], "security.capability", struct.pack("<5I", 0x02000001, 1 << 2, 0, 0, 0))
"#;

#[test]
fn what_others_do_in_ones_tree_is_not_shown_though_it_began_before_one_watched() {
    if !privileged("what_others_do_in_ones_tree_is_not_shown_though_it_began_before_one_watched") {
        return;
    }
    let node = Node::start("before");
    let copy = |of: &str, name: &str, mode| {
        let path = node.sandbox.path(name);
        std::fs::copy(of, &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    node.file("mira.bin", MIRA);
    node.file("otto.bin", OTTO);
    ["root.bin", "capable.bin"].iter().for_each(|name| node.file(name, 0));
    // As su and sudo do: it becomes another user wholly, and then executes what that user wants.
    copy("/usr/bin/setpriv", "become", 0o4755);
    let capable = copy("/usr/bin/dd", "capable", 0o755);
    let given = Command::new(PYTHON).args(["-c", GIVE_CAPABILITY]).arg(&capable).status().unwrap();
    assert!(given.success());
    // The file is open before there is anybody to read what comes out.
    let script = r#"
        read_later() {
            who=$1; shift
            "$@" sh -c "touch $who-is-there; until [ -e go ]; do sleep 0.05; done
                dd if=$who.bin of=/dev/null bs=64k iflag=direct && touch $who-has-read" &
        }
        read_later otto ./become --reuid 4343 --regid 4343 --clear-groups
        read_later root ./become --reuid 0 --regid 0 --clear-groups
        read_later mira env
        mkfifo out; ./capable if=capable.bin of=out bs=64k iflag=direct & echo $! > capable-pid
        until [ -e go ]; do sleep 0.05; done
        cat out > /dev/null && touch capable-has-read; wait; read end"#;
    let shell = Killed(node.shell(MIRA, script).stdin(Stdio::piped()).spawn().unwrap());
    let is_there = |name: String| node.sandbox.path(&name).exists();
    wait_until("all of them are there", || {
        let pid = std::fs::read_to_string(node.sandbox.path("capable-pid")).unwrap_or_default();
        let open = std::fs::read_dir(format!("/proc/{}/fd", pid.trim())).into_iter().flatten().flatten();
        let has_opened = open
            .into_iter()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path.ends_with("capable.bin")));
        has_opened && ["otto", "root", "mira"].iter().all(|who| is_there(format!("{who}-is-there")))
    });
    let (mira, root) = (node.spy("mira", MIRA, shell.0.id()), node.spy("root", 0, shell.0.id()));
    std::fs::write(node.sandbox.path("go"), "").unwrap();
    wait_until("all have read", || {
        ["otto", "root", "mira", "capable"].iter().all(|who| is_there(format!("{who}-has-read")))
    });
    let all = ["mira.bin", "otto.bin", "root.bin", "capable.bin"];
    mira.until("she is given her own", |seen| read(seen) > 7 * MIB && has(seen, "mira.bin"));
    root.until("root is given all", |seen| read(seen) > 31 * MIB && all.iter().all(|name| has(seen, name)));
    // A round, and one in which files are resolved, for what is not to come.
    std::thread::sleep(Duration::from_secs(2));
    let (mira, root) = (mira.ends(), root.ends());
    assert!(read(&root) > 31 * MIB && all.iter().all(|name| has(&root, name)), "{root}");
    assert!(read(&mira) > 7 * MIB && has(&mira, "mira.bin"), "{mira}");
    assert!(all[1..].iter().all(|name| !has(&mira, name)), "{mira}");
    // What came through the pipe she has read herself.
    assert!(read(&mira) < 17 * MIB, "{mira}");
}

/// Connections without end, with lines that are none, and as many watchers of one tree as it takes.
const STORM: &str = r#"
import os, socket, sys, threading, time
path, root = sys.argv[1], os.getpid()
def connect(line):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(5)
    one.connect(path)
    one.sendall(line)
    return one
def flood(line, keep):
    held = []
    while True:
        try:
            held.append(connect(line))
        except OSError:
            time.sleep(0.01)
        del held[: max(0, len(held) - keep)]
def talk():
    while True:
        try:
            one = connect(hello)
            while True:
                one.sendall(b"{}\n" * 100)
        except OSError:
            time.sleep(0.01)
hello = b'{"stallscope":1,"role":"kernel","watch":%d,"syscalls":true}\n' % root
for _ in range(200):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
for work in [(flood, b"", 400), (flood, hello, 400), (flood, b"{}\n", 0)]:
    threading.Thread(target=work[0], args=work[1:], daemon=True).start()
threading.Thread(target=talk, daemon=True).start()
open("storm", "w").close()
time.sleep(1000)
"#;

#[test]
fn one_users_storm_leaves_others_their_evidence() {
    if !privileged("one_users_storm_leaves_others_their_evidence") {
        return;
    }
    let node = Node::start("storm");
    node.file("otto.bin", OTTO);
    let mut storm = Command::new(PYTHON);
    storm.args(["-c", STORM]).arg(node.sandbox.kernel_socket()).current_dir(node.sandbox.path(""));
    let _storm = Killed(storm.uid(MIRA).gid(MIRA).spawn().unwrap());
    wait_until("the storm is there", || node.sandbox.path("storm").exists());
    let script = "read go; dd if=otto.bin of=/dev/null bs=64k iflag=direct; touch read-it; read end";
    let mut shell = Killed(node.shell(OTTO, script).stdin(Stdio::piped()).spawn().unwrap());
    let otto = node.spy("otto", OTTO, shell.0.id());
    proceed(&mut shell.0);
    wait_until("the file is read", || node.sandbox.path("read-it").exists());
    otto.until("he is given his own", |seen| read(seen) > 7 * MIB && has(seen, "otto.bin"));
    // For the storm.
    std::thread::sleep(Duration::from_secs(2));
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.collector.0.id())).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.collector.0.id())).unwrap();
    let resident =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    let otto = otto.ends();
    assert!(read(&otto) > 7 * MIB && has(&otto, "otto.bin"), "{otto}");
    assert!(open < 250, "{open} descriptors");
    assert!(resident.is_some_and(|kib: u64| kib < 200 << 10), "{resident:?} KiB");
}

/// A tree of more threads than half of the slots that the kernel side has, as far as the machine lets one user have them.
const BOMB: &str = r#"
import sys, threading, time
threading.stack_size(32768)
try:
    for _ in range(9000):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
except RuntimeError:
    pass
open("threads", "w").write(str(threading.active_count()))
time.sleep(1000)
"#;

/// Half of the kernel side's slots.
const HALF: u64 = 8192;

#[test]
fn one_users_threads_leave_others_their_slots() {
    if !privileged("one_users_threads_leave_others_their_slots") {
        return;
    }
    let node = Node::start("bomb");
    node.file("otto.bin", OTTO);
    let mut bomb = Command::new(PYTHON);
    bomb.args(["-c", BOMB]).current_dir(node.sandbox.path("")).uid(MIRA).gid(MIRA);
    let bomb = Killed(bomb.spawn().unwrap());
    let threads = || std::fs::read_to_string(node.sandbox.path("threads")).ok()?.parse::<u64>().ok();
    wait_until("the threads are there", || threads().is_some());
    if threads().unwrap() < HALF + 100 {
        let (all, limit) = (threads().unwrap(), "one_users_threads_leave_others_their_slots");
        support::skipped::skipped(format_args!("{limit}: one user may have {all} threads here"));
        return;
    }
    let mira = node.spy("mira", MIRA, bomb.0.id());
    let script = "read go; dd if=otto.bin of=/dev/null bs=64k iflag=direct; touch read-it; read end";
    let mut shell = Killed(node.shell(OTTO, script).stdin(Stdio::piped()).spawn().unwrap());
    let otto = node.spy("otto", OTTO, shell.0.id());
    proceed(&mut shell.0);
    wait_until("the file is read", || node.sandbox.path("read-it").exists());
    let reason = "too many tasks of one user";
    let lost = threads().unwrap() - HALF;
    otto.until("he is given his own", |seen| read(seen) > 7 * MIB && has(seen, "otto.bin"));
    mira.until("it is reported to her", |seen| seen["lost"][reason].as_u64() >= Some(lost));
    // A round more, in which it would be reported to him.
    std::thread::sleep(Duration::from_secs(1));
    let (mira, otto) = (mira.ends(), otto.ends());
    assert!(read(&otto) > 7 * MIB && has(&otto, "otto.bin"), "{otto}");
    assert_eq!(mira["lost"][reason], lost, "counted, and reported to her: {mira}");
    assert_eq!(otto["lost"][reason], Value::Null, "and not to him: {otto}");
}

#[test]
fn who_may_connect_is_for_a_group_and_who_watched_whom_is_logged() {
    if !privileged("who_may_connect_is_for_a_group_and_who_watched_whom_is_logged") {
        return;
    }
    let node = Node::start_with("group", &["--group", &MIRA.to_string()]);
    let shell = |uid| Killed(node.shell(uid, "read end").stdin(Stdio::piped()).spawn().unwrap());
    let (mira, otto) = (shell(MIRA), shell(OTTO));
    let spy = node.spy("mira", MIRA, mira.0.id());
    let tried = Command::new(PYTHON)
        .arg(node.sandbox.path("spy.py"))
        .arg(node.sandbox.kernel_socket())
        .args([otto.0.id().to_string(), node.sandbox.path("otto").display().to_string()])
        .uid(OTTO)
        .gid(OTTO)
        .output()
        .unwrap();
    assert!(support::text(&tried.stderr).contains("PermissionError"), "{tried:?}");
    spy.ends();
    let printed = || std::fs::read_to_string(node.sandbox.path("printed")).unwrap();
    let begins = format!("watches the tree of process {}, started ", mira.0.id());
    let ends = format!("watches the tree of process {} no more, after ", mira.0.id());
    wait_until("the end is logged", || printed().contains(&ends));
    assert!(printed().contains(&begins) && printed().contains("user 4242 (process "), "{}", printed());
    assert!(printed().contains("without system calls") && !printed().contains("user 4343"), "{}", printed());

    let words = ["collect", "--socket", "other.sock", "--group", "no-such-group"];
    let output = node.sandbox.run(&words);
    assert!(support::text(&output.stderr).contains("there is no group no-such-group"), "{output:?}");
}

/// A user's shell in a process of a chosen number. The counter of numbers is left where it is: turned back, it gives the numbers
/// that follow to whatever else starts on the machine, and a test beside this one keeps such a number.
const SHELL_AT_A_NUMBER: &str = r#"
import ctypes, os, signal, sys
number, user = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
wanted = (ctypes.c_int32 * 1)(number)
# struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size.
how = (ctypes.c_uint64 * 10)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1)
CLONE3, PR_SET_PDEATHSIG = 435, 1
child = libc.syscall(CLONE3, how, ctypes.sizeof(how))
if child == -1:
    sys.exit(f"no process {number}: {os.strerror(ctypes.get_errno())}")
if child == 0:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execvp("sh", ["sh", "-c", sys.argv[3]])
os.waitpid(child, 0)
"#;

#[test]
fn a_number_that_was_ones_own_and_is_anothers_now_gives_nothing_away() {
    if !privileged("a_number_that_was_ones_own_and_is_anothers_now_gives_nothing_away") {
        return;
    }
    let node = Node::start("numbers");
    node.file("otto.bin", OTTO);
    let mut outer = node.shell(MIRA, "sleep 1000 & echo $! > inner; wait; sleep 1000");
    let outer = Killed(outer.process_group(0).spawn().unwrap());
    let inner = || std::fs::read_to_string(node.sandbox.path("inner")).ok()?.trim().parse::<u32>().ok();
    wait_until("the inner process runs", || inner().is_some());
    let number = inner().unwrap();
    let around = node.spy("around", 0, outer.0.id());
    let mira = node.spy("mira", MIRA, number);
    support::signal(number, "KILL");
    wait_until("its number is free", || !PathBuf::from(format!("/proc/{number}")).exists());
    let script = "read go; while :; do dd if=otto.bin of=/dev/null bs=64k iflag=direct; cat otto.bin; done > /dev/null";
    let mut otto = Command::new(PYTHON);
    otto.args(["-c", SHELL_AT_A_NUMBER, &number.to_string(), &OTTO.to_string(), script])
        .current_dir(node.sandbox.path(""))
        .stdin(Stdio::piped());
    let mut otto = Killed(otto.spawn().unwrap());
    let command = || std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    wait_until("another's shell has the number", || command() == "sh\n");
    let seen_by_otto = node.spy("otto", OTTO, number);
    proceed(&mut otto.0);
    // The outer tree is let go, and the trees within it are taken up again.
    around.ends();
    seen_by_otto.until("he is given his own", |seen| read(seen) > 7 * MIB && has(seen, "otto.bin"));
    // Some rounds, for what is not to come.
    std::thread::sleep(Duration::from_secs(3));
    let (otto, mira) = (seen_by_otto.ends(), mira.ends());
    assert!(read(&otto) > 7 * MIB && has(&otto, "otto.bin"), "{otto}");
    assert!(read(&mira) < MIB && !has(&mira, "otto.bin"), "{mira}");
    let group = format!("-{}", outer.0.id());
    assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
}

#[test]
fn who_asks_for_a_thread_of_theirs_ends_nobodys_evidence_of_its_process() {
    if !privileged("who_asks_for_a_thread_of_theirs_ends_nobodys_evidence_of_its_process") {
        return;
    }
    let node = Node::start("thread");
    node.file("mira.bin", MIRA);
    let script = r#"
import os, threading, time
thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
thread.start()
open("thread.new", "w").write(str(thread.native_id))
os.rename("thread.new", "thread")
input()
os.system("dd if=mira.bin of=/dev/null bs=64k iflag=direct; touch read")
input()
"#;
    let mut mira = Command::new(PYTHON);
    mira.args(["-c", script]).current_dir(node.sandbox.path("")).uid(MIRA).gid(MIRA).stderr(Stdio::null());
    let mut mira = Killed(mira.stdin(Stdio::piped()).spawn().unwrap());
    let root = node.spy("root", 0, mira.0.id());
    wait_until("the thread runs", || node.sandbox.path("thread").exists());
    let thread = std::fs::read_to_string(node.sandbox.path("thread")).unwrap();
    let tried = Command::new(PYTHON)
        .arg(node.sandbox.path("spy.py"))
        .arg(node.sandbox.kernel_socket())
        .args([thread, node.sandbox.path("mira").display().to_string()])
        .uid(MIRA)
        .gid(MIRA)
        .output()
        .unwrap();
    assert!(!tried.status.success(), "{tried:?}");
    proceed(&mut mira.0);
    wait_until("the file is read", || node.sandbox.path("read").exists());
    root.until("root is given it", |seen| read(seen) > 7 * MIB);
    let root = root.ends();
    assert!(read(&root) > 7 * MIB, "{root}");
}

/// A TCP socket of which the last close lasts an hour; what it waits for is beside it.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 2048).unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    loop {
        match sender.write(&[0; 4096]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            written => drop(written.unwrap()),
        }
    }
    sockopt::set_socket_linger(&sender, Some(Duration::from_secs(3600))).unwrap();
    (sender.into(), receiver)
}

/// Those that have called before it starts, as on a kernel that cannot refuse what they pass along.
#[test]
fn what_callers_pass_along_keeps_nobody_waiting() {
    if !privileged("what_callers_pass_along_keeps_nobody_waiting") {
        return;
    }
    let sandbox = Sandbox::new("passed");
    let listener = UnixListener::bind(sandbox.kernel_socket()).unwrap();
    let mut receivers = Vec::new();
    let mut caller = || {
        let (lingers, receiver) = lingering();
        receivers.push(receiver);
        let caller = UnixStream::connect(sandbox.kernel_socket()).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = SendAncillaryBuffer::new(&mut space);
        let fds = [lingers.as_fd()];
        passed.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&caller, &[IoSlice::new(b"x")], &mut passed, SendFlags::empty()).unwrap();
        caller
    };
    // Closed as it is read, and as the connection is.
    let (_stays, goes) = (caller(), caller());
    drop(goes);
    let mut other = UnixStream::connect(sandbox.kernel_socket()).unwrap();
    other.write_all(b"{}\n").unwrap();
    other.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let script = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 </dev/null";
    let program = sandbox.open_copy();
    let mut collector = Command::new("sh");
    collector.args(["-c", script]).arg(program).arg("collect").stderr(Stdio::null());
    let _collector = Killed(collector.stdin(OwnedFd::from(listener)).spawn().unwrap());
    let mut answer = String::new();
    BufReader::new(other).read_line(&mut answer).unwrap();
    assert!(answer.contains("no stallscope message"), "{answer}");
}
