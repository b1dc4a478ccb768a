//! Whether root is the node's, or that of a container alone.
//!
//! In a container without users of its own root is root by the kernel's word (`SO_PEERCRED`), though it may look into no other
//! container and into nothing of the node's. It cannot leave its control group, whose name is the node's word. Its capabilities
//! would tell less: all of them are shown of who has made a user namespace.

use crate::procfs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Who pays for what is done for root of containers: root itself has no bounds.
pub(crate) const THEIR_ROOT: u32 = u32::MAX - 1;
/// What it hears that asks for what root of the node may.
pub(crate) const NOT_THE_NODES: &str = "you are root of a container, and not of the node; ask outside of it, or in the container of the node's collector";

/// From asm-generic/socket.h, as on x86-64 and ARM: of Linux 6.5 and later.
const SO_PEERPIDFD: libc::c_int = 77;

/// The containers around a process, by their names; `None` of one that is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Containers(Option<BTreeSet<String>>);

impl Containers {
    /// Around the process that has connected, which had the number `pid` then.
    pub(crate) fn around(stream: impl AsFd, pid: Option<u32>) -> Containers {
        let pid = pid.filter(|pid| *pid > 0);
        let found = pid.and_then(|pid| names(pid).or_else(|| hides_processes().then(BTreeSet::new)));
        let names = found.filter(|_| is_there_still(stream));
        Containers(names)
    }

    /// Whether process `pid` is in all of them. Not where that cannot be found out.
    pub(crate) fn have(&self, pid: u32) -> bool {
        self.0.as_ref().zip(names(pid)).is_some_and(|(names, found)| names.is_subset(&found))
    }
}

/// Whether root at the other end, as process `pid`, is in no container that we are not in.
pub(crate) fn is_the_nodes_root(stream: impl AsFd, pid: Option<u32>) -> bool {
    Containers::around(stream, pid).have(std::process::id())
}

/// Where /proc is mounted with hidepid, which no container can bring about, the node's service sees its own processes alone.
fn hides_processes() -> bool {
    names(1).is_none()
}

fn names(pid: u32) -> Option<BTreeSet<String>> {
    Some(in_groups(&procfs::text(pid, "cgroup")?))
}

/// In the lines of `/proc/PID/cgroup`.
fn in_groups(lines: &str) -> BTreeSet<String> {
    let parts = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/'));
    let name = |part| id_in(part).or_else(|| is_named(part).then_some(part));
    parts.filter_map(name).map(str::to_owned).collect()
}

/// Of those managers that give their containers no number of 64 digits.
fn is_named(part: &str) -> bool {
    let is_machine = part.starts_with("machine-") && part.ends_with(".scope");
    is_machine || part.starts_with("lxc.payload") || part.starts_with("systemd-nspawn@")
}

/// The number of the container that a part of a group's path names, as in "cri-containerd-0123….scope".
pub(crate) fn id_in(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let id = part.rsplit(['-', ':']).next().unwrap_or(part);
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Whether the process that has connected has not ended: else its number may be another's by now, and the connection that of who it
/// was left to.
fn is_there_still(stream: impl AsFd) -> bool {
    match connected(stream) {
        Ok(Some(process)) => {
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
        }
        // An older kernel does not say.
        Ok(None) => true,
        Err(_) => false,
    }
}

/// The process that has connected, where the kernel can name it otherwise than by its number.
fn connected(stream: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let (mut found, mut length): (libc::c_int, _) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
    let socket = stream.as_fd().as_raw_fd();
    // SAFETY: the value is this function's own, and of the length that is given.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut found).cast(), &raw mut length)
    };
    match (result, io::Error::last_os_error()) {
        // SAFETY: the kernel has made this descriptor for the call above, and nobody else has it.
        (0, _) => Ok(Some(unsafe { OwnedFd::from_raw_fd(found) })),
        (_, error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        (_, error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    fn in_group(path: &str) -> Vec<String> {
        in_groups(&format!("1:name=systemd:/\n0::{path}\n")).into_iter().collect()
    }

    #[test]
    fn containers_are_known_by_their_groups() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/kubepods.slice/kubepods-pod8f6a.slice/cri-containerd-{id}.scope"),
            format!("/../../kubepods-pod8f6a.slice/crio-{id}.scope/inner"),
            format!("/kubepods/burstable/pod8f6a/{id}"),
            format!("/system.slice/containerd.service/kubepods-pod8f6a.slice:cri-containerd:{id}"),
            format!("/machine.slice/libpod-{id}.scope/container"),
        ] {
            assert_eq!(in_group(&path), [id.as_str()], "{path}");
        }
        for (path, named) in [
            ("/lxc.payload.web/init.scope", "lxc.payload.web"),
            ("/machine.slice/machine-web.scope/payload", "machine-web.scope"),
            ("/machine.slice/systemd-nspawn@web.service/payload", "systemd-nspawn@web.service"),
        ] {
            assert_eq!(in_group(path), [named]);
        }
        for of_host in [
            "/",
            "/system.slice/machine-learning.service",
            "/user.slice/user-0.slice/session-3.scope",
            "/system.slice/stallscope.service",
        ] {
            assert!(in_group(of_host).is_empty(), "{of_host}");
        }
    }

    #[test]
    fn root_of_a_container_is_around_what_is_in_it_alone() {
        let own = std::process::id();
        let around = |names: &[&str]| Containers(Some(names.iter().map(|name| (*name).to_owned()).collect()));
        assert!(around(&[]).have(own));
        assert!(!around(&["machine-web.scope"]).have(own));
        assert!(!Containers(None).have(own), "who is gone");
        let mut ended = Command::new("true").spawn().unwrap();
        let pid = ended.id();
        ended.wait().unwrap();
        assert!(!around(&[]).have(pid), "what is gone");
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_the_nodes_root(&ours, Some(own)));
        assert!(![None, Some(0), Some(pid)].into_iter().any(|pid| is_the_nodes_root(&ours, pid)));
    }

    #[test]
    fn a_connection_that_was_left_to_somebody_is_not_that_of_the_next_process_of_the_number() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        // A child that outlives it has the connection.
        let script = "import os, socket, sys\ns = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\nif os.fork(): os._exit(0)\nsys.stdin.read()";
        let mut one =
            Command::new("python3").args(["-c", script]).arg(&socket).stdin(Stdio::piped()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        let _stays_open = one.stdin.take();
        one.wait().unwrap();
        let (known, _other) = UnixStream::pair().unwrap();
        if connected(known).unwrap().is_none() {
            eprintln!("SKIPPED: the kernel names who has connected from Linux 6.5 on");
            return;
        }
        // As if its number were ours by now.
        assert!(!is_the_nodes_root(&stream, Some(std::process::id())));
    }
}
