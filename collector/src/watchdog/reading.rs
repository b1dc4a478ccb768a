//! Who reads the Python stack of a process that hangs. Its memory is foreign, and what takes it apart is much code.
//!
//! Yama lets a process be read by those alone that it descends from. So this process reads what it has launched, by a thread, and
//! only where it may do nothing that the other one may not. All else is for a short-lived process that is the job's user: root
//! reads no memory but of what it launched as root.

use super::stack;
use crate::procfs::{self, Opened};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, setrlimit};
use stallscope_model::PythonFrame;
use std::io::{Read, Write};
use std::panic::catch_unwind;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// The verb by which this program is such a process (src/python_stack.rs).
const VERB: &str = "read-python-stack";
/// What reads in this process: nothing that goes wrong there is for the screen.
const THREAD: &str = "python-stack";

/// Of all ranks' stacks. One that is in a file system that hangs keeps its place.
const AT_ONCE: usize = 4;
/// For how long a process may be read.
const ONE: Duration = Duration::from_secs(5);
/// For how long anything is waited for.
const ALL_NS: u64 = 15_000_000_000;
/// What the process that reads may take.
const MEMORY_BYTES: u64 = 512 << 20;
const CPU_SECONDS: u64 = 5;
/// More is no stack: 64 frames of 420 characters, each of which JSON may write with six.
const ANSWER_BYTES: u64 = 256 << 10;
const MOST_ANCESTORS: usize = 1000;

/// Of which process a stack is wanted.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// "worker 3 (pid 812)"
    pub(super) name: String,
    pub(super) pid: u32,
    /// Whatever it is in: something outside of the job holds it up, or there is nobody else to look at.
    pub(super) in_any_case: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    pub(super) name: String,
    pub(super) frames: Vec<PythonFrame>,
}

/// Threads that read; each holds the reference that it counts by.
#[derive(Clone, Debug, Default)]
pub(super) struct Readers(Arc<()>);

/// A look that is under way.
#[derive(Debug)]
pub(super) struct Reading {
    answer: Receiver<Option<Stack>>,
    begun_ns: u64,
}

impl Readers {
    pub(super) fn has_place(&self) -> bool {
        Arc::strong_count(&self.0) <= AT_ONCE
    }

    /// Looks for the first of these processes that may be read, and is in the midst of a batch or of interest in any case.
    pub(super) fn start(&self, candidates: Vec<Candidate>, uid: u32, now_ns: u64) -> Option<Reading> {
        keep_panics_quiet();
        let (send, answer) = mpsc::channel();
        let counted = self.clone();
        let looks = move || {
            let _counted = counted;
            let found = candidates.into_iter().find_map(|candidate| {
                let frames = frames_of(candidate.pid, uid)?;
                let counts = candidate.in_any_case || stack::makes_a_batch(&frames);
                counts.then_some(Stack { name: candidate.name, frames })
            });
            // Nobody listens any more where it took too long.
            let _ = send.send(found);
        };
        std::thread::Builder::new().name(THREAD.into()).spawn(looks).ok()?;
        Some(Reading { answer, begun_ns: now_ns })
    }
}

impl Reading {
    /// `None`: not yet.
    pub(super) fn result(&self, now_ns: u64) -> Option<Option<Stack>> {
        match self.answer.try_recv() {
            Ok(found) => Some(found),
            Err(mpsc::TryRecvError::Empty) if now_ns.saturating_sub(self.begun_ns) < ALL_NS => None,
            Err(_) => Some(None),
        }
    }
}

/// Of a Python process of user `uid` that this user may look into, before and after.
fn frames_of(pid: u32, uid: u32) -> Option<Vec<PythonFrame>> {
    let process = Opened::of(pid, uid)?;
    if !process.is_open_to(uid) || !is_python(&process) {
        return None;
    }
    let frames = match may_be_read_here(&process, pid, uid) {
        true => catch_unwind(|| stack::of_main_thread(pid)).ok()?,
        false => read_by_its_user(pid, procfs::start_ticks(pid)?, uid),
    };
    // It may have executed a set-uid program meanwhile, or ended and left its number to another one.
    frames.filter(|_| process.is_open_to(uid))
}

/// Nothing else is taken apart.
fn is_python(process: &Opened) -> bool {
    let program = process.link("exe").unwrap_or_default().to_string_lossy().into_owned();
    program.rsplit('/').next().is_some_and(|name| name.contains("python"))
        || process.text("maps").is_some_and(|maps| maps.contains("/libpython"))
}

/// It descends from this process, and would gain nothing by leading this process astray: it is the same user's, in the same user
/// namespace, and has all capabilities that this process has.
fn may_be_read_here(process: &Opened, pid: u32, uid: u32) -> bool {
    let own = std::process::id();
    let capabilities = |status: Option<String>, name: &str| {
        let status = status?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let own_ones = capabilities(procfs::text(own, "status"), "CapEff:");
    let has_ours = own_ones
        .zip(capabilities(process.text("status"), "CapPrm:"))
        .is_some_and(|(ours, theirs)| ours & !theirs == 0);
    let namespace = std::fs::read_link("/proc/self/ns/user").ok();
    let is_here = namespace.is_some_and(|own| process.link("ns/user").is_some_and(|other| other == own));
    rustix::process::geteuid().as_raw() == uid && has_ours && is_here && descends_from(pid, own)
}

fn descends_from(pid: u32, ancestor: u32) -> bool {
    let above = std::iter::successors(procfs::parent(pid), |pid| procfs::parent(*pid));
    above.take(MOST_ANCESTORS).any(|one| one == ancestor)
}

/// By a process that becomes its user.
fn read_by_its_user(pid: u32, start_ticks: u64, uid: u32) -> Option<Vec<PythonFrame>> {
    let mut reader = Command::new("/proc/self/exe")
        .arg(VERB)
        .args([u64::from(pid), start_ticks, u64::from(uid)].map(|number| number.to_string()))
        // Nothing of root's or of the caller's surroundings is for a process of the job's user.
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let answer = reader.stdout.take().and_then(answer);
    let _ = reader.kill();
    // Where it is in a file system that hangs it ends with that, and so does this thread.
    let _ = reader.wait();
    frames_in(&answer?)
}

/// All that it says in time.
fn answer(mut says: ChildStdout) -> Option<Vec<u8>> {
    let until = Instant::now() + ONE;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        let left = until.checked_duration_since(Instant::now())?;
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&says, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        match says.read(&mut part).ok()? {
            0 => return Some(answer),
            read => answer.extend_from_slice(&part[..read]),
        }
        if answer.len() as u64 > ANSWER_BYTES {
            return None;
        }
    }
}

/// What a process may have been led to say that has read foreign memory.
fn frames_in(answer: &[u8]) -> Option<Vec<PythonFrame>> {
    stack::kept(serde_json::from_slice::<Vec<PythonFrame>>(answer).ok()?)
}

/// In a process of its own, which has one thread: becomes the user of process `pid`, which began `start_ticks` after the boot and
/// has to be `uid`'s, and prints the stack of its main thread. `false`: there is none to be had.
pub fn print_python_stack(pid: u32, start_ticks: u64, uid: u32) -> bool {
    let limits = [
        (Resource::As, MEMORY_BYTES),
        (Resource::Cpu, CPU_SECONDS),
        // What it has read is for nobody else.
        (Resource::Core, 0),
    ];
    let is_limited = limits.into_iter().all(|(resource, most)| {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).is_ok()
    });
    let becomes = stallscope_hold::become_user_of(pid, start_ticks, uid, 0, stallscope_hold::Files::Own);
    if !is_limited || becomes.is_err() {
        return false;
    }
    let frames = stack::of_main_thread(pid).filter(|_| procfs::start_ticks(pid) == Some(start_ticks));
    let written = frames.and_then(|frames| serde_json::to_vec(&frames).ok());
    written.is_some_and(|json| std::io::stdout().write_all(&json).is_ok())
}

/// A panic over what is in foreign memory ends the look and nothing else, and nobody has to read of it.
fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() != Some(THREAD) {
                before(panic);
            }
        }));
    });
}

#[cfg(fuzzing)]
pub(super) fn read_any(text: &str) {
    if let Some(frames) = frames_in(text.as_bytes()) {
        assert!(!stack::in_words(&frames).contains(char::is_control));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;
    use std::path::Path;
    use std::process::Child;

    const SLEEPS: &str = "\
import time

def load_sample():
    time.sleep(1000)

load_sample()
";

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A Python whose script has this name.
    fn python(folder: &Path, name: &str) -> Killed {
        let script = folder.join(name);
        std::fs::create_dir_all(script.parent().unwrap()).unwrap();
        std::fs::write(&script, SLEEPS).unwrap();
        Killed(Command::new("python3").arg(script).stdin(Stdio::null()).spawn().unwrap())
    }

    fn candidate(process: &Killed, in_any_case: bool) -> Candidate {
        let pid = process.0.id();
        Candidate { name: format!("process {pid}"), pid, in_any_case }
    }

    fn read(candidates: &[Candidate]) -> Option<Stack> {
        let reading = Readers::default().start(candidates.to_vec(), own_uid(), 0).unwrap();
        loop {
            match reading.result(0) {
                Some(found) => return found,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Until `process` is where it stays.
    fn settled(process: &Killed) {
        for _ in 0..500 {
            let stack = read(&[candidate(process, true)]);
            if stack.is_some_and(|stack| stack.frames[0].function == "load_sample") {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{:?}", read(&[candidate(process, true)]));
    }

    #[test]
    fn of_what_was_launched_the_line_and_function_are_named_and_it_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let sleeps = python(dir.path(), "load.py");
        settled(&sleeps);
        let stack = read(&[candidate(&sleeps, true)]).unwrap();
        let script = dir.path().join("load.py").display().to_string();
        let frame =
            |line, function: &str| PythonFrame { file: script.clone(), line, function: function.into() };
        assert_eq!(stack.frames, [frame(4, "load_sample"), frame(6, "<module>")]);
        let status = procfs::text(sleeps.0.id(), "status").unwrap();
        assert!(status.contains("State:\tS") && status.contains("TracerPid:\t0"), "{status}");
    }

    #[test]
    fn of_several_the_one_in_the_midst_of_a_batch_is_shown_else_the_trainer() {
        let dir = tempfile::tempdir().unwrap();
        let idle = python(dir.path(), "idle.py");
        let fetches = python(dir.path(), "torch/utils/data/_utils/fetch.py");
        let trainer = python(dir.path(), "train.py");
        [&idle, &fetches, &trainer].into_iter().for_each(settled);
        let [idle, fetches] = [&idle, &fetches].map(|worker| candidate(worker, false));
        let trainer = candidate(&trainer, true);
        let shown = |all: &[&Candidate]| read(&all.iter().copied().cloned().collect::<Vec<_>>());
        let found = shown(&[&idle, &fetches, &trainer]).unwrap();
        assert_eq!(found.name, fetches.name);
        assert_eq!(shown(&[&idle, &trainer]).unwrap().name, trainer.name);
        assert_eq!(shown(&[&idle]), None);
    }

    #[test]
    fn what_is_no_python_or_another_users_is_not_read() {
        let sleeps = Killed(Command::new("sleep").arg("1000").spawn().unwrap());
        assert_eq!(read(&[candidate(&sleeps, true)]), None);
        let dir = tempfile::tempdir().unwrap();
        let python = python(dir.path(), "load.py");
        settled(&python);
        assert_eq!(frames_of(python.0.id(), own_uid() + 1), None);
        drop(python);
        assert_eq!(frames_of(u32::MAX, own_uid()), None);
    }

    #[test]
    fn what_did_not_come_from_here_is_not_read_here() {
        let dir = tempfile::tempdir().unwrap();
        let python = python(dir.path(), "load.py");
        let opened = |pid: u32| Opened::of(pid, own_uid()).unwrap();
        let pid = python.0.id();
        assert!(may_be_read_here(&opened(pid), pid, own_uid()));
        let own = std::process::id();
        assert!(!may_be_read_here(&opened(own), own, own_uid()), "it does not descend from itself");
        if own_uid() == 0 {
            // It has none of root's capabilities, and could win them here.
            let weak = crate::procfs::staged::Staged::new(|| {
                let header = [0x2008_0522_u32, 0];
                let none = [0_u32; 6];
                // SAFETY: a system call, in the child alone, on numbers that outlive it.
                unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
            });
            assert!(!may_be_read_here(&opened(weak.0), weak.0, 0));
        }
    }

    #[test]
    fn a_process_that_reads_may_answer_anything() {
        let json = br#"[{"file": "/a\u001b[2J.py", "line": 4, "function": "get"}]"#;
        assert_eq!(frames_in(json).unwrap()[0].file, "/a?[2J.py");
        for answer in [&b""[..], b"[]", b"[{}]", b"[[[[", b"{\"file\": 1}", b"\xff"] {
            assert_eq!(frames_in(answer), None);
        }
    }
}
