//! What the tests that ask the kernel share: a workload to follow, and its records.

#[path = "../../../tests/support/skipped.rs"]
pub(crate) mod skipped;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use stallscope_abi::kernel::{BLOCKED_KINDS, Blocked, Record, Slice, TaskExit, TaskNew, Times};
use stallscope_ebpf::{Error, Kernel, Options};

/// The kernel side; `None`, and the test is counted as skipped, where this machine or user has none.
pub(crate) fn kernel(options: &Options) -> Option<Kernel> {
    match Kernel::load(options) {
        Ok(kernel) => Some(kernel),
        Err(error @ (Error::NoPrivilege(_) | Error::NoBtf { .. } | Error::Architecture(_))) => {
            skipped::skipped(format_args!("the kernel programs: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A file for a workload, on the disk of the target folder.
pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The example `workload`, which waits until it may begin.
pub(crate) struct Workload(Child);

impl Workload {
    pub(crate) fn spawn(arguments: &[&str]) -> Workload {
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        program.push("examples/workload");
        Workload::start(Command::new(&program).args(arguments))
    }

    /// The same as user `uid`, for whom the program is copied to where they may execute it.
    pub(crate) fn spawn_as(uid: u32, arguments: &[&str]) -> Workload {
        Workload::spawn_copy(uid, arguments, |_| ())
    }

    /// The same of a copy that `prepare` has given rights of its own.
    pub(crate) fn spawn_copy(uid: u32, arguments: &[&str], prepare: impl FnOnce(&Path)) -> Workload {
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        program.push("examples/workload");
        let copy = std::env::temp_dir().join(format!("workload-{}-{uid}", std::process::id()));
        std::fs::copy(program, &copy).unwrap();
        prepare(&copy);
        let workload =
            Workload::start(Command::new(&copy).args(arguments).current_dir("/").uid(uid).gid(uid));
        std::fs::remove_file(copy).unwrap();
        workload
    }

    fn start(command: &mut Command) -> Workload {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Workload(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn begin(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn wait(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

/// What the kernel saw of a workload from its watching to its end.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) tasks: Vec<TaskNew>,
    pub(crate) records: Vec<Record>,
}

impl Seen {
    /// Watches `workload`, lets it begin, drains until its process has left, and stops watching.
    pub(crate) fn of(kernel: &mut Kernel, mut workload: Workload) -> Seen {
        let pid = workload.pid();
        let mut seen = Seen { tasks: kernel.watch(pid).unwrap(), ..Seen::default() };
        workload.begin();
        seen.drain_until_exit(kernel, pid);
        workload.wait();
        kernel.unwatch(pid).unwrap();
        seen
    }

    /// Drains until the process `pid` has left.
    pub(crate) fn drain_until_exit(&mut self, kernel: &mut Kernel, pid: u32) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !self.exits().any(|exit| exit.header.tid == pid) {
            assert!(Instant::now() < patience, "no record of the end of {pid}");
            sleep(Duration::from_millis(10));
            kernel.drain(|bytes, _| self.records.push(Record::parse(bytes).unwrap())).unwrap();
        }
    }

    pub(crate) fn slices(&self, tid: u32) -> impl Iterator<Item = &Slice> {
        self.records.iter().filter_map(move |record| match record {
            Record::Slice(slice) if slice.header.tid == tid => Some(slice),
            _ => None,
        })
    }

    pub(crate) fn exits(&self) -> impl Iterator<Item = &TaskExit> {
        self.records.iter().filter_map(|record| match record {
            Record::TaskExit(exit) => Some(exit),
            _ => None,
        })
    }

    pub(crate) fn exit(&self, tid: u32) -> &TaskExit {
        self.exits().find(|exit| exit.header.tid == tid).unwrap()
    }

    pub(crate) fn joined(&self) -> impl Iterator<Item = &TaskNew> {
        self.records.iter().filter_map(|record| match record {
            Record::TaskNew(task) => Some(task),
            _ => None,
        })
    }

    /// Asserts that the slices of `tid` cover its life since `start_ns` without a gap, each exactly, and add up
    /// to what its end says.
    pub(crate) fn assert_complete(&self, tid: u32, start_ns: u64) {
        let mut covered_ns = start_ns;
        let mut sum = Times::default();
        for slice in self.slices(tid) {
            assert_eq!(slice.start_ns, covered_ns, "a gap before {slice:?}");
            assert_eq!(
                length_ns(&slice.times),
                slice.header.time_ns - slice.start_ns,
                "not exact: {slice:?}"
            );
            assert!(slice.times.cpu_read_ns <= slice.times.cpu_ns, "{slice:?}");
            covered_ns = slice.header.time_ns;
            add(&mut sum, &slice.times);
        }
        let exit = self.exit(tid);
        assert_eq!(covered_ns, exit.header.time_ns);
        assert_eq!(sum, exit.total);
    }
}

/// Everything that times say, added up.
pub(crate) fn length_ns(times: &Times) -> u64 {
    times.cpu_ns + times.runnable_ns + times.blocked_ns.iter().sum::<u64>()
}

/// The kind in which a task was blocked longest.
pub(crate) fn main_kind(times: &Times) -> Blocked {
    Blocked::ALL.into_iter().max_by_key(|&kind| times.blocked_ns[kind as usize]).unwrap()
}

fn add(sum: &mut Times, part: &Times) {
    sum.cpu_ns += part.cpu_ns;
    sum.cpu_read_ns += part.cpu_read_ns;
    sum.runnable_ns += part.runnable_ns;
    for kind in 0..BLOCKED_KINDS {
        sum.blocked_ns[kind] += part.blocked_ns[kind];
    }
}
