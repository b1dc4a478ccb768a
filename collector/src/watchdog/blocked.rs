//! What the main thread of a process is blocked in at this moment, from /proc.

use crate::files::mounted_at;
use crate::foreign_text::short;
use crate::procfs::Opened;
use std::os::unix::fs::FileExt;

/// Of a path that is shown.
const PATH: usize = 300;
/// Functions of the kernel's stack that are shown, from the innermost on.
const FRAMES: usize = 6;

/// What the first argument of a call names, or the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Descriptor,
    Path(usize),
    Nothing,
}

/// Calls in which a process of a training job may stay, by their numbers on x86-64.
const CALLS: [(u64, &str, Names); 39] = [
    (0, "read", Names::Descriptor),
    (1, "write", Names::Descriptor),
    (2, "open", Names::Path(0)),
    (4, "stat", Names::Path(0)),
    (5, "fstat", Names::Descriptor),
    (6, "lstat", Names::Path(0)),
    (7, "poll", Names::Nothing),
    (16, "ioctl", Names::Descriptor),
    (17, "pread64", Names::Descriptor),
    (18, "pwrite64", Names::Descriptor),
    (19, "readv", Names::Descriptor),
    (20, "writev", Names::Descriptor),
    (21, "access", Names::Path(0)),
    (23, "select", Names::Nothing),
    (34, "pause", Names::Nothing),
    (35, "nanosleep", Names::Nothing),
    (42, "connect", Names::Descriptor),
    (44, "sendto", Names::Descriptor),
    (45, "recvfrom", Names::Descriptor),
    (46, "sendmsg", Names::Descriptor),
    (47, "recvmsg", Names::Descriptor),
    (61, "wait4", Names::Nothing),
    (72, "fcntl", Names::Descriptor),
    (73, "flock", Names::Descriptor),
    (74, "fsync", Names::Descriptor),
    (75, "fdatasync", Names::Descriptor),
    (89, "readlink", Names::Path(0)),
    (202, "futex", Names::Nothing),
    (217, "getdents64", Names::Descriptor),
    (230, "clock_nanosleep", Names::Nothing),
    (232, "epoll_wait", Names::Nothing),
    (257, "openat", Names::Path(1)),
    (262, "newfstatat", Names::Path(1)),
    (270, "pselect6", Names::Nothing),
    (271, "ppoll", Names::Nothing),
    (281, "epoll_pwait", Names::Nothing),
    (295, "preadv", Names::Descriptor),
    (332, "statx", Names::Path(1)),
    (437, "openat2", Names::Path(1)),
];

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doing {
    /// "is blocked in read of /data/a.jpg (nfs4 at /data)"
    pub(super) words: String,
    /// The mount, file or socket that it waits for.
    pub(super) at: Option<String>,
    held_up: bool,
}

impl Doing {
    /// By something outside of the job, or by itself: not by another process of its loader.
    pub(super) fn is_held_up(&self) -> bool {
        self.held_up
    }

    fn idle(words: String) -> Doing {
        Doing { words, at: None, held_up: false }
    }
}

/// `None` where the process is gone or another user's than `uid`. Root may look into all of them, and shows no more of one than
/// its user may see.
pub(super) fn doing(pid: u32, uid: u32) -> Option<Doing> {
    let process = Opened::of(pid, uid)?;
    let state = state_of(&process)?;
    let within = process.is_open_to(uid).then(|| looked_into(&process, &state));
    // It may have executed a set-uid program meanwhile, so that what was read is of that.
    Some(within.filter(|_| process.is_open_to(uid)).unwrap_or(state))
}

/// What all users may know of it.
fn state_of(process: &Opened) -> Option<Doing> {
    let held_up = |words: &str| Doing { words: words.to_owned(), at: None, held_up: true };
    Some(match state_in(&process.text("stat")?)? {
        'R' => held_up("runs on a CPU"),
        'T' | 't' => held_up("is stopped, by SIGSTOP or a debugger"),
        'Z' | 'X' => held_up("has ended"),
        _ => Doing::idle("sleeps".to_owned()),
    })
}

fn looked_into(process: &Opened, state: &Doing) -> Doing {
    let mut doing = if state.held_up { state.clone() } else { asleep_in(process) };
    if let Some(stack) = kernel_stack(process).filter(|_| doing.held_up) {
        doing.words.push_str(&format!("; in the kernel: {stack}"));
    }
    doing
}

fn asleep_in(process: &Opened) -> Doing {
    let held_up = |words: &str| Doing { words: words.to_owned(), at: None, held_up: true };
    let syscall = process.text("syscall").unwrap_or_default();
    match call_in(&syscall) {
        Call::Running => held_up("runs on a CPU"),
        Call::Fault => held_up("is blocked in a page fault"),
        Call::Unseen => {
            let wchan = process.text("wchan").filter(|wchan| !matches!(wchan.as_str(), "" | "0"));
            Doing::idle(
                wchan.map_or_else(|| "sleeps".to_owned(), |wchan| format!("sleeps in {}", short(&wchan, 60))),
            )
        }
        Call::Known(name, Names::Nothing, _) => Doing::idle(format!("waits in {name}")),
        Call::Known(name, Names::Path(at), arguments) => match path_at(process, arguments[at]) {
            Some(path) => {
                Doing { words: format!("is blocked in {name} of {path}"), at: Some(path), held_up: true }
            }
            None => held_up(&format!("is blocked in {name}")),
        },
        Call::Known(name, Names::Descriptor, arguments) => of_descriptor(process, name, arguments[0]),
        Call::Other(number) => Doing::idle(format!("waits in system call {number}")),
    }
}

fn of_descriptor(process: &Opened, name: &str, descriptor: u64) -> Doing {
    let Some(link) = process.link(&format!("fd/{descriptor}")) else {
        return Doing::idle(format!("waits in {name}"));
    };
    let link = short(&link.to_string_lossy(), PATH);
    if link.starts_with('/') {
        let mount = mounted_at(process, descriptor);
        let on = mount.as_ref().map_or(String::new(), |(fs_type, point)| format!(" ({fs_type} at {point})"));
        let at = mount.map(|(_, point)| point).filter(|point| point != "/");
        return Doing {
            words: format!("is blocked in {name} of {link}{on}"),
            at: Some(at.unwrap_or(link)),
            held_up: true,
        };
    }
    // Loaders hand batches and indices over by pipes.
    let what = link.split(':').next().unwrap_or_default();
    match what {
        "socket" => Doing {
            words: format!("is blocked in {name} of a socket"),
            at: Some("what is at the other end of that socket".to_owned()),
            held_up: true,
        },
        _ => Doing::idle(format!("waits in {name} of a {what}")),
    }
}

fn state_in(stat: &str) -> Option<char> {
    // The second field, the program's name, may hold anything.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[derive(Debug, PartialEq, Eq)]
enum Call {
    Running,
    Fault,
    /// Its user may not be looked at, or the kernel has no such file.
    Unseen,
    Known(&'static str, Names, [u64; 3]),
    Other(u64),
}

/// `0 0x3 0x7f… … SP PC`, `-1 SP PC` outside of a call, or `running`: see proc_pid_syscall(5).
fn call_in(syscall: &str) -> Call {
    let mut words = syscall.split_ascii_whitespace();
    let number = match words.next() {
        None => return Call::Unseen,
        Some("running") => return Call::Running,
        Some("-1") => return Call::Fault,
        Some(number) => number,
    };
    let Ok(number) = number.parse() else { return Call::Unseen };
    let Some((_, name, names)) = CALLS.iter().find(|(known, ..)| *known == number) else {
        return Call::Other(number);
    };
    let mut arguments = [0; 3];
    for (argument, word) in arguments.iter_mut().zip(words) {
        *argument = u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0);
    }
    Call::Known(name, *names, arguments)
}

/// The text at an address of a process: what it gave to the call.
fn path_at(process: &Opened, address: u64) -> Option<String> {
    let memory = process.open("mem")?;
    let mut bytes = [0; PATH];
    let read = memory.read_at(&mut bytes, address).ok()?;
    let text = bytes.get(..read)?.split(|byte| *byte == 0).next()?;
    (!text.is_empty()).then(|| short(&String::from_utf8_lossy(text), PATH))
}

/// The innermost functions, where the kernel shows them: to root alone.
fn kernel_stack(process: &Opened) -> Option<String> {
    let stack = process.text("stack")?;
    let functions = stack.lines().filter_map(|line| {
        let (_, function) = line.split_once("] ")?;
        Some(function.split('+').next()?.to_owned())
    });
    let shown: Vec<String> = functions.take(FRAMES).collect();
    (!shown.is_empty()).then(|| shown.join(" < "))
}

#[cfg(fuzzing)]
pub(super) fn read_any(text: &str) {
    let _ = call_in(text);
    let _ = state_in(text);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use proptest::prelude::*;
    use std::process::{Child, Command, Stdio};

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn seen(pid: u32) -> Option<Doing> {
        doing(pid, rustix::process::geteuid().as_raw())
    }

    fn until(pid: u32, wanted: &str) -> Doing {
        for _ in 0..500 {
            match seen(pid) {
                Some(doing) if doing.words.contains(wanted) => return doing,
                _ => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
        panic!("{:?} and not {wanted}", seen(pid));
    }

    fn child(program: &str, arguments: &[&str], stdin: Stdio) -> Killed {
        Killed(Command::new(program).args(arguments).stdin(stdin).stdout(Stdio::null()).spawn().unwrap())
    }

    #[test]
    fn a_call_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // Nobody opens it for writing.
        let path = fifo.to_str().unwrap();
        let opens = child("cat", &[path], Stdio::null());
        let seen = until(opens.0.id(), &format!("is blocked in openat of {path}"));
        assert!(seen.is_held_up() && seen.at.as_deref() == Some(path), "{seen:?}");
        // It is open for writing here, and nobody writes.
        let both = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let reads = child("cat", &[], both.try_clone().unwrap().into());
        let seen = until(reads.0.id(), &format!("is blocked in read of {path} ("));
        assert!(seen.is_held_up(), "{seen:?}");
    }

    #[test]
    fn one_that_waits_for_another_process_is_idle() {
        let waits = child("cat", &[], Stdio::piped());
        assert!(!until(waits.0.id(), "waits in read of a pipe").is_held_up());
        let sleeps = child("sleep", &["1000"], Stdio::null());
        assert!(!until(sleeps.0.id(), "waits in clock_nanosleep").is_held_up());
    }

    #[test]
    fn one_that_is_stopped_or_ended_is_named_so() {
        let child = child("sleep", &["1000"], Stdio::null());
        let raw = rustix::process::Pid::from_raw(child.0.id() as i32).unwrap();
        rustix::process::kill_process(raw, rustix::process::Signal::STOP).unwrap();
        assert!(until(child.0.id(), "is stopped").is_held_up());
        rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
        assert!(until(child.0.id(), "has ended").is_held_up());
    }

    #[test]
    fn of_one_that_its_user_may_not_look_into_root_shows_no_more() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // A change of the user takes the right to look into it from that user.
        let child = crate::procfs::staged::Staged::new(|| {
            // SAFETY: a system call, in the child alone.
            unsafe { libc::syscall(libc::SYS_setresuid, 65_001, 65_001, 65_001) };
        });
        let seen = doing(child.0, 65_001).expect("it is that user's");
        assert_eq!(seen.words, "is stopped, by SIGSTOP or a debugger");
        assert_eq!(doing(child.0, 0), None);
    }

    #[test]
    fn a_process_that_is_gone_does_nothing() {
        assert_eq!(seen(u32::MAX), None);
    }

    #[test]
    fn what_the_kernel_writes_of_calls_is_read() {
        let known = call_in("17 0x5 0x7f00 0x1000 0x0 0x0 0x0 0x7ffc 0x7f12\n");
        assert_eq!(known, Call::Known("pread64", Names::Descriptor, [5, 0x7f00, 0x1000]));
        assert_eq!(call_in("running\n"), Call::Running);
        assert_eq!(call_in("-1 0x7ffc 0x7f12\n"), Call::Fault);
        assert_eq!(call_in("999 0x0\n"), Call::Other(999));
        assert_eq!(call_in(""), Call::Unseen);
        assert!(CALLS.is_sorted_by_key(|(number, ..)| *number));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "\\PC{0,80}") {
            let _ = call_in(&text);
            let _ = state_in(&text);
        }
    }
}
