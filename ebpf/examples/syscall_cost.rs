//! What a system call costs more while the kernel programs are attached: on a process that is observed, and on
//! one that has nothing to do with it.
//!
//! `sudo cargo run --release -p stallscope-ebpf --example syscall_cost [ROUNDS]` prints JSON. One process makes
//! the calls; the cases take turns in every round, and each figure is the median of its differences to the bare
//! case of the same round. CPU time, so that neighbours matter little. Fails when a bar does not hold.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use stallscope_ebpf::{Kernel, Options};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const GETPPIDS: u64 = 400_000;
const PREADS: u64 = 200_000;
const ROUND_TRIPS: u64 = 20_000;
const WAITS: u64 = 2_000;

const METRICS: [&str; 4] = [
    "getppid",
    "pread of 4 KiB, cached",
    "pipe round trip, two switches",
    "pread of 4 KiB that waits for the disk",
];

struct Case {
    name: &'static str,
    watched: Watched,
    syscalls: bool,
    /// Most that a call may cost more, by metric.
    bars_ns: [Option<f64>; METRICS.len()],
}

#[derive(PartialEq)]
enum Watched {
    Nobody,
    Another,
    TheCaller,
}

const CASES: [Case; 5] = [
    Case {
        name: "nothing attached",
        watched: Watched::Nobody,
        syscalls: false,
        bars_ns: [None; METRICS.len()],
    },
    Case {
        name: "default, unrelated process",
        watched: Watched::Another,
        syscalls: false,
        bars_ns: [Some(10.0), Some(10.0), None, None],
    },
    Case {
        name: "default, observed process",
        watched: Watched::TheCaller,
        syscalls: false,
        bars_ns: [None; METRICS.len()],
    },
    Case {
        name: "with system call hooks, unrelated process",
        watched: Watched::Another,
        syscalls: true,
        bars_ns: [Some(160.0), Some(160.0), None, None],
    },
    Case {
        name: "with system call hooks, observed process",
        watched: Watched::TheCaller,
        syscalls: true,
        bars_ns: [None, Some(300.0), None, None],
    },
];

fn main() -> Result<ExitCode> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("caller") {
        return caller().map(|()| ExitCode::SUCCESS);
    }
    let rounds: usize = argument.map_or(Ok(9), |n| n.parse())?;
    let mut kernel = Kernel::load(&Options::default())?;
    let mut caller = Caller::spawn()?;
    let other = Caller::spawn()?;
    caller.measure()?;

    let mut measured = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let mut round = [[0.0; METRICS.len()]; CASES.len()];
        for (case, ns) in CASES.iter().zip(&mut round) {
            let pid = if case.watched == Watched::TheCaller { caller.pid() } else { other.pid() };
            if case.watched != Watched::Nobody {
                kernel.set_syscalls(case.syscalls)?;
                kernel.watch(pid)?;
            }
            *ns = caller.measure()?;
            if case.watched != Watched::Nobody {
                kernel.unwatch(pid)?;
            }
            kernel.drain(|_, _| {})?;
        }
        measured.push(round);
    }
    Ok(report(&measured))
}

/// Prints what was measured and tells whether all bars hold.
fn report(rounds: &[[[f64; METRICS.len()]; CASES.len()]]) -> ExitCode {
    let mut rows = Vec::new();
    let mut all_hold = true;
    for (case, metric, unit_name) in
        (0..CASES.len()).flat_map(|case| METRICS.iter().enumerate().map(move |(i, name)| (case, i, name)))
    {
        let absolute = median(rounds.iter().map(|round| round[case][metric]));
        let extra = median(rounds.iter().map(|round| round[case][metric] - round[0][metric]));
        let name = CASES[case].name;
        rows.push(row(name, unit_name, absolute, None));
        if case > 0 {
            let bar = CASES[case].bars_ns[metric];
            all_hold &= bar.is_none_or(|bar| extra <= bar);
            rows.push(row(name, &format!("{unit_name}: extra"), extra, bar));
        }
    }
    let machine =
        format!("{}, {} CPUs", release(), std::thread::available_parallelism().map_or(0, usize::from));
    println!(
        "{{\"name\": \"syscall_cost\", \"machine\": \"{machine}\", \"rows\": [\n{}\n]}}",
        rows.join(",\n")
    );
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn row(case: &str, metric: &str, value: f64, bar: Option<f64>) -> String {
    let (bar, holds) = match bar {
        Some(bar) => (format!("{bar}"), format!("{}", value <= bar)),
        None => ("null".to_owned(), "null".to_owned()),
    };
    format!(
        r#"  {{"case": "{case}", "metric": "{metric}", "value": {value:.1}, "unit": "ns", "bar": {bar}, "holds": {holds}}}"#
    )
}

fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The process that makes the calls.
struct Caller {
    child: Child,
    ask: ChildStdin,
    answer: ChildStdout,
}

impl Caller {
    fn spawn() -> Result<Caller> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("caller")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(ask), Some(answer)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes to the caller".into());
        };
        Ok(Caller { child, ask, answer })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// ns of CPU for each of [`METRICS`].
    fn measure(&mut self) -> Result<[f64; METRICS.len()]> {
        self.ask.write_all(b"!")?;
        let mut answer = [0; 8 * METRICS.len()];
        self.answer.read_exact(&mut answer)?;
        let mut ns = [0.0; METRICS.len()];
        for (ns, bytes) in ns.iter_mut().zip(answer.chunks_exact(8)) {
            *ns = f64::from_ne_bytes(bytes.try_into()?);
        }
        Ok(ns)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn caller() -> Result<()> {
    let path = std::env::temp_dir().join(format!("syscall_cost.{}", std::process::id()));
    std::fs::write(&path, [7; 4096])?;
    let file = File::open(&path)?;
    file.sync_all()?;
    let disk = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path)?;
    std::fs::remove_file(&path)?;
    let (mut there, mut back) = echo()?;
    let mut go = [0];
    #[repr(align(4096))]
    struct Aligned([u8; 4096]);
    while io::stdin().read(&mut go)? == 1 {
        let (mut piece, mut aligned) = ([0; 4096], Aligned([0; 4096]));
        let ns = [
            cost_ns(GETPPIDS, || {
                // SAFETY: takes nothing and cannot fail. (libc may keep no copy of it, unlike of getpid.)
                unsafe { libc::getppid() };
                Ok(())
            })?,
            cost_ns(PREADS, || file.read_exact_at(&mut piece, 0))?,
            cost_ns(ROUND_TRIPS, || {
                there.write_all(b"!")?;
                back.read_exact(&mut [0])
            })?,
            cost_ns(WAITS, || disk.read_exact_at(&mut aligned.0, 0))?,
        ];
        for ns in ns {
            io::stdout().write_all(&ns.to_ne_bytes())?;
        }
        io::stdout().flush()?;
    }
    Ok(())
}

/// A child on the same CPU that sends every byte back. It ends with this process.
fn echo() -> Result<(PipeWriter, PipeReader)> {
    let (mut incoming, there) = io::pipe()?;
    let (back, mut outgoing) = io::pipe()?;
    // SAFETY: the set is initialised by zeroing and lives through the call; this process has one thread when
    // it forks, and the child leaves without unwinding.
    let pid = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        libc::fork()
    };
    match pid {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            drop((there, back));
            let mut byte = [0];
            while incoming.read_exact(&mut byte).is_ok() && outgoing.write_all(&byte).is_ok() {}
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        _ => Ok((there, back)),
    }
}

/// CPU time that one of `count` calls of `work` takes.
fn cost_ns(count: u64, mut work: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let start_ns = cpu_ns();
    for _ in 0..count {
        work()?;
    }
    Ok((cpu_ns() - start_ns) as f64 / count as f64)
}

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
