//! A node's collector, users with files and processes of their own, and what each of them is given.

use super::{Killed, Sandbox, job, signal, wait_until};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// One that users without a home of root's can reach.
pub(crate) const PYTHON: &str = "/usr/bin/python3";
pub(crate) const MIRA: u32 = 4242;
pub(crate) const OTTO: u32 = 4343;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Node {
    pub(crate) sandbox: Sandbox,
    pub(crate) collector: Killed,
}

impl Node {
    pub(crate) fn start(name: &str) -> Node {
        Node::start_with(name, &[])
    }

    /// With further `words`; its messages go into the file `printed`.
    pub(crate) fn start_with(name: &str, words: &[&str]) -> Node {
        let sandbox = Sandbox::new(name);
        let socket = sandbox.kernel_socket();
        sandbox.open_to_all();
        let path = socket.display().to_string();
        let words = [&["collect", "--socket", &path], words].concat();
        let printed = std::fs::File::create(sandbox.path("printed")).unwrap();
        let collector = Killed(sandbox.stallscope(&words).stderr(printed).spawn().unwrap());
        wait_until("the collector listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        Node { sandbox, collector }
    }

    /// One that serves its metrics at the address given, with further `words`.
    pub(crate) fn with_metrics(name: &str, words: &[&str]) -> (Node, SocketAddr) {
        let sandbox = Sandbox::new(name);
        sandbox.open_to_all();
        let socket = sandbox.kernel_socket().display().to_string();
        let all = [&["collect", "--socket", &socket, "--metrics", "0"], words].concat();
        let (collector, address) = sandbox.serving(&all);
        (Node { sandbox, collector }, address)
    }

    pub(crate) fn shell(&self, uid: u32, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .current_dir(self.sandbox.path(""))
            .uid(uid)
            .gid(uid)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        shell
    }

    /// A file of 8 MiB on the disk that `uid` alone may read.
    pub(crate) fn file(&self, name: &str, uid: u32) {
        let path = self.sandbox.path(name);
        std::fs::write(&path, vec![7; 8 * MIB as usize]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
    }

    /// What `uid` gets of the tree of `pid` from the moment on that this returns.
    pub(crate) fn spy(&self, name: &str, uid: u32, pid: u32) -> Spy {
        self.watched_by(name, uid, pid, "")
    }

    /// The same with system calls hooked.
    pub(crate) fn spy_with_syscalls(&self, name: &str, uid: u32, pid: u32) -> Spy {
        self.watched_by(name, uid, pid, "syscalls")
    }

    fn watched_by(&self, name: &str, uid: u32, pid: u32, how: &str) -> Spy {
        let script = std::fs::read(job("spy.py")).unwrap();
        let (program, out) = (self.sandbox.path("spy.py"), self.sandbox.path(name));
        std::fs::write(&program, script).unwrap();
        let mut spy = Command::new(PYTHON);
        spy.arg(program)
            .arg(self.sandbox.kernel_socket())
            .arg(pid.to_string())
            .arg(&out)
            .arg(how)
            .uid(uid)
            .gid(uid);
        let spy = Spy { child: Killed(spy.spawn().unwrap()), out };
        wait_until("the spy watches", || {
            std::fs::read_to_string(&spy.out).is_ok_and(|printed| printed == "watching")
        });
        spy
    }
}

pub(crate) struct Spy {
    child: Killed,
    out: PathBuf,
}

impl Spy {
    /// Waits until what it was given so far is as `enough` has it, however long the collector takes to give it.
    pub(crate) fn until(&self, what: &str, enough: impl Fn(&Value) -> bool) {
        let now = self.out.with_extension("now");
        wait_until(what, || {
            let seen = std::fs::read(&now).ok().and_then(|seen| serde_json::from_slice(&seen).ok());
            seen.is_some_and(|seen| enough(&seen))
        });
    }

    pub(crate) fn ends(mut self) -> Value {
        signal(self.child.0.id(), "TERM");
        assert!(self.child.0.wait().unwrap().success());
        serde_json::from_slice(&std::fs::read(&self.out).unwrap()).unwrap()
    }
}

pub(crate) fn read(seen: &Value) -> u64 {
    seen["read"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

pub(crate) fn has(seen: &Value, name: &str) -> bool {
    seen["names"].as_array().unwrap().iter().any(|other| other == name)
}

pub(crate) fn proceed(shell: &mut Child) {
    use std::io::Write;
    shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}
